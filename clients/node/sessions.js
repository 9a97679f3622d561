'use strict'
// Sessions, and their ends: docs/consumers.md. Transactions are those of consumer.js.

const { EMPTY, bigEndian, later, pack, unpack } = require('./encodings')
const { Refused, under } = require('./producer')
const { begun, end, parsed, rowsOf, timer } = require('./consumer')

const DEAD = 100
const RELEASED = 200
const HELD_ON_US = 30000000n
const NO_TASKS = ['queue', 'elements', 'simple-elements', 'fair-items', 'importing']
const FORSAKEN = { error: 'LeaseLost', message: "its holder's session died" }
const at = (root, ...items) => Buffer.concat([root, pack(...items)])

const versionOf = async (tr) => (await tr.getReadVersion()).readBigUInt64BE()

async function beatValue(tr, ttrUs, now) {
  const version = await versionOf(tr)
  return [later(BigInt(now), ttrUs), version, version + (ttrUs * 9n) / 10n]
}

/** Open a session: `process` is its first part, the host and the process id. */
async function open(tr, root, session, ttrUs, now, [first, host, pid]) {
  await Promise.all([tr.get(at(root, 4, session)), tr.get(at(root, 6, session))])
  const beat = await beatValue(tr, ttrUs, now)
  tr.set(at(root, 4, session), pack(first, null, ttrUs, host, pid, 1))
  tr.set(at(root, 6, session), pack(...beat))
  tr.set(at(root, 7, beat[0], session), EMPTY)
}

/** The deadline and the hold of a heartbeat, or undefined. */
function heartbeat(value) {
  try {
    const parts = unpack(value)
    return parts.length >= 3 && parts.every((one) => typeof one === 'bigint') ? parts : undefined
  } catch {
    return undefined // a heartbeat that cannot be read is dead
  }
}

/** Beat: false if the session has ended. */
async function beat(tr, root, session, ttrUs, now) {
  const [there, old] = await Promise.all([tr.get(at(root, 4, session)), tr.get(at(root, 6, session))])
  if (!there) return false
  const before = heartbeat(old)
  const next = await beatValue(tr, ttrUs, now)
  if (before) tr.clear(at(root, 7, before[0], session))
  tr.set(at(root, 6, session), pack(...next))
  tr.set(at(root, 7, next[0], session), EMPTY)
  return true
}

/** The sessions that are dead, or whose ends have begun: [{ session, deadline, ending }]. */
async function dead(tr, root, now) {
  const column = at(root, 7)
  const [rows, version] = await Promise.all([rowsOf(tr, column, at(root, 7, BigInt(now) + 1n), DEAD), versionOf(tr)])
  const found = rows.map(async ([key]) => {
    const [deadline, session] = unpack(key.subarray(column.length))
    const [there, value] = await Promise.all([4, 6].map((key) => tr.snapshot().get(at(root, key, session))))
    const parts = value && heartbeat(value)
    const alive = there && parts && parts[0] === deadline && parts[1] <= version && version < parts[2]
    return alive ? null : { session, deadline, ending: !there }
  })
  return (await Promise.all(found)).filter(Boolean)
}

/** Begin the end of a session at the time `e`; `deadline` is that of a dead one. Returns whether it has begun. */
async function begin(tr, root, session, e, deadline) {
  const keys = [at(root, 4, session), at(root, 6, session), at(root, 7, e, session)]
  const [there, value, before] = await Promise.all(keys.map((key) => tr.get(key)))
  if (!there) return Boolean(before)
  const parts = value && heartbeat(value)
  if (deadline !== undefined) {
    const version = await versionOf(tr)
    if (parts && parts[0] !== deadline) tr.clear(at(root, 7, deadline, session))
    if (parts && (parts[0] > e || (parts[1] <= version && version < parts[2]))) return false
  }
  const [, name, , host, process] = unpack(there)
  if (typeof name === 'string') {
    tr.clear(at(root, 5, name))
    tr.clearRange(Buffer.concat([keys[1], Buffer.from([0])]), end(keys[1]))
  }
  tr.clear(keys[0])
  tr.clear(keys[1])
  tr.clearRange(at(root, 8, session), end(at(root, 8, session)))
  tr.clear(at(root, 9, session))
  for (const one of [parts && parts[0], deadline]) if (one !== undefined) tr.clear(at(root, 7, one, session))
  tr.set(keys[2], host === undefined ? EMPTY : Buffer.from(`${host}:${process}`))
  return true
}

