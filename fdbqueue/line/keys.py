"""Keys of a waiting line: the only file that builds or parses them.

Line L, a subspace of the queue that it serves. `rid` is the random name of a request.

    L[0, index, rid]       request   (count, deadline_us, params)      servers; its owner, serialisably
    L[1, deadline_us, rid] due       empty                             whoever finds nothing, every server
    L[2, rid]              call      b"serve", or (deadline_us, crowd) its owner, who watches it
    L[3, rid, item id]     result    what the source delivered         its owner, whoever returns it
    L[4, index, rid]       renewal   deadline_us                       servers, of requests that look dead

Requests and due results are neighbours so that one read with limit 1 tells whether anything is going on.
"""

from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer

REQUEST, DUE, CALL, RESULT, RENEWAL = range(5)

SERVE = b"serve"


@dataclass(frozen=True)
class Ticket:
    """A place in the line: who asks, for how many, with what that the source must know."""

    index: int
    rid: bytes
    count: int
    params: bytes = b""


@dataclass(frozen=True)
class Due:
    """Results that lie ready for `rid` until `deadline_us`."""

    deadline_us: int
    rid: bytes


class LineKeys:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.requests = self._range(REQUEST)
        self.due = self._range(DUE)
        self.activity = slice(self.requests.start, self.due.stop)
        self.all_calls = self._range(CALL)
        self.all_results = self._range(RESULT)

    def _pack(self, *items: Any) -> bytes:
        key: bytes = layer.pack(items, prefix=self.prefix)
        return key

    def _range(self, *items: Any) -> slice:
        under = self._pack(*items)
        return slice(under + b"\x00", under + b"\xff")

    def _unpack(self, key: bytes) -> tuple[Any, ...]:
        items: tuple[Any, ...] = layer.unpack(key, prefix_len=len(self.prefix))
        return items

    def request(self, ticket: Ticket) -> bytes:
        return self._pack(REQUEST, ticket.index, ticket.rid)

    def renewal(self, ticket: Ticket) -> bytes:
        return self._pack(RENEWAL, ticket.index, ticket.rid)

    def call(self, rid: bytes) -> bytes:
        return self._pack(CALL, rid)

    def due_key(self, due: Due) -> bytes:
        return self._pack(DUE, due.deadline_us, due.rid)

    def result(self, rid: bytes, item_id: bytes) -> bytes:
        return self._pack(RESULT, rid, item_id)

    def results(self, rid: bytes) -> slice:
        return self._range(RESULT, rid)

    def index_of_request(self, key: bytes) -> int:
        index: int = self._unpack(key)[1]
        return index

    def is_work(self, activity_key: bytes, now_us: int) -> bool:
        """Whether there is something to do for a server: a request, or a result left uncollected."""
        return bool(activity_key < self.requests.stop) or self.due_of(activity_key).deadline_us < now_us

    def due_of(self, key: bytes) -> Due:
        _, deadline_us, rid = self._unpack(key)
        return Due(deadline_us, rid)

    def item_id_of(self, result_key: bytes) -> bytes:
        item_id: bytes = self._unpack(result_key)[2]
        return item_id

    def ticket_of(self, key: bytes, value: bytes) -> tuple[Ticket, int]:
        """The ticket a request stands for, and its first deadline in microseconds."""
        _, index, rid = self._unpack(key)
        count, deadline_us, params = layer.unpack(value)
        return Ticket(index, rid, count, params), deadline_us


def request_value(ticket: Ticket, deadline_us: int) -> bytes:
    value: bytes = layer.pack((ticket.count, deadline_us, ticket.params))
    return value


def renewal_value(deadline_us: int) -> bytes:
    value: bytes = layer.pack((deadline_us,))
    return value


def call_value(deadline_us: int, crowd: int) -> bytes:
    value: bytes = layer.pack((deadline_us, crowd))
    return value


def deadline_of(renewal_or_call: bytes) -> int:
    deadline_us: int = layer.unpack(renewal_or_call)[0]
    return deadline_us


def crowd_of(call: bytes) -> int:
    crowd: int = layer.unpack(call)[1]
    return crowd
