# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc tells of them."""
import collections
import os
import time

# start: clock ticks since boot. A pid is given again one day, the pair is not.
Process = collections.namedtuple("Process", "pid start name")


def look(pid):
    """(Process, parent's pid, state letter), or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1:text.rindex(")")]
    fields = text[text.rindex(")") + 2:].split()
    return Process(int(pid), int(fields[19]), name), int(fields[1]), fields[0]


def descendants(pid):
    """The processes below pid, zombies included."""
    children = collections.defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        seen = look(entry)
        if seen:
            children[seen[1]].append(seen[0])
    found, waiting = set(), [pid]
    while waiting:
        for child in children[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child.pid)
    return found


def is_alive(process):
    """A zombie is not: it holds nothing any more."""
    seen = look(process.pid)
    return seen is not None and seen[0].start == process.start and seen[2] not in "ZX"


def wait_gone(family, limit_s):
    """True once none of them is alive; False when the time is over."""
    deadline = time.monotonic() + limit_s
    while any(is_alive(process) for process in family):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def open_files(pid):
    """What each descriptor of a process is: {number: link text}."""
    found = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            pass
    return found
