'use strict'
// Writes an order, and puts a task or an item about it, in one transaction of Node's own binding.
//
//   node producer.js put|enqueue QUEUE TEXT... [--receipt] [--pri N] [--delay SECONDS] [--root HEX]

const crypto = require('crypto')
const { parseArgs } = require('util')
const { Adapter, open } = require('../../clients/node/client')
const layout = require('../../clients/node/producer')

const RANDOM_BYTES = 12
const ROOT = '026664627175657565' + '00' // the tuple ("fdbqueue",)
const PROCESS = crypto.randomBytes(RANDOM_BYTES)
let attempts = 0

/** Run `body` in a transaction, once even if the result of a commit is unknown: at the cost of one key. */
async function once(db, root, body) {
  const slot = layout.receiptKey(root, PROCESS, 1)
  const earlier = []
  await db.doTn(async (tn) => {
    const found = earlier.length ? await tn.get(slot) : undefined // a retry: has an earlier attempt committed?
    if (found && earlier.some((value) => value.equals(found))) return
    earlier.push(layout.receiptValue(Date.now() * 1000, ++attempts))
    await body(new Adapter(tn))
    tn.set(slot, earlier[earlier.length - 1])
  })
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      receipt: { type: 'boolean', default: false },
      pri: { type: 'string' },
      delay: { type: 'string' },
      root: { type: 'string', default: ROOT },
    },
  })
  const [verb, queue, ...texts] = positionals
  const root = Buffer.from(values.root, 'hex')
  const options = {}
  for (const name of ['pri', 'delay']) if (values[name]) options[name] = Number(values[name])
  const random = crypto.randomBytes(RANDOM_BYTES) // before the retry loop

  async function place(tr) {
    for (const text of texts) tr.set(Buffer.from(`orders/${text}`), Buffer.from('placed'))
    const data = texts.map((text) => ({ order: text }))
    if (verb === 'enqueue') await layout.enqueue(tr, root, queue, data, random)
    else await layout.put(tr, root, queue, data, random, Date.now() * 1000, options)
  }

  const db = open(process.env.FDB_CLUSTER_FILE)
  if (values.receipt) {
    await once(db, root, place)
    await db.doTn(async (tn) => tn.clear(layout.receiptKey(root, PROCESS, 1)))
  } else {
    await db.doTn((tn) => place(new Adapter(tn)))
  }
  db.close()
}

main().catch((error) => {
  console.error(`producer: ${error.message}`)
  process.exitCode = 1
})
