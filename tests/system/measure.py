# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a command. Linux counts what a process had before its exec, so a small process stands between us and it."""
import fcntl
import os
import subprocess
import sys
import tempfile

LAUNCHER = """
import os, sys
child = os.fork()
if not child:
    os.close(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(child, 0)
os.write(int(sys.argv[1]), b"%d %d" % (os.waitstatus_to_exitcode(status), usage.ru_maxrss))
"""


def peak_memory(command, image=None, **more):
    """(exit status, kilobytes of the largest process of it). image: a file that becomes descriptor 3."""
    with tempfile.TemporaryFile() as figures:
        high = fcntl.fcntl(figures.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)  # out of the way of descriptor 3
        try:
            subprocess.run([sys.executable, "-S", "-E", "-c", LAUNCHER, str(high), *command], check=False,
                           pass_fds=[high] + ([3] if image else []),
                           preexec_fn=(lambda: os.dup2(image.fileno(), 3)) if image else None, **more)
        finally:
            os.close(high)
        figures.seek(0)
        status, kilobytes = figures.read().split()
        return int(status), int(kilobytes)
