# SPDX-License-Identifier: Apache-2.0
"""Each static check fails on a tree with the fault it looks for, and names the line."""
import os
import shutil
import stat
import subprocess

import pytest

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools")
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"


@pytest.fixture
def tree(tmp_path):
    """A small tree in which every check is content."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    os.makedirs(tmp_path / "tools")
    for name in ("layers.txt", "libraries.txt", "banned.txt"):
        shutil.copy(os.path.join(TOOLS, name), tmp_path / "tools")
    shutil.copy(os.path.join(os.path.dirname(TOOLS), ".clang-format"), tmp_path)
    write(tmp_path, "meson.build", "")
    write(tmp_path, "src/base/limits.h", SPDX + "#pragma once\n#define A_MAX 5\n")
    write(tmp_path, "src/base/a.h", SPDX + "#pragma once\n")
    write(tmp_path, "src/base/a.c", SPDX + '#include "base/a.h"\n\n#include "base/limits.h"\n\nint a_max = A_MAX;\n')
    write(tmp_path, "src/wire/w.c", SPDX + '#include "base/a.h"\n')
    write(tmp_path, "README.md", "# Title\n[here](#title) [there](src/base/a.c)\n")
    return tmp_path


def write(tree, name, text):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def check(name, tree):
    done = subprocess.run([os.path.join(TOOLS, "check-" + name), "--root", str(tree)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["layers", "banned", "sizes", "limits", "spdx", "links", "paths", "format", "headers", "shell"])
def test_a_clean_tree_passes(tree, name):
    assert check(name, tree) == (0, "")


LONG = "void f(void)\n{\n" + "    f();\n" * 71 + "}\n"
FAULTS = {
    "arrow up": ("layers", "src/base/b.c", SPDX + '#include "wire/w.h"\n', "src/base/b.c:2: 'base' may not include 'wire/w.h'"),
    "library": ("layers", "src/wire/b.c", SPDX + "\n#include <jansson.h>\n", "src/wire/b.c:3: 'wire' may not use jansson"),
    "folder": ("layers", "src/new/b.c", SPDX, "src/new/b.c: folder 'new' has no row"),
    "call": ("banned", "src/base/b.c", SPDX + "int b(void) { return atoi (0); }\n", "src/base/b.c:2: atoi() is banned"),
    "call in a test": ("banned", "tests/unit/b.c", SPDX + "void b(void) { usleep(1); }\n", "tests/unit/b.c:2: usleep() is banned"),
    "print": ("banned", "src/wire/b.c", SPDX + 'void b(void) { printf("x"); }\n', "src/wire/b.c:2: printf() is banned"),
    "long file": ("sizes", "src/base/b.c", SPDX + "\n" * 1000, "src/base/b.c: 1001 lines"),
    "long function": ("sizes", "src/base/b.c", SPDX + LONG, "src/base/b.c:3: function of 71 lines"),
    "limit": ("limits", "src/base/limits.h", SPDX + "#define A_MAX 5\n#define B_MAX 6\n", "src/base/limits.h:3: nothing uses B_MAX"),
    "licence": ("spdx", "tools/x", "#!/bin/sh\nset -u\n", "tools/x: no line 'SPDX"),
    "link": ("links", "docs/X.md", "text\n[a](../no.c)\n", "docs/X.md:2: '../no.c' leads nowhere"),
    "anchor": ("links", "docs/X.md", "[a](../README.md#no)\n", "docs/X.md:1: 'README.md' has no heading"),
    "path": ("paths", "docs/X.md", "see\n/work" + "/x\n", "docs/X.md:2: '/work" + "/' is a path"),
    "lock": ("paths", "x/package-lock.json", '{"packages": {"a": {"resolved": "https://mirror.example/a"}}}', "names mirror.example"),
    "format": ("format", "src/base/b.c", SPDX + "int  b;\n", "src/base/b.c: is not formatted"),
    "header": ("headers", "src/base/b.h", SPDX + "#pragma once\nsize_t b;\n", "src/base/b.h: does not compile alone with gcc"),
    "guard": ("headers", "src/base/b.h", SPDX, "src/base/b.h: has no '#pragma once'"),
    "script": ("shell", "tools/x.sh", "set -u\nif\n", "tools/x.sh: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(tree, fault):
    name, path, text, message = FAULTS[fault]
    write(tree, path, text)
    if text.startswith("#!"):
        os.chmod(tree / path, stat.S_IRWXU)
    status, output = check(name, tree)
    assert status == 1 and message in output


def test_names_in_comments_and_strings_are_no_calls(tree):
    write(tree, "src/base/b.c", SPDX + '/* atoi(x) */\nconst char *b = "system(1)"; // popen(2)\nint c = my_atoi(b->exit(1));\n')
    assert check("banned", tree) == (0, "")


def test_an_argued_long_function_passes(tree):
    write(tree, "src/base/b.c", SPDX + "\n/* long: one step after the other */\n" + LONG)
    assert check("sizes", tree) == (0, "")


# --- tools/install-deps, with programs that only write down what they are asked ---


@pytest.fixture
def fake_debian(tmp_path):
    """A PATH where every package but libuv1-dev is installed, and apt-get writes its arguments to a file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("awk", "tr", "dirname", "mktemp", "rm", "cat", "env", "sh"):
        (folder / program).symlink_to(shutil.which(program))
    scripts = {
        "dpkg-query": '[ "$4" = libuv1-dev ] && [ ! -e "$LOG.done" ] && exit 1\nprintf "install ok installed"',
        "apt-get": 'echo "$DEBIAN_FRONTEND $*" >>"$LOG"; [ "$1" = update ] || : >"$LOG.done"',
        "id": "echo ${FAKE_UID-0}",
    }
    for program, text in scripts.items():
        (folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (folder / program).chmod(0o755)
    log = tmp_path / "log"

    def install(*groups, **environment):
        done = subprocess.run([os.path.join(TOOLS, "install-deps"), *groups], capture_output=True, text=True, timeout=60, check=False,
                              env={"PATH": str(folder), "LOG": str(log), **environment})
        return done, log.read_text() if log.exists() else ""

    return install


def test_install_deps_installs_what_is_missing_once(fake_debian):
    done, asked = fake_debian("build")
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing and will be installed: libuv1-dev\n" in done.stdout
    assert asked == "noninteractive update\nnoninteractive install -y --no-install-recommends libuv1-dev\n"
    done, again = fake_debian("build")
    assert (done.returncode, done.stdout, again) == (0, "", asked)


def test_install_deps_without_root_or_sudo_says_the_command(fake_debian):
    done, asked = fake_debian("build", FAKE_UID="1000")
    assert done.returncode == 1 and asked == ""
    assert "apt-get update && apt-get install -y --no-install-recommends libuv1-dev" in done.stderr


def test_install_deps_refuses_an_unknown_group(fake_debian):
    done, asked = fake_debian("no-such")
    assert done.returncode == 2 and asked == "" and "no-such" in done.stderr
