# SPDX-License-Identifier: Apache-2.0
"""The embedded engine with the real npm client: one test per case of the protocol's list, by its number."""
import json
import signal
import time
import urllib.request

from bus import Bus, Node, node


def test_01_default_client_connects_both_sockets(bus):
    found = node("""
    const ws = await raw()
    const first = await ws.until((m) => m.type)
    const client = registerWorker(url, { workerName: 'default' })
    client.registerFunction('t01::f', async () => 'ok')
    const result = await attempt(client.trigger({ function_id: 't01::f', payload: {} }))
    out({ first, result })
    """, bus.url)
    assert found["first"]["type"] == "workerregistered"
    assert len(found["first"]["worker_id"]) == 36 and len(found["first"]["reattach_token"]) == 36
    assert found["result"] == {"result": "ok"}
    with urllib.request.urlopen(f"http://127.0.0.1:{bus.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "iii_engine_connections_accepted_total 3\n" in text  # raw, worker, telemetry


def test_02_client_without_telemetry_has_one_socket():
    with Bus() as bus:
        node("await connect('quiet'); out(1)", bus.url)
        with urllib.request.urlopen(f"http://127.0.0.1:{bus.port}/metrics", timeout=10) as answer:
            assert "iii_engine_connections_accepted_total 1\n" in answer.read().decode()


def test_03_call_between_two_clients(bus):
    found = node("""
    await connect('t03 server', { 't03::f': async (x, metadata) => ({ x, metadata }) })
    const caller = await connect('t03 caller')
    const { workers } = await caller.trigger({ function_id: 'engine::workers::list', payload: { search: 't03 caller' } })
    const answer = await caller.trigger({ function_id: 't03::f', payload: { a: 1, _caller_worker_id: 'forged' }, metadata: { m: 2 } })
    out({ answer, id: workers[0].id })
    """, bus.url)
    assert found["answer"] == {"x": {"a": 1, "_caller_worker_id": found["id"]}, "metadata": {"m": 2}}


def test_04_payloads_that_are_no_objects_pass_unchanged(bus):
    payloads = [[1, 2, {"a": None}], "text \u20ac \U0001f600", 12.5, -3, 1e21, True, None, [], 123456789012345680000]
    found = node("""
    const client = await connect('t04', { 't04::f': async (x) => ({ x }) })
    for (const payload of JSON.parse(args[0])) out((await client.trigger({ function_id: 't04::f', payload })).x)
    """, bus.url, json.dumps(payloads))
    assert found == payloads


def test_05_payload_undefined_does_not_hang(bus):
    found = node("""
    const client = await connect('t05', { 't05::f': async (x) => ({ x }) })
    out(await attempt(client.trigger({ function_id: 't05::f', timeoutMs: 2000 })))
    out(await attempt(client.trigger({ function_id: 'demo::echo', timeoutMs: 2000 })))
    """, bus.url)
    assert found[0]["result"]["x"].keys() <= {"_caller_worker_id"}
    assert found[1] == {"result": {}}


def test_06_handler_returns_undefined_or_null(bus):
    found = node("""
    const client = await connect('t06', { 't06::u': async () => undefined, 't06::n': async () => null })
    out([await attempt(client.trigger({ function_id: 't06::u', payload: {} })), await attempt(client.trigger({ function_id: 't06::n', payload: {} }))])
    """, bus.url)
    assert found == [{}, {"result": None}]


def test_07_handler_throws(bus):
    found = node("""
    const client = await connect('t07', { 't07::f': async () => { throw new Error('boom') } })
    out(await attempt(client.trigger({ function_id: 't07::f', payload: {} })))
    out(await attempt(client.trigger({ function_id: 'demo::fail', payload: { code: 'S211', message: 'no such file' } })))
    """, bus.url)
    assert found[0] == {"error": {"name": "InvocationError", "code": "invocation_failed", "message": "invocation_failed: boom",
                                  "stack": True, "is": True}}
    assert found[1] == {"error": {"name": "InvocationError", "code": "S211", "message": "S211: no such file", "stack": False,
                                  "is": True}}


def test_08_unknown_function_is_answered_at_once(bus):
    found = node("""
    const client = await connect('t08')
    const start = Date.now()
    const answer = await attempt(client.trigger({ function_id: 't08::nothing', payload: {} }))
    const other = await (await raw()).call('demo::echo', {}, { namespace: 'other' })
    const blank = await (await raw()).call('demo::echo', {}, { namespace: ' ' })
    const same = await (await raw()).call('demo::echo', {}, { namespace: 'default' })
    out({ answer, ms: Date.now() - start, other, blank, same })
    """, bus.url)
    assert found["answer"]["error"]["code"] == "function_not_found"
    assert found["ms"] < 1000
    assert found["other"]["error"]["code"] == "function_not_found"
    assert found["blank"]["error"]["code"] == "INVALID_NAMESPACE"
    assert found["same"]["result"] == {}


def test_09_thousand_parallel_calls_in_random_order(bus):
    found = node("""
    await connect('t09 server', { 't09::f': async ({ i }) => { await sleep(Math.random() * 200); return i } })
    const caller = await connect('t09 caller')
    const calls = [...Array(1000).keys()].map((i) => caller.trigger({ function_id: 't09::f', payload: { i } }))
    const local = [...Array(1000).keys()].map((i) => caller.trigger({ function_id: 'demo::echo', payload: { i } }))
    out((await Promise.all(calls)).every((x, i) => x === i) && (await Promise.all(local)).every((x, i) => x.i === i))
    """, bus.url)
    assert found is True


def test_10_void_call_runs_and_answers_nothing(bus):
    found = node("""
    let ran
    const done = new Promise((go) => { ran = go })
    await connect('t10 server', { 't10::f': async (x) => { ran(x.v); return 'nobody wants this' } })
    const ws = await raw()
    ws.put({ type: 'invokefunction', function_id: 't10::f', data: { v: 1 }, action: { type: 'void' } })
    ws.put({ type: 'invokefunction', function_id: 'demo::echo', data: { v: 1 }, action: { type: 'void' } })
    ws.put({ type: 'invokefunction', invocation_id: null, function_id: 't10::none', data: { v: 1 } })
    const v = await done
    await ws.call('demo::echo', {})
    const caller = await connect('t10 caller')
    const resolved = await attempt(caller.trigger({ function_id: 't10::f', payload: {}, action: TriggerAction.Void() }))
    out({ v, results: ws.seen.filter((m) => m.includes('invocationresult')).length, resolved })
    """, bus.url)
    assert found == {"v": 1, "results": 1, "resolved": {}}


def test_11_enqueue_without_a_queue(bus):
    found = node("""
    const client = await connect('t11')
    out(await attempt(client.trigger({ function_id: 'demo::echo', payload: {}, action: TriggerAction.Enqueue({ queue: 'default' }) })))
    """, bus.url)
    assert found["error"]["code"] == "enqueue_error"


def test_12_time_limit_of_the_caller(bus):
    found = node("""
    const client = await connect('t12')
    const start = Date.now()
    const late = await attempt(client.trigger({ function_id: 'demo::slow', payload: { ms: 600 }, timeoutMs: 300 }))
    const ms = Date.now() - start
    await sleep(500)
    out({ late, ms, after: await attempt(client.trigger({ function_id: 'demo::echo', payload: { ok: 1 } })) })
    """, bus.url)
    assert found["late"]["error"]["code"] == "TIMEOUT"
    assert 290 <= found["ms"] < 600
    assert found["after"] == {"result": {"ok": 1}}


def test_13_executing_client_is_killed(bus):
    with Node("await connect('t13 server', { 't13::f': async () => { out('running'); await sleep(60000) } }); out('ready'); await sleep(60000)",
              bus.url) as server:
        assert server.json() == "ready"
        with Node("out(await attempt((await connect('t13 caller')).trigger({ function_id: 't13::f', payload: {} })))", bus.url) as caller:
            assert server.json() == "running"
            server.process.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            answer = caller.json()
            assert time.monotonic() - killed < 2
        server.wait()
    assert answer["error"]["code"] == "invocation_stopped"


def test_14_caller_is_lost(bus):
    found = node("""
    let running, finish
    const started = new Promise((done) => { running = done })
    const server = await connect('t14 server', { 't14::f': () => { running(); return new Promise((done) => { finish = done }) } })
    const row = async (search) => (await server.trigger({ function_id: 'engine::workers::list', payload: { search } })).workers[0]
    const caller = await raw()
    await caller.call('engine::workers::register', { name: 't14 caller', pid: 1 })
    caller.put({ type: 'invokefunction', invocation_id: randomUUID(), function_id: 't14::f', data: {} })
    caller.put({ type: 'invokefunction', invocation_id: randomUUID(), function_id: 'demo::slow', data: { ms: 500 } })
    await started
    const during = (await row('t14 server')).active_invocations
    caller.terminate()
    while (await row('t14 caller')) await sleep(5)
    finish('late')
    while ((await row('t14 server')).active_invocations) await sleep(5)
    out({ during, after: await attempt(server.trigger({ function_id: 'demo::echo', payload: { ok: 1 } })) })
    """, bus.url)
    bus.line("gone demo::slow")
    assert found == {"during": 1, "after": {"result": {"ok": 1}}}


def test_15_unregistered_function_is_gone(bus):
    found = node("""
    const client = await connect('t15')
    const handle = client.registerFunction('t15::f', async () => 1)
    const before = await attempt(client.trigger({ function_id: 't15::f', payload: {} }))
    handle.unregister()
    out([before, await attempt(client.trigger({ function_id: 't15::f', payload: {} }))])
    """, bus.url)
    assert found[0] == {"result": 1}
    assert found[1]["error"]["code"] == "function_not_found"


def test_16_eight_mebibytes_both_ways(bus):
    found = node("""
    const client = await connect('t16', { 't16::f': async (x) => ({ s: x.s }) })
    const s = 'aä€"'.repeat(1 << 20) + 'x'.repeat(4 << 20)
    const there = await client.trigger({ function_id: 't16::f', payload: { s } })
    const local = await client.trigger({ function_id: 'demo::echo', payload: { s } })
    out([there.s === s, local.s === s])
    """, bus.url, timeout=60)
    assert found == [True, True]


def test_18_engine_restarts_on_the_same_port():
    with Bus() as first:
        with Node("""
        const client = await connect('t18', { 't18::f': async () => 'here', 't18::g': async () => 'too' })
        out('ready')
        await new Promise((done) => process.stdin.once('data', done))
        const start = Date.now()
        for (;;) {
          const caller = await raw().catch(() => null)
          const answers = caller && [await caller.call('t18::f', {}), await caller.call('t18::g', {})]
          if (answers && answers.every((a) => a.result)) { out({ ms: Date.now() - start, results: answers.map((a) => a.result) }); break }
          caller?.close()
          await sleep(20)
        }
        """, first.url) as client:
            assert client.json() == "ready"
            assert first.stop() == 0
            with Bus(port=first.port):
                client.process.stdin.write(b"go\n")
                client.process.stdin.flush()
                found = client.json()
                assert found["results"] == ["here", "too"]
                assert found["ms"] < 2500  # the client waits 0.7 to 1.3 s by itself


def test_19_reattach_with_the_right_and_a_wrong_token(bus):
    found = node("""
    const old = await raw()
    const hello = await old.until((m) => m.type === 'workerregistered')
    old.put({ type: 'registerfunction', id: 't19::f' })
    await old.call('demo::echo', {})
    const wrong = await raw()
    wrong.put({ type: 'reattach', previous_worker_id: hello.worker_id, reattach_token: randomUUID() })
    wrong.put({ type: 'registerfunction', id: 't19::f' })
    const rejected = await wrong.until((m) => m.type === 'registrationrejected')
    const alive = await old.call('demo::echo', { still: 1 })
    const right = await raw()
    right.put({ type: 'reattach', previous_worker_id: hello.worker_id, reattach_token: hello.reattach_token })
    right.put({ type: 'registerfunction', id: 't19::f' })
    const answer = right.call('t19::f', {})
    const call = await right.until((m) => m.type === 'invokefunction')
    right.put({ type: 'invocationresult', invocation_id: call.invocation_id, function_id: 't19::f', result: 'moved' })
    out({ rejected, alive: alive.result, closed: (await old.closed).code, answer: (await answer).result, owner: hello.worker_id })
    """, bus.url)
    assert found["rejected"]["code"] == "FUNCTION_NAMESPACE_CONFLICT"
    assert found["rejected"]["function_id"] == "t19::f" and found["rejected"]["owner_worker_id"] == found["owner"]
    assert found["alive"] == {"still": 1}
    assert found["closed"] == 1000
    assert found["answer"] == "moved"


def test_20_junk_is_ignored(bus):
    found = node("""
    const ws = await raw()
    for (const text of ['', ' \\n', 'not json', '{', '[]', '42', '{"type":7}', '{"type":"nosuchtype","x":[1]}', '{"no":"type"}',
      '{"type":"invokefunction"}', '{"type":"invokefunction","function_id":7,"invocation_id":"x"}',
      '{"type":"invokefunction","function_id":"demo::echo","invocation_id":"not-a-uuid"}',
      '{"type":"invocationresult","invocation_id":"' + randomUUID() + '"}', '{"type":"registerfunction"}',
      '{"type":"registertrigger","id":"x"}', '['.repeat(5000)]) ws.send(text)
    ws.send(Buffer.from([0, 1, 2, 255, 254]))
    ws.send(Buffer.from('OTLP{"resourceSpans":[]}'))
    ws.put({ type: 'ping' })
    const pong = await ws.until((m) => m.type === 'pong')
    ws.send(Buffer.from(JSON.stringify({ type: 'invokefunction', invocation_id: randomUUID(), function_id: 'demo::echo', data: 'from binary' })))
    const binary = await ws.until((m) => m.result === 'from binary')
    out({ pong, state: ws.readyState, binary: binary.result })
    """, bus.url)
    assert found == {"pong": {"type": "pong"}, "state": 1, "binary": "from binary"}


def test_26_introspection(bus):
    found = node("""
    const client = await connect('t26', {})
    client.registerFunction('t26::full', async (x) => x, { description: 'says it back', request_format: { type: 'object' }, response_format: { type: 'string' }, metadata: { team: 'x' } })
    client.registerFunction('t26::hidden', async (x) => x, { metadata: { internal: true } })
    client.registerTrigger({ type: 't26::tick', function_id: 't26::full', config: { every: 5 } })
    const call = (id, payload) => attempt(client.trigger({ function_id: id, payload }))
    out(await call('engine::functions::list', { prefix: 't26::' }))
    out(await call('engine::functions::list', { prefix: 't26::', include_internal: true }))
    out(await call('engine::functions::list', { search: 'SAYS it' }))
    out(await call('engine::functions::list', {}))
    out(await call('engine::functions::list', { include_internal: true }))
    out(await call('engine::functions::info', { function_id: 't26::full' }))
    out(await call('engine::functions::info', { function_ids: ['t26::full', 'no::such', 't26::full'] }))
    out(await call('engine::functions::info', { function_id: 'no::such' }))
    out(await call('engine::functions::info', {}))
    out(await call('engine::functions::info', { function_id: 7 }))
    out(await call('engine::workers::list', { search: 't26' }))
    out(await call('engine::workers::info', { name: 't26' }))
    """, bus.url)
    row = {"function_id": "t26::full", "namespace": "default", "worker_name": "t26", "description": "says it back", "metadata": {"team": "x"}}
    assert found[0]["result"] == {"functions": [row]}
    assert [f["function_id"] for f in found[1]["result"]["functions"]] == ["t26::full", "t26::hidden"]
    assert [f["function_id"] for f in found[2]["result"]["functions"]] == ["t26::full"]
    assert not [f for f in found[3]["result"]["functions"] if f["function_id"].startswith("engine::") or f["function_id"] == "demo::stats"]
    assert "engine::channels::create" in [f["function_id"] for f in found[4]["result"]["functions"]]
    detail = found[5]["result"]
    assert {**detail, "registered_triggers": 0} == {**row, "request_schema": {"type": "object"}, "response_schema": {"type": "string"}, "registered_triggers": 0}
    assert [(t["trigger_type"], t["config"]) for t in detail["registered_triggers"]] == [("t26::tick", {"every": 5})]
    assert found[6]["result"]["functions"] == [detail, {"function_id": "no::such", "error": "not_found"}]
    assert found[7]["error"]["code"] == "NOT_FOUND" and found[7]["error"]["message"] == "NOT_FOUND: Function 'no::such' is not registered."
    assert found[8]["error"]["code"] == "INVALID_ARGUMENTS"
    assert found[9]["error"]["code"] == "deserialization_error"
    worker = found[10]["result"]["workers"][0]
    assert set(worker) == {"name", "description", "version", "id", "namespace", "runtime", "os", "status", "function_count",
                           "connected_at_ms", "active_invocations", "isolation", "ip_address"}
    assert (worker["name"], worker["runtime"], worker["status"], worker["function_count"]) == ("t26", "node", "connected", 2)
    assert abs(worker["connected_at_ms"] / 1000 - time.time()) < 60
    about = found[11]["result"]
    assert about["worker"]["name"] == "t26" and len(about["functions"]) == 2 and about["trigger_types"] == []
    assert [(t["trigger_type"], t["function_id"], t["config"]) for t in about["registered_triggers"]] == [("t26::tick", "t26::full", {"every": 5})]


def test_triggers_are_relayed_and_parked(bus):
    found = node("""
    const binder = await connect('tt binder', { 'tt::f': async (x) => x })
    const handle = binder.registerTrigger({ type: 'tt::tick', function_id: 'tt::f', config: { every: 5 }, metadata: { m: 1 } })
    await binder.trigger({ function_id: 'demo::echo', payload: {} })
    const provider = await connect('tt provider')
    const events = []
    provider.registerTriggerType({ id: 'tt::tick', description: 'ticks' }, {
      registerTrigger: async (c) => { events.push(['register', c.function_id, c.config, c.metadata]); if (c.config?.bad) throw new Error('bad config') },
      unregisterTrigger: async (c) => { events.push(['unregister', c.id.length]) } })
    await provider.trigger({ function_id: 'demo::echo', payload: {} })
    const failures = []
    console.error = (...all) => failures.push(all.join(' '))
    binder.registerTrigger({ type: 'tt::tick', function_id: 'tt::f', config: { bad: true } })
    handle.unregister()
    for (let i = 0; i < 200 && (events.length < 3 || !failures.length); i++) await sleep(10)
    out({ events, failures })
    """, bus.url)
    assert found["events"] == [["register", "tt::f", {"every": 5}, {"m": 1}], ["register", "tt::f", {"bad": True}, None], ["unregister", 36]]
    assert "bad config" in found["failures"][0]


def test_trace_context_is_passed_on(bus):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = node("""
    const worker = await raw()
    worker.put({ type: 'registerfunction', id: 'tr::f' })
    await worker.call('demo::echo', {})
    const caller = await raw()
    const answer = caller.call('tr::f', {}, { traceparent: args[0], baggage: 'k=v' })
    const call = await worker.until((m) => m.type === 'invokefunction')
    worker.put({ type: 'invocationresult', invocation_id: call.invocation_id, function_id: 'tr::f', result: 1, traceparent: args[0], baggage: 'k=v' })
    const local = await caller.call('demo::describe', {}, { traceparent: args[0], baggage: 'k=v' })
    const relayed = caller.call('demo::relay', { function_id: 'tr::f', data: {} }, { traceparent: args[0], baggage: 'k=v' })
    const second = await worker.until((m) => m.type === 'invokefunction' && m.invocation_id !== call.invocation_id)
    worker.put({ type: 'invocationresult', invocation_id: second.invocation_id, function_id: 'tr::f', result: 2 })
    out([call, await answer, local, second, await relayed].map((m) => [m.traceparent, m.baggage, m.result?.traceparent ?? null]))
    """, bus.url, trace)
    assert found == [[trace, "k=v", None], [trace, "k=v", None], [trace, "k=v", trace], [trace, "k=v", None], [trace, "k=v", None]]


def test_17_idle_client_stays_connected(slow):
    found = slow["idle"].json(timeout=120)
    assert found["before"][0]["id"] == found["after"][0]["id"]
