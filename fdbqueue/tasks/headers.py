"""Headers: texts by name that a task has beside its data, for programs that do not know its codec.

They lie in the record, so they cost no key and no round trip; tasks without headers cost one byte.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument

_to_bytes = msgspec.msgpack.Encoder().encode


def checked_headers(headers: Any) -> dict[str, str]:
    if not _are_texts(headers) or _size_bytes(headers) > limits.HEADERS_BYTES_MAX:
        wanted = f"texts by name, at most {limits.HEADERS_BYTES_MAX} bytes together"
        raise InvalidArgument(name="headers", wanted=wanted, got=headers)
    # A subclass of str may encode itself in another way: these are plain texts.
    return {str.__str__(name): str.__str__(text) for name, text in headers.items()}


def _are_texts(headers: Any) -> bool:
    if not isinstance(headers, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(text, str) for name, text in headers.items())


def _size_bytes(headers: Mapping[str, str]) -> int:
    """The bytes of the stored form; more than any bound for a text with half a surrogate pair."""
    try:
        return len(_to_bytes(dict(headers)))
    except UnicodeEncodeError:
        return limits.HEADERS_BYTES_MAX + 1
