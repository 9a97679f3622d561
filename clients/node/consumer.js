'use strict'
// The transactions of a consumer, written from docs/consumers.md. `tr` is one of the npm package `foundationdb`.

const { EMPTY, NEVER, Unpacker, bigEndian, counters, cut, later, msgpack, pack, unpack } = require('./encodings')
const { Refused, definition, under } = require('./producer')

const OPTIONS = ['codec', 'ttl', 'ttr', 'pri', 'capacity', 'key_concurrency', 'weights', 'temporary', 'attempts', 'backoff', 'chronicle']
const NAMES = 'id state pri created expires ttr size key attempts until session token cost failures forgiven orphaned excused payload taken trace cancelled error fraction told'.split(' ')
const TYPES = 'bsiiiiibiibbiiiiibibitfi' // bytes, a text, a whole number; t: a text or nil, f: a number or nil
const IS = {
  b: Buffer.isBuffer,
  s: (value) => typeof value === 'string',
  i: (value) => typeof value === 'bigint' && value >= 0n,
  t: (value) => value === null || typeof value === 'string',
  f: (value) => value === null || typeof value === 'number' || typeof value === 'bigint',
}
const PLAIN = msgpack([0n, null, 0n, 0n, [], EMPTY, new Map(), [], new Map()])
const STATES = ['r', 't', '!', '~']
const COUNTERS = { r: 0, t: 1, '!': 2, '~': 3, take: 5, ack: 6, release: 7, bury: 8, delete: 10, ttl: 12, ttr: 13, delay: 14, done: 15, cancel: 17 }
const LEASE_OVER = { error: 'LeaseLost', message: 'its lease ended before its holder ended the task' }
const SWEPT = 50
const TAKEN_BYTES = 1000000n
const COMPARE_AND_CLEAR = 20 // the number of this atomic operation in FoundationDB

/** The task is not held by this lease any more. */
class LeaseLost extends Error {}
/** The session has ended, and with it all its leases. */
class SessionEnded extends Error {}

const end = (prefix) => Buffer.concat([prefix, Buffer.from([0xff])])
const time = (us) => bigEndian(us, 8)

/** The [key, value] rows of a range, by snapshot; all without a limit. */
function rowsOf(tr, begin, last = end(begin), limit = 0) {
  return tr.snapshot().getRangeAll(begin, last, { limit })
}

/** All rows of a range, by snapshots of `size` rows. */
async function* rowsFrom(tr, begin, last, size) {
  for (let rows = null, from = begin; !rows || rows.length === size; ) {
    rows = await rowsOf(tr, from, last, size)
    yield* rows
    if (rows.length) from = Buffer.concat([rows[rows.length - 1][0], Buffer.from([0])])
  }
}

/** A queue that a consumer may use. The transaction relies on its definition. */
async function queueOf(tr, root, name) {
  const queue = await definition(tr, root, name, ['fifo', 'fifottl'])
  const { options } = queue
  const bad = Object.keys(options).filter((one) => !OPTIONS.includes(one) || (['capacity', 'temporary'].includes(one) && options[one] !== null))
  if (!['json', 'bytes'].includes(options.codec)) bad.push('codec')
  if (bad.length) throw new Refused(`a consumer of Node does not know these options of ${name}: ${bad.join(', ')}`)
  return queue
}

/** The record of a plain task, or undefined for each other one. */
function parsed(id, stored) {
  try {
    const unpacker = new Unpacker(stored)
    if (!unpacker.cut(3).equals(Buffer.from([0xdc, 0, 25]))) return undefined
    const values = unpacker.many(24)
    const rest = stored.subarray(unpacker.at)
    const extra = unpacker.value()
    const task = Object.fromEntries(NAMES.map((one, at) => [one, values[at]]))
    const typed = values.every((value, at) => IS[TYPES[at]](value)) && STATES.includes(task.state)
    if (!typed || unpacker.at !== stored.length || !task.id.equals(id) || !plain(extra)) return undefined
    return { ...task, rest, extra }
  } catch {
    return undefined // what is no msgpack is left to other programs, as each task that is not plain
  }
}

function plain(extra) {
  if (extra === null) return true
  if (!Array.isArray(extra) || extra.length !== 11 || !(extra[0] instanceof Map)) return false
  return msgpack(extra.slice(1, 10)).equals(PLAIN) && Array.isArray(extra[10]) && extra[10].length <= 1
}

function stored(task) {
  return Buffer.concat([Buffer.from([0xdc, 0, 25]), ...NAMES.map((name) => msgpack(task[name])), task.rest])
}

