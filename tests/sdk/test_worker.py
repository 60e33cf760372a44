# SPDX-License-Identifier: Apache-2.0
"""Our worker against an engine that records, replays and misbehaves: cases 27 to 30 and the rest of the uplink."""
import json
import os
import subprocess
import time
import uuid

import pytest

from bus import FUNCTIONS, TEST_BUS, FakeEngine, Worker

@pytest.fixture
def fake():
    with FakeEngine() as engine:
        yield engine


def test_27_start_up_without_waiting(fake):
    fake.order(silent=True)  # no workerregistered at all
    with Worker(fake.url):
        upgrade = fake.event("upgrade")
        messages = fake.start_up()
    assert upgrade["upgrade"] == "/"
    assert not {"origin", "sec-websocket-extensions", "sec-websocket-protocol", "authorization"} & set(upgrade["headers"])
    first = messages[0]
    assert (first["type"], first["function_id"], first["action"]) == ("invokefunction", "engine::workers::register", {"type": "void"})
    assert "invocation_id" not in first
    data = first["data"]
    assert (data["name"], data["runtime"], data["isolation"]) == ("test-worker", "c", None)
    assert data["pid"] > 1 and data["version"] and data["os"].startswith("linux ") and data["description"]
    assert [m["type"] for m in messages[1:]] == ["registerfunction"] * len(FUNCTIONS)
    echo = next(m for m in messages if m.get("id") == "demo::echo")
    assert echo["request_format"]["type"] == "object" and echo["metadata"] == {"team": "tests"}


