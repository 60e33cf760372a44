# SPDX-License-Identifier: Apache-2.0
"""What the tools/check-* scripts share: the tracked files, C text without comments, a report with an exit status.

A check prints one line per finding ("path:line: what") and ends with 0 (clean), 1 (findings) or 77 (cannot run here; the last
line says why). Each takes --root DIR, so that its own tests can show it a tree with a fault."""
import concurrent.futures
import fnmatch
import hashlib
import os
import re
import subprocess
import sys

SKIPPED = 77


class Check:
    def __init__(self):
        arguments = sys.argv[1:]
        self.root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if arguments[:1] == ["--root"]:
            self.root = os.path.abspath(arguments[1])
        self.tables = os.path.join(self.root, "tools")
        self.findings = 0

    def files(self, *patterns):
        """Tracked and new files, as paths below the root, that match one of the patterns."""
        listing = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                                 cwd=self.root, capture_output=True, check=True).stdout.decode()
        names = sorted(name for name in set(listing.split("\0")) if name and os.path.isfile(self.path(name)))
        return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

    def path(self, name):
        return os.path.join(self.root, name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def table(self, name):
        """Rows of tools/<name>: lines of fields between '|', '#' starts a comment line."""
        for line in self.read(os.path.join("tools", name)).splitlines():
            if line.strip() and not line.startswith("#"):
                yield [field.strip() for field in line.split("|")]

    def found(self, place, text):
        self.findings += 1
        print(f"{place}: {text}")

    def skip(self, reason):
        print(reason)
        sys.exit(SKIPPED)

    def end(self):
        sys.exit(1 if self.findings else 0)


def without_comments(text, keep_strings=False):
    """C text with comments, and the insides of strings and character constants, blanked; line numbers stay."""
    def blank(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token if keep_strings else token[0] + " " * (len(token) - 2) + token[-1]
        return re.sub(r"[^\n]", " ", token)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def is_script(check, name):
    """The interpreter of a file that starts with #!, or None."""
    with open(check.path(name), "rb") as file:
        first = file.readline(200)
    return first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else None


def parallel(function, items, workers=2):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


class Cache:
    """Remembers what was found clean, by a hash of all that went into it, in build/lint-cache/<name>/."""

    def __init__(self, check, name):
        self.folder = check.path(os.path.join("build", "lint-cache", name))
        os.makedirs(self.folder, exist_ok=True)

    def key(self, *parts):
        digest = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def is_clean(self, key):
        path = os.path.join(self.folder, key)
        if not os.path.exists(path):
            return False
        os.utime(path)
        return True

    def set_clean(self, key):
        with open(os.path.join(self.folder, key), "w", encoding="utf-8"):
            pass
        names = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
        if len(names) > 3000:  # old ones go
            for path in sorted(names, key=os.path.getmtime)[:1000]:
                os.unlink(path)


def sources_with_includes(check, name, seen):
    """The text of a source and of every file of ours it includes: what a cached result depends on."""
    if name in seen:
        return
    seen[name] = check.read(name)
    for include in re.findall(r'^\s*#\s*include\s+"([^"]+)"', seen[name], re.M):
        for base in ("src", "tests/unit", os.path.dirname(name)):
            candidate = os.path.normpath(os.path.join(base, include))
            if os.path.isfile(check.path(candidate)):
                sources_with_includes(check, candidate, seen)
                break
