'use strict'
// Proves the client in Node by vectors: `npm run conformance`. A transaction is a map here, and needs no package.

const readline = require('readline')
const consumer = require('../../clients/node/consumer')
const { bigEndian } = require('../../clients/node/encodings')
const layout = require('../../clients/node/producer')
const receipts = require('../../clients/node/receipts')
const sessions = require('../../clients/node/sessions')

const bytesOf = (text) => Buffer.from(text.replace(/%([0-9a-f]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1')
const textOf = (bytes) => [...bytes].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('')

const keyOf = (text) => Buffer.from(text, 'latin1')

/** The methods of a transaction of the package that the client uses. */
class MapTransaction {
  constructor(keys, version) {
    this.keys = new Map(Object.entries(keys).map(([key, value]) => [bytesOf(key).toString('latin1'), bytesOf(value)]))
    Object.assign(this, { version, reads: [], written: new Set(), writes: [] })
  }
  async get(key) {
    this.addReadConflictKey(key)
    return this.keys.get(key.toString('latin1'))
  }
  snapshot() {
    return {
      get: async (key) => this.keys.get(key.toString('latin1')),
      getRangeAll: async (begin, end, { limit, reverse }) => {
        const inside = this.inside(begin, end)
        return (reverse ? inside.reverse() : inside).slice(0, limit || undefined).map((key) => [keyOf(key), this.keys.get(key)])
      },
    }
  }
  inside(begin, end) {
    const [first, last] = [begin, end].map((key) => key.toString('latin1'))
    return [...this.keys.keys()].filter((key) => key >= first && key < last).sort()
  }
  async getReadVersion() {
    return bigEndian(this.version, 8)
  }
  set(key, value) {
    this.keys.set(key.toString('latin1'), value)
    this.written.add(textOf(key))
  }
  clear(key) {
    this.keys.delete(key.toString('latin1'))
    this.written.add(textOf(key))
  }
  clearRange(begin, end) {
    for (const key of this.inside(begin, end)) this.keys.delete(key)
  }
  atomicOpNative(operation, key, operand) {
    if (operation !== consumer.COMPARE_AND_CLEAR) throw new Error(`the atomic operation ${operation}`)
    const stored = this.keys.get(key.toString('latin1'))
    if (stored && stored.equals(operand)) this.clear(key)
  }
  add(key, operand) {
    const stored = this.keys.get(key.toString('latin1')) || Buffer.alloc(0)
    const sum = Buffer.alloc(operand.length)
    for (let at = 0, carry = 0; at < operand.length; at++) {
      carry += operand[at] + (stored[at] || 0)
      sum[at] = carry & 0xff
      carry >>= 8
    }
    this.set(key, sum)
  }
  addReadConflictKey(key) {
    if (!this.written.has(textOf(key))) this.reads.push(textOf(key))
  }
  addReadConflictRange(begin, end) {
    this.reads.push([textOf(begin), textOf(end)])
  }
  addWriteConflictKey(key) {
    this.writes.push(textOf(key))
  }
}

const optional = (text) => (text === undefined ? undefined : bytesOf(text))
const leaseOf = ({ call }) => ({ id: bytesOf(call.task), token: optional(call.token), session: optional(call.session) })
const NO_BOUND = { attempts: 0, backoff: [1, 2, 600] }

/** A verb of held tasks refuses a task that is not plain. */
async function plain(tr, root, queue) {
  const { prefix } = await consumer.queueOf(tr.snapshot(), root, queue)
  for (const [key, value] of await consumer.rowsOf(tr, layout.under(prefix, 1))) {
    if (!consumer.parsed(key.subarray(-20), value)) throw new layout.Refused('a task is not plain')
  }
}

const held = (verb) => async (tr, root, queue, asked) => {
  await plain(tr, root, queue)
  await verb(tr, root, queue, leaseOf(asked), asked.now_us, asked.call)
  return null
}

const VERBS = {
  async open(tr, root, queue, { call, now_us: now }) {
    const id = bytesOf(call.session)
    await sessions.open(tr, root, id, BigInt(call.ttr * 1e6), now, [id, 'host', 1])
    return null
  },
  beat: (tr, root, queue, { call, now_us: now }) => sessions.beat(tr, root, bytesOf(call.session), BigInt(call.ttr * 1e6), now),
  async take(tr, root, queue, { call, random, now_us: now }) {
    await plain(tr, root, queue)
    const token = bytesOf(random[random.length - 1])
    const { tasks } = await consumer.take(tr, root, queue, { session: bytesOf(call.session), token, count: call.count, now })
    return tasks.map((task) => textOf(task.id))
  },
  ack: held((tr, root, queue, lease, now) => consumer.ack(tr, root, queue, lease, now)),
  renew: held(async (tr, root, queue, lease, now) => {
    if ((await consumer.renew(tr, root, queue, [lease], now))[0] === 'lost') throw new consumer.LeaseLost('lost')
  }),
  release: held((tr, root, queue, lease, now, { delay = 0, failure }) => {
    if (!failure) return consumer.release(tr, root, queue, lease, now, delay)
    return consumer.fail(tr, root, queue, lease, now, failure, NO_BOUND, () => delay)
  }),
  bury: held((tr, root, queue, lease, now, { failure }) => {
    if (!failure || (!lease.token && !lease.session)) throw new layout.Refused('this consumer buries what it holds, with a failure')
    return consumer.bury(tr, root, queue, lease, now, failure)
  }),
  async exhaust(tr, root, queue, asked) {
    return consumer.exhaust(tr, root, queue, leaseOf(asked), asked.now_us, { ...NO_BOUND, attempts: asked.call.attempts })
  },
  async sweep(tr, root, queue, asked) {
    await consumer.sweep(tr, root, queue, asked.now_us)
    return null
  },
  async end(tr, root, queue, { now_us: now }) {
    const found = (await sessions.dead(tr, root, now)).filter((one) => !one.ending)
    const begun = await Promise.all(found.map((one) => sessions.begin(tr, root, one.session, BigInt(now), one.deadline)))
    return begun.filter(Boolean).length
  },
  async end_own(tr, root, queue, { call, now_us: now }) {
    await sessions.begin(tr, root, bytesOf(call.session), BigInt(now))
    return null
  },
  async release_taken(tr, root, queue, { call, now_us: now }) {
    await sessions.releaseTaken(tr, root, queue, bytesOf(call.session), now, call.died)
    return null
  },
  async forget(tr, root, queue, { call, now_us: now }) {
    await sessions.forget(tr, root, bytesOf(call.session), BigInt(call.time), now, false)
    return null
  },
}

async function call(tr, asked) {
  const { queue, subspace, payload, payloads, receipt, ...options } = asked.call
  const root = bytesOf(asked.root)
  const random = asked.random.map(bytesOf)
  const values = (payloads || [payload || '']).map(bytesOf)
  if (receipt) {
    const key = receipts.receiptKey(root, bytesOf(receipt.process), receipt.slot)
    tr.set(key, receipts.receiptValue(asked.now_us, receipt.number))
  }
  if (asked.kind === 'queue' && asked.verb.startsWith('enqueue')) {
    return layout.enqueue(tr, root, subspace ? bytesOf(subspace) : queue, values, random[0])
  }
  if (asked.kind in layout.KINDS && ['put', 'put_many'].includes(asked.verb)) {
    return layout.put(tr, root, queue, values, random[random.length - 1], asked.now_us, options, random[0])
  }
  const verb = asked.kind.startsWith('fifo') && VERBS[asked.verb]
  if (verb) return verb(tr, root, queue, asked)
  throw new layout.Refused(`this client has no ${asked.kind}/${asked.verb}`)
}

async function answer(asked) {
  const tr = new MapTransaction(asked.keys, asked.call.version || 0)
  const told = { id: asked.id }
  try {
    const ids = await call(tr, asked)
    told.returns = ids === undefined ? null : Array.isArray(ids) && Buffer.isBuffer(ids[0]) ? ids.map(textOf) : ids
  } catch (error) {
    if (error instanceof layout.Refused) return { id: asked.id, unsupported: true }
    if (![layout.Full, consumer.LeaseLost, consumer.SessionEnded].some((kind) => error instanceof kind)) throw error
    told.returns = { error: error.constructor.name }
  }
  told.keys = Object.fromEntries([...tr.keys].map(([key, value]) => [textOf(Buffer.from(key, 'latin1')), textOf(value)]))
  return asked.call.receipt ? told : { ...told, reads: tr.reads, writes: tr.writes }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`)
  }
}

main()
