'use strict'
// A consumer of one queue, on the npm package `foundationdb`: a session with its heartbeat, takes, ends, and a loop.

const crypto = require('crypto')
const os = require('os')
const fdb = require('foundationdb')
const consumer = require('./consumer')
const producer = require('./producer')
const sessions = require('./sessions')
const { NEVER, pack } = require('./encodings')

const UNKNOWN = [1021, 1039] // the commit may have happened
const ROOT = pack('fdbqueue')
const WAIT_MS = 2000
const USUAL = { attempts: 5, backoff: [1, 2, 600] }
const random = crypto.randomBytes
const clock = () => BigInt(Date.now()) * 1000n
const afterRandom = ([first, growth, cap], failures, u) => Math.min(first * growth ** Math.min(failures - 1, 64), cap) * (0.5 + u / 2)

/** A transaction as producer.js and consumer.js want it. */
class Adapter {
  constructor(tn) {
    Object.assign(this, { tn, snapshot: tn.snapshot() })
  }
  get(key) {
    return this.tn.get(key)
  }
  snapshotGet(key) {
    return this.snapshot.get(key)
  }
  range(begin, end, limit = 0) {
    return this.snapshot.getRangeAll(begin, end, { limit, streamingMode: fdb.StreamingMode.WantAll })
  }
  async snapshotLast(begin, end) {
    return (await this.snapshot.getRangeAll(begin, end, { limit: 1, reverse: true }))[0]
  }
  async version() {
    return (await this.tn.getReadVersion()).readBigUInt64BE()
  }
  set(key, value) {
    this.tn.set(key, value)
  }
  clear(key) {
    this.tn.clear(key)
  }
  clearRange(begin, end) {
    this.tn.clearRange(begin, end)
  }
  add(key, operand) {
    this.tn.add(key, operand)
  }
  compareAndClear(key, operand) {
    this.tn.atomicOpNative(fdb.MutationType.CompareAndClear, key, operand)
  }
  relyOn(begin, end) {
    if (end) this.tn.addReadConflictRange(begin, end)
    else this.tn.addReadConflictKey(begin)
  }
  declareWritten(key) {
    this.tn.addWriteConflictKey(key)
  }
}

/** Run `body(tr, unknown)` and commit it, until it succeeds. `unknown`: an earlier attempt may have committed. */
async function run(db, body, batch = false) {
  const tn = db.rawCreateTransaction()
  for (let unknown = false; ; ) {
    try {
      if (batch) tn.setOption(fdb.TransactionOptionCode.PriorityBatch)
      const result = await body(new Adapter(tn), unknown)
      await tn.rawCommit()
      return result
    } catch (error) {
      if (!(error instanceof fdb.FDBError)) throw error
      unknown = unknown || UNKNOWN.includes(error.code)
      await tn.rawOnError(error.code) // throws what cannot be retried
    }
  }
}

function open(clusterFile) {
  fdb.setAPIVersion(710)
  return fdb.open(clusterFile)
}

