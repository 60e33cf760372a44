// SPDX-License-Identifier: Apache-2.0
// An engine that records what a worker does, replays captured frames and misbehaves. usage: node engine.mjs, in a folder with
// node_modules/ws. It says events on standard output, one JSON line each, and takes orders on standard input, one JSON line each:
//   {"send": MESSAGE} to the newest worker socket, or {"send_text": TEXT}, {"send_binary": TEXT}
//   {"drop": true} cuts the newest worker socket; {"close": [CODE, REASON]} closes it
//   {"plan": ["503", "accept", "hang", "close", "login_error", ...]} one entry for each upgrade of `/` to come; then accept
//   {"silent": true} no workerregistered, {"deaf": true} no pongs, {"stop_reading": true} the newest socket is not read
//   {"channel": {"id": ID, "dir": "read", "do": [["binary", N], ["text", T], ["close", CODE], ["terminate"], ["pause", MS]]}}
import { createRequire } from 'node:module'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import net from 'node:net'
import readline from 'node:readline'
const { WebSocketServer } = createRequire(process.cwd() + '/')('ws')

const say = (event) => process.stdout.write(JSON.stringify({ t: Math.round(performance.now()), ...event }) + '\n')
const state = { plan: [], worker: null, silent: false, deaf: false, channels: new Map(), ids: [] }
const wss = new WebSocketServer({ noServer: true, perMessageDeflate: false, autoPong: false, maxPayload: 128 << 20 })
const server = http.createServer()

function worker(ws) {
  state.worker = ws
  const hello = { type: 'workerregistered', worker_id: randomUUID(), reattach_token: randomUUID() }
  say({ open: true, ...(state.silent ? {} : { worker_id: hello.worker_id, reattach_token: hello.reattach_token }) })
  if (!state.silent) ws.send(JSON.stringify(hello))
  ws.on('ping', (data) => { say({ ping: data.length }); if (!state.deaf) ws.pong(data) })
  ws.on('message', (data, binary) => say({ message: JSON.parse(data.toString()), binary }))
  ws.on('close', (code, reason) => say({ closed: code, reason: reason.toString() }))
  ws.on('error', () => {})
}

async function channel(ws, id, dir, key) {
  say({ channel: id, dir, key })
  const plan = state.channels.get(id + dir) ?? []
  let bytes = 0
  ws.on('message', (data, binary) => { bytes += data.length; if (!binary) say({ channel_text: data.toString() }) })
  ws.on('close', (code, reason) => say({ channel_closed: id, code, reason: reason.toString(), bytes }))
  ws.on('error', () => {})
  for (const [what, value] of plan) {
    if (what === 'binary') await new Promise((done) => ws.send(Buffer.alloc(value, 7), done))
    if (what === 'text') ws.send(value)
    if (what === 'close') ws.close(value)
    if (what === 'terminate') { await new Promise((done) => setTimeout(done, 50)); ws.terminate() }
    if (what === 'pause') { ws.pause(); await new Promise((done) => setTimeout(done, value)); ws.resume() }
  }
}

server.on('upgrade', (request, socket, head) => {
  const { pathname, searchParams } = new URL(request.url, 'http://x')
  const refuse = (status) => socket.end(`HTTP/1.1 ${status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n`)
  if (pathname.startsWith('/ws/channels/')) {
    const id = pathname.slice('/ws/channels/'.length), dir = searchParams.get('dir')
    if (!state.channels.has(id + dir)) return refuse(404)
    return wss.handleUpgrade(request, socket, head, (ws) => channel(ws, id, dir, searchParams.get('key')))
  }
  const next = pathname === '/' ? state.plan.shift() ?? 'accept' : '404'
  say({ upgrade: pathname, next, headers: request.headers })
  if (/^\d+$/.test(next)) return refuse(next)
  if (next === 'hang') return
  wss.handleUpgrade(request, socket, head, (ws) => {
    if (next === 'close') return ws.close(1000)
    if (next === 'login_error') { ws.send(JSON.stringify({ type: 'error', error: { code: 'AUTH_ERROR', message: 'no' } })); return ws.close() }
    worker(ws)
  })
})

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const order = JSON.parse(line)
  if (order.plan) state.plan = order.plan
  if (order.silent !== undefined) state.silent = order.silent
  if (order.deaf !== undefined) state.deaf = order.deaf
  if (order.send) state.worker.send(JSON.stringify(order.send))
  if (order.send_text !== undefined) state.worker.send(order.send_text)
  if (order.send_binary !== undefined) state.worker.send(Buffer.from(order.send_binary))
  if (order.drop) state.worker.terminate()
  if (order.close) state.worker.close(...order.close)
  if (order.stop_reading) state.worker.pause()
  if (order.channel) state.channels.set(order.channel.id + order.channel.dir, order.channel.do)
  say({ done: Object.keys(order) })
}).on('close', () => process.exit(0))
server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => say({ listening: server.address().port }))
