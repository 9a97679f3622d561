'use strict'
// A worker in Node beside those in Python, until it is killed. It writes its calls down as `Recorder` of fdbqueue.testing.history does.

const fs = require('fs')
const path = require('path')
const [client, cluster, root, effects, history] = process.argv.slice(2)
const { Consumer, open } = require(path.join(client, 'client'))

const file = fs.openSync(history, 'ax')
const now = () => Number(process.hrtime.bigint() / 1000n) // the clock of Python's time.monotonic()
const write = (event) => fs.writeSync(file, `${JSON.stringify({ process: path.basename(history, '.history'), ...event })}\n`)
let calls = 0

async function call(name, argument, body, shown) {
  const number = calls++
  write({ number, begin_us: now(), name, argument })
  const result = await body()
  write({ number, end_us: now(), result: shown(result) })
  return result
}

const leaseOf = (task) => [task.data.n, task.token.toString('hex')]

/** Write renewals down, also those that the client makes by itself; it holds one task at a time. */
function renewalsOf(consumer) {
  const renew = consumer.renew.bind(consumer)
  consumer.renew = (tasks) => call('renew', leaseOf(tasks[0]), () => renew(tasks), ([state]) => (state === 'lost' ? 'refused' : null))
}

function end(consumer, task) {
  const what = task.attempts === 1n || task.data.do === 'bury' ? task.data.do : 'ack'
  const key = Buffer.alloc(4)
  key.writeUInt32BE(task.data.n)
  const writes = (tn) => tn.add(Buffer.concat([Buffer.from(effects, 'hex'), key]), Buffer.from('0100000000000000', 'hex'))
  const error = Object.assign(new Error('as planned'), { name: 'Planned' })
  const body = {
    ack: () => consumer.ack(task, writes),
    release: () => consumer.release(task),
    fail: () => consumer.fail(task, error),
    bury: () => consumer.bury(task, error),
  }[what]
  return call(what, leaseOf(task), body, (how) => (how === 'lost' ? 'refused' : null))
}

async function main() {
  const options = { root: Buffer.from(root, 'hex'), sessionS: 9, backoff: [0.1, 1, 1] }
  const consumer = await Consumer.open(open(cluster), 'shared', options)
  renewalsOf(consumer)
  const shown = ([task]) => (task ? [...leaseOf(task), Number(task.attempts)] : null)
  for (;;) {
    const [task] = await call('take', null, () => consumer.take({ timeoutMs: 1000 }), shown)
    if (!task) continue
    for (let part = 0; part < task.data.parts; part++) {
      if (part) await consumer.renew([task])
      await consumer.pause(1000 * task.data.s)
    }
    await end(consumer, task)
  }
}

main()
