# SPDX-License-Identifier: Apache-2.0
"""The store of images: what `iii-sandbox image` makes of archives and folders, and what happens to it when processes are
killed, disks fill up and files are damaged. No machine is booted here."""
import fcntl
import json
import os
import random
import signal
import subprocess
import tarfile
import time

import pytest
from conftest import Sandbox
from measure import peak_memory
from trees import Mounted, TarTree, check, compare, digest, write_large

KILLS = 30
SEALED_NS = 1000000000 * 10**9  # the modification time of a finished file


class Store(Sandbox):
    """The program under test with a store of its own."""

    def __init__(self, home, store):
        super().__init__(home)
        self.store = str(store)
        self.scratch = os.path.join(self.store, "scratch")
        self.env["III_SANDBOX_DATA_DIR"] = self.store

    def image(self, *words, fails=False, **more):
        done = self.run("image", *words, timeout=300, **more)
        assert (done.returncode != 0) == fails, done.stderr.decode(errors="replace")
        return done

    def pull(self, name, *flags):
        return json.loads(self.image("pull", name, "--json", *flags).stdout)

    def blobs(self):
        folder = os.path.join(self.store, "blobs", "sha256")
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def leftovers(self):
        return os.listdir(self.scratch)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, tmp_path / "store")


@pytest.fixture
def small_tar(tmp_path):
    path = tmp_path / "small.tar"
    with TarTree(path) as t:
        for i in range(300):
            t.add(f"d{i % 7}/f{i}", data=os.urandom(40000))
    return f"tar:{path}"


@pytest.fixture
def tiny_tar(tmp_path):
    path = tmp_path / "tiny.tar"
    with TarTree(path) as t:
        t.add("hello", data=b"hello")
    return f"tar:{path}"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own for a store: a tmpfs whose size can be changed."""
    at = str(tmp_path / "disk")
    os.makedirs(at)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "disk", at], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")

    def change(options):
        subprocess.run(["mount", "-o", f"remount,{options}", at], check=True)
    yield at, change
    subprocess.run(["umount", "-l", at], check=True)


def is_sanitized(sandbox):
    with open(os.path.join(sandbox.build, "iii-sandbox-image"), "rb") as program:
        return b"__asan_init" in program.read()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The large tree as an archive, and its image."""
    folder = tmp_path_factory.mktemp("large")
    archive = str(folder / "large.tar")
    count = write_large(archive)
    large_store = Store(folder, folder / "store")
    large_store.pull(f"tar:{archive}")
    return large_store, archive, count


def test_a_large_tree_is_a_clean_file_system(large):
    large_store, _, _ = large
    image, = large_store.blobs()
    assert check(image) == ""
    assert os.stat(image).st_blocks * 512 < 600 << 20, "3 GiB of holes are holes"


def test_a_large_tree_is_what_the_archive_says(large, tmp_path):
    large_store, archive, _ = large
    image, = large_store.blobs()
    with Mounted(image, str(tmp_path / "mounted")) as mounted:
        if not mounted.allowed:
            pytest.skip("loop mounts are not allowed here")
        assert compare(archive, mounted.at)[:10] == []
        assert os.stat(f"{mounted.at}/links/one").st_nlink == 1001
        assert os.getxattr(f"{mounted.at}/xattr", "user.key") == b"value"
        assert os.getxattr(f"{mounted.at}/xattr", "security.capability")[:4] == b"\x01\x00\x00\x02"
        assert len(os.listdir(f"{mounted.at}/many")) == 48000
        assert not os.path.isdir(f"{mounted.at}/replaced")
        with open(f"{mounted.at}/sparse", "rb") as sparse:
            for at, want in ((0, b"aaa"), (4096, b"\0\0\0"), (2 << 30, b"bbb"), ((3 << 30) - 2, b"\0c")):
                sparse.seek(at)
                assert sparse.read(len(want)) == want


def test_the_same_archive_gives_the_same_bytes(large):
    large_store, archive, _ = large
    before, = large_store.blobs()
    assert large_store.pull(f"tar:{archive}", "--fresh")["prepared"]
    after, = large_store.blobs()
    assert before == after
    assert digest(after) == os.path.basename(after)


def test_a_large_tree_needs_little_memory(large):
    large_store, archive, _ = large
    if is_sanitized(large_store):
        pytest.skip("the sanitizers need memory of their own")
    with open(archive, "rb") as tar, open(os.path.join(large_store.store, "image"), "w+b") as image:
        status, kilobytes = peak_memory([os.path.join(large_store.build, "iii-sandbox-image"), "tar"], image=image, stdin=tar,
                                        stdout=subprocess.DEVNULL)
    assert status == 0
    assert kilobytes < 64 << 10


