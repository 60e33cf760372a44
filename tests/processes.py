# SPDX-License-Identifier: Apache-2.0
"""Looking at processes by /proc: who descends from whom, and whether one is still the same."""
import os
import time
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    started: str  # clock ticks since boot: tells a reused pid
    name: str


def _read(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            text = stat.read()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return Process(int(pid), rest[19], name), int(rest[1]), rest[0]


def descendants(pid):
    """Every process below pid now, as a set of Process."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        found = _read(entry)
        if found:
            parents.setdefault(found[1], []).append(found[0])
    below, todo = set(), [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            below.add(child)
            todo.append(child.pid)
    return below


def is_alive(process):
    found = _read(process.pid)
    return bool(found) and found[0].started == process.started and found[2] not in "ZX"


def wait_gone(processes, seconds):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
