# SPDX-License-Identifier: Apache-2.0
"""The npm client on Debian's own Node 18, whose packages are unpacked into the build folder."""
import glob
import os
import shutil
import subprocess

import pytest

from bus import NODE_DIR, Bus, Node

PACKAGES = ["libnode108", "libc-ares2", "libnghttp2-14", "libicu72", "node-acorn", "node-cjs-module-lexer", "node-undici", "node-busboy", "node-xtend"]
# Debian's node reads parts of itself from /usr/share/nodejs, which this host need not have: it gets a mount of its own.
ENTER = 'mount -t tmpfs none /usr/share && mkdir /usr/share/nodejs && mount --bind "$1" /usr/share/nodejs && shift && exec "$@"'


@pytest.fixture(scope="module")
def node18(client):
    root = os.path.join(NODE_DIR, "node18")
    program = os.path.join(root, "usr", "bin", "node")
    if not shutil.which("apt-get") or not shutil.which("unshare"):
        pytest.skip("this host has no apt-get or no unshare")
    if not os.path.exists(program):
        listed = subprocess.run(["apt-cache", "madison", "nodejs"], capture_output=True, text=True, timeout=60, check=False).stdout
        versions = [line.split("|")[1].strip() for line in listed.splitlines() if line.count("|") == 2]
        versions = [version for version in versions if version.startswith("18.")]
        if not versions:
            pytest.skip("no Node 18 in this host's package lists")
        folder = os.path.join(NODE_DIR, "node18-packages")
        os.makedirs(folder, exist_ok=True)
        done = subprocess.run(["apt-get", "download", f"nodejs={versions[0]}", *PACKAGES], cwd=folder, capture_output=True, timeout=300,
                              stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            pytest.skip(f"Node 18 cannot be fetched: {done.stderr.decode(errors='replace')[-200:]}")
        for package in glob.glob(os.path.join(folder, "*.deb")):
            subprocess.run(["dpkg", "-x", package, root], check=True, timeout=60)
    words = (["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"])
    words += ["sh", "-c", ENTER, "sh", os.path.join(root, "usr", "share", "nodejs"), program]
    if subprocess.run(words + ["--version"], capture_output=True, timeout=60, check=False,
                      env={**os.environ, "LD_LIBRARY_PATH": os.path.join(root, "usr", "lib", "x86_64-linux-gnu")}).returncode != 0:
        pytest.skip("mounts of its own are not allowed here")
    return words, os.path.join(root, "usr", "lib", "x86_64-linux-gnu")


def test_the_client_on_debian_node_18(node18):
    words, libraries = node18
    env = {"NODE_OPTIONS": "--experimental-global-webcrypto", "LD_LIBRARY_PATH": libraries}
    with Bus() as bus, Node("""
    const server = await connect('n18 server', { 'n18::f': async (x) => ({ text: (await x.reader.readAll()).toString(), version: process.version }) })
    const caller = registerWorker(url.replace('127.0.0.1', 'localhost'), { workerName: 'n18 caller' })
    const channel = await createChannel(caller)
    channel.writer.stream.end('through a channel')
    out(await caller.trigger({ function_id: 'n18::f', payload: { reader: channel.readerRef } }))
    out(await attempt(caller.trigger({ function_id: 'demo::fail', payload: { code: 'S211', message: 'm' } })))
    """, bus.url, env=env, node=words) as program:
        found = program.results(60)
    assert found[0]["text"] == "through a channel" and found[0]["version"].startswith("v18.")
    assert found[1]["error"]["code"] == "S211"
