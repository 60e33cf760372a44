# SPDX-License-Identifier: Apache-2.0
"""The writable disk and the image as guest and host see them."""
import os
import shutil
import stat
import subprocess
import tarfile
import time

from processes import descendants

MIB = 1 << 20


def disk_bytes(child):
    """What the running machine's unnamed disk takes on the host."""
    for process in descendants(child.pid):
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            try:
                if "/scratch/" in os.readlink(entry.path):
                    return os.stat(entry.path).st_blocks * 512
            except OSError:
                pass
    raise AssertionError("no machine with a disk")


def test_discard_gives_space_back_and_the_cap_holds(sandbox):
    script = "head -c 200000000 /dev/urandom > /x; sync; echo full; read a; rm /x; sync; echo empty; read b"
    before = shutil.disk_usage(sandbox.store).free
    with sandbox.start("run", "--disk", "300", "python", "--", "sh", "-c", script) as child:
        assert child.stdout.readline() == b"full\n"
        assert 190 * MIB < disk_bytes(child) < 300 * MIB
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"empty\n"
        deadline = time.monotonic() + 20
        while disk_bytes(child) > 40 * MIB:
            assert time.monotonic() < deadline, disk_bytes(child)
            time.sleep(0.2)
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.wait(30) == 0
    assert os.listdir(sandbox.scratch) == []
    assert before - shutil.disk_usage(sandbox.store).free < 100 * MIB


def test_initramfs_is_made_once(sandbox):
    def entries():
        return sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in os.scandir(os.path.join(sandbox.store, "initramfs")))

    before = entries()
    assert before and sandbox.run("run", "python", "--", "true").returncode == 0
    assert entries() == before


def test_guest_sees_what_the_tar_says(sandbox, tmp_path):
    """A tar becomes an image; the guest packs what it sees, and that is compared with the tar."""
    archive = tmp_path / "tree.tar"
    big = os.urandom(300_000)
    names = ["plain", "n" * 250, "ünïcode", b"\xff\xfe".decode("utf-8", "surrogateescape")]
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
        def add(name, kind=tarfile.REGTYPE, content=b"", mode=0o644, link="", uid=0, mtime=1_600_000_000):
            import io
            info = tarfile.TarInfo("tree/" + name if name else "tree")
            info.type, info.mode, info.linkname, info.uid, info.gid, info.mtime, info.size = kind, mode, link, uid, uid, mtime, len(content)
            tar.addfile(info, io.BytesIO(content))

        add("", tarfile.DIRTYPE, mode=0o755)
        for name in names:
            add(name, content=name.encode("utf-8", "surrogateescape"))
        add("big", content=big, mode=0o4755, uid=70_000)
        add("hard", tarfile.LNKTYPE, link="tree/big")
        add("soft", tarfile.SYMTYPE, link="big")
        add("long-soft", tarfile.SYMTYPE, link="x" * 200)
        add("closed", tarfile.DIRTYPE, mode=0o500)
        add("closed/inside", content=b"in", mode=0o400)
        add("sticky", tarfile.DIRTYPE, mode=0o1777)
        add("fifo", tarfile.FIFOTYPE, mode=0o600)
    image = f"tar:{archive}"
    done = sandbox.run("run", "--out", f"/tree:{tmp_path}/back", image, "--", "/no-such-program", timeout=120)
    assert done.returncode == 127, done.stderr
    back = tmp_path / "back"
    for name in names:
        assert (back / name).read_bytes() == name.encode("utf-8", "surrogateescape")
    assert sorted(os.listdir(back)) == sorted(names + ["big", "hard", "soft", "long-soft", "closed", "sticky", "fifo"])
    info = os.stat(back / "big")
    assert (back / "big").read_bytes() == big and info.st_nlink == 2 and os.stat(back / "hard").st_ino == info.st_ino
    assert int(info.st_mtime) == 1_600_000_000
    assert os.readlink(back / "soft") == "big" and os.readlink(back / "long-soft") == "x" * 200
    assert stat.S_IMODE(os.stat(back / "closed").st_mode) == 0o500 and (back / "closed" / "inside").read_bytes() == b"in"
    assert stat.S_IMODE(os.stat(back / "sticky").st_mode) == 0o1777 and stat.S_ISFIFO(os.lstat(back / "fifo").st_mode)
    assert sandbox.run("image", "rm", image).returncode == 0


def test_agent_is_small(sandbox, tmp_path):
    release = os.path.join(os.path.dirname(sandbox.build), "release", "iii-sandbox-agent")
    agent = release if os.path.exists(release) else os.path.join(sandbox.build, "iii-sandbox-agent")
    subprocess.run(["strip", "-o", tmp_path / "agent", agent], check=True)
    assert os.path.getsize(tmp_path / "agent") <= 1_600_000
