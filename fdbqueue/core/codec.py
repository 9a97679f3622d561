"""Payload codecs: a Python value to bytes and back, equal, or a TypeError before anything is written.

msgspec encodes more than it can bring back (a tuple returns as a list, NaN as null, the key 1 as "1").
A codec that changes a value would corrupt it silently, far from the cause. So `encode` decodes its own
output and compares: both directions run in C, about a microsecond for a small payload.

The name of a codec is stored with a named queue. The type of the payloads belongs to the handle alone:
nothing that is stored names a class, and nothing is imported because of data.

A *misfit* is the part of a value that a codec cannot carry, told by its type and place: `datetime at
data["when"]`. It is looked for only after a codec has refused a value, level by level, so that neither a deep
value nor one that contains itself can exhaust the stack.

The depth of a value is counted without recursion, too. The interpreter's own limit depends on the depth of
the caller's stack, so a process could put a value that another one cannot take. limits.PAYLOAD_DEPTH_MAX is
the same for all.
"""

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function, checked_text
from fdbqueue.core.errors import (
    CodecExists,
    FdbQueueError,
    InvalidArgument,
    PayloadMismatch,
    PayloadUnknown,
    PayloadUnreadable,
    PayloadUnsupported,
    UnknownCodec,
)

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


class Codec(Protocol):
    """A codec for `register_codec`."""

    def encode(self, value: Any) -> bytes:
        """Raises TypeError for a value that it cannot carry."""

    def decode(self, payload: bytes) -> Any:
        """Raises UnknownCodec for a format that it does not know yet, ImportError or AttributeError where
        this process lacks a class. Any other error says that these bytes are not its own.
        """


class PayloadCodec(Protocol):
    """A codec as a queue uses it."""

    @property
    def is_plain(self) -> bool:
        """True if it runs no code of the user."""

    @property
    def key(self) -> Hashable:
        """Equal for interchangeable codecs: calls of their queues may share a transaction."""

    def encode(self, value: Any) -> bytes:
        """Raises TypeError, UnknownCodec."""

    def decode(self, payload: bytes) -> Any:
        """PayloadUnreadable for damaged bytes, an error of NOT_HERE for those that another may read."""

    def require(self) -> None:
        """Raises UnknownCodec."""


_DEPTH_MAX = limits.PAYLOAD_DEPTH_MAX
_TOO_DEEP = f"it is nested more than {_DEPTH_MAX} levels deep, or contains itself"
_NO_ROOM = "the stack of the caller is too deep to encode it"
TYPED_HINT = "; a queue handle with type= can carry it"

NOT_HERE = (UnknownCodec, PayloadUnknown, PayloadMismatch)
"""Errors of a payload that another process may read: this one lacks a codec or a class, or its handle has
another type.
"""


class BytesCodec:
    key = ("bytes", None)
    is_plain = True

    def require(self) -> None: ...

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            reason = "it carries bytes only"
            raise PayloadUnsupported(codec="bytes", type=type_name(value), place="data", reason=reason)
        return bytes(value)

    def decode(self, payload: bytes) -> Any:
        return payload


class MsgspecCodec:
    """A strict codec over msgspec, for values of one type; with None, for the types of the format itself."""

    def __init__(self, name: str, type_: Any) -> None:
        """Raises TypeError for a type that msgspec cannot decode."""
        wire: Any = {"json": msgspec.json, "msgpack": msgspec.msgpack}[name]
        self.key = (name, type_)
        self.is_plain = type_ is None
        self._name = name
        self._type = type_
        self._encode: Callable[[Any], bytes] = wire.Encoder().encode
        self._decode: Callable[[bytes], Any] = wire.Decoder(Any if type_ is None else type_).decode

    def require(self) -> None: ...

    def encode(self, value: Any) -> bytes:
        try:
            payload = self._encode(value)
            back = self._decode(payload)
            if back == value:
                if len(payload) > _DEPTH_MAX and is_deep(self._name, payload, _DEPTH_MAX):
                    raise self._unsupported(type_name(value), "data", _TOO_DEEP)
                return payload
        except RecursionError as error:
            reason = _TOO_DEEP if is_object_deep(value, _DEPTH_MAX) else _NO_ROOM
            raise self._unsupported(type_name(value), "data", reason) from error
        except msgspec.ValidationError as error:
            reason = f"it does not fit {type_name(self._type)}: {reason_in_place(error)}"
            raise self._unsupported(type_name(value), "data", reason) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise self._unsupported(*refused_part(value, self._encode), str(error)) from error
        part, place, reason = lost_part(value, back)
        hint = TYPED_HINT if self._type is None and part != "float" else ""
        raise self._unsupported(part, place, f"{reason}{hint}")

    def decode(self, payload: bytes) -> Any:
        try:
            value = self._decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if self._type is not None and isinstance(error, msgspec.ValidationError):
                raise self._mismatch(reason_in_place(error)) from error
            raise PayloadUnreadable(codec=self._name, reason=str(error)) from error
        except RecursionError as error:
            if not is_deep(self._name, payload, _DEPTH_MAX):
                raise  # the stack of the caller has no room: another caller reads it
            raise PayloadUnreadable(codec=self._name, reason=_TOO_DEEP) from error
        except MemoryError:
            raise
        except Exception as error:
            if self._type is None:
                raise PayloadUnreadable(codec=self._name, reason=f"{type_name(error)}: {error}") from error
            # The constructor of a class may run any code.
            raise self._mismatch(f"{type_name(error)}: {error}") from error
        if len(payload) > _DEPTH_MAX and is_deep(self._name, payload, _DEPTH_MAX):
            raise PayloadUnreadable(codec=self._name, reason=_TOO_DEEP)
        return value

    def _mismatch(self, reason: str) -> PayloadMismatch:
        return PayloadMismatch(type=type_name(self._type), reason=reason)

    def _unsupported(self, type_: str, place: str, reason: str) -> PayloadUnsupported:
        return PayloadUnsupported(codec=self._name, type=type_, place=place, reason=reason)


