# SPDX-License-Identifier: Apache-2.0
"""Plays the host to a real guest: boots QEMU with the agent in an initramfs and speaks the wire protocol (docs/WIRE.md).

guest = Guest(kernel=..., modules=..., image=..., agent=...)   # boots, waits for HELLO
guest.identity(); result = guest.run(["sh", "-c", "echo hi"]); result.out, result.code
stream = guest.exec(["cat"], stdin=True); stream.send(b"x"); stream.end(); stream.wait()
"""
import gzip, os, re, select, signal, socket, struct, subprocess, tempfile, time, uuid

HELLO, REQUEST, REPLY, ERROR, DATA, EOF, CREDIT, CANCEL, SIGNAL, RESIZE, PING, PONG, PANIC = range(1, 14)
IDENTITY, EXEC, SHUTDOWN, TAR_IN, TAR_OUT = range(1, 6)
FRAME_MAX, WINDOW, MORE = 32768, 256 * 1024, 1
BODY_MAX = FRAME_MAX - 12
MODULES = ["virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "overlay", "virtio_console"]


def number(tag, value):
    return struct.pack("<BBQ", tag, 1, value)


def text(tag, value):
    value = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return struct.pack("<BBI", tag, 2, len(value)) + value


def fields(body):
    found, at = {}, 0
    while at < len(body):
        tag, kind = body[at], body[at + 1]
        if kind == 1:
            found.setdefault(tag, []).append(struct.unpack_from("<Q", body, at + 2)[0])
            at += 10
        else:
            length = struct.unpack_from("<I", body, at + 2)[0]
            found.setdefault(tag, []).append(body[at + 6:at + 6 + length])
            at += 6 + length
    return found


def frame(kind, stream, body=b"", channel=0, flags=0):
    return struct.pack("<IIBBH", len(body), stream, kind, channel, flags) + body


class Failure(Exception):
    def __init__(self, code, errno, message):
        super().__init__(f"{code}: {message}")
        self.code, self.errno, self.message = code, errno, message


class Stream:
    def __init__(self, link, number_, hold=False):
        self.link, self.id, self.hold = link, number_, hold
        self.out, self.err, self.body = b"", b"", b""
        self.chunks = {1: [], 2: []}
        self.window, self.pending, self.ending = WINDOW, b"", False
        self.owed = {1: 0, 2: 0}
        self.done = self.failure = None
        self.ended = set()

    def send(self, data):
        self.pending += data
        self.push()

    def end(self):
        self.ending = True
        self.push()

    def push(self):
        while self.pending and self.window:
            n = min(len(self.pending), self.window, BODY_MAX)
            self.link.put(frame(DATA, self.id, self.pending[:n]))
            self.pending, self.window = self.pending[n:], self.window - n
        if self.ending and not self.pending:
            self.link.put(frame(EOF, self.id))
            self.ending = False

    def grant(self, channel, amount):
        self.link.put(frame(CREDIT, self.id, struct.pack("<I", amount), channel))

    def release(self):
        """Gives the credit held back so far and goes on reading."""
        self.hold = False
        for channel, amount in self.owed.items():
            if amount:
                self.grant(channel, amount)
            self.owed[channel] = 0

    def take(self, kind, channel, flags, body):
        if kind == DATA:
            self.chunks[channel].append(body)
            self.owed[channel] += len(body)
            if not self.hold and self.owed[channel] >= WINDOW // 4:
                self.grant(channel, self.owed[channel])
                self.owed[channel] = 0
        elif kind == EOF:
            self.ended.add(channel)
        elif kind == CREDIT:
            self.window += struct.unpack("<I", body)[0]
            assert self.window <= WINDOW, "too much credit"
            self.push()
        elif kind == REPLY:
            self.body += body
            if not flags & MORE:
                self.finish()
        elif kind == ERROR:
            f = fields(body)
            self.failure = Failure(f[1][0], f.get(2, [0])[0], f[3][0].decode())
            self.finish()
        else:
            raise AssertionError(f"frame kind {kind} on a stream")

    def finish(self):
        self.out, self.err = b"".join(self.chunks[1]), b"".join(self.chunks[2])
        f = fields(self.body)
        names = ["code", "signal", "reason", "oom", "us", "out_bytes", "err_bytes"]
        for tag, name in enumerate(names, 1):
            setattr(self, name, f.get(tag, [0])[0])
        self.done = time.monotonic()
        self.link.streams.pop(self.id, None)

    @property
    def so_far(self):
        return b"".join(self.chunks[1])

    def wait(self, seconds=60):
        self.link.until(lambda: self.done, seconds)
        if self.failure:
            raise self.failure
        return self

    def cancel(self):
        self.link.put(frame(CANCEL, self.id))

    def signal(self, which):
        self.link.put(frame(SIGNAL, self.id, struct.pack("<I", which)))

    def resize(self, rows, columns):
        self.link.put(frame(RESIZE, self.id, struct.pack("<HH", rows, columns)))


class Link:
    """The host's end of the wire over any stream socket."""

    def __init__(self, sock):
        self.sock, self.received, self.queued = sock, b"", b""
        self.streams, self.next, self.hello, self.panic, self.pongs, self.closed = {}, 1, None, None, [], False
        sock.setblocking(False)

    def put(self, data):
        self.queued += data

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing within {seconds} s")
            if self.closed:
                raise ConnectionError(f"the guest is gone; panic: {self.panic}")
            self.pump(left)

    def pump(self, seconds):
        readable, writable, _ = select.select([self.sock], [self.sock] if self.queued else [], [], seconds)
        if writable:
            try:
                self.queued = self.queued[self.sock.send(self.queued[:FRAME_MAX * 4]):]
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
        if readable:
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self.received += data
        at = 0
        while len(self.received) - at >= 12:
            length, stream, kind, channel, flags = struct.unpack_from("<IIBBH", self.received, at)
            assert length <= BODY_MAX
            if len(self.received) - at - 12 < length:
                break
            self.take(stream, kind, channel, flags, self.received[at + 12:at + 12 + length])
            at += 12 + length
        self.received = self.received[at:]

    def take(self, stream, kind, channel, flags, body):
        if kind == HELLO:
            f = fields(body)
            self.hello = {"version": f[1][0], "kernel": f[2][0].decode(), "boot_us": f[3][0]}
        elif kind == PANIC:
            self.panic = body.decode()
        elif kind == PONG:
            self.pongs.append(body)
        else:
            self.streams[stream].take(kind, channel, flags, body)

    def request(self, body, **options):
        stream = Stream(self, self.next, **options)
        self.next += 1
        self.streams[stream.id] = stream
        pieces = [body[i:i + BODY_MAX] for i in range(0, len(body), BODY_MAX)] or [b""]
        for i, piece in enumerate(pieces):
            self.put(frame(REQUEST, stream.id, piece, flags=MORE if i + 1 < len(pieces) else 0))
        return stream

    def exec(self, argv, env=(), cwd=None, user=None, timeout_ms=0, stdin=None, tty=None, no_aslr=1, hold=False):
        body = number(1, EXEC) + b"".join(text(2, a) for a in argv) + b"".join(text(3, v) for v in env)
        body += b"" if cwd is None else text(4, cwd)
        body += b"" if user is None else text(5, user)
        body += number(6, timeout_ms) + number(7, time.time_ns()) + number(8, int(stdin is not None)) + number(11, no_aslr)
        if tty:
            body += number(9, tty[0]) + number(10, tty[1])
        stream = self.request(body, hold=hold)
        if isinstance(stdin, bytes):
            stream.send(stdin)
            stream.end()
        return stream

    def run(self, argv, seconds=60, **options):
        return self.exec(argv, **options).wait(seconds)

    def sh(self, script, **options):
        return self.run(["sh", "-c", script], **options)

    def identity(self, hostname="guest", seed=None, boot_id=None, machine_id=None):
        body = number(1, IDENTITY) + text(2, hostname) + text(3, os.urandom(32) if seed is None else seed)
        body += text(4, boot_id or str(uuid.uuid4())) + text(5, machine_id or uuid.uuid4().hex) + number(6, time.time_ns())
        return self.request(body).wait()

    def ping(self, body=b"x"):
        count = len(self.pongs)
        self.put(frame(PING, 0, body))
        self.until(lambda: len(self.pongs) > count, 10)
        return self.pongs[-1]

    def tar_in(self, path, data, make_parents=False):
        stream = self.request(number(1, TAR_IN) + text(2, path) + number(4, int(make_parents)))
        stream.send(data)
        stream.end()
        return stream.wait(120)

    def tar_out(self, path, name=""):
        return self.request(number(1, TAR_OUT) + text(2, path) + text(3, name)).wait(120).out

    def shutdown(self):
        return self.request(number(1, SHUTDOWN))


def newc(entries):
    """An initramfs: [(name, mode, bytes)] as a newc archive."""
    out = b""
    for inode, (name, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")], 1):
        head = "070701" + "".join(f"{v:08x}" for v in (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0))
        part = head.encode() + name.encode() + b"\0"
        out += part + b"\0" * (-len(part) % 4) + data + b"\0" * (-len(data) % 4)
    return out


def initramfs(agent, modules):
    found = {}
    for folder, _, names in os.walk(modules):
        found.update({name[:-3]: os.path.join(folder, name) for name in names if name.endswith(".ko")})
    entries = [("init", 0o100755, open(agent, "rb").read()), ("modules", 0o040755, b""), ("dev", 0o040755, b"")]
    entries += [(f"modules/{name}.ko", 0o100644, open(found[name], "rb").read()) for name in MODULES if name in found]
    order = os.path.join(modules, "order")
    if os.path.exists(order):
        entries.append(("modules/order", 0o100644, open(order, "rb").read()))
    return newc(entries)


def tsc_khz():
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    match = re.search(r"Detected ([\d.]+) MHz", log)
    return int(float(match.group(1)) * 1000) if match else 2600000


def blank_disk(folder, megabytes=512):
    path = os.path.join(folder, "disk")
    with open(path, "wb") as f:
        f.truncate(megabytes << 20)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0", "-E", "lazy_itable_init=1,nodiscard", path],
                   check=True)
    return path


class Guest(Link):
    def __init__(self, kernel, modules, image, agent, memory=256, cpus=1, disk_mb=512, words="", wait=True):
        self.folder = tempfile.TemporaryDirectory(prefix="guest-")
        initrd = os.path.join(self.folder.name, "initrd")
        with open(initrd, "wb") as f:
            f.write(gzip.compress(initramfs(agent, modules), 1))
        self.disk = blank_disk(self.folder.name, disk_mb)
        self.console_path = os.path.join(self.folder.name, "console")
        ours, theirs = socket.socketpair()
        line = (f"console=ttyS0 quiet loglevel=3 tsc_early_khz={tsc_khz()} tsc=reliable no_timer_check panic=-1 reboot=t norandmaps {words}")
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-M", "microvm,x-option-roms=off,pit=on,pic=on,rtc=on,isa-serial=on", "-accel", "tcg,tb-size=64", "-cpu", "max",
                "-m", f"{memory}M", "-smp", str(cpus), "-kernel", kernel, "-initrd", initrd, "-append", line,
                "-serial", f"file:{self.console_path}",
                "-drive", f"id=d0,file={image},format=raw,if=none,readonly=on,file.locking=off", "-device", "virtio-blk-device,drive=d0",
                "-drive", f"id=d1,file={self.disk},format=raw,if=none,discard=unmap,detect-zeroes=unmap,cache=unsafe",
                "-device", "virtio-blk-device,drive=d1", "-device", "virtio-serial-device",
                "-chardev", f"socket,id=c0,fd={theirs.fileno()}", "-device", "virtserialport,chardev=c0,name=agent"]
        self.started = time.monotonic()
        self.vm = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        super().__init__(ours)
        if wait:
            try:
                self.until(lambda: self.hello, 60)
            except BaseException:
                print(self.console())
                self.close()
                raise
            self.hello_seconds = time.monotonic() - self.started

    def console(self):
        with open(self.console_path, errors="replace") as f:
            return f.read()

    def ended(self, seconds=10):
        """Waits until the machine is off; QEMU's exit status."""
        try:
            self.until(lambda: False, seconds)
        except ConnectionError:
            pass
        return self.vm.wait(seconds)

    def close(self):
        if self.vm.poll() is None:
            self.vm.send_signal(signal.SIGKILL)
        self.vm.wait()
        self.sock.close()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
