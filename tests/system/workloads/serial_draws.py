"""The calls of the workload `serial`, drawn by chance, on a few keys that touch each other."""

from random import Random

from fdbqueue.embedded.options import StreamingMode
from tests.system.plain_engine import Mutation, Selector, after
from tests.system.plain_operations import OPERATIONS
from tests.system.workloads.serial_calls import Call, Conflict, Get, GetKey, GetRange, Write

STEM = b"ab" + b"x" * 480
# The storage of long keys changes at 503/504 and 511/512 bytes; a shared prefix must not confuse it.
LONG = [STEM + b"y" * (size - len(STEM) - 1) + tail for size in (503, 504, 511, 512) for tail in (b"a", b"b")]
KEYS = [b"a", b"a\x00", b"aa", b"aaa", b"ab", b"ac", b"ad"]
VALUES = [b"", b"\x01", b"\x02\x01", b"abc", b"\xff\xff", b"v" * 3_000]
OPERANDS = [b"", b"\x01", b"\xff", b"\x01\x02", b"abc"]
_OFFSET_MAX = 3
_LONG_P, _SNAPSHOT_P, _SILENT_P = 0.15, 0.3, 0.5


def drawn(random: Random, *, may_be_silent: bool) -> Call:
    """Return a call of any kind."""
    chance, snapshot = random.random(), random.random() < _SNAPSHOT_P
    if chance < 0.15:
        return Get(key_by_chance(random), snapshot)
    if chance < 0.25:
        return GetKey(_any_selector(random), snapshot)
    if chance < 0.45:
        return _range(random, snapshot)
    if chance < 0.55:
        return Conflict(*_two_keys(random), random.random() < 0.5)
    return Write(_mutation(random), may_be_silent and random.random() < _SILENT_P)


def key_by_chance(random: Random) -> bytes:
    return random.choice(LONG if random.random() < _LONG_P else KEYS)


def _two_keys(random: Random) -> tuple[bytes, bytes]:
    one, other = sorted((key_by_chance(random), key_by_chance(random)))
    return one, other


def _any_selector(random: Random) -> Selector:
    offset = random.randint(1 - _OFFSET_MAX, _OFFSET_MAX)
    return Selector(key_by_chance(random), random.random() < 0.5, offset)


def _range(random: Random, snapshot: bool) -> GetRange:
    """A range in batches has plain keys as its ends: each batch of another one reads more than its part."""
    limit, reverse = random.choice((0, 0, 1, 2, 3, 100)), random.random() < 0.5
    if random.random() < 0.3:
        return GetRange(_any_selector(random), _any_selector(random), limit, reverse, None, snapshot)
    begin, end = (Selector(key, False, 1) for key in _two_keys(random))
    mode = random.choice((None, StreamingMode.small, StreamingMode.iterator, StreamingMode.medium))
    return GetRange(begin, end, limit, reverse, mode, snapshot)


def _mutation(random: Random) -> Mutation:
    chance, key = random.random(), key_by_chance(random)
    if chance < 0.35:
        return Mutation(key, after(key), "set", random.choice(VALUES))
    if chance < 0.45:
        return Mutation(key, after(key), "clear key")
    if chance < 0.6:
        return Mutation(*_two_keys(random))
    return Mutation(key, after(key), random.choice(sorted(OPERATIONS)), random.choice(OPERANDS))
