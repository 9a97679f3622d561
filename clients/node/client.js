'use strict'
// A consumer of one queue, on the npm package `foundationdb`: a session with its heartbeat, takes, ends, and a loop.

const { randomBytes: random } = require('crypto')
const os = require('os')
const fdb = require('foundationdb')
const consumer = require('./consumer')
const producer = require('./producer')
const sessions = require('./sessions')
const { NEVER, pack } = require('./encodings')
const { Receipts } = require('./receipts')

const UNKNOWN = [1021, 1039] // the commit may have happened
const ROOT = pack('fdbqueue')
const WAIT_MS = 2000
const clock = () => BigInt(Date.now()) * 1000n

/** Run `body(tn, unknown)` and commit it, until it succeeds. `unknown`: an earlier attempt may have committed. */
async function run(db, body, batch = false) {
  const tn = db.rawCreateTransaction()
  for (let unknown = false; ; ) {
    try {
      if (batch) tn.setOption(fdb.TransactionOptionCode.PriorityBatch)
      const result = await body(tn, unknown)
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
      one.every(Number(one.ttrUs) / 3000, () => one.beat()),
      one.every(1000, () => one.sweep()),
      one.every(2000, () => one.endDead()),
      one.every(100, () => one.renewHeld()),
    ]
    return one
  }
  constructor(db, queue, { root = ROOT, sessionS = 30, attempts = 5, backoff = [1, 2, 600], onTrouble = console.error }) {
    const worker = `${os.hostname()}:${process.pid}`
    Object.assign(this, { db, queue, root, worker, onTrouble, usual: { attempts, backoff }, ttrUs: BigInt(sessionS * 1e6) })
    Object.assign(this, { held: new Set(), receipts: new Receipts(root), waits: new Set(), closed: false, stopped: false })
  }
  run(body, batch) {
    return run(this.db, body, batch)
  }
  /** Do a chore again and again until the consumer closes. Its errors are told, and it goes on. */
  async every(ms, chore) {
    while (await this.pause(ms)) await chore().catch((error) => this.onTrouble(error))
  }
  /** Wait, at most until `event`; false when the consumer closes. */
  pause(ms, event) {
    if (this.closed) return Promise.resolve(false)
    return new Promise((done) => {
      const over = () => (clearTimeout(timeout), this.waits.delete(over), done(!this.closed))
      const timeout = setTimeout(over, ms)
      this.waits.add(over)
      if (event) event.then(over, () => undefined) // without its event the wait lasts its time
    })
  }
  /** End all waits, and those that begin later. */
  hurry() {
    this.closed = true
    for (const over of this.waits) over()
  }
  begin() {
    const [session, first] = [random(16), random(16)]
    session[0] |= 1
    this.session = session
    return this.run((tr) => sessions.open(tr, this.root, session, this.ttrUs, clock(), [first, os.hostname(), process.pid]))
  }
  /** Beat, once at a time: a session that has ended is followed by one session. */
  beat() {
    this.beating ??= this.beatOrBegin().finally(() => (this.beating = null))
    return this.beating
  }
  async beatOrBegin() {
    if (await this.run((tr) => sessions.beat(tr, this.root, this.session, this.ttrUs, clock()))) return
    for (const task of this.held) this.lose(task)
    await this.begin()
  }
  lose(task) {
    this.held.delete(task)
    task.stop.abort('lost')
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
    const due = [...this.held].filter((task) => task.until !== NEVER && task.until !== task.expires && now >= task.until - (task.ttr * 2n) / 3n)
    if (due.length) await this.renew(due)
  }
  /** Renew leases: each end, 'lost' or 'cancelled'. The signal of a task that is lost or cancelled is aborted. */
  async renew(tasks) {
    const states = await this.run((tr) => consumer.renew(tr, this.root, this.queue, tasks, clock()))
    tasks.forEach((task, at) => {
      if (typeof states[at] === 'bigint') task.until = states[at]
      else if (states[at] === 'lost') this.lose(task)
      else task.stop.abort('cancelled')
    })
    return states
  }
  /** Take up to `count` tasks; wait for the first for `timeoutMs`. */
  async take({ count = 1, timeoutMs = 0 } = {}) {
    for (const last = Date.now() + timeoutMs; ; ) {
      const { queue, tasks: taken, dueMs, watch } = await this.look(count)
      const tasks = await this.usable(queue, taken)
      const over = tasks.length || Date.now() >= last || this.closed
      if (watch && !over) await this.pause(Math.max(0, Math.min(dueMs, WAIT_MS, last - Date.now())), watch.promise)
      if (watch) watch.cancel()
      if (over) return tasks
    }
  }
  /** Take what is there, by a session that has not ended. */
  async look(count) {
    for (;;) {
      try {
        return await this.takeOrWatch(count)
      } catch (error) {
        if (!(error instanceof consumer.SessionEnded) || this.closed) throw error
        await this.beat()
      }
    }
  }
  takeOrWatch(count) {
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
      const rows = await consumer.rowsOf(tr, timers, consumer.end(timers), 1)
      const dueMs = rows.length ? Number(rows[0][0].readBigUInt64BE(timers.length) - clock()) / 1000 : WAIT_MS
      return { ...found, dueMs, watch: tr.watch(producer.under(found.queue.prefix, 9)) }
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
      const isUsedUp = attempts >= 1 && consumer.counting(task) >= BigInt(attempts)
      if (isUsedUp && (await this.settle(task, consumer.exhaust, this.usual))) continue
      this.held.add(task)
      found.push(task)
    }
    return found
  }
  /** End a lease by a verb, with one effect. Returns its outcome, or 'lost'. */
  async settle(task, verb, ...values) {
    const body = (tr) => verb(tr, this.root, this.queue, task, clock(), ...values)
    try {
      return await this.receipts.once((one) => this.run(one), body)
    } catch (error) {
      if (error instanceof consumer.LeaseLost) return 'lost'
      throw error
    } finally {
      this.held.delete(task)
    }
  }
  /** Ack, in the transaction of `writes(tn)`. */
  ack(task, writes) {
    return this.settle(task, consumer.ack, writes)
  }
  release(task, { delay = 0 } = {}) {
    return this.settle(task, consumer.release, delay)
  }
  fail(task, error) {
    const u = Math.random()
    const delay = ([first, growth, cap], failures) => Math.min(first * growth ** Math.min(failures - 1, 64), cap) * (0.5 + u / 2)
    return this.settle(task, consumer.fail, this.failure(error), this.usual, delay)
  }
  bury(task, error) {
    return this.settle(task, consumer.bury, this.failure(error))
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
    this.hurry()
    await Promise.all(this.chores)
    for (const task of [...this.held]) await this.release(task)
    const [session, e] = [this.session, clock()]
    if (await this.run((tr) => sessions.begin(tr, this.root, session, e))) {
      await sessions.finish((body) => this.run(body), this.root, session, e, false, clock)
    }
    await this.run(async (tr) => this.receipts.clear(tr))
  }
}

module.exports = { Consumer, LeaseLost: consumer.LeaseLost, Refused: producer.Refused, open, put: producer.put }
