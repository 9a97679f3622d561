'use strict'
// Writes an order, and puts a task or an item about it, in one transaction of Node's own binding.
//
//   node producer.js put|enqueue QUEUE TEXT... [--receipt] [--pri N] [--delay SECONDS] [--root HEX]

const crypto = require('crypto')
const { parseArgs } = require('util')
const { open } = require('../../clients/node/client')
const layout = require('../../clients/node/producer')
const { Receipts } = require('../../clients/node/receipts')

const RANDOM_BYTES = 12
const ROOT = '026664627175657565' + '00' // the tuple ("fdbqueue",)

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

  async function place(tn) {
    for (const text of texts) tn.set(Buffer.from(`orders/${text}`), Buffer.from('placed'))
    const data = texts.map((text) => ({ order: text }))
    if (verb === 'enqueue') await layout.enqueue(tn, root, queue, data, random)
    else await layout.put(tn, root, queue, data, random, Date.now() * 1000, options)
  }

  const db = open(process.env.FDB_CLUSTER_FILE)
  if (values.receipt) {
    const receipts = new Receipts(root) // one effect, even if the result of a commit is unknown
    await receipts.once((body) => db.doTn(body), place)
    await db.doTn(async (tn) => receipts.clear(tn))
  } else {
    await db.doTn(place)
  }
  db.close()
}

main().catch((error) => {
  console.error(`producer: ${error.message}`)
  process.exitCode = 1
})
