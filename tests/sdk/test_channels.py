# SPDX-License-Identifier: Apache-2.0
"""Channels of the embedded engine, between clients and with this process' own ends: cases 21 to 25 and what goes wrong."""
import hashlib

import pytest

from bus import BUILD, Bus, node

FNV = """
const fnv = (buffer) => { let h = 0xcbf29ce484222325n; for (const b of buffer) h = BigInt.asUintN(64, (h ^ BigInt(b)) * 0x100000001b3n); return h.toString(16).padStart(16, '0') }
"""


def test_21_two_hundred_thousand_bytes_by_reader_reference(bus):
    found = node(FNV + """
    const bytes = Buffer.from([...Array(200000).keys()].map((i) => (i * 7) & 255))
    const server = await connect('c21 server', { 'c21::f': async (x) => { const all = await x.reader.readAll(); return { n: all.length, hash: fnv(all) } } })
    const client = await connect('c21 caller')
    const answers = []
    for (const id of ['c21::f', 'demo::consume']) {
      const channel = await createChannel(client)
      const answer = client.trigger({ function_id: id, payload: { reader: channel.readerRef } })
      channel.writer.stream.write(bytes)
      channel.writer.stream.end()
      answers.push(await answer)
    }
    out({ answers, hash: fnv(bytes) })
    """, bus.url)
    assert found["answers"][0] == {"n": 200000, "hash": found["hash"]}
    assert found["answers"][1] == {"bytes": 200000, "hash": found["hash"], "texts": [], "end": "closed"}


def test_22_text_and_binary_keep_order_and_opcode(bus):
    found = node("""
    const client = await connect('c22')
    const channel = await createChannel(client)
    const { channel_id, access_key } = channel.readerRef
    const path = (dir) => `/ws/channels/${channel_id}?key=${access_key}&dir=${dir}`
    const writer = await raw(path('write'))
    writer.send('one'); writer.send(Buffer.from('2')); writer.send(Buffer.alloc(0)); writer.send('{"three":3}'); writer.send(Buffer.alloc(300000, 4))
    writer.send('five'); writer.close(1000, 'stream_complete')
    const reader = await raw(path('read'))
    const { code } = await reader.closed
    const second = await createChannel(client)
    const answer = client.trigger({ function_id: 'demo::consume', payload: { reader: second.readerRef } })
    second.writer.sendMessage('a'); second.writer.stream.write('xyz'); second.writer.sendMessage('{"b":1}'); second.writer.stream.end()
    out({ code, seen: reader.seen.map((m) => typeof m === 'string' ? m : m.length), answer: await answer })
    """, bus.url)
    assert found["seen"] == ["one", 1, 0, '{"three":3}', 300000, "five"]
    assert found["code"] == 1005
    assert found["answer"]["texts"] == ["a", '{"b":1}'] and found["answer"]["bytes"] == 3


def test_23_either_end_first(bus):
    found = node("""
    const client = await connect('c23')
    const first = await createChannel(client)
    const reading = first.reader.readAll()
    await sleep(100)
    first.writer.stream.end('reader first')
    const second = await createChannel(client)
    second.writer.stream.end('writer first')
    await new Promise((done) => second.writer.stream.once('close', done))
    const third = await createChannel(client)
    const consumed = client.trigger({ function_id: 'demo::consume', payload: { reader: third.readerRef } })
    await sleep(50)
    third.writer.stream.end('local reader first')
    const fourth = await createChannel(client)
    await client.trigger({ function_id: 'demo::produce', payload: { writer: fourth.writerRef, bytes: 1000, text: 'before' } })
    const texts = []
    fourth.reader.onMessage((m) => texts.push(m))
    out([(await reading).toString(), (await second.reader.readAll()).toString(), (await consumed).bytes, (await fourth.reader.readAll()).length, texts])
    """, bus.url)
    assert found == ["reader first", "writer first", 18, 1000, ["before"]]


