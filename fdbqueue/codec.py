"""Payload codecs: a Python value to bytes and back, equal, or a TypeError before anything is written.

msgspec encodes more than it can bring back (a tuple returns as a list, NaN as null, the key 1 as "1").
A queue that changes what it was given corrupts quietly and far from the cause, so `encode` decodes its own
output and compares: both directions run in C, about a microsecond for a small payload.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from fdbqueue.errors import PayloadUnreadable, UnknownCodec


class Codec(Protocol):
    name: str

    def encode(self, value: Any) -> bytes:
        """Raises TypeError for a value that would not come back equal."""

    def decode(self, payload: bytes) -> Any:
        """Raises PayloadUnreadable for bytes that another codec wrote."""


class BytesCodec:
    name = "bytes"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError(f"codec 'bytes' carries bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, payload: bytes) -> Any:
        return payload


class MsgspecCodec:
    """A codec of msgspec's, made strict."""

    def __init__(self, name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self.name = name
        self._encode = encode
        self._decode = decode

    def encode(self, value: Any) -> bytes:
        try:
            payload = self._encode(value)
            if self._decode(payload) == value:
                return payload
        except (TypeError, ValueError, OverflowError, RecursionError) as reason:
            raise TypeError(f"codec {self.name!r} cannot carry this value: {reason}") from reason
        raise TypeError(
            f"codec {self.name!r} cannot carry this value: it would not come back equal "
            "(a tuple, a set, NaN, or a key that is no string is the usual cause)"
        )

    def decode(self, payload: bytes) -> Any:
        try:
            return self._decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as reason:
            raise PayloadUnreadable(codec=self.name, reason=str(reason)) from reason


CODECS: dict[str, Codec] = {
    "json": MsgspecCodec("json", msgspec.json.Encoder().encode, msgspec.json.Decoder().decode),
    "msgpack": MsgspecCodec("msgpack", msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode),
    "bytes": BytesCodec(),
}


def codec_named(name: str) -> Codec:
    """Raises UnknownCodec."""
    try:
        return CODECS[name]
    except (KeyError, TypeError):
        raise UnknownCodec(codec=name) from None
