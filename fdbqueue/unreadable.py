"""Data in a listing that this process cannot read: reported, and not moved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue.codec import NOT_HERE, PayloadCodec
from fdbqueue.errors import FdbQueueError, PayloadUnreadable

NOT_READ = (PayloadUnreadable, *NOT_HERE)
"""Errors of decoding a stored payload."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The data of a task, or an item, that cannot be read here."""

    error: FdbQueueError
    payload: bytes
    """The stored bytes; empty if some of them are missing."""

    def __str__(self) -> str:
        return f"unreadable: {self.error}"


def shown(codec: PayloadCodec, payload: Callable[[], bytes]) -> Any:
    """The data, or an Unreadable in its place."""
    raw = b""
    try:
        raw = payload()
        return codec.decode(raw)
    except NOT_READ as error:
        return Unreadable(error, raw)