function timer(task) {
  const at = '~t'.includes(task.state) ? task.until : task.expires
  return at === NEVER ? undefined : at
}

/** The changes of tasks in one transaction, whose counters are added once. */
class Changes {
  constructor(tr, root, queue, now) {
    Object.assign(this, { tr, root, queue, now, totals: {}, wrote: false })
  }
  key(column, ...rest) {
    return under(this.queue.prefix, column, ...rest)
  }
  async read(id) {
    const value = await this.tr.get(this.key(1, id))
    return value && parsed(id, value)
  }
  place(task) {
    return this.queue.kind === 'fifo' ? task.id : Buffer.concat([bigEndian(task.pri, 4), task.id])
  }
  /** The keys of a buried task in its class, and of the number of these. */
  classKeys(task) {
    const name = Buffer.from(task.error || '')
    const prefix = Buffer.concat([bigEndian(name.length, 1), name])
    return [this.key(17, prefix, this.place(task)), this.key(18, prefix)]
  }
  stateKey(task) {
    const rest = { r: [3, this.place(task)], t: [4, task.session, task.id], '~': [5, task.id], '!': [6, this.place(task)] }
    return this.key(...rest[task.state])
  }
  count(change, ...names) {
    for (const name of names) this.totals[COUNTERS[name]] = (this.totals[COUNTERS[name]] || 0) + change
  }
  leave(task) {
    this.wrote = true
    this.tr.clear(this.stateKey(task))
    if (timer(task) !== undefined) this.tr.clear(this.key(7, time(timer(task)), task.id))
    this.count(-1, task.state)
    if (task.state !== '!') return
    const [key, number] = this.classKeys(task)
    this.tr.clear(key)
    this.tr.add(number, counters(1, { 0: -1 }))
    this.tr.atomicOpNative(COMPARE_AND_CLEAR, number, Buffer.alloc(8))
  }
  move(old, changed, ...calls) {
    const free = { until: NEVER, session: EMPTY, token: EMPTY, taken: 0n, cancelled: 0n, told: 0n, fraction: null }
    const task = { ...old, ...(changed.state === 't' ? {} : free), ...changed }
    this.leave(old)
    const record = stored(task)
    this.tr.set(this.key(1, task.id), record)
    this.tr.set(this.stateKey(task), task.state === 'r' ? record : EMPTY)
    if (timer(task) !== undefined) this.tr.set(this.key(7, time(timer(task)), task.id), EMPTY)
    this.count(1, task.state, ...calls)
    if (task.state === '!') {
      const [key, number] = this.classKeys(task)
      this.tr.set(key, EMPTY)
      this.tr.add(number, counters(1, { 0: 1 }))
    }
    return task
  }
  end(task, ...calls) {
    this.leave(task)
    this.tr.clear(this.key(1, task.id))
    if (task.size > 256n) this.tr.clearRange(this.key(2, task.id), end(this.key(2, task.id)))
    if (task.failures) this.tr.clearRange(this.key(16, task.id), end(this.key(16, task.id)))
    this.count(1, ...calls)
  }
  /** The values of a record after one more failure, which is written beside it. */
  failed(task, failure, outcome, run = EMPTY) {
    const number = task.failures + 1n
    const told = new Map([
      ['error', cut(failure.error, 1000)],
      ['message', cut(failure.message || '', 1000)],
      ['detail', cut(failure.detail || '', 8000, true)],
      ['worker', cut(failure.worker || '', 1000)],
      ['outcome', outcome],
      ['attempt', task.attempts],
      ['when', Number(this.now) / 1e6],
      ['began', task.taken ? Number(task.taken) / 1e6 : null],
    ])
    this.tr.set(this.key(16, task.id, bigEndian((number - 1n) % 10n, 1)), msgpack([number, told, run]))
    return { failures: number, error: cut(failure.error, 200) }
  }
  /** Count the end of a lease of a fleet's run, which stands behind the token. */
  async counted(task, place) {
    const run = task.token.subarray(12)
    if (!run.length) return run
    const keys = [pack(10, task.session), pack(4, run)].map((key) => Buffer.concat([this.root, key]))
    const found = await Promise.all(keys.map((key) => this.tr.get(key)))
    if (found.some(Boolean)) this.tr.add(Buffer.concat([this.root, pack(9, run)]), counters(6, { [place]: 1 }))
    return run
  }
  async cancelled(task) {
    await this.counted(task, 5)
    this.end(task, 'cancel', 'done')
  }
  async lost(task, failure, call) {
    if (task.cancelled) return this.cancelled(task)
    const run = await this.counted(task, 3)
    const values = this.failed(task, failure, 'lease_lost', run)
    return this.move(task, { state: 'r', orphaned: task.orphaned + 1n, ...values }, call)
  }
  /** Move on a task whose timer is over. */
  async overdue(task) {
    let next = task
    if (task.state === 't') next = await this.lost(task, LEASE_OVER, 'ttr')
    else if (task.state === '~') next = this.move(task, { state: 'r' }, 'delay')
    if (next && '!r'.includes(next.state) && next.expires <= this.now) this.end(next, 'delete', 'ttl', 'done')
  }
  commit() {
    if (Object.values(this.totals).some(Boolean)) this.tr.add(this.key(9), counters(18, this.totals))
  }
}

