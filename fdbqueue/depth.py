"""The depth of nested payloads, counted without recursion.

The interpreter's own limit depends on the depth of the caller's stack, so a process could put a value that
another one cannot take. limits.PAYLOAD_DEPTH_MAX is the same for all.
"""

import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import msgspec

from fdbqueue.misfit import parts_of

_CONTAINERS = (dict, list, tuple)
# A string without an end reaches to the end of the payload; otherwise each quote in it would be tried as a
# start.
_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {ord("["): 1, ord("]"): -1}
_ROUNDS = 4
_NO_CONTAINER = bytes(byte for byte in range(256) if not 0x80 <= byte <= 0x9F and not 0xDC <= byte <= 0xDF)
"""The bytes that begin no map and no array of msgpack."""

# The values of msgpack by their first byte: the bytes that follow it, or the bytes of their length.
_FIXED_BYTES = {
    **dict.fromkeys((0xCC, 0xD0), 1),
    **dict.fromkeys((0xCD, 0xD1), 2),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 4),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 8),
    **{0xD4 + n: 1 + 2**n for n in range(5)},
}
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_COUNT_BYTES = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def is_deep(wire: str, payload: bytes, depth_max: int) -> bool:
    """True if more than `depth_max` containers are nested.

    A payload with fewer containers costs next to nothing: they are counted in C.
    """
    if wire == "json":
        return payload.count(b"[") + payload.count(b"{") > depth_max and _json_is_deep(payload, depth_max)
    few = len(payload.translate(None, delete=_NO_CONTAINER)) <= depth_max
    return not few and _msgpack_is_deep(payload, depth_max)


def is_object_deep(value: Any, depth_max: int) -> bool:
    """True if the nesting of any `value` is deeper than `depth_max`; a value that contains itself is."""
    # One level more: the innermost container may hold a plain value.
    return _reaches([value], depth_max + 1, lambda whole: [part for _, part in parts_of(whole)])


def _json_is_deep(payload: bytes, depth_max: int) -> bool:
    brackets = _STRING.sub(b"", payload).translate(_AS_LISTS, _NO_BRACKET)
    rounds = min(_ROUNDS, depth_max)
    for _ in range(rounds):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost containers, all at once
    # Each round reads all that is left: the levels of a payload of megabytes are counted in one.
    return any(depth > depth_max - rounds for depth in accumulate(_STEPS[one] for one in brackets))


def _msgpack_is_deep(payload: bytes, depth_max: int) -> bool:
    try:
        return _reaches([msgspec.msgpack.decode(payload)], depth_max, _inner)
    except RecursionError:  # the stack of the caller is nearly full: the payload may have a few levels only
        return _scanned_depth(payload, depth_max) > depth_max


def _reaches(level: Iterable[Any], depth_max: int, inner: Callable[[Any], Iterable[Any]]) -> bool:
    """A level holds each object once; otherwise the levels of an object that contains itself twice would
    grow without bound.
    """
    for _ in range(depth_max):
        level = {id(part): part for whole in level for part in inner(whole)}.values()
        if not level:
            return False
    return True


def _inner(whole: Any) -> Iterable[Any]:
    if type(whole) is dict:
        keys = (key for key in whole if type(key) is tuple)
        return [*keys, *(part for part in whole.values() if type(part) in _CONTAINERS)]
    return [part for part in whole if type(part) in _CONTAINERS] if type(whole) in _CONTAINERS else ()


def _scanned_depth(payload: bytes, depth_max: int) -> int:
    """The depth of a msgpack payload, at most `depth_max` + 1, counted without recursion."""
    left, at, deepest = [1], 0, 0
    while left and at < len(payload) and deepest <= depth_max:
        if not left[-1]:
            left.pop()
            continue
        left[-1] -= 1
        at, parts = _skipped(payload, at)
        if parts is not None:
            left.append(parts)
            deepest = max(deepest, len(left) - 1)
    return deepest


def _skipped(payload: bytes, at: int) -> tuple[int, int | None]:
    """The offset of the next value, and the number of parts of this one if it is a container."""
    first, at = payload[at], at + 1
    if 0x80 <= first <= 0x9F:
        return at, (first & 0x0F) * (2 if first < 0x90 else 1)
    if first in _COUNT_BYTES:
        size, parts = _COUNT_BYTES[first]
        return at + size, parts * int.from_bytes(payload[at : at + size], "big")
    if 0xA0 <= first <= 0xBF:
        return at + (first & 0x1F), None
    if first in _LENGTH_BYTES:
        size = _LENGTH_BYTES[first]
        length = int.from_bytes(payload[at : at + size], "big")
        return at + size + length + (first in _EXTENSIONS), None
    return at + _FIXED_BYTES.get(first, 0), None
