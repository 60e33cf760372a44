// SPDX-License-Identifier: Apache-2.0
// What the scripts of the tests share. The set-up copies it beside node_modules; a script gets `url` and `args`, and says its
// findings with out(), one JSON line each.
import { registerWorker, TriggerAction, InvocationError } from 'iii-sdk'
import { createChannel } from 'iii-sdk/helpers'
import { ChannelReader, ChannelWriter } from 'iii-sdk/channel'
import WebSocket from 'ws'
import { randomUUID } from 'node:crypto'
import { spawn } from 'node:child_process'
import net from 'node:net'

console.debug = () => {}
console.log = () => {}
export { registerWorker, TriggerAction, InvocationError, createChannel, ChannelReader, ChannelWriter, WebSocket, randomUUID, spawn, net }
export const url = process.env.BUS_URL
export const args = process.argv.slice(1)
export const out = (value) => process.stdout.write(JSON.stringify(value) + '\n')
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms))
export const show = (e) => ({ name: e?.name, code: e?.code, message: e?.message, stack: typeof e?.stacktrace === 'string', is: e instanceof InvocationError })
// A client without its telemetry socket, once it is connected and its announcement has been handled.
export async function connect(workerName, functions = {}, options = {}) {
  const client = registerWorker(url, { workerName, otel: { enabled: false }, ...options })
  for (const [id, handler] of Object.entries(functions)) client.registerFunction(id, handler)
  await client.trigger({ function_id: 'engine::functions::list', payload: {} })
  return client
}
export const attempt = (promise) => promise.then((result) => ({ result }), (e) => ({ error: show(e) }))
// A socket without the SDK: messages as they are.
export async function raw(path = '/', options = {}) {
  const ws = new WebSocket(url + path, { perMessageDeflate: false, ...options })
  ws.seen = []
  ws.waiting = []
  ws.on('message', (data, binary) => {
    ws.seen.push(binary ? data : data.toString())
    ws.waiting.splice(0).forEach((check) => check())
  })
  ws.closed = new Promise((done) => ws.on('close', (code, reason) => done({ code, reason: reason.toString() })))
  await new Promise((done, failed) => { ws.once('open', done); ws.once('error', failed) })
  ws.on('error', () => {})
  ws.put = (message) => ws.send(JSON.stringify(message))
  ws.until = (wanted, ms = 10000) => new Promise((done, failed) => {
    const timer = setTimeout(() => failed(new Error('no such message: ' + JSON.stringify(ws.seen).slice(0, 400))), ms)
    const check = () => {
      for (const text of ws.seen) {
        const message = typeof text === 'string' && text.startsWith('{') ? JSON.parse(text) : {}
        if (wanted(message)) { clearTimeout(timer); return done(message) }
      }
      ws.waiting.push(check)
    }
    check()
  })
  ws.call = (function_id, data, more = {}) => {
    const invocation_id = randomUUID()
    ws.put({ type: 'invokefunction', invocation_id, function_id, data, ...more })
    return ws.until((m) => m.type === 'invocationresult' && m.invocation_id === invocation_id)
  }
  return ws
}
export const refused = (path, options = {}) => new Promise((done) => {
  const ws = new WebSocket(url + path, { perMessageDeflate: false, ...options })
  ws.on('unexpected-response', (request, response) => { response.resume(); response.on('end', () => done(response.statusCode)) })
  ws.on('open', () => { done(101); ws.close() })
  ws.on('error', () => {})
})