def test_24_wrong_key_unknown_id_second_reader(bus):
    found = node("""
    const client = await connect('c24')
    const channel = await createChannel(client)
    const { channel_id, access_key } = channel.readerRef
    const statuses = [await refused(`/ws/channels/${channel_id}?key=${randomUUID()}&dir=read`), await refused(`/ws/channels/${randomUUID()}?key=${access_key}&dir=read`),
      await refused(`/ws/channels/${channel_id}?key=${access_key}`), await refused(`/ws/channels/${channel_id}?key=${access_key}&dir=both`),
      await refused(`/ws/channels/${channel_id}?dir=read`), await refused('/elsewhere')]
    const bad = new ChannelReader(url, { channel_id, access_key: 'wrong', direction: 'read' })
    const message = await bad.readAll().then(() => 'resolved', (e) => e.message)
    const first = channel.reader.readAll()
    await sleep(100)
    const second = (await new ChannelReader(url, channel.readerRef).readAll()).length
    const local = await attempt(client.trigger({ function_id: 'demo::consume', payload: { reader: channel.readerRef } }))
    const unknown = await attempt((await raw()).call('demo::consume', { reader: { channel_id: randomUUID(), access_key, direction: 'read' } }))
    channel.writer.stream.end('once')
    out({ statuses, message, first: (await first).toString(), second, local, unknown: unknown.result.error.code })
    """, bus.url)
    assert found["statuses"] == [404, 404, 400, 400, 400, 404]
    assert found["message"] == "Unexpected server response: 404"
    assert found["first"] == "once" and found["second"] == 0
    assert found["local"]["error"]["code"] == "S001" and found["unknown"] == "S001"


# Memory is measured from outside: freed memory must not linger in the sanitizer's quarantine.
LEAN = {"ASAN_OPTIONS": "quarantine_size_mb=0:malloc_context_size=1"}


# The sanitizer's own book-keeping doubles what a block takes.
LIMIT_KB = 8 * 1024 if "asan" not in BUILD else 24 * 1024


def flood(reader_side):
    """64 MiB to a reader that pauses 2 s; meanwhile calls are timed. reader_side makes `finished`, a promise of (bytes, hash)."""
    return """
    const { createHash } = await import('node:crypto')
    const client = await connect('c25')
    const other = await connect('c25 other')
    const channel = await createChannel(client)
    const before = await other.trigger({ function_id: 'demo::stats', payload: { reset: true } })
    const block = Buffer.from([...Array(65536).keys()].map((i) => (i * 31 + (i >> 8)) & 255))
    """ + reader_side + """
    const delays = []
    let running = true
    const pinging = (async () => { while (running) { const t = process.hrtime.bigint(); await other.trigger({ function_id: 'demo::echo', payload: {} }); delays.push(Number(process.hrtime.bigint() - t) / 1e6); await sleep(5) } })()
    const result = await finished
    running = false
    await pinging
    const after = await other.trigger({ function_id: 'demo::stats', payload: {} })
    delays.sort((a, b) => a - b)
    out({ result, grown_kb: after.peak_kb - before.rss_kb, median_ms: delays[delays.length >> 1], calls: delays.length })
    """


WRITE_64 = """
    const writing = (async () => { for (let i = 0; i < 1024; i++) if (!channel.writer.stream.write(block)) await new Promise((done) => channel.writer.stream.once('drain', done)); channel.writer.stream.end() })()
"""
SOCKET_READER = WRITE_64 + """
    const hash = createHash('sha256')
    let bytes = 0
    const finished = new Promise((done) => {
      const stream = channel.reader.stream
      stream.once('data', () => { stream.pause(); setTimeout(() => stream.resume(), 2000) })
      stream.on('data', (d) => { bytes += d.length; hash.update(d) })
      stream.on('end', () => done({ bytes, hash: hash.digest('hex') }))
    })
"""


@pytest.mark.smoke
def test_25_sixty_four_mebibytes_to_a_reader_that_pauses():
    with Bus(env=LEAN) as bus:
        found = node(flood(SOCKET_READER), bus.url, timeout=90)
    block = bytes((i * 31 + (i >> 8)) & 255 for i in range(65536))
    assert found["result"] == {"bytes": 64 << 20, "hash": hashlib.sha256(block * 1024).hexdigest()}
    assert found["grown_kb"] < LIMIT_KB, found
    assert found["calls"] > 50 and found["median_ms"] < 100, found


