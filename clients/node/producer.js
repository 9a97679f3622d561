'use strict'
// A producer for queues of fdbqueue, written from docs/layout.md. A transaction `tr` is one of the npm package `foundationdb`.

const { EMPTY, NEVER, bigEndian, counter, counters, later, msgpack, pack, unpack } = require('./encodings')

const OF_ITEMS = ['codec', 'partitions']
const OF_TASKS = [
  ...OF_ITEMS, 'ttl', 'ttr', 'pri', 'capacity', 'key_concurrency', 'weights', 'temporary', 'retain_s', 'limits',
  'task_limits', 'attempts', 'backoff', 'chronicle',
]
const KINDS = { fifo: [], fifottl: ['pri', 'ttl', 'ttr', 'delay'], limfifottl: ['pri', 'ttl', 'ttr', 'delay'] }
const LAYOUT = 1n // the version of the layout; a definition of three parts has version 0
const PIECE_BYTES = 90000
const RECORD_PAYLOAD_BYTES = 256
const SEATS = 4096n

/** The queue, or the call, is none that this producer understands. */
class Refused extends Error {}
/** The queue has no room. */
class Full extends Error {}

function requireKnown(name, version) {
  if (version > LAYOUT) throw new Refused(`${name} has the key layout ${version}, and this client knows ${LAYOUT}`)
}

/** The parts of a stored definition; its layout is judged first. */
function parsed(name, stored) {
  try {
    const [id, kind, json, version = 0n] = unpack(stored)
    requireKnown(name, version)
    return { id, kind, options: JSON.parse(json.toString()) }
  } catch (error) {
    throw error instanceof Refused ? error : new Refused(`the definition of ${name} cannot be read: ${error.message}`)
  }
}

/** The definition of a queue. The transaction relies on it. */
async function definition(tr, root, name, kinds) {
  const stored = await tr.get(Buffer.concat([root, pack(0, name)]))
  if (!stored) throw new Refused(`there is no queue ${name}`)
  const { id, kind, options } = parsed(name, stored)
  const known = kind === 'queue' ? OF_ITEMS : OF_TASKS
  const unknown = Object.keys(options).filter((option) => !known.includes(option))
  const left = ['temporary', 'task_limits'].filter((option) => options[option])
  if (!kinds.includes(kind) || unknown.length || left.length) {
    throw new Refused(`${name} is of kind ${kind}; options: ${[...unknown, ...left].join(', ') || 'known ones'}`)
  }
  return { name, kind, options, prefix: Buffer.concat([root, pack(2, id)]), plan: options.partitions }
}

function under(prefix, column, ...rest) {
  return Buffer.concat([prefix, pack(column), ...rest])
}

function partition(queue, p) {
  return p ? under(queue.prefix, 28, bigEndian(p, 1)) : queue.prefix
}

function turnOf(random, count) {
  return Number(BigInt(`0x${random.toString('hex')}`) % BigInt(count))
}

/** The payload of a value; a Buffer is one already. Throws Refused for a codec that is not here. */
function encoded(value, codec) {
  if (Buffer.isBuffer(value)) return value
  if (codec !== 'json') throw new Refused(`this producer cannot encode by the codec ${codec}`)
  return Buffer.from(JSON.stringify(value))
}

/** Tell takers that partition p may have something. */
async function flag(tr, queue, p) {
  const key = under(queue.prefix, 24, bigEndian(p, 1))
  const there = await tr.snapshot().get(key)
  tr.addReadConflictKey(key)
  if (there) return
  tr.set(key, EMPTY)
  tr.add(under(queue.prefix, 25), counters(1, { 0: 1 }))
}

function pieces(payload) {
  const found = []
  for (let at = 0; at < payload.length; at += PIECE_BYTES) found.push(payload.subarray(at, at + PIECE_BYTES))
  return found
}

/** The last [key, value] of a range, by snapshot. */
async function lastOf(tr, begin, end) {
  return (await tr.snapshot().getRangeAll(begin, end, { limit: 1, reverse: true }))[0]
}

/** Add values at the end of a recipe queue: a name below `root`, or the prefix of a subspace, a Buffer. */
async function enqueue(tr, root, queue, values, random) {
  const named = Buffer.isBuffer(queue) ? null : await definition(tr, root, queue, ['queue'])
  const layout = named ? undefined : await tr.get(under(queue, 37))
  if (layout) requireKnown('the queue', unpack(layout)[0])
  const payloads = values.map((value) => encoded(value, named ? named.options.codec : 'bytes'))
  const p = named && named.plan ? turnOf(random, named.plan[1]) : 0
  const prefix = named ? partition(named, p) : queue
  const items = under(prefix, 0)
  const [last, floor] = await Promise.all([
    lastOf(tr, Buffer.concat([items, bigEndian(0x00, 1)]), Buffer.concat([items, bigEndian(0xff, 1)])),
    tr.snapshot().get(under(prefix, 4)),
  ])
  let index = last ? unpack(last[0].subarray(items.length))[0] + 1n : 0n
  if (counter(floor) > index) index = counter(floor)
  for (const payload of payloads) {
    const suffix = pack(index++, random)
    const parts = payload.length > PIECE_BYTES ? pieces(payload) : []
    parts.forEach((piece, n) => tr.set(under(prefix, 1, suffix, pack(n)), piece))
    const value = parts.length ? [bigEndian(1, 1), pack(parts.length, payload.length)] : [bigEndian(0, 1), payload]
    tr.set(Buffer.concat([items, suffix]), Buffer.concat(value))
  }
  tr.add(under(prefix, 2), counters(1, { 0: payloads.length }))
  if (named && named.plan) await flag(tr, named, p)
}

