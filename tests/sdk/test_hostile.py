# SPDX-License-Identifier: Apache-2.0
"""Who may come in, and what a client can cost: many clients, clients that never read, half-open sockets, drops by the thousand."""
import base64
import json
import os
import resource
import socket
import struct
import time
import urllib.error
import urllib.request
import uuid

import pytest

from bus import Bus, node


def handshake(port, path="/", host=None, headers=""):
    """A socket on which the upgrade was asked for, and the status that came back."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = sock.recv(1)
        if not chunk:
            break
        head += chunk
    return sock, int(head.split()[1]) if head else 0


def frame(text, opcode=1):
    data = text.encode() if isinstance(text, str) else text
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data)) if len(data) < 65536 else b"\xff" + struct.pack(">Q", len(data))
    return bytes([0x80 | opcode]) + length + b"\0\0\0\0" + data  # masked with zeros


def call(function_id, data):
    return frame(json.dumps({"type": "invokefunction", "invocation_id": str(uuid.uuid4()), "function_id": function_id, "data": data}))


def metrics(bus, headers=None):
    request = urllib.request.Request(f"http://127.0.0.1:{bus.port}/metrics", headers=headers or {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


def stats(bus):
    return node("out(await (await connect('stats')).trigger({ function_id: 'demo::stats', payload: {} }))", bus.url)


def wait_for(check, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("host, status", [
    ("127.0.0.1:1", 101), ("localhost", 101), ("LocalHost.:80", 101), ("127.9.9.9", 101), ("[::1]:5", 101), ("100.96.0.1:49134", 101),
    ("host.iii.internal", 101), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("[::1", 403), ("10.0.0.1", 403), ("", 403),
])
def test_host_must_name_this_host(bus, host, status):
    sock, found = handshake(bus.port, host=host if host else " ")
    sock.close()
    assert found == status


def test_origin_and_token():
    with Bus(env={"TEST_TOKEN": "s3cret", "TEST_ORIGIN": "https://ok.example"}) as bus:
        for path, headers, status in [
                ("/", "", 401), ("/", "Authorization: Bearer wrong\r\n", 401), ("/", "Authorization: Bearer s3cret\r\n", 101),
                ("/", "Authorization: bearer  s3cret\r\n", 101), ("/", "Authorization: Basic s3cret\r\n", 401), ("/otel", "", 101),
                ("/", "Authorization: Bearer s3cret\r\nOrigin: https://ok.example\r\n", 101),
                ("/", "Authorization: Bearer s3cret\r\nOrigin: https://evil.example\r\n", 403), ("/otel", "Origin: null\r\n", 403),
                ("/metrics", "Authorization: Bearer s3cret\r\n", 404), ("/nothing", "", 404)]:
            sock, found = handshake(bus.port, path, headers=headers)
            sock.close()
            assert found == status, (path, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            metrics(bus)
        assert refused.value.code == 401
        refused.value.close()
        assert metrics(bus, {"Authorization": "Bearer s3cret"})["iii_engine_connections_refused_total"] == 8
        found = node("""
        const client = await connect('token', {}, { headers: { authorization: 'Bearer s3cret' } })
        const channel = await createChannel(client)
        channel.writer.stream.end('guarded by its key')
        out((await channel.reader.readAll()).toString())
        """, bus.url)
        assert found == "guarded by its key"


def test_two_hundred_clients():
    with Bus() as bus:
        found = node("""
        const clients = await Promise.all([...Array(200).keys()].map((i) => connect('many ' + i, { ['many::f' + i]: async (x) => x.n + i })))
        const answers = await Promise.all(clients.map((c, i) => c.trigger({ function_id: 'many::f' + ((i + 1) % 200), payload: { n: 1000 } })))
        const { workers } = await clients[0].trigger({ function_id: 'engine::workers::list', payload: { search: 'many' } })
        out({ right: answers.every((a, i) => a === 1000 + (i + 1) % 200), workers: workers.length })
        """, bus.url, timeout=60)
        assert found == {"right": True, "workers": 200}
        wait_for(lambda: metrics(bus)["iii_engine_connections"] == 0, "connections are still counted")
        assert metrics(bus)["iii_engine_functions"] == 9


@pytest.mark.smoke
def test_client_that_never_reads_slows_only_itself():
    with Bus() as bus:
        sock, status = handshake(bus.port)
        assert status == 101
        sock.settimeout(1)
        big = call("demo::echo", {"s": "x" * (1 << 20)})
        sent = 0
        try:
            for sent in range(400):  # 400 MiB of answers, if the engine took them all
                sock.sendall(big)
        except (TimeoutError, OSError):
            pass
        assert sent < 300  # it is no longer read
        found = node("""
        const client = await connect('reads')
        const times = []
        for (let i = 0; i < 50; i++) { const t = Date.now(); await client.trigger({ function_id: 'demo::echo', payload: { i } }); times.push(Date.now() - t) }
        times.sort((a, b) => a - b)
        out({ median: times[25], ...(await client.trigger({ function_id: 'demo::stats', payload: {} })) })
        """, bus.url)
        assert found["median"] < 100
        assert found["rss_kb"] < 200 * 1024 or os.environ.get("III_SANDBOX_BUILD", "build/asan") == "build/asan"
        assert metrics(bus)["iii_engine_held_bytes"] < 140 << 20
        wait_for(lambda: metrics(bus)["iii_engine_held_bytes"] == 0, "it is still held after its time", 60)
        sock.close()


@pytest.mark.smoke
def test_half_open_sockets_and_drops_by_the_thousand():
    with Bus() as bus:
        half = [socket.create_connection(("127.0.0.1", bus.port)) for _ in range(100)]
        for sock in half[:50]:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: local")
        for _ in range(500):  # warm-up, then the measured part
            handshake(bus.port)[0].close()
        before = stats(bus)
        for i in range(10000):
            sock, status = handshake(bus.port)
            assert status == 101
            if i % 4 == 1:
                sock.sendall(frame('{"type":"registerfunction","id":"drop::f' + str(i) + '"}'))
            if i % 4 == 2:
                sock.sendall(call("demo::slow", {"ms": 1})[:30])
            if i % 4 == 3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            sock.close()
        wait_for(lambda: metrics(bus)["iii_engine_connections"] == 0, "dropped connections are still counted")
        wait_for(lambda: all(not alive(sock) for sock in half), "half-open sockets are still open", 30)
        after = stats(bus)
        assert metrics(bus)["iii_engine_functions"] == 9
        for sock in half:
            sock.close()
    assert after["fds"] <= before["fds"] + 2 - 90, (before, after)  # the half-open ones are gone too
    assert after["rss_kb"] < before["rss_kb"] + 4096 or os.environ.get("III_SANDBOX_BUILD", "build/asan") == "build/asan", (before, after)


def alive(sock):
    """Whether the other side has not closed yet."""
    sock.setblocking(False)
    try:
        return sock.recv(1024) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_limits_have_clear_refusals(bus):
    found = node("""
    const ws = await raw()
    ws.put({ type: 'registerfunction', id: 'lim::f' })
    const caller = await raw()
    for (let i = 0; i < 4096; i++) caller.put({ type: 'invokefunction', invocation_id: randomUUID(), function_id: 'lim::f', data: {} })
    const over = await caller.call('lim::f', {})
    const same = randomUUID()
    const other = await raw()
    other.put({ type: 'invokefunction', invocation_id: same, function_id: 'lim::f', data: {} })
    other.put({ type: 'invokefunction', invocation_id: same, function_id: 'lim::f', data: {} })
    const twice = await other.until((m) => m.invocation_id === same)
    const big = await raw()
    big.send('x'.repeat((16 << 20) + 1))
    const many = await raw()
    for (let i = 0; i < 5000; i++) many.put({ type: 'registerfunction', id: 'lim::many' + i })
    out({ over: over.error.code, twice: twice.error.code, big: (await big.closed).code, many: await many.closed })
    """, bus.url)
    assert found == {"over": "limit_exceeded", "twice": "invocation_error", "big": 1009,
                     "many": {"code": 1008, "reason": "too many functions registered"}}


def test_result_by_somebody_else_is_dropped(bus):
    found = node("""
    const worker = await raw()
    worker.put({ type: 'registerfunction', id: 'steal::f' })
    await worker.call('demo::echo', {})
    const caller = await raw(), thief = await raw()
    const answer = caller.call('steal::f', {})
    const { invocation_id } = await worker.until((m) => m.type === 'invokefunction')
    thief.put({ type: 'invocationresult', invocation_id, function_id: 'steal::f', result: 'stolen' })
    await thief.call('demo::echo', {})
    worker.put({ type: 'invocationresult', invocation_id, function_id: 'steal::f', result: 'right' })
    out((await answer).result)
    """, bus.url)
    assert found == "right"


def test_connections_past_the_limit_get_503():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this host allows fewer than 4096 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    socks = []
    try:
        with Bus() as bus:
            for _ in range(1024):
                sock, status = handshake(bus.port)
                assert status == 101
                socks.append(sock)
            sock, status = handshake(bus.port)
            socks.append(sock)
            assert status == 503
            socks.pop(0).close()
            wait_for(lambda: try_once(bus.port) == 101, "no place was given back")
    finally:
        for sock in socks:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def try_once(port):
    sock, status = handshake(port)
    sock.close()
    return status
