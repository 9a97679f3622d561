"""Misfits: the part of a value that a codec cannot carry, by its type and place: `datetime at data["when"]`.

Looked for only after a codec has refused a value, level by level, so that neither a deep value nor one that
contains itself can exhaust the stack.

The depth of a value is counted without recursion, too. The interpreter's own limit depends on the depth of
the caller's stack, so a process could put a value that another one cannot take. limits.PAYLOAD_DEPTH_MAX is
the same for all.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import msgspec

PLACE_LENGTH_MAX = 200
Part = tuple[str, Any]
"""The Python expression that leads from a container to a part, and the part."""


def refused_part(value: Any, encode: Callable[[Any], bytes]) -> tuple[str, str]:
    """Type and place of the first smallest part of `value` that cannot be encoded."""
    place, seen = "data", {id(value)}
    while True:
        found = next(((step, part) for step, part in parts_of(value) if not _succeeds(encode, part)), None)
        if found is None:
            return _refused_key(value, place, encode) or (type_name(value), shortened(place))
        if id(found[1]) in seen:
            return type_name(value), shortened(place)
        place, value = place + found[0], found[1]
        seen.add(id(value))


def lost_part(value: Any, back: Any) -> tuple[str, str, str]:
    """Type and place of the first smallest part that did not come back equal, and what came back."""
    place = "data"
    while type(value) is type(back):
        others = dict(parts_of(back))
        lost = ((step, part) for step, part in parts_of(value) if not _equal(part, others.get(step, _ABSENT)))
        found = next(lost, None)
        if found is None:
            return type_name(value), shortened(place), "it would not come back equal"
        if found[0] not in others:
            return _lost_key(value, place, found[0])
        place, value, back = place + found[0], found[1], others[found[0]]
    return type_name(value), shortened(place), f"it would come back as {type_name(back)}"


def reason_in_place(error: msgspec.ValidationError) -> str:
    """The message of msgspec; its place begins at `data` instead of `$`."""
    said, at, place = str(error).partition(" - at `$")
    return f"{said} at {shortened('data' + place.removesuffix('`'))}" if at else said


def type_name(value: Any) -> str:
    """The name of a type, or of the type of any other value."""
    if isinstance(value, type):
        return value.__name__
    known = getattr(type(value), "__module__", "") not in ("typing", "types")
    return type(value).__name__ if known else str(value)


def shortened(place: str) -> str:
    half = PLACE_LENGTH_MAX // 2
    return place if len(place) <= PLACE_LENGTH_MAX else f"{place[:half]}...{place[-half:]}"


_ABSENT = object()


def parts_of(value: Any) -> Iterator[Part]:
    """The entries of a container, or the fields of an object; nothing for any other value."""
    if isinstance(value, dict):
        return ((f"[{_written(key)}]", part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return ((f"[{n}]", part) for n, part in enumerate(value))
    return ((f".{name}", getattr(value, name)) for name in _fields(value) if hasattr(value, name))


def _fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(field.name for field in getattr(type(value), "__attrs_attrs__", ()))


def _written(key: Any) -> str:
    return msgspec.json.encode(key).decode() if isinstance(key, str) and key.isprintable() else repr(key)


def _succeeds(encode: Callable[[Any], bytes], part: Any) -> bool:
    try:
        encode(part)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _refused_key(value: Any, place: str, encode: Callable[[Any], bytes]) -> tuple[str, str] | None:
    keys = value if isinstance(value, Mapping) else ()
    refused = next((key for key in keys if not _succeeds(encode, {key: None})), _ABSENT)
    return (
        None if refused is _ABSENT else (type_name(refused), shortened(f"{place}, key {_written(refused)}"))
    )


def _lost_key(value: Any, place: str, step: str) -> tuple[str, str, str]:
    lost = (
        next((key for key in value if f"[{_written(key)}]" == step), step)
        if isinstance(value, dict)
        else step
    )
    return type_name(lost), shortened(f"{place}, key {step[1:-1]}"), "it would come back as another key"


def _equal(part: Any, other: Any) -> bool:
    try:
        return bool(part == other)
    except Exception:  # a comparison of the user's own
        return False


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
    """A level holds each object once, as the levels of one that contains itself twice would grow for ever."""
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