async function begun(tr, root, name, now) {
  return new Changes(tr, root, await queueOf(tr, root, name), BigInt(now))
}

async function sweepIn(changes) {
  const { tr, now } = changes
  let moved = 0
  for await (const [key] of rowsFrom(tr, changes.key(7), changes.key(7, time(now + 1n)), SWEPT)) {
    const id = key.subarray(-20)
    const value = await tr.get(changes.key(1, id))
    const task = value && parsed(id, value)
    if (value && !task) continue
    changes.wrote = true
    if (!task || timer(task) !== key.readBigUInt64BE(key.length - 28)) tr.clear(key)
    else await changes.overdue(task)
    if (++moved === SWEPT) break
  }
  return moved
}

async function sweep(tr, root, name, now) {
  const changes = await begun(tr, root, name, now)
  const moved = await sweepIn(changes)
  changes.commit()
  return moved === SWEPT
}

async function ready(changes, count) {
  const found = []
  let bytes = 0n
  for await (const [key, value] of rowsFrom(changes.tr, changes.key(3), end(changes.key(3)), count)) {
    const task = parsed(key.subarray(-20), value)
    if (!task || task.expires <= changes.now) continue
    bytes += task.size
    if (found.length && bytes > TAKEN_BYTES) break
    if (found.push(task) === count) break
  }
  return found
}

/** The end of a lease that begins now. */
function leaseEnd(changes, task) {
  const over = later(changes.now, task.ttr)
  return over < task.expires ? over : task.expires
}

/** Take up to `count` tasks: { queue, tasks, wrote }. Throws Refused, SessionEnded. */
async function take(tr, root, name, { session, token, count, now }) {
  const changes = await begun(tr, root, name, now)
  const [alive, paused] = await Promise.all([tr.get(Buffer.concat([root, pack(4, session)])), tr.get(changes.key(15))])
  if (!alive) throw new SessionEnded('the session has ended')
  await sweepIn(changes)
  const found = paused ? [] : await ready(changes, count)
  const tasks = found.map((task) => {
    tr.addReadConflictKey(changes.key(1, task.id))
    const values = { attempts: task.attempts + 1n, until: leaseEnd(changes, task), session, token, taken: changes.now }
    return changes.move(task, { state: 't', ...values }, 'take')
  })
  if (!tasks.length && !paused) tr.addReadConflictRange(changes.key(3), changes.key(4))
  changes.commit()
  await payloads(tr, changes.queue, tasks)
  return { queue: changes.queue, tasks, wrote: changes.wrote }
}

/** Read the payloads that are not in their records; one that is not whole becomes null. */
async function payloads(tr, queue, tasks) {
  for (const task of tasks.filter((one) => one.size > 256n)) {
    const pieces = under(queue.prefix, 2, task.id)
    const whole = Buffer.concat((await rowsOf(tr, pieces)).map(([, piece]) => piece))
    task.payload = BigInt(whole.length) === task.size ? whole : null
  }
}

/** The tasks of an attempt to take whose result is unknown. */
async function takenBefore(tr, root, name, ids, token) {
  const changes = await begun(tr, root, name, 0)
  const found = await Promise.all(ids.map((id) => changes.read(id)))
  const tasks = found.filter((task) => task && task.state === 't' && task.token.equals(token))
  await payloads(tr, changes.queue, tasks)
  return { queue: changes.queue, tasks, wrote: true }
}

/** The record of a task that a lease holds, or undefined. */
async function heldRecord(changes, lease) {
  const task = await changes.read(lease.id)
  const ours = task && task.state === 't' && (lease.token ? task.token.equals(lease.token) : task.session.equals(lease.session))
  return ours && task.until > changes.now ? task : undefined
}

async function held(changes, lease) {
  const task = await heldRecord(changes, lease)
  if (!task) throw new LeaseLost('the lease is lost: the task has another holder, or none')
  return task
}

