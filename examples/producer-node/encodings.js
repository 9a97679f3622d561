'use strict'
// The encodings of docs/layout.md: the tuple layer and msgpack, as far as a producer needs them.

const NEVER = 2n ** 63n - 1n

function bigEndian(n, size) {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(n))
  return bytes.subarray(8 - size)
}

function littleEndian(n, size) {
  return Buffer.from(bigEndian(BigInt.asUintN(64, BigInt(n)), 8)).reverse().subarray(0, size)
}

// Tuples: texts, byte strings and whole numbers.

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

function pack(...items) {
  return Buffer.concat(
    items.map((item) => {
      if (Buffer.isBuffer(item)) return packedBytes(0x01, item)
      return typeof item === 'string' ? packedBytes(0x02, Buffer.from(item)) : packedNumber(BigInt(item))
    }),
  )
}

function unpack(bytes) {
  const items = []
  for (let at = 0; at < bytes.length; ) {
    const code = bytes[at++]
    if (code === 0x01 || code === 0x02) {
      const found = []
      for (; bytes[at] !== 0x00 || bytes[at + 1] === 0xff; at += bytes[at] === 0x00 ? 2 : 1) found.push(bytes[at])
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

// msgpack, in the shortest form of each value.

function header(length, short, codes, sizes) {
  if (short !== null && length <= short.most) return Buffer.from([short.code | Number(length)])
  const at = sizes.findIndex((size) => length < 2 ** (8 * size))
  return Buffer.concat([Buffer.from([codes[at]]), bigEndian(length, sizes[at])])
}

function msgpack(value) {
  if (value === null) return Buffer.from([0xc0])
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2])
  if (Buffer.isBuffer(value)) return Buffer.concat([header(value.length, null, [0xc4, 0xc5, 0xc6], [1, 2, 4]), value])
  if (typeof value === 'string') {
    const bytes = Buffer.from(value)
    return Buffer.concat([header(bytes.length, { code: 0xa0, most: 31 }, [0xd9, 0xda, 0xdb], [1, 2, 4]), bytes])
  }
  if (Array.isArray(value)) {
    const items = value.map(msgpack)
    return Buffer.concat([header(items.length, { code: 0x90, most: 15 }, [0xdc, 0xdd], [2, 4]), ...items])
  }
  return header(BigInt(value), { code: 0x00, most: 127 }, [0xcc, 0xcd, 0xce, 0xcf], [1, 2, 4, 8])
}

// Counters: the operand of an ADD that changes some of them, by their places.

function counters(length, changes) {
  let total = 0n
  for (const [place, change] of Object.entries(changes)) total += BigInt(change) << BigInt(64 * Number(place))
  const words = []
  for (let place = 0; place < length; place++) words.push(littleEndian((total >> BigInt(64 * place)) & (2n ** 64n - 1n), 8))
  return Buffer.concat(words)
}

function counter(bytes, place = 0) {
  if (!bytes || bytes.length < 8 * (place + 1)) return 0n
  return bytes.readBigInt64LE(8 * place)
}

module.exports = { NEVER, bigEndian, counter, counters, msgpack, pack, unpack }
