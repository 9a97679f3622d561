'use strict'
// Proves layout.js: `npm run conformance`. A transaction is a map here, and needs no client library.

const readline = require('readline')
const layout = require('./layout')

const bytesOf = (text) => Buffer.from(text.replace(/%([0-9a-f]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16))), 'latin1')
const textOf = (bytes) => [...bytes].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('')

class MapTransaction {
  constructor(keys) {
    this.keys = new Map(Object.entries(keys).map(([key, value]) => [bytesOf(key).toString('latin1'), bytesOf(value)]))
    this.reads = []
    this.writes = []
  }
  async get(key) {
    this.relyOn(key)
    return this.snapshotGet(key)
  }
  async snapshotGet(key) {
    return this.keys.get(key.toString('latin1'))
  }
  async snapshotLast(begin, end) {
    const inside = [...this.keys.keys()].filter((key) => key >= begin.toString('latin1') && key < end.toString('latin1'))
    const last = inside.sort().pop()
    return last === undefined ? undefined : [Buffer.from(last, 'latin1'), this.keys.get(last)]
  }
  set(key, value) {
    this.keys.set(key.toString('latin1'), value)
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
  relyOn(begin, end) {
    this.reads.push(end ? [textOf(begin), textOf(end)] : textOf(begin))
  }
  declareWritten(key) {
    this.writes.push(textOf(key))
  }
}

async function call(tr, asked) {
  const { queue, subspace, payload, payloads, receipt, ...options } = asked.call
  const root = bytesOf(asked.root)
  const random = asked.random.map(bytesOf)
  const values = (payloads || [payload || '']).map(bytesOf)
  if (receipt) {
    const key = layout.receiptKey(root, bytesOf(receipt.process), receipt.slot)
    tr.set(key, layout.receiptValue(asked.now_us, receipt.number))
  }
  if (asked.kind === 'queue' && asked.verb.startsWith('enqueue')) {
    return layout.enqueue(tr, root, subspace ? bytesOf(subspace) : queue, values, random[0])
  }
  if (asked.kind in layout.KINDS && ['put', 'put_many'].includes(asked.verb)) {
    return layout.put(tr, root, queue, values, random[random.length - 1], asked.now_us, options, random[0])
  }
  throw new layout.Refused(`this producer has no ${asked.kind}/${asked.verb}`)
}

async function answer(asked) {
  const tr = new MapTransaction(asked.keys)
  const told = { id: asked.id }
  try {
    const ids = await call(tr, asked)
    if (ids) told.returns = ids.map(textOf)
  } catch (error) {
    if (error instanceof layout.Refused) return { id: asked.id, unsupported: true }
    if (!(error instanceof layout.Full)) throw error
    told.returns = { error: 'Full' }
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