/** End or change a held task by `body(changes, task)`, unless it is cancelled. Returns the outcome. */
async function settle(tr, root, name, lease, now, body) {
  const changes = await begun(tr, root, name, now)
  const task = await held(changes, lease)
  const outcome = task.cancelled ? 'cancelled' : await body(changes, task)
  if (task.cancelled) await changes.cancelled(task)
  changes.commit()
  return outcome
}

/** End a held task, in the transaction of `writes(tr)`. */
async function ack(tr, root, name, lease, now, writes) {
  const changes = await begun(tr, root, name, now)
  changes.end(await held(changes, lease), 'ack', 'done')
  if (writes) await writes(tr)
  changes.commit()
  return 'acked'
}

function back(changes, task, delayUs, values) {
  const expires = later(task.expires, delayUs)
  const changed = delayUs ? { state: '~', until: later(changes.now, delayUs), expires } : { state: 'r' }
  changes.move(task, { ...changed, ...values }, 'release')
}

function release(tr, root, name, lease, now, delay = 0) {
  return settle(tr, root, name, lease, now, (changes, task) => {
    back(changes, task, BigInt(Math.round(delay * 1e6)), {})
    return 'released'
  })
}

const counting = (task) => task.failures - task.forgiven - task.excused

/** The attempts and the backoff in force: of the task, of its queue, or the usual ones. */
function inForce(queue, task, usual) {
  const own = (task.extra && task.extra[10][0]) || [null, null]
  const backoff = queue.options.backoff
  return {
    attempts: Number(own[0] ?? queue.options.attempts ?? usual.attempts),
    backoff: own[1] ? own[1].map(Number) : backoff ? [backoff.first_s, backoff.growth, backoff.cap_s] : usual.backoff,
  }
}

/** End an attempt with a failure: later again, or buried after the last one. `delay`: of (backoff, failures). */
function fail(tr, root, name, lease, now, failure, usual, delay) {
  return settle(tr, root, name, lease, now, (changes, task) => {
    const { attempts, backoff } = inForce(changes.queue, task, usual)
    const failures = Number(counting(task)) + 1
    const last = attempts >= 1 && failures >= attempts
    const values = changes.failed(task, failure, last ? 'buried' : 'retried')
    if (last) changes.move(task, { state: '!', ...values }, 'bury')
    else back(changes, task, BigInt(Math.round(delay(backoff, failures) * 1e6)), { orphaned: 0n, ...values })
    return last ? 'buried' : 'failed'
  })
}

function bury(tr, root, name, lease, now, failure) {
  return settle(tr, root, name, lease, now, (changes, task) => {
    changes.move(task, { state: '!', ...changes.failed(task, failure, 'buried') }, 'bury')
    return 'buried'
  })
}

/** Bury a taken task that has used up its attempts. Returns whether it has. */
async function exhaust(tr, root, name, lease, now, usual) {
  const changes = await begun(tr, root, name, now)
  const task = await held(changes, lease)
  if (task.cancelled) throw new LeaseLost('the task is cancelled')
  const { attempts } = inForce(changes.queue, task, usual)
  if (attempts < 1 || counting(task) < BigInt(attempts)) return false
  const rows = await rowsOf(tr, changes.key(16, task.id))
  const entries = rows.map(([key, value]) => [key, new Unpacker(value).value()]).sort(([, a], [, b]) => Number(b[0] - a[0]))
  const [key, entry] = entries.find(([, [number, map]]) => number > task.forgiven && map.get('outcome') === 'lease_lost') || []
  if (entry) {
    entry[1].set('outcome', 'exhausted')
    const run = entry[2]
    if (run.length && (await tr.get(Buffer.concat([root, pack(4, run)])))) {
      tr.add(Buffer.concat([root, pack(9, run)]), counters(6, { 2: 1 }))
    } else entry[2] = EMPTY
    tr.set(key, msgpack(entry))
  }
  changes.move(task, { state: '!', error: task.error || '' }, 'bury')
  changes.commit()
  return true
}

/** Renew leases: the state of each is its new end, 'cancelled' or 'lost'. */
async function renew(tr, root, name, leases, now) {
  const changes = await begun(tr, root, name, now)
  const tasks = await Promise.all(leases.map((lease) => heldRecord(changes, lease)))
  return tasks.map((task) => {
    if (!task) return 'lost'
    const until = leaseEnd(changes, task)
    if (task.until !== NEVER) changes.move(task, { state: 't', until })
    return task.cancelled ? 'cancelled' : until
  })
}

module.exports = {
  COMPARE_AND_CLEAR, LeaseLost, SessionEnded, ack, begun, bury, counting, end, exhaust, fail, inForce, parsed, queueOf, release,
  renew, rowsOf, sweep, take, takenBefore, timer,
}
