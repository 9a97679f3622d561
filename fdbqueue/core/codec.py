"""Payload codecs: a Python value to bytes and back, equal, or a TypeError before anything is written.

msgspec encodes more than it can bring back (a tuple returns as a list, NaN as null, the key 1 as "1").
A codec that changes a value would corrupt it silently, far from the cause. So `encode` decodes its own
output and compares: both directions run in C, about a microsecond for a small payload.

The name of a codec is stored with a named queue. The type of the payloads belongs to the handle alone:
nothing that is stored names a class, and nothing is imported because of data.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text
from fdbqueue.core.deferred import checked_function
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
from fdbqueue.core.misfit import is_deep, is_object_deep, lost_part, reason_in_place, refused_part, type_name


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
