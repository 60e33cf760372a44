# SPDX-License-Identifier: Apache-2.0
"""`iii-sandbox serve`, `trigger` and `functions`, and the export of spans."""
import http.server
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from bus import BUILD, Bus, Program, node

PROGRAM = os.path.join(BUILD, "iii-sandbox")


def run(*words, env=None, timeout=30):
    done = subprocess.run([PROGRAM, *words], capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
                          env={**{k: v for k, v in os.environ.items() if not k.startswith("III_")}, **(env or {})})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Serve(Program):
    def __init__(self, *words, env=None):
        super().__init__(PROGRAM, "serve", "--port", "0", *words, env=env)
        self.url = self.line("listening on ").split()[-1]


def test_serve_carries_real_clients_and_ends_on_sigterm():
    with Serve() as serve:
        found = node("""
        await connect('server', { 'cli::f': async (x) => ({ got: x.a }) })
        out(await (await connect('caller')).trigger({ function_id: 'cli::f', payload: { a: 1 } }))
        """, serve.url)
        assert found == {"got": 1}
        started = time.monotonic()
        assert serve.stop() == 0 and time.monotonic() - started < 3


def test_serve_reads_its_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("token: s3cret\nallowed_origins: [https://ok.example]\n")
    with Serve("--config", str(path)) as serve:
        status, _, error = run("trigger", "--engine", serve.url, "engine::workers::list")
        assert status == 1 and "401" in error
        status, text, _ = run("trigger", "--engine", serve.url, "engine::workers::list", env={"III_ENGINE_TOKEN": "s3cret"})
        assert status == 0 and json.loads(text)["workers"][0]["name"] == "iii-sandbox"
    path.write_text("tokn: x\n")
    status, _, error = run("serve", "--port", "0", "--config", str(path))
    assert status == 2 and "'tokn'" in error and "did you mean token" in error
    status, _, error = run("serve", "--port", "0", "--config", str(tmp_path / "none.yaml"))
    assert status == 2 and "No such file" in error


def test_serve_says_when_the_port_is_taken():
    with Serve() as serve:
        status, _, error = run("serve", "--port", serve.url.rsplit(":", 1)[1])
        assert status == 1 and "Address already in use" in error


def test_trigger_payloads_results_and_exit_status():
    with Bus() as bus:
        def trigger(*words, **more):
            return run("trigger", "--engine", bus.url, *words, **more)
        assert trigger("demo::echo") == (0, "{}\n", "")
        status, text, _ = trigger("demo::echo", "a=1", "b=text", "c=[1,2]", "d=", "e=x=y", "f=\"q\"")
        assert (status, json.loads(text)) == (0, {"a": 1, "b": "text", "c": [1, 2], "d": "", "e": "x=y", "f": "q"})
        status, text, _ = trigger("demo::echo", '{"a": {"b": 1}}', "c=2")
        assert (status, json.loads(text)) == (0, {"a": {"b": 1}, "c": 2})
        assert trigger("demo::echo", "--json", "[1]")[0:2] == (0, "[\n  1\n]\n")
        assert trigger("demo::echo", "--json", "null") == (0, "", "")
        assert trigger("demo::fail", "code=S211", "message=no such file") == (1, "", "error: S211: no such file\n")
        assert trigger("no::such")[0] == 1
        assert trigger("demo::slow", "ms=2000", "--timeout", "300ms")[0] == 1
        for words in (["demo::echo", "{broken"], ["demo::echo", "noequals"], [], ["demo::echo", "--json", "[1]", "a=1"]):
            assert trigger(*words)[0] == 2, words
        status, text, _ = run("trigger", "demo::echo", "a=1", env={"III_URL": bus.url})
        assert (status, json.loads(text)) == (0, {"a": 1})
    status, _, error = run("trigger", "--engine", bus.url, "demo::echo")
    assert status == 1 and "no engine at" in error


def test_functions_lists_and_describes():
    with Bus() as bus:
        status, text, _ = run("functions", "--engine", bus.url)
        assert status == 0 and "demo::echo" in text and "returns its input" in text and "engine::" not in text and "demo::stats" not in text
        status, text, _ = run("functions", "--engine", bus.url, "--all")
        assert status == 0 and "engine::channels::create" in text and "demo::stats" in text
        status, text, _ = run("functions", "--engine", bus.url, "demo::echo")
        assert status == 0 and "text  string   optional  anything" in text
        status, text, _ = run("functions", "--engine", bus.url, "demo::echo", "--json")
        assert json.loads(text)["metadata"] == {"team": "tests"}
        status, _, error = run("functions", "--engine", bus.url, "no::such")
        assert status == 1 and "NOT_FOUND" in error


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, self.headers["content-type"], body))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()
        self.server.event.set()

    def log_message(self, *words):
        pass


@pytest.fixture
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.seen, server.status, server.event = [], 200, threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans_go_to_a_collector(collector):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Bus(env={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://localhost:{collector.server_port}"}) as bus:
        node("""
        const ws = await raw()
        await ws.call('demo::echo', { secret: 'payload' }, { traceparent: args[0] })
        await ws.call('demo::fail', { code: 'S211', message: 'secret text' })
        await ws.call('demo::echo', {}, { traceparent: args[0].replace(/01$/, '00') })
        out(1)
        """, bus.url, trace)
        assert collector.event.wait(10)
    path, kind, body = collector.seen[0]
    assert (path, kind) == ("/v1/traces", "application/json")
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [(s["name"], s["status"]["code"]) for s in spans] == [("demo::echo", 1), ("demo::fail", 2)]  # the third is not sampled
    assert (spans[0]["traceId"], spans[0]["parentSpanId"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert spans[1]["status"]["message"] == "S211" and "parentSpanId" not in spans[1]
    assert int(spans[0]["endTimeUnixNano"]) >= int(spans[0]["startTimeUnixNano"]) > 10**18
    assert "secret" not in json.dumps(body)


def test_spans_are_dropped_and_counted_without_a_collector():
    with Bus(env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as bus:
        found = node("""
        const ws = await raw()
        await ws.call('demo::echo', {})
        for (let i = 0; i < 100; i++) {
          const text = await (await fetch(url.replace('ws', 'http') + '/metrics')).text()
          const dropped = Number(/spans_dropped_total (\\d+)/.exec(text)[1])
          if (dropped) { out(dropped); break }
          await sleep(50)
        }
        """, bus.url)
    assert found == 1


def test_serve_ends_on_sigint():
    with Serve() as serve:
        serve.process.send_signal(signal.SIGINT)
        assert serve.wait() == 0