/** The results that a line has laid ready, by the ids of their tasks: in its notices, and in keys beside them. */
async function resultsOf(changes) {
  const columns = [2, 3].map((column) => changes.key(11, pack(column)))
  const [notices, beside] = await Promise.all(columns.map((column) => rowsOf(changes.tr, column, end(column), RELEASED)))
  const found = new Map(beside.map(([key, value]) => [key.subarray(-20).toString('hex'), value]))
  for (const [, notice] of notices) {
    for (let place = 12; place + 6 <= notice.length; ) {
      const suffix = place + 6
      const value = suffix + notice.readUInt16BE(place)
      place = value + notice.readUInt32BE(place + 2)
      found.set(notice.subarray(suffix, value).toString('hex'), notice.subarray(value, place))
    }
  }
  return found
}

/** Whether a result for its lease is laid ready: no process has received the task. */
function isUncollected(results, task) {
  const value = results.get(task.id.toString('hex'))
  return value !== undefined && value.equals(Buffer.concat([task.session, task.token, bigEndian(task.attempts, 4)]))
}

/** Release tasks of a session in one queue: { left, more }. `left`: it holds a task that must stay. */
async function releaseTaken(tr, root, name, session, now, died) {
  const changes = await begun(tr, root, name, now)
  const column = changes.key(4, session)
  const [rows, results] = await Promise.all([rowsOf(tr, column, end(column), RELEASED), resultsOf(changes)])
  let left = 0
  for (const [key] of rows) {
    const id = key.subarray(-20)
    const stored = await tr.get(changes.key(1, id))
    const task = stored && parsed(id, stored)
    if (!task) left += 1
    else if (!changes.stateKey(task).equals(key)) tr.clear(key)
    else if (timer(task) !== undefined && timer(task) <= changes.now) await changes.overdue(task)
    else if (died && !isUncollected(results, task)) await changes.lost(task, FORSAKEN, 'release')
    else if (task.cancelled) await changes.cancelled(task)
    else changes.move(task, { state: 'r' }, 'release')
  }
  changes.commit()
  return { left: left > 0, more: rows.length === RELEASED && left < RELEASED }
}

/** Whether a queue that is refused holds something for a session. */
async function holds(tr, root, stored, session) {
  try {
    const [id, kind, json, layout = 0n] = unpack(stored)
    const options = JSON.parse(json.toString())
    if (layout > 1n || options.temporary === session.toString('hex')) return true
    if (NO_TASKS.includes(kind)) return false
    const parts = options.partitions ? options.partitions[3] : 1
    for (let p = 0; p < parts; p++) {
      const prefix = p ? under(at(root, 2, id), 28, Buffer.from([p])) : at(root, 2, id)
      const column = under(prefix, 4, session)
      if ((await rowsOf(tr, column, end(column), 1)).length) return true
    }
    return false
  } catch (error) {
    if (typeof error.code === 'number') throw error // of the database
    return true // a definition that cannot be read
  }
}

/** The names of all queues, with their definitions. */
async function queues(tr, root) {
  const column = at(root, 0)
  return (await rowsOf(tr, column)).map(([key, value]) => [unpack(key.subarray(column.length))[0], value])
}

/** The last step of an end that began at `e`. */
async function forget(tr, root, session, e, now, held) {
  const key = at(root, 7, e, session)
  if (held) {
    const entry = await tr.get(key)
    if (entry) tr.set(at(root, 7, later(BigInt(now), HELD_ON_US), session), entry)
  } else {
    const run = await tr.get(at(root, 10, session))
    if (run) tr.clear(at(root, 10, session))
    if (run && !(await tr.get(at(root, 4, run)))) tr.clear(at(root, 9, run))
  }
  tr.clear(key)
}

/** Release all tasks of a session in a queue. Returns whether the queue holds something for it. */
async function releaseAll(run, root, [name, stored], session, died, clock) {
  try {
    for (;;) {
      const { left, more } = await run((tr) => releaseTaken(tr, root, name, session, clock(), died))
      if (!more) return left
    }
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    return run((tr) => holds(tr, root, stored, session))
  }
}

/** The second and the third step of an end, in transactions of `run(body)`. */
async function finish(run, root, session, e, died, clock) {
  let held = false
  for (const queue of await run((tr) => queues(tr, root))) held = (await releaseAll(run, root, queue, session, died, clock)) || held
  await run((tr) => forget(tr, root, session, e, clock(), held))
}

module.exports = { beat, begin, dead, finish, forget, open, releaseTaken }