def test_a_folder_is_the_same_image_as_its_archive(store, tmp_path):
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(b"content" * 1000)
    os.link(tree / "deep" / "file", tree / "second")
    os.symlink("deep/file", tree / "link")
    os.mkfifo(tree / "fifo")
    os.chmod(tree / "deep", 0o711)
    with open(os.path.join(os.fsencode(tree), b"name-\xff"), "wb") as file:
        file.truncate(1 << 31)
    first = store.pull(f"dir:{tree}")["digest"]
    assert store.pull(f"dir:{tree}", "--fresh")["digest"] == first
    image, = store.blobs()
    assert check(image) == ""
    assert os.stat(image).st_blocks * 512 < 1 << 20
    with Mounted(image, str(tmp_path / "mounted")) as mounted:
        if mounted.allowed:
            assert sorted(os.listdir(os.fsencode(mounted.at))) == [b"deep", b"fifo", b"link", b"name-\xff", b"second"]
            assert os.stat(f"{mounted.at}/second").st_nlink == 2
            assert os.stat(f"{mounted.at}/deep").st_mode & 0o7777 == 0o711
            assert os.stat(f"{mounted.at}/deep/file").st_mtime_ns == os.stat(tree / "deep" / "file").st_mtime_ns


def test_compressed_archives(store, tmp_path, tiny_tar):
    for tool, suffix in (("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")):
        path = f"{tiny_tar[4:]}.{suffix}"
        with open(path, "wb") as out:
            if subprocess.run([tool, "-c", tiny_tar[4:]], stdout=out, check=False).returncode:
                pytest.skip(f"{tool} is not installed")
        assert store.pull(f"tar:{path}")["prepared"]
    assert len(store.blobs()) == 1, "all three hold the same"


@pytest.mark.parametrize("name, words", [
    ("../escape", b"entry '../escape': '..' in a path"),
    ("a/../../escape", b"'..' in a path"),
    ("x" * 256, b"IMAGE_NAME_MAX"),
    ("d/" * 300 + "f", b"IMAGE_DEPTH_MAX"),
], ids=["up", "up inside", "long", "deep"])
def test_hostile_names_are_refused_by_name(store, tmp_path, name, words):
    with TarTree(tmp_path / "bad.tar") as t:
        t.add(name, data=b"x")
    done = store.image("pull", f"tar:{tmp_path}/bad.tar", fails=True)
    assert words in done.stderr and b"S102" in done.stderr
    assert store.blobs() == [] and store.leftovers() == []


