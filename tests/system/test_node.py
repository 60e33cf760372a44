# SPDX-License-Identifier: Apache-2.0
"""The preset `node`: Debian's nodejs and npm. Its first preparation takes minutes; `tools/check` does it beside other steps."""
import pytest

PREPARE_SECS = 900


@pytest.fixture(scope="module")
def node(prepared_sandbox):
    done = prepared_sandbox.run("image", "pull", "node", timeout=PREPARE_SECS)
    assert done.returncode == 0, done.stderr
    return prepared_sandbox


def test_language_node_runs_a_script(node, sandbox):
    script = b"console.log(process.argv.slice(1), typeof crypto.subtle); process.stdin.on('data', d => process.stdout.write(d))"
    done = sandbox.run("run", "--lang", "node", "node", "-", "--", "a b", stdin=script)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"[ '/tmp/run.js', 'a b' ] object\n"
    done = sandbox.run("run", "node", "--", "node", "-e", "process.exit(9)")
    assert done.returncode == 9


def test_npm_is_there(node, sandbox):
    done = sandbox.run("run", "node", "--", "npm", "--version")
    assert done.returncode == 0 and done.stdout.count(b".") == 2