class RegisteredCodec:
    """A codec of the user. It alone guarantees that a value comes back equal."""

    is_plain = False

    def __init__(self, name: str, codec: Codec) -> None:
        self.key = (name, None)
        self._name = name
        self._codec = codec

    def require(self) -> None: ...

    def encode(self, value: Any) -> bytes:
        payload = self._codec.encode(value)
        if not isinstance(payload, bytes):
            reason = f"its encode() returned {type_name(payload)} instead of bytes"
            raise PayloadUnsupported(codec=self._name, type=type_name(value), place="data", reason=reason)
        return bytes(payload)

    def decode(self, payload: bytes) -> Any:
        try:
            return self._codec.decode(payload)
        except (FdbQueueError, MemoryError):
            raise
        except (ImportError, AttributeError) as reason:
            raise PayloadUnknown(codec=self._name, reason=str(reason)) from reason
        except Exception as reason:
            said = f"{type_name(reason)}: {reason}"
            raise PayloadUnreadable(codec=self._name, reason=said) from reason


class AbsentCodec:
    """The codec of a stored queue that this process has not registered: calls that need no payload work."""

    is_plain = False

    def __init__(self, name: str, type_: Any) -> None:
        self.key = ("absent", name, type_)
        self._name = name
        self._type = type_

    def require(self) -> None:
        self._found()

    def encode(self, value: Any) -> bytes:
        return self._found().encode(value)

    def decode(self, payload: bytes) -> Any:
        return self._found().decode(payload)

    def _found(self) -> PayloadCodec:
        # The codec may have been registered after the queue was opened.
        return codec_named(self._name, self._type)


BUILT_IN = ("json", "bytes", "msgpack")

_registered: dict[str, RegisteredCodec] = {}


def register_codec(name: str, codec: Codec) -> None:
    """Make `codec` available to this process under `name`, which is stored with the queues that use it.

    A process without it gets UnknownCodec when it puts or takes, and changes nothing. Raises CodecExists;
    InvalidArgument for a name that is no text of 1 to limits.CODEC_NAME_BYTES_MAX bytes, or for a codec
    without `encode` and `decode`.
    """
    name = checked_text("name", name, limits.CODEC_NAME_BYTES_MAX)
    for part in ("encode", "decode"):
        function: Any = getattr(codec, part, None)
        checked_function(f"codec.{part}", function)
    if name in BUILT_IN or name in _registered:
        raise CodecExists(codec=name)
    _registered[name] = RegisteredCodec(name, codec)


def codec_named(name: str, type_: Any = None) -> PayloadCodec:
    """The codec of that name, for payloads of that type. Raises UnknownCodec, InvalidArgument."""
    found = _registered.get(name) if isinstance(name, str) else None
    if name in ("json", "msgpack"):
        return _typed(name, type_)
    if found is None and name != "bytes":
        raise UnknownCodec(codec=name)
    if type_ is not None:
        raise InvalidArgument(name="type", wanted=f"left out, as codec {name!r} has no types", got=type_)
    return found or BytesCodec()


def checked_codec(name: str, type_: Any = None) -> str:
    """The name as it is stored. Raises UnknownCodec, InvalidArgument."""
    codec_named(name, type_)
    return str.__str__(name)


def stored_codec(name: str, type_: Any = None) -> PayloadCodec:
    """The codec that a definition names, registered or not. Raises InvalidArgument."""
    try:
        return codec_named(name, type_)
    except UnknownCodec:
        return AbsentCodec(name, type_)


def encoded_each(codec: PayloadCodec, values: Iterable[Any]) -> list[bytes]:
    """The payloads of a batch. Raises TypeError with the place in the batch, and as `encode` does."""
    payloads: list[bytes] = []
    for value in values:
        try:
            payloads.append(codec.encode(value))
        except PayloadUnsupported as error:
            raise error.at(len(payloads)) from error
    return payloads


def _typed(name: str, type_: Any) -> MsgspecCodec:
    try:
        return _msgspec_codec(name, type_)
    except Exception as error:  # a TypeError, or an error of the repr of an object that is no type
        wanted = f"a type that msgspec decodes, and that has a hash ({error})"
        raise InvalidArgument(name="type", wanted=wanted, got=type_) from error


@lru_cache(limits.CODECS_CACHED_MAX)
def _msgspec_codec(name: str, type_: Any) -> MsgspecCodec:
    return MsgspecCodec(name, type_)


def pieces_of(payload: bytes) -> Iterator[bytes]:
    """Cut `payload` into pieces of at most limits.PAYLOAD_PIECE_BYTES_MAX bytes."""
    step = limits.PAYLOAD_PIECE_BYTES_MAX
    return (payload[start : start + step] for start in range(0, len(payload), step))
