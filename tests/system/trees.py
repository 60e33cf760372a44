# SPDX-License-Identifier: Apache-2.0
"""Trees for the tests of images: written as a tar, and compared with what an image shows when it is mounted."""
import hashlib
import io
import os
import stat
import subprocess
import tarfile

NAME_MAX = 255
CAPABILITY = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"


class TarTree:
    """An archive in pax form, written entry by entry."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.tar.close()

    def add(self, name, kind=tarfile.REGTYPE, data=b"", **values):
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        info = tarfile.TarInfo(name)
        info.type, info.size, info.mtime = kind, len(data), 1700000000.5
        info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
        info.pax_headers = values.pop("pax", {})
        for key, value in values.items():
            setattr(info, key, value)
        self.tar.addfile(info, io.BytesIO(data))
        self.count += 1

    def add_sparse(self, name, size, pieces):
        """GNU sparse 1.0 in pax: the map in front of the data, both padded to blocks. pieces: {offset: bytes}."""
        listing = f"{len(pieces) + 1}\n" + "".join(f"{at}\n{len(data)}\n" for at, data in sorted(pieces.items())) + f"{size}\n0\n"
        body = listing.encode()
        body += b"\0" * (-len(body) % 512) + b"".join(data for _, data in sorted(pieces.items()))
        self.add(f"GNUSparseFile.0/{os.path.basename(name)}", data=body,
                 pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name, "GNU.sparse.realsize": str(size)})


def write_large(path, files=50000):
    """Everything that an image may hold, and many files."""
    with TarTree(path) as t:
        t.add("./", tarfile.DIRTYPE, mode=0o750)
        t.add("many", tarfile.DIRTYPE, mtime=1e9)
        for i in range(files - 2000):
            t.add(f"many/file-{i:06d}", data=b"%d" % i)
        for i in range(1000):
            t.add(f"tree/{i % 10}/{i % 100}/f{i}", data=b"t" * (i * 7 % 9000))
        t.add("links/one", data=b"one file, a thousand names", mode=0o600)
        for i in range(1000):
            t.add(f"links/{i}", tarfile.LNKTYPE, linkname="links/one")
        t.add("setuid", data=b"s", mode=0o6755, uid=1000, gid=70000)
        t.add("sticky", tarfile.DIRTYPE, mode=0o1777, uid=4000000000)
        t.add("n" * NAME_MAX, data=b"long")
        t.add(b"not-utf8-\xff\xfe", data=b"bytes")
        t.add("ä/ö", data=b"utf8")
        t.add("short", tarfile.SYMTYPE, linkname="links/one")
        t.add("long", tarfile.SYMTYPE, linkname="/" + "x" * 200)
        t.add("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)
        t.add("disk", tarfile.BLKTYPE, devmajor=259, devminor=70000, mode=0o660, gid=6)
        t.add("fifo", tarfile.FIFOTYPE)
        t.add("xattr", data=b"x", pax={"SCHILY.xattr.user.key": "value", "SCHILY.xattr.security.capability": CAPABILITY.decode("latin1")})
        t.add_sparse("sparse", 3 << 30, {0: b"a" * 4096, 2 << 30: b"b" * 5000, (3 << 30) - 1: b"c"})
        t.add("replaced/inside", data=b"gone")
        t.add("replaced", data=b"a file now")
        return t.count


def compare(archive, mounted):
    """Every entry of the archive as it is in the mounted image. Returns what differs."""
    wrong = []
    final = {}
    with tarfile.open(archive, encoding="utf-8", errors="surrogateescape") as tar:
        for entry in tar:
            final[entry.name.rstrip("/")] = entry
        for name, entry in final.items():
            if name.startswith("replaced/"):
                continue
            path = os.path.join(os.fsencode(mounted), name.encode("utf-8", "surrogateescape"))
            wrong += [f"{name}: {what}" for what in differences(tar, entry, path)]
    return wrong


def differences(tar, entry, path):
    try:
        s = os.lstat(path)
    except OSError as failure:
        return [str(failure)]
    if entry.islnk():
        target = os.path.join(path[:-len(entry.name.encode())], entry.linkname.encode())
        return [] if s.st_ino == os.lstat(target).st_ino else ["is not the same file"]
    kinds = {tarfile.REGTYPE: stat.S_IFREG, tarfile.GNUTYPE_SPARSE: stat.S_IFREG, tarfile.DIRTYPE: stat.S_IFDIR,
             tarfile.SYMTYPE: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}
    found = []
    if s.st_mode != kinds[entry.type] | entry.mode:
        found.append(f"mode {s.st_mode:o}")
    if (s.st_uid, s.st_gid) != (entry.uid, entry.gid):
        found.append(f"owner {s.st_uid}:{s.st_gid}")
    if s.st_mtime_ns != round(entry.mtime * 1000) * 1000000:
        found.append(f"time {s.st_mtime_ns}")
    if entry.issym() and os.readlink(path) != entry.linkname.encode():
        found.append("target")
    if entry.isdev() and not entry.isfifo() and (os.major(s.st_rdev), os.minor(s.st_rdev)) != (entry.devmajor, entry.devminor):
        found.append(f"device {s.st_rdev:x}")
    if entry.isreg() and s.st_size != entry.size:
        found.append(f"size {s.st_size}")
    if entry.isreg() and entry.size < 1 << 20:
        with open(path, "rb") as file:
            if file.read() != tar.extractfile(entry).read():
                found.append("content")
    return found


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def check(image):
    """e2fsck's findings, "" when there are none."""
    done = subprocess.run(["/sbin/e2fsck", "-fn", image], capture_output=True, check=False)
    return "" if done.returncode == 0 else done.stdout.decode(errors="replace")


class Mounted:
    """A loop mount of an image, read-only. `allowed` tells whether this host lets us."""

    def __init__(self, image, at):
        self.image, self.at = image, at

    def __enter__(self):
        os.makedirs(self.at, exist_ok=True)
        done = subprocess.run(["mount", "-o", "loop,ro", self.image, self.at], capture_output=True, check=False)
        self.allowed = done.returncode == 0
        return self

    def __exit__(self, *details):
        if self.allowed:
            subprocess.run(["umount", self.at], check=True)
