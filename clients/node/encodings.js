'use strict'
// The encodings of docs/layout.md: the tuple layer, msgpack, counters and times.

const NEVER = 2n ** 63n - 1n
const EMPTY = Buffer.alloc(0)

function bigEndian(n, size) {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt.asUintN(64, BigInt(n)))
  return bytes.subarray(8 - size)
}

/** At most so many bytes of a text in UTF-8, in whole characters. */
function cut(text, bytes, fromEnd = false) {
  const all = Buffer.from(text)
  if (all.length <= bytes) return all.toString()
  let at = fromEnd ? all.length - bytes : bytes
  while ((all[at] & 0xc0) === 0x80) at += fromEnd ? 1 : -1
  return (fromEnd ? all.subarray(at) : all.subarray(0, at)).toString()
}

// Tuples: texts, byte strings, whole numbers and null.

function packedItem(item) {
  if (item === null) return [0x00]
  if (typeof item === 'string' || Buffer.isBuffer(item)) {
    const bytes = [...Buffer.from(item)].flatMap((byte) => (byte === 0 ? [0x00, 0xff] : byte))
    return [typeof item === 'string' ? 0x02 : 0x01, ...bytes, 0x00]
  }
  const n = BigInt(item)
  const size = n ? Math.ceil((n < 0n ? -n : n).toString(16).length / 2) : 0
  return n < 0n ? [0x14 - size, ...bigEndian(n - 1n, size)] : [0x14 + size, ...bigEndian(n, size)]
}

function pack(...items) {
  return Buffer.from(items.flatMap(packedItem))
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

// msgpack, in the shortest form of each value. A BigInt is a whole number from 0 on, and a Number a float of 64 bits.

/** The first bytes of a value: `short` with a length up to `most`, else a code from `code` on, and the length in one of the sizes. */
function header(length, short, most, code, sizes) {
  if (length <= most) return Buffer.from([short | Number(length)])
  const at = sizes.findIndex((size) => length < 2 ** (8 * size))
  return Buffer.concat([Buffer.from([code + at]), bigEndian(length, sizes[at])])
}

function msgpack(value) {
  if (value === null) return Buffer.from([0xc0])
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2])
  if (typeof value === 'bigint') return header(value, 0x00, 127, 0xcc, [1, 2, 4, 8])
  if (typeof value === 'number') {
    const bytes = Buffer.from([0xcb, ...Array(8).fill(0)])
    bytes.writeDoubleBE(value, 1)
    return bytes
  }
  if (Buffer.isBuffer(value)) return Buffer.concat([header(value.length, 0, -1, 0xc4, [1, 2, 4]), value])
  if (typeof value === 'string') return Buffer.concat([header(Buffer.byteLength(value), 0xa0, 31, 0xd9, [1, 2, 4]), Buffer.from(value)])
  const items = value instanceof Map ? [...value].flat() : value
  const first = value instanceof Map ? header(value.size, 0x80, 15, 0xde, [2, 4]) : header(value.length, 0x90, 15, 0xdc, [2, 4])
  return Buffer.concat([first, ...items.map(msgpack)])
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

/** The operand of an ADD that changes some of the counters, by their places from 0. */
function counters(length, changes) {
  let total = 0n
  for (const [place, change] of Object.entries(changes)) total += BigInt(change) << BigInt(64 * Number(place))
  return Buffer.concat(Array.from({ length }, (_, place) => bigEndian(total >> BigInt(64 * place), 8).reverse()))
}

function counter(bytes, place = 0) {
  return bytes && bytes.length >= 8 * (place + 1) ? bytes.readBigInt64LE(8 * place) : 0n
}

/** The sum of times, or NEVER. */
function later(us, after) {
  return us + after > NEVER ? NEVER : us + after
}

module.exports = { EMPTY, NEVER, Unpacker, bigEndian, counter, counters, cut, later, msgpack, pack, unpack }