function span(...seconds) {
  const given = seconds.find((one) => one !== undefined && one !== null)
  if (given === undefined || given >= 3153600000) return NEVER
  const us = Math.round(given * 1e6)
  return BigInt(us < 1 ? 1 : us)
}

/** Put tasks with the same options: pri, ttl, ttr, delay. Returns their ids. Throws Refused, Full. */
async function put(tr, root, name, values, random, nowUs, asked = {}, turn = random) {
  const queue = await definition(tr, root, name, Object.keys(KINDS))
  const payloads = values.map((value) => encoded(value, queue.options.codec))
  const lacking = Object.keys(asked).filter((option) => !KINDS[queue.kind].includes(option))
  if (lacking.length) throw new Refused(`a queue of kind ${queue.kind} has no ${lacking.join(', ')} here`)
  const p = queue.plan ? turnOf(turn, queue.plan[1]) : 0
  const prefix = partition(queue, p)
  await admit(tr, queue, payloads.length, random)
  const first = BigInt(p) << 48n
  const tasks = under(prefix, 1)
  const bounds = [first, first + (1n << 48n)].map((at) => Buffer.concat([tasks, bigEndian(at, 8)]))
  const last = await lastOf(tr, ...bounds)
  let index = last ? last[0].readBigUInt64BE(tasks.length) + 1n : first
  const ids = payloads.map(() => Buffer.concat([bigEndian(index++, 8), random]))
  payloads.forEach((payload, n) => store(tr, queue, prefix, ids[n], payload, BigInt(nowUs), asked))
  tr.add(under(prefix, 9), counters(18, { [asked.delay ? 3 : 0]: ids.length, 4: ids.length }))
  if (queue.plan && !asked.delay) await flag(tr, queue, p)
  return ids
}

function store(tr, queue, prefix, id, payload, nowUs, asked) {
  const { options, kind } = queue
  const delay = BigInt(Math.round((asked.delay || 0) * 1e6))
  const ttl = span(asked.ttl, options.ttl)
  const ttr = span(asked.ttr, options.ttr, options.ttl)
  const expires = later(later(nowUs, ttl), delay)
  const until = delay ? later(nowUs, delay) : NEVER
  const pri = asked.pri === undefined ? options.pri || 0 : asked.pri
  const held = payload.length <= RECORD_PAYLOAD_BYTES ? payload : EMPTY
  const head = [id, delay ? '~' : 'r', BigInt(pri), nowUs, expires, ttr, BigInt(payload.length), EMPTY, 0n, until, EMPTY, EMPTY]
  const record = msgpack([...head, 1n, 0n, 0n, 0n, 0n, held, 0n, EMPTY, 0n, null, null, 0n, null])
  tr.set(under(prefix, 1, id), record)
  if (held !== payload) pieces(payload).forEach((piece, n) => tr.set(under(prefix, 2, id, bigEndian(n, 4)), piece))
  if (delay) tr.set(under(prefix, 5, id), EMPTY)
  else tr.set(under(prefix, 3, kind === 'fifo' ? EMPTY : bigEndian(pri, 4), id), record)
  const timer = delay ? until : expires
  if (timer !== NEVER) tr.set(under(prefix, 7, bigEndian(timer, 8), id), EMPTY)
}

/** Hold a bound: a seat for each task far below it, the gate near it. Throws Full. */
async function admit(tr, queue, wanted, random) {
  if (!queue.options.capacity) return
  const parts = [...Array(queue.plan ? queue.plan[3] : 1).keys()]
  const rows = await Promise.all(parts.map((p) => tr.snapshot().get(under(partition(queue, p), 9))))
  const size = rows.reduce((sum, row) => [0, 1, 2, 3].reduce((all, place) => all + counter(row, place), sum), 0n)
  const [capacity, n] = [BigInt(queue.options.capacity), BigInt(wanted)]
  if (size + n > capacity) throw new Full(`${queue.name} has ${size} tasks`)
  const seats = capacity / 2n < SEATS ? capacity / 2n : SEATS
  const gate = under(queue.prefix, 13)
  if (n <= seats && size + n + seats <= capacity) {
    tr.addReadConflictKey(gate)
    for (let at = 0n; at < n; at++) {
      const seat = under(queue.prefix, 12, bigEndian((random.readBigUInt64BE() + at) % seats, 4))
      tr.addReadConflictKey(seat)
      tr.addWriteConflictKey(seat)
    }
  } else {
    tr.addReadConflictRange(under(queue.prefix, 12), gate)
    tr.addReadConflictKey(gate)
    tr.addWriteConflictKey(gate)
  }
}

module.exports = { Full, KINDS, Refused, definition, encoded, enqueue, put, under }
