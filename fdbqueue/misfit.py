"""Misfits: the part of a value that a codec cannot carry, by its type and place: `datetime at data["when"]`.

Looked for only after a codec has refused a value, level by level, so that neither a deep value nor one that
contains itself can exhaust the stack.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
    """Type and place of the first smallest part that did not come back equal, with the value that came
    back.
    """
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
