'use strict'
// The encodings of docs/layout.md: the tuple layer, msgpack, counters and times.

const NEVER = 2n ** 63n - 1n
const EMPTY = Buffer.alloc(0)

function bigEndian(n, size) {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(n))
  return bytes.subarray(8 - size)
}

function littleEndian(n) {
  return Buffer.from(bigEndian(BigInt.asUintN(64, BigInt(n)), 8)).reverse()
}

// Tuples: texts, byte strings, whole numbers and null.

function sizeOf(n) {
  let size = 0
  for (let left = n; left > 0n; left >>= 8n) size += 1
  return size
}

function packedNumber(n) {
  const size = sizeOf(n < 0n ? -n : n)
  const bytes = bigEndian(n < 0n ? n + (1n << BigInt(8 * size)) - 1n : n, size)
  return Buffer.concat([Buffer.from([n < 0n ? 0x14 - size : 0x14 + size]), bytes])
}

function packedBytes(code, bytes) {
  const parts = [code]
  for (const byte of bytes) parts.push(...(byte === 0 ? [0x00, 0xff] : [byte]))
  return Buffer.from([...parts, 0x00])
}

function packedItem(item) {
  if (item === null) return Buffer.from([0x00])
  if (Buffer.isBuffer(item)) return packedBytes(0x01, item)
  return typeof item === 'string' ? packedBytes(0x02, Buffer.from(item)) : packedNumber(BigInt(item))
}

function pack(...items) {
  return Buffer.concat(items.map(packedItem))
}

function unpack(bytes) {
  const items = []
  for (let at = 0; at < bytes.length; ) {
    const code = bytes[at++]
    if (code === 0x00) items.push(null)
    else if (code === 0x01 || code === 0x02) {
      const found = []
      for (; bytes[at] !== 0x00 || bytes[at + 1] === 0xff; at += bytes[at] === 0x00 ? 2 : 1) {
        if (at >= bytes.length) throw new Error('a text in a tuple has no end')
        found.push(bytes[at])
      }
      at += 1
      items.push(code === 0x01 ? Buffer.from(found) : Buffer.from(found).toString())
    } else if (code >= 0x0c && code <= 0x1c) {
      const size = Math.abs(code - 0x14)
      const n = BigInt(`0x${bytes.subarray(at, at + size).toString('hex') || 0}`)
      items.push(code < 0x14 ? n - (1n << BigInt(8 * size)) + 1n : n)
      at += size
    } else throw new Error(`no tuple of texts, bytes and whole numbers: code ${code}`)
  }
  return items
}

// msgpack, in the shortest form of each value. A BigInt is a whole number, and a Number a float of 64 bits.

function header(length, short, codes, sizes) {
  if (short !== null && length <= short.most) return Buffer.from([short.code | Number(length)])
  const at = sizes.findIndex((size) => length < 2 ** (8 * size))
  return Buffer.concat([Buffer.from([codes[at]]), bigEndian(length, sizes[at])])
}

function msgpackNumber(n) {
  if (n >= 0n) return header(n, { code: 0x00, most: 127 }, [0xcc, 0xcd, 0xce, 0xcf], [1, 2, 4, 8])
  if (n >= -32n) return Buffer.from([Number(n) & 0xff])
  const at = [1, 2, 4, 8].findIndex((size) => n >= -(1n << BigInt(8 * size - 1)))
  return Buffer.concat([Buffer.from([0xd0 + at]), bigEndian(BigInt.asUintN(64, n), 8).subarray(8 - 2 ** at)])
}

function msgpack(value) {
  if (value === null) return Buffer.from([0xc0])
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2])
  if (typeof value === 'bigint') return msgpackNumber(value)
  if (typeof value === 'number') {
    const bytes = Buffer.from([0xcb, ...Array(8).fill(0)])
    bytes.writeDoubleBE(value, 1)
    return bytes
  }
  if (Buffer.isBuffer(value)) return Buffer.concat([header(value.length, null, [0xc4, 0xc5, 0xc6], [1, 2, 4]), value])
  if (typeof value === 'string') {
    const bytes = Buffer.from(value)
    return Buffer.concat([header(bytes.length, { code: 0xa0, most: 31 }, [0xd9, 0xda, 0xdb], [1, 2, 4]), bytes])
  }
  const items = value instanceof Map ? [...value].flat() : value
  const short = value instanceof Map ? { code: 0x80, most: 15 } : { code: 0x90, most: 15 }
  const length = value instanceof Map ? value.size : value.length
  return Buffer.concat([header(length, short, value instanceof Map ? [0xde, 0xdf] : [0xdc, 0xdd], [2, 4]), ...items.map(msgpack)])
}

/** Reads the values of msgpack in `bytes`; `at` is the place of the next one. Throws for what is not msgpack. */
class Unpacker {
  constructor(bytes) {
    Object.assign(this, { bytes, at: 0 })
  }
  cut(size) {
    if (this.at + size > this.bytes.length) throw new Error('msgpack ends early')
    return this.bytes.subarray(this.at, (this.at += size))
  }
  number(size) {
    return BigInt(`0x${this.cut(size).toString('hex')}`)
  }
  many(count) {
    return Array.from({ length: Number(count) }, () => this.value())
  }
  map(count) {
    return new Map(Array.from({ length: Number(count) }, () => this.many(2)))
  }
  value() {
    const code = this.cut(1)[0]
    if (code < 0x80) return BigInt(code)
    if (code < 0x90) return this.map(code & 0x0f)
    if (code < 0xa0) return this.many(code & 0x0f)
    if (code < 0xc0) return this.cut(code & 0x1f).toString()
    if (code >= 0xe0) return BigInt(code - 256)
    if (code === 0xc0) return null
    if (code === 0xc2 || code === 0xc3) return code === 0xc3
    if (code >= 0xc4 && code <= 0xc6) return this.cut(Number(this.number(1 << (code - 0xc4))))
    if (code === 0xca) return this.cut(4).readFloatBE()
    if (code === 0xcb) return this.cut(8).readDoubleBE()
    if (code >= 0xcc && code <= 0xcf) return this.number(1 << (code - 0xcc))
    if (code >= 0xd0 && code <= 0xd3) return BigInt.asIntN(8 << (code - 0xd0), this.number(1 << (code - 0xd0)))
    if (code >= 0xd9 && code <= 0xdb) return this.cut(Number(this.number(1 << (code - 0xd9)))).toString()
    if (code === 0xdc || code === 0xdd) return this.many(this.number(2 << (code - 0xdc)))
    if (code === 0xde || code === 0xdf) return this.map(this.number(2 << (code - 0xde)))
    throw new Error(`msgpack of an unknown type: ${code}`)
  }
}

// Counters: the operand of an ADD that changes some of them, by their places from 0.

function counters(length, changes) {
  let total = 0n
  for (const [place, change] of Object.entries(changes)) total += BigInt(change) << BigInt(64 * Number(place))
  const words = []
  for (let place = 0; place < length; place++) words.push(littleEndian(total >> BigInt(64 * place)))
  return Buffer.concat(words)
}

function counter(bytes, place = 0) {
  if (!bytes || bytes.length < 8 * (place + 1)) return 0n
  return bytes.readBigInt64LE(8 * place)
}

/** The sum of times, or NEVER. */
function later(us, after) {
  return us + after > NEVER ? NEVER : us + after
}

module.exports = { EMPTY, NEVER, Unpacker, bigEndian, counter, counters, later, msgpack, pack, unpack }
