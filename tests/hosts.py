# SPDX-License-Identifier: Apache-2.0
"""Hosts that lack something."""
import os


def path_without(tmp_path, *programs):
    """A PATH with every program of this host but those whose names begin so."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for source in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for entry in os.scandir(source):
            target = folder / entry.name
            if not entry.name.startswith(programs) and not target.is_symlink():
                target.symlink_to(entry.path)
    return str(folder)
