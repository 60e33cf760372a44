# SPDX-License-Identifier: Apache-2.0
"""The npm client is installed once; `bus` is an embedded engine for the tests of one file. `slow` holds what takes a minute and
starts with the session, so that it happens while the other tests run: `idle`, a client that does nothing for 65 s, and `deaf`, an
engine that does not answer a worker's pings."""
import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bus import Bus, FakeEngine, Node, Worker, install_client  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def client():
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not on PATH")
    install_client()


@pytest.fixture(scope="session", autouse=True)
def slow(client):
    script = """
    const client = registerWorker(url, { workerName: 'idle', otel: { enabled: false } })
    await client.trigger({ function_id: 'demo::echo', payload: {} })
    const before = (await client.trigger({ function_id: 'engine::workers::list', payload: { search: 'idle' } })).workers
    await sleep(65000)
    const after = (await client.trigger({ function_id: 'engine::workers::list', payload: { search: 'idle' } })).workers
    out({ before, after })
    """
    with Bus() as bus, Node(script, bus.url) as idle, FakeEngine() as deaf:
        deaf.order(deaf=True)
        deaf.event("done")
        with Worker(deaf.url):
            yield {"idle": idle, "deaf": deaf}


@pytest.fixture(scope="module")
def bus(client):
    with Bus() as program:
        yield program
