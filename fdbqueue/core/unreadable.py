"""Data that this process cannot read: a listing reports it, and a take passes it over.

A codec, a class or a release is missing here, or the handle has another type: another process may decode
such an item. It stays in its place, and takes go on behind it. They raise its error only if there is no other
item.

A queue that is not registered stores no codec: the handle names one. Until a handle has put or read an item
there, bytes that its codec refuses may as well be those of another codec, and are passed over, too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.codec import NOT_HERE, PayloadCodec
from fdbqueue.core.errors import FdbQueueError, PayloadUnreadable

NOT_READ = (PayloadUnreadable, *NOT_HERE)
"""Errors of decoding a stored payload."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The data of a task, or an item, that cannot be read here."""

    error: FdbQueueError = field(compare=False)  # an error is equal to itself only
    payload: bytes
    """The stored bytes; empty if some of them are missing."""

    def __str__(self) -> str:
        return f"unreadable: {self.error}"


def shown(codec: PayloadCodec, payload: Callable[[], bytes]) -> Any:
    raw = b""
    try:
        raw = payload()
        return codec.decode(raw)
    except NOT_READ as error:
        return Unreadable(error, raw)


Stored = tuple[bytes, str, Callable[[], bytes]]
"""The id of an item, its key for messages, and the reply to the read of its payload."""

Head = Callable[[int], Iterable[bytes]]
"""Reads the ids of the first items of a queue, up to a number."""


@dataclass(frozen=True)
class Sorted:
    data: Mapping[bytes, Any]
    damaged: Mapping[bytes, FdbQueueError]
    """No process can read them."""
    passed: Collection[bytes]
    """Other processes may read them: they stay."""


class Passed(dict[bytes, FdbQueueError]):
    """The ids of passed-over items, with their errors.

    Each handle has its own, because another handle may read them.
    """

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.codec_is_known = registered
        """True if the codec of the handle is that of the queue: bytes that it refuses are damaged."""

    def learn_codec(self) -> None:
        """The handle has put an item, or has read one."""
        self.codec_is_known = True
        for id_, error in list(self.items()):
            if isinstance(error, PayloadUnreadable):
                self.pop(id_, None)

    def is_damage(self, error: FdbQueueError) -> bool:
        """True if no process can read the item, false if it is to be passed over."""
        return self.codec_is_known and isinstance(error, PayloadUnreadable)

    def sort_out(self, codec: PayloadCodec, queue: str, payloads: Sequence[Stored], head: Head) -> Sorted:
        """Decode each payload, and note the items to pass over. Reads the `head` only to forget old ones.

        Raises: the error of an item if there are too many of them to look for another item behind them all.
        """
        data: dict[bytes, Any] = {}
        errors: dict[bytes, FdbQueueError] = {}
        for id_, _, payload in payloads:
            try:
                data[id_] = codec.decode(payload())
            except NOT_READ as error:
                errors[id_] = error
        if data and not self.codec_is_known:
            self.learn_codec()
        damaged = {id_: error for id_, error in errors.items() if self.is_damage(error)}
        passed = [(id_, key) for id_, key, _ in payloads if id_ in errors and id_ not in damaged]
        if len(self) + len(passed) > limits.PASSED_OVER_MAX:
            # Forget all others: other processes have taken them, or a look meets them again.
            there = set(head(len(self) + len(payloads)))
            for id_ in list(self):
                if id_ not in there:
                    self.pop(id_, None)
        for id_, key in passed:
            self.note(id_, located(errors[id_], queue, key))
        return Sorted(data, damaged, {id_ for id_, _ in passed})

    def note(self, id_: bytes, error: FdbQueueError) -> None:
        """Raises `error` if there are too many of them to look for another item behind them all."""
        if len(self) >= limits.PASSED_OVER_MAX:
            self.clear()
            raise error
        self[id_] = error

    def require_none_of(self, ids: Iterable[bytes]) -> None:
        """Raises the error of the first of `ids` that was passed over."""
        first = next((id_ for id_ in ids if id_ in self), None)
        if first is not None:
            raise self[first]


def located(error: FdbQueueError, queue: str, key: str) -> FdbQueueError:
    if not hasattr(error, "queue"):
        error.queue, error.key = queue, key  # type: ignore[attr-defined]
        error.args = (f"{error.args[0]} It is {key} in the queue {queue!r}.", *error.args[1:])
    return error