def test_a_cut_archive_is_refused(store, tmp_path, small_tar):
    whole = open(small_tar[4:], "rb").read()
    for size in (0, 100, len(whole) // 2, len(whole) // 1024 * 512):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        store.image("pull", f"tar:{tmp_path}/cut.tar", fails=True)
    assert store.blobs() == []


def test_a_missing_archive_is_named(store):
    assert b"/nonexistent.tar': No such file" in store.image("pull", "tar:/nonexistent.tar", fails=True).stderr
    assert b"/nonexistent': No such file" in store.image("pull", "dir:/nonexistent", fails=True).stderr


def test_two_pulls_at_once_prepare_once(store, small_tar):
    both = [store.start("image", "pull", small_tar, "--json") for _ in range(2)]
    answers = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    assert sorted(answer["prepared"] for answer in answers) == [False, True]
    assert answers[0]["digest"] == answers[1]["digest"]
    assert len(store.blobs()) == 1


def test_a_pull_killed_at_any_moment(store, small_tar):
    store.image("ls")
    started = time.monotonic()
    want = store.pull(small_tar)["digest"]
    whole = time.monotonic() - started
    for _ in range(KILLS):
        with store.start("image", "pull", small_tar, "--fresh") as pull:
            time.sleep(random.uniform(0, whole))  # the moment is what is tested
            pull.kill()
            pull.wait()
    answer = store.pull(small_tar, "--fresh")
    assert answer["digest"] == want
    assert len(store.blobs()) == 1 and store.leftovers() == []
    assert store.image("verify").stdout == b"all is well\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_pull_leaves_nothing(store, tmp_path, number):
    os.mkfifo(tmp_path / "endless")
    with store.start("image", "pull", f"tar:{tmp_path}/endless") as pull:
        with open(tmp_path / "endless", "wb") as feed:
            info = tarfile.TarInfo("file")
            info.size = 1 << 30
            feed.write(info.tobuf() + b"x" * (1 << 21))
            feed.flush()
            assert pull.stderr.readline() == b"writing the image\n"
            pull.send_signal(number)
            assert pull.wait(timeout=20) == 128 + number
            assert b"interrupted" in pull.stderr.read()
    assert store.blobs() == [] and store.leftovers() == []


def test_the_disk_is_full_at_every_stage(tmp_path, small_disk, small_tar):
    at, change = small_disk
    store = Store(tmp_path, f"{at}/store")
    failures = set()
    for size in ("8k", "24k", "40k", "64k", "1m", "6m", "11m", "12m", "12400k", "12600k"):
        change(f"size={size}")
        done = store.run("image", "pull", small_tar)
        if done.returncode == 0:
            break
        assert b"No space left" in done.stderr or b"MiB free" in done.stderr, done.stderr
        failures.add(done.stderr)
    assert len(failures) >= 3, "it failed in different ways"
    change("size=64m")
    store.pull(small_tar)
    assert len(store.blobs()) == 1 and store.leftovers() == []


def test_a_read_only_store_serves_what_it_has(tmp_path, small_disk, tiny_tar, small_tar):
    at, change = small_disk
    change("size=64m")
    store = Store(tmp_path, f"{at}/store")
    store.pull(tiny_tar)
    change("ro")
    assert not store.pull(tiny_tar)["prepared"]
    done = store.image("pull", small_tar, fails=True)
    assert b"S400" in done.stderr and b"Read-only file system" in done.stderr
    change("rw")
    assert store.pull(small_tar)["prepared"]


def test_garbage_in_any_file_is_thrown_away(store, tiny_tar, tmp_path):
    store.pull(tiny_tar)
    files = [os.path.join(path, name) for path, _, names in os.walk(store.store) for name in names]
    assert len(files) >= 3
    for path in files:
        for garbage in (b"", b"garbage", os.urandom(5000)):
            mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
            if os.path.exists(path):
                os.unlink(path)
            with open(path, "wb") as file:
                file.write(garbage)
            os.chmod(path, mode)
            done = store.image("pull", tiny_tar)
            if "/locks/" not in path:
                assert b"note: removed the damaged" in done.stderr
            image, = store.blobs()
            assert digest(image) == os.path.basename(image) and check(image) == ""


def test_garbage_beside_the_files_is_thrown_away(store, tiny_tar):
    store.image("ls")
    for name in ("scratch/garbage", "scratch/image-x~abcdef", "blobs/sha256/not-a-digest", "images/what"):
        with open(os.path.join(store.store, name), "wb") as file:
            file.write(b"garbage")
    os.makedirs(os.path.join(store.store, "images", "folder", "deep"))
    done = store.image("pull", tiny_tar)
    assert done.stderr.count(b"note: ") == 5
    assert len(store.blobs()) == 1 and store.leftovers() == []
    assert json.loads(store.image("ls", "--json").stdout)[0]["name"] == tiny_tar


def test_verify_finds_what_looks_untouched(store, tiny_tar):
    store.pull(tiny_tar)
    image, = store.blobs()
    os.chmod(image, 0o644)
    with open(image, "r+b") as file:
        file.seek(5000)
        file.write(b"?")
    os.utime(image, ns=(0, SEALED_NS))
    done = store.image("verify", fails=True)
    assert done.returncode == 1 and b"was damaged: removed" in done.stdout
    assert json.loads(store.image("ls", "--json").stdout) == []
    assert store.pull(tiny_tar)["prepared"]


def test_an_image_in_use_stays(store, tiny_tar):
    store.pull(tiny_tar)
    image, = store.blobs()
    with open(image, "rb") as lease:
        fcntl.flock(lease, fcntl.LOCK_SH)
        assert json.loads(store.image("ls", "--json").stdout)[0]["in_use"]
        assert b"in use" in store.image("rm", tiny_tar, fails=True).stderr
        store.image("prune", "--all")
        assert store.blobs() == [image]
    assert not json.loads(store.image("info", tiny_tar, "--json").stdout)["in_use"]
    store.image("rm", tiny_tar)
    assert store.blobs() == []
    assert b"S101" in store.image("rm", tiny_tar, fails=True).stderr


def test_an_image_is_for_its_owner_only(store, tiny_tar):
    store.pull(tiny_tar)
    image, = store.blobs()
    assert os.stat(image).st_mode & 0o777 == 0o400
    os.chmod(image, 0o444)
    assert not store.pull(tiny_tar)["prepared"], "another mode is no damage"
    assert os.stat(image).st_mode & 0o777 == 0o400


def test_words_that_make_no_sense(store):
    for words in (["image"], ["image", "frobnicate"], ["image", "pull"], ["image", "ls", "x"], ["image", "ls", "--frsh"]):
        assert store.run(*words).returncode == 2
    assert b"S100" in store.image("pull", "no-such-preset", fails=True).stderr