@pytest.mark.smoke
def test_25_the_same_with_our_own_reader_and_writer():
    reader = WRITE_64 + "const finished = client.trigger({ function_id: 'demo::consume', payload: { reader: channel.readerRef, pause_ms: 2000 }, timeoutMs: 60000 })"
    writer = """
    const answer = client.trigger({ function_id: 'demo::produce', payload: { writer: channel.writerRef, bytes: 64 << 20 }, timeoutMs: 60000 })
    let bytes = 0
    const finished = new Promise((done) => {
      const stream = channel.reader.stream
      stream.once('data', () => { stream.pause(); setTimeout(() => stream.resume(), 2000) })
      stream.on('data', (d) => { bytes += d.length })
      stream.on('end', async () => done({ bytes, end: (await answer).end }))
    })"""
    with Bus(env=LEAN) as bus:
        found = node(flood(reader), bus.url, timeout=90)
        assert (found["result"]["bytes"], found["result"]["end"]) == (64 << 20, "closed")
        assert found["grown_kb"] < LIMIT_KB and found["median_ms"] < 100, found
        found = node(flood(writer), bus.url, timeout=90)
        assert found["result"] == {"bytes": 64 << 20, "end": "written"}
        assert found["grown_kb"] < LIMIT_KB and found["median_ms"] < 100, found


def test_writer_that_is_lost_is_told_apart(bus):
    found = node("""
    const client = await connect('lost')
    const socket = (ref, dir) => raw(`/ws/channels/${ref.channel_id}?key=${ref.access_key}&dir=${dir}`)
    const ends = []
    for (const how of ['close', 'terminate']) {
      const local = await createChannel(client), remote = await createChannel(client)
      const consumed = client.trigger({ function_id: 'demo::consume', payload: { reader: local.readerRef } })
      const reader = await socket(remote.readerRef, 'read')
      const writers = [await socket(local.writerRef, 'write'), await socket(remote.writerRef, 'write')]
      for (const writer of writers) { await new Promise((done) => writer.send(Buffer.from('part'), done)); await sleep(50); writer[how]() }
      ends.push([(await consumed).end, (await reader.closed).code, reader.seen.map(String)])
    }
    const aborted = await createChannel(client)
    await client.trigger({ function_id: 'demo::produce', payload: { writer: aborted.writerRef, bytes: 10, abort: true } })
    ends.push((await (await socket(aborted.readerRef, 'read')).closed).code)
    out(ends)
    """, bus.url)
    assert found == [["closed", 1005, ["part"]], ["lost", 1011, ["part"]], 1011]


def test_reader_that_goes_away_ends_the_writer(bus):
    found = node("""
    const client = await connect('gone')
    const socket = (ref, dir) => raw(`/ws/channels/${ref.channel_id}?key=${ref.access_key}&dir=${dir}`)
    const one = await createChannel(client)
    const writer = await socket(one.writerRef, 'write'), reader = await socket(one.readerRef, 'read')
    reader.close()
    const two = await createChannel(client)
    const produced = client.trigger({ function_id: 'demo::produce', payload: { writer: two.writerRef, bytes: 64 << 20 } })
    const second = await socket(two.readerRef, 'read')
    second.terminate()
    const three = await createChannel(client)
    const third = await socket(three.writerRef, 'write')
    const consumed = client.trigger({ function_id: 'demo::consume', payload: { reader: three.readerRef, close_after: 1 } })
    third.send(Buffer.from('enough'))
    out([(await writer.closed).code, (await produced).end, (await third.closed).code, (await consumed).end])
    """, bus.url)
    assert found == [1001, "reader gone", 1001, "by us"]


def test_channel_made_by_this_process_and_its_references(bus):
    found = node("""
    const client = await connect('own')
    const { reader, writer } = await client.trigger({ function_id: 'demo::channel', payload: {} })
    const produced = client.trigger({ function_id: 'demo::produce', payload: { writer, bytes: 5000000 } })
    const consumed = client.trigger({ function_id: 'demo::consume', payload: { reader } })
    out([await produced, await consumed])
    """, bus.url)
    assert found[0]["bytes"] == found[1]["bytes"] == 5000000
    assert found[0]["hash"] == found[1]["hash"] and found[1]["end"] == "closed"


def test_channels_have_a_limit_and_are_given_back(bus):
    found = node("""
    const ws = await raw()
    const made = []
    let code
    while (!code && made.length < 600) { const m = await ws.call('engine::channels::create', { buffer_size: 1 }); code = m.error?.code; if (m.result) made.push(m.result) }
    const { reader } = made[0]
    const path = (dir) => `/ws/channels/${reader.channel_id}?key=${reader.access_key}&dir=${dir}`
    const writer = await raw(path('write'))
    const other = await raw(path('read'))
    writer.close()
    await other.closed
    const again = (await ws.call('engine::channels::create', {})).result !== undefined
    out({ made: made.length, code, again, bad: (await ws.call('engine::channels::create', { buffer_size: 'x' })).error.code })
    """, bus.url)
    assert found == {"made": 512, "code": "limit_exceeded", "again": True, "bad": "deserialization_error"}