class Consumer {
  /** Open a session for the tasks of a queue. */
  static async open(db, queue, options = {}) {
    const one = new Consumer(db, queue, options)
    await one.run((tr) => consumer.queueOf(tr, one.root, queue))
    await one.begin()
    one.chores = [
      one.every(one.ttrUs / 3000n, () => one.beat()),
      one.every(1000n, () => one.sweep()),
      one.every(2000n, () => one.endDead()),
      one.every(100n, () => one.renewHeld()),
    ]
    return one
  }
  constructor(db, queue, { root = ROOT, sessionS = 30, attempts = USUAL.attempts, backoff = USUAL.backoff, onTrouble = console.error }) {
    const worker = `${os.hostname()}:${process.pid}`
    Object.assign(this, { db, queue, root, worker, onTrouble, usual: { attempts, backoff }, ttrUs: BigInt(sessionS * 1e6) })
    Object.assign(this, { held: new Map(), receipts: { process: random(12), number: 0, slots: 0, free: [] }, closing: new AbortController(), stopped: false })
  }
  run(body, batch) {
    return run(this.db, body, batch)
  }
  /** Do a chore again and again until the consumer closes. Its errors are told, and it goes on. */
  async every(ms, chore) {
    while (await this.pause(Number(ms))) await chore().catch((error) => this.onTrouble(error))
  }
  /** Wait; false when the consumer closes. */
  pause(ms) {
    const { signal } = this.closing
    if (signal.aborted) return Promise.resolve(false)
    return new Promise((done) => {
      const over = () => (clearTimeout(timeout), signal.removeEventListener('abort', over), done(!signal.aborted))
      const timeout = setTimeout(over, ms)
      signal.addEventListener('abort', over)
    })
  }
  begin() {
    const session = random(16)
    session[0] |= 1
    const first = random(16)
    this.session = session
    return this.run((tr) => sessions.open(tr, this.root, session, this.ttrUs, clock(), [first, os.hostname(), process.pid]))
  }
  async beat() {
    const { session } = this
    if (await this.run((tr) => sessions.beat(tr, this.root, session, this.ttrUs, clock()))) return
    for (const task of this.held.values()) this.lose(task, 'lost')
    await this.begin()
  }
  lose(task, reason) {
    this.held.delete(task)
    task.stop.abort(reason)
  }
  async sweep() {
    while (await this.run((tr) => consumer.sweep(tr, this.root, this.queue, clock()), true));
  }
  async endDead() {
    for (const { session, deadline, ending } of await this.run((tr) => sessions.dead(tr, this.root, clock()), true)) {
      const e = ending ? deadline : clock()
      if (!ending && !(await this.run((tr) => sessions.begin(tr, this.root, session, e, deadline), true))) continue
      await sessions.finish((body) => this.run(body, true), this.root, session, e, true, clock)
    }
  }
  async renewHeld() {
    const now = clock()
    const due = [...this.held.values()].filter((task) => task.until !== NEVER && task.until !== task.expires && now >= task.until - (task.ttr * 2n) / 3n)
    if (due.length) await this.renew(due)
  }
  /** Renew leases; the signal of a task that is lost or cancelled is aborted. */
  async renew(tasks) {
    const states = await this.run((tr) => consumer.renew(tr, this.root, this.queue, tasks, clock()))
    tasks.forEach((task, at) => {
      if (typeof states[at] === 'bigint') task.until = states[at]
      else if (states[at] === 'lost') this.lose(task, 'lost')
      else task.stop.abort('cancelled')
    })
  }
  /** Take up to `count` tasks; wait for the first for `timeoutMs`. */
  async take({ count = 1, timeoutMs = 0 } = {}) {
    for (const last = Date.now() + timeoutMs; ; ) {
      const found = await this.look(count)
      const tasks = await this.usable(found.queue, found.tasks)
      if (tasks.length || Date.now() >= last || this.closing.signal.aborted) return (found.watch && found.watch.cancel(), tasks)
      if (found.tasks.length || !found.watch) continue
      const due = found.due === undefined ? WAIT_MS : Number(found.due - clock()) / 1000
      await Promise.race([found.watch.promise, this.pause(Math.max(0, Math.min(due, WAIT_MS, last - Date.now())))])
      found.watch.cancel()
    }
  }
  look(count) {
    let before = null
    return this.run(async (tr, unknown) => {
      if (unknown && before) {
        const found = await consumer.takenBefore(tr, this.root, this.queue, before.ids, before.token)
        if (found.tasks.length) return found
      }
      const token = random(12)
      const found = await consumer.take(tr, this.root, this.queue, { session: this.session, token, count, now: clock() })
      before = { token, ids: found.tasks.map((task) => task.id) }
      if (found.wrote) return found
      const timers = producer.under(found.queue.prefix, 7)
      const rows = await tr.range(timers, consumer.end(timers), 1)
      const due = rows.length ? rows[0][0].readBigUInt64BE(timers.length) : undefined
      return { ...found, due, watch: tr.tn.watch(producer.under(found.queue.prefix, 9)) }
    })
  }
  /** Tasks for handlers: decoded, held, and not used up. */
  async usable(queue, tasks) {
    const found = []
    for (const task of tasks) {
      task.stop = new AbortController()
      task.signal = task.stop.signal
      try {
        if (task.payload === null) throw new Error('a piece of the payload is missing')
        task.data = queue.options.codec === 'json' ? JSON.parse(task.payload.toString()) : task.payload
      } catch (error) {
        await this.bury(task, error)
        continue
      }
      const { attempts } = consumer.inForce(queue, task, this.usual)
      this.held.set(task, task)
      if (attempts >= 1 && consumer.counting(task) >= BigInt(attempts) && (await this.exhausted(task))) continue
      found.push(task)
    }
    return found
  }
  async exhausted(task) {
    try {
      if (!(await this.once((tr) => consumer.exhaust(tr, this.root, this.queue, task, clock(), this.usual)))) return false
    } catch (error) {
      if (!(error instanceof consumer.LeaseLost)) throw error
    }
    this.held.delete(task)
    return true
  }
  /** Run `body` with one effect, by a receipt. */
  async once(body) {
    const { receipts } = this
    const slot = receipts.free.pop() || ++receipts.slots
    const key = producer.receiptKey(this.root, receipts.process, slot)
    const earlier = []
    try {
      return await this.run(async (tr) => {
        const found = earlier.length ? await tr.get(key) : undefined
        const before = found && earlier.find(({ value }) => value.equals(found))
        if (before) return before.result
        const value = producer.receiptValue(clock(), ++receipts.number)
        const result = await body(tr)
        tr.set(key, value)
        earlier.push({ value, result })
        return result
      })
    } finally {
      receipts.free.push(slot)
    }
  }
  async settle(task, body) {
    try {
      return await this.once(body)
    } catch (error) {
      if (error instanceof consumer.LeaseLost) return 'lost'
      throw error
    } finally {
      this.held.delete(task)
    }
  }
  /** Ack, in the transaction of `writes(tn)`. */
  ack(task, writes) {
    return this.settle(task, async (tr) => {
      const outcome = await consumer.ack(tr, this.root, this.queue, task, clock())
      if (writes) await writes(tr.tn)
      return outcome
    })
  }
  release(task, { delay = 0 } = {}) {
    return this.settle(task, (tr) => consumer.release(tr, this.root, this.queue, task, clock(), delay))
  }
  fail(task, error) {
    const u = Math.random()
    const delay = (backoff, failures) => afterRandom(backoff, failures, u)
    return this.settle(task, (tr) => consumer.fail(tr, this.root, this.queue, task, clock(), this.failure(error), this.usual, delay))
  }
  bury(task, error) {
    return this.settle(task, (tr) => consumer.bury(tr, this.root, this.queue, task, clock(), this.failure(error)))
  }
  failure(error) {
    return { error: String(error.name), message: String(error.message), detail: String(error.stack || ''), worker: this.worker }
  }
  /** Take tasks and run `handler(task)` with each, until it is told to stop. What it returns may be the writes of the ack. */
  async work(handler, { concurrency = 1 } = {}) {
    const loop = async () => {
      while (!this.stopped) for (const task of await this.take({ timeoutMs: WAIT_MS })) await this.attempt(task, handler)
    }
    await Promise.all(Array.from({ length: concurrency }, loop))
  }
  async attempt(task, handler) {
    if (this.stopped) return this.release(task)
    let writes
    try {
      writes = await handler(task)
    } catch (error) {
      return this.fail(task, error)
    }
    return this.held.has(task) ? this.ack(task, typeof writes === 'function' ? writes : undefined) : undefined
  }
  /** Let `work` return after the tasks in hand. */
  stop() {
    this.stopped = true
  }
  /** Stop the chores, release what is held, and end the session. */
  async close() {
    this.stop()
    this.closing.abort()
    await Promise.all(this.chores)
    for (const task of [...this.held.values()]) await this.release(task)
    const [session, e] = [this.session, clock()]
    if (await this.run((tr) => sessions.begin(tr, this.root, session, e))) {
      await sessions.finish((body) => this.run(body), this.root, session, e, false, clock)
    }
    const { process: id, slots } = this.receipts
    await this.run(async (tr) => {
      for (let slot = 1; slot <= slots; slot++) tr.clear(producer.receiptKey(this.root, id, slot))
    })
  }
}

module.exports = { Adapter, Consumer, LeaseLost: consumer.LeaseLost, Refused: producer.Refused, open, put: producer.put, run }