def test_28_calls_of_all_kinds(fake):
    with Worker(fake.url):
        fake.start_up()
        plain = fake.call("demo::echo", {"a": 1, "_caller_worker_id": "c0ffee"}, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01", baggage="k=v")
        assert plain["result"] == {"a": 1} and plain["function_id"] == "demo::echo"
        assert (plain["traceparent"], plain["baggage"]) == ("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "k=v")
        assert fake.call("demo::describe", {"_caller_worker_id": "c0ffee"})["result"]["caller"] == "c0ffee"
        assert fake.call("demo::echo", None)["result"] is None
        missing = str(uuid.uuid4())
        fake.order(send={"type": "invokefunction", "invocation_id": missing, "function_id": "demo::echo"})
        assert fake.message(lambda m: m.get("invocation_id") == missing)["result"] == {}
        # neither an absent id nor null is answered: the next result is that of the call behind them
        fake.order(send={"type": "invokefunction", "function_id": "demo::echo", "data": {}})
        fake.order(send={"type": "invokefunction", "invocation_id": None, "function_id": "demo::echo", "data": {}})
        fake.order(send={"type": "invokefunction", "invocation_id": None, "function_id": "no::such", "data": {}})
        last = str(uuid.uuid4())
        fake.order(send={"type": "invokefunction", "invocation_id": last, "function_id": "demo::echo", "data": 7})
        assert fake.message(lambda m: m["type"] == "invocationresult")["invocation_id"] == last
        unknown = fake.call("no::such", {})
        assert unknown["error"] == {"code": "function_not_found", "message": "Function not found"}
        bad = fake.call("demo::fail", {"code": 7})
        assert bad["error"]["code"] == "S001" and "stacktrace" not in bad["error"] and "result" not in bad
        for junk in ("", "x", "{}", "[1]", '{"type":"nonsense"}', '{"type":"invokefunction","function_id":1}', '{"type":"invocationresult","invocation_id":"zz"}'):
            fake.order(send_text=junk)
        fake.order(send_binary=json.dumps({"type": "invokefunction", "invocation_id": last, "function_id": "demo::echo", "data": "binary"}))
        assert fake.message(lambda m: m.get("result") == "binary")


def test_29_link_dropped_and_refused_then_back(fake):
    with Worker(fake.url) as worker:
        opened = fake.event("open")
        fake.start_up()
        fake.order(plan=["503", "503"])
        fake.event("done")
        fake.order(drop=True)
        times = [fake.event("closed")["t"]]
        times += [fake.event("upgrade")["t"] for _ in range(3)]
        messages = fake.start_up()
        delays = [later - earlier for earlier, later in zip(times, times[1:])]
        worker.line("state waiting")
    for delay, expected in zip(delays, (1000, 2000, 4000)):
        assert expected * 0.7 - 50 <= delay <= expected * 1.3 + 1500, delays
    assert messages[0] == {"type": "reattach", "previous_worker_id": opened["worker_id"], "reattach_token": opened["reattach_token"]}
    assert messages[1]["function_id"] == "engine::workers::register"
    assert sorted(m["id"] for m in messages[2:]) == FUNCTIONS


def test_30_what_ends_the_process(fake):
    # SIGTERM: a close frame with 1000
    with Worker(fake.url) as worker:
        fake.start_up()
        started = time.monotonic()
        assert worker.stop() == 0 and time.monotonic() - started < 3
        assert fake.event("closed")["closed"] == 1000
    # the lifeline's end
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    process = subprocess.Popen([TEST_BUS, "worker", fake.url],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[read_end], env={**os.environ, "III_LIFELINE_FD": str(read_end)})
    os.close(read_end)
    fake.start_up()
    os.close(write_end)
    started = time.monotonic()
    assert process.wait(10) == 0 and time.monotonic() - started < 3
    process.stdin.close()
    # the engine's process
    engine = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    with Worker(fake.url, env={"III_ENGINE_PID": str(engine.pid)}) as worker:
        fake.start_up()
        engine.stdin.close()
        engine.wait()
        started = time.monotonic()
        assert worker.wait() == 0 and time.monotonic() - started < 3


def test_calls_of_ours_wait_fail_and_time_out(fake):
    with Worker(fake.url):
        fake.start_up()
        first = str(uuid.uuid4())
        fake.order(send={"type": "invokefunction", "invocation_id": first, "function_id": "demo::relay", "data": {"function_id": "far::f", "data": {"x": 1}}})
        call = fake.message(lambda m: m["type"] == "invokefunction" and m["function_id"] == "far::f")
        assert call["data"] == {"x": 1}
        fake.order(send={"type": "invocationresult", "invocation_id": call["invocation_id"], "function_id": "far::f", "result": {"y": 2}})
        fake.order(send={"type": "invocationresult", "invocation_id": call["invocation_id"], "function_id": "far::f", "result": "a second one"})
        assert fake.message(lambda m: m.get("invocation_id") == first)["result"] == {"result": {"y": 2}}
        for error, expected in (({"code": "S1", "message": "m", "stacktrace": None}, {"code": "S1", "message": "m"}),
                                ("just text", {"code": "UNKNOWN", "message": '"just text"'}),
                                ({"message": "m"}, {"code": "UNKNOWN", "message": '{"message":"m"}'})):
            asked = str(uuid.uuid4())
            fake.order(send={"type": "invokefunction", "invocation_id": asked, "function_id": "demo::relay", "data": {"function_id": "far::f"}})
            call = fake.message(lambda m: m["type"] == "invokefunction" and m["function_id"] == "far::f")
            fake.order(send={"type": "invocationresult", "invocation_id": call["invocation_id"], "function_id": "far::f", "error": error})
            assert fake.message(lambda m, asked=asked: m.get("invocation_id") == asked)["result"] == expected
        late = fake.call("demo::relay", {"function_id": "far::f", "timeout_ms": 200})
        assert late["result"]["code"] == "TIMEOUT"


def test_pings_and_a_deaf_engine(slow):
    """Started with the session: pings after 20 s of silence, another attempt after 60 s without an answer."""
    fake = slow["deaf"]
    events = [event for event in map(json.loads, fake.seen) if "open" in event]
    times = {"open": events[0]["t"] if events else fake.event("open")["t"]}
    pings = [fake.event("ping", timeout=90)["t"] for _ in range(2)]
    closed = fake.event("closed", timeout=90)["t"]
    again = fake.event("open", timeout=20)["t"]
    assert [round((ping - times["open"]) / 20000) for ping in pings] == [1, 2]
    assert 59000 <= closed - times["open"] <= 70000
    assert 600 <= again - closed <= 3000


def test_call_in_flight_when_the_link_breaks_is_dropped(fake):
    with Worker(fake.url) as worker:
        fake.start_up()
        fake.order(send={"type": "invokefunction", "invocation_id": str(uuid.uuid4()), "function_id": "demo::slow", "data": {"ms": 2500}})
        fake.event("done")
        assert fake.call("demo::echo", 1)["result"] == 1
        fake.order(drop=True)
        worker.line("gone demo::slow")
        fake.start_up()
        time.sleep(2)  # the late result would come now
        fake.order(send={"type": "invokefunction", "invocation_id": "00000000-0000-4000-8000-000000000001", "function_id": "demo::echo", "data": 2})
        assert fake.message(lambda m: m["type"] == "invocationresult")["result"] == 2


def test_refusals_by_the_engine(fake):
    fake.order(plan=["login_error", "login_error", "accept"])
    fake.event("done")
    with Worker(fake.url) as worker:
        times = [fake.event("upgrade")["t"] for _ in range(3)]
        fake.start_up()
        assert times[2] - times[1] > 1350  # an accepted upgrade that ends in a refused login does not start at 1 s again
        fake.order(send={"type": "registrationrejected", "code": "FUNCTION_NAMESPACE_CONFLICT", "namespace": "default", "function_id": "demo::echo", "owner_worker_id": "x"})
        while "demo::echo" not in worker.line("state open"):
            pass  # lines of the attempts before
        assert any("AUTH_ERROR: no" in line for line in worker.seen)
        assert fake.call("demo::echo", 1)["result"] == 1
        fake.order(send={"type": "registrationrejected", "code": "WORKER_NAMESPACE_CONFLICT", "namespace": "default", "worker_name": "test-worker", "owner_worker_id": "x"})
        assert "test-worker" in worker.line("state refused")


def test_channels_of_a_real_engine(fake):
    def ref(direction):
        return {"channel_id": "an id/with?chars", "access_key": "key&=", "direction": direction}
    with Worker(fake.url):
        fake.start_up()
        path = "an%20id%2Fwith%3Fchars"
        fake.order(channel={"id": path, "dir": "read", "do": [["text", "meta"], ["binary", 200000], ["close", 1000]]})
        result = fake.call("demo::consume", {"reader": ref("read")})["result"]
        assert (result["bytes"], result["texts"], result["end"]) == (200000, ["meta"], "closed")
        fake.order(channel={"id": path, "dir": "read", "do": [["binary", 5], ["terminate"]]})
        assert fake.call("demo::consume", {"reader": ref("read")})["result"]["end"] == "lost"
        fake.order(channel={"id": path, "dir": "read", "do": [["binary", 5], ["close", 1011]]})
        assert fake.call("demo::consume", {"reader": ref("read")})["result"]["end"] == "lost"
        assert fake.call("demo::consume", {"reader": {**ref("read"), "channel_id": "unknown"}})["result"]["end"] == "refused"
        assert fake.call("demo::consume", {"reader": ref("write")})["error"]["code"] == "S001"
        fake.order(channel={"id": path, "dir": "write", "do": [["pause", 1000]]})
        assert fake.call("demo::produce", {"writer": ref("write"), "bytes": 20 << 20})["result"]["end"] == "written"
        closed = fake.event("channel_closed")
        assert (closed["bytes"], closed["code"], closed["reason"]) == (20 << 20, 1000, "stream_complete")
        fake.order(channel={"id": path, "dir": "write", "do": []})
        fake.call("demo::produce", {"writer": ref("write"), "bytes": 0})  # an empty stream still opens and closes its socket
        closed = fake.event("channel_closed")
        assert (closed["bytes"], closed["code"]) == (0, 1000)
        fake.call("demo::produce", {"writer": ref("write"), "bytes": 0, "abort": True})


def test_wss_checks_the_certificate(tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
                   check=True, capture_output=True, timeout=60)
    with FakeEngine(env={"TLS_DIR": str(tmp_path)}) as fake:
        trusted = {"SSL_CERT_FILE": str(tmp_path / "cert.pem"), "TEST_TOKEN": "s3cret"}
        with Worker(f"wss://localhost:{fake.port}", env=trusted):
            assert fake.event("upgrade")["headers"]["authorization"] == "Bearer s3cret"
            fake.start_up()
            assert fake.call("demo::echo", {"s": "x" * 1000000})["result"] == {"s": "x" * 1000000}
            fake.order(channel={"id": "c", "dir": "read", "do": [["binary", 3000000], ["close", 1000]]})
            result = fake.call("demo::consume", {"reader": {"channel_id": "c", "access_key": "k", "direction": "read"}})["result"]
            assert (result["bytes"], result["end"]) == (3000000, "closed")
        for url, env in ((f"wss://localhost:{fake.port}", {}), (f"wss://127.0.0.1:{fake.port}", trusted)):  # unknown issuer, wrong name
            with Worker(url, env=env) as worker:
                worker.line("state connecting")
                worker.line("state waiting")
                assert not [line for line in worker.seen if "open" in line]


def test_host_names_are_resolved_off_the_loop(fake):
    with Worker("ws://no.such.host.invalid:1") as worker:
        worker.line("state resolving")
        assert "no.such.host.invalid" in worker.line("state waiting", timeout=15)
        assert worker.stop() == 0
    with Worker(f"ws://{os.uname().nodename}:{fake.port}") as worker:  # by the resolver, whatever comes of the connection
        worker.line("state resolving")
        worker.line("state", timeout=15)
