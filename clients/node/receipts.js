'use strict'
// Receipts, written from docs/layout.md: one effect of a call, even if the result of a commit is unknown.

const crypto = require('crypto')
const { bigEndian, pack } = require('./encodings')

/** The key of a receipt. `process`: 12 random bytes, made when the process starts; `slot`: from 1 on. */
function receiptKey(root, process, slot) {
  return Buffer.concat([root, pack(3, process, slot)])
}

function receiptValue(nowUs, number) {
  return Buffer.concat([bigEndian(nowUs, 8), bigEndian(number, 8)])
}

/** The receipts of a process below a root. Each call has a key of its own while it runs. */
class Receipts {
  constructor(root) {
    Object.assign(this, { root, process: crypto.randomBytes(12), number: 0, slots: 0, free: [] })
  }
  /** Let `run` repeat `body(tn)` until it has one effect, and return what that attempt has returned. */
  async once(run, body) {
    const slot = this.free.pop() || ++this.slots
    const key = receiptKey(this.root, this.process, slot)
    const earlier = []
    try {
      return await run(async (tn) => {
        const found = earlier.length ? await tn.get(key) : undefined
        const before = found && earlier.find(({ value }) => value.equals(found))
        if (before) return before.result
        const value = receiptValue(Date.now() * 1000, ++this.number)
        const result = await body(tn)
        tn.set(key, value)
        earlier.push({ value, result })
        return result
      })
    } finally {
      this.free.push(slot)
    }
  }
  /** Clear the keys of all calls, when none runs. */
  clear(tn) {
    for (let slot = 1; slot <= this.slots; slot++) tn.clear(receiptKey(this.root, this.process, slot))
  }
}

module.exports = { Receipts, receiptKey, receiptValue }
