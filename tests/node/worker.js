'use strict'
// The worker that `fdbqueue conformance --consumer` starts, kills and stops: docs/conformance.md.

const readline = require('readline')
const { Consumer, Refused, open } = require('../../clients/node/client')
const { NEVER, bigEndian, counters } = require('../../clients/node/encodings')

const bytesOf = (text) => Buffer.from(text.replace(/%([0-9a-f]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1')
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)
const now = () => Date.now() * 1000

function end(consumer, task, effects) {
  const { n, do: what } = task.data
  const planned = Object.assign(new Error('as planned'), { name: 'Planned' })
  if (what === 'fail') return consumer.fail(task, planned)
  if (what === 'bury') return consumer.bury(task, planned)
  if (what === 'release' && task.attempts === 1n) return consumer.release(task)
  return consumer.ack(task, (tn) => tn.add(Buffer.concat([effects, bigEndian(n, 4)]), counters(1, { 0: 1 })))
}

async function handle(consumer, task, effects) {
  const attempt = Number(task.attempts)
  say({ event: 'took', n: task.data.n, attempt, at: now(), until: task.until === NEVER ? null : Number(task.until) })
  if (attempt === 1 && !(await consumer.pause(1000 * task.data.s))) return
  const at = now()
  const how = await end(consumer, task, effects)
  say({ event: 'ended', n: task.data.n, attempt, at, how })
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })
  const asked = JSON.parse((await lines[Symbol.asyncIterator]().next()).value)
  const db = open(asked.cluster || undefined)
  let consumer
  try {
    consumer = await Consumer.open(db, asked.queue, { root: bytesOf(asked.root), sessionS: asked.session_s })
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    say({ event: 'refused' })
    process.exit(0)
  }
  say({ event: 'ready' })
  lines.on('close', () => consumer.hurry())
  while (!consumer.closed) {
    for (const task of await consumer.take({ timeoutMs: 2000 })) await handle(consumer, task, bytesOf(asked.effects))
  }
  await consumer.close()
  process.exit(0)
}

main()
