"""Keys of a waiting line: the only file that builds or parses them.

Line L, a subspace of the queue that it serves. `rid` is the random name of a request. Below the number of the
column come plain bytes, numbers big-endian in eight of them: a contended take packs and parses some forty
keys, which the tuple layer makes a third of its cost.

    L[0] stamp rid         request   count, deadline_us, params        whoever stands in the line; its owner
                                                                       and who is behind it watch it
    L[1] deadline_us rid   due       empty                             whoever finds nothing, or tidies
    L[2] rid               notice    deadline_us, crowd: served;       its owner, whoever returns the results
                                     the results, if small
    L[3] rid item-id       result    what the source delivered         the same
    L[4] stamp rid         renewal   deadline_us                       who is behind one that looks dead

The stamp is that of the commit which has written the request: nobody ever comes to stand before one who is
there already, so who has seen its own request has seen all before it.

Requests and due results are neighbours so that one read with limit 1 tells whether anything is going on.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fdb import tuple as layer
from msgspec import Struct

from fdbqueue import limits

REQUEST, DUE, NOTICE, RESULT, RENEWAL = range(5)

STAMP_BYTES = 10

_NUMBER = struct.Struct(">Q")
_REQUEST = struct.Struct(">IQ")
_NOTICE = struct.Struct(">QI")
_OFFSET = struct.Struct("<I")
_RESULT_SIZES = struct.Struct(">HI")


class Ticket(Struct, frozen=True):
    """A place in the line: since when, whose, for how many, with what that the source must know."""

    stamp: bytes
    rid: bytes
    count: int
    params: bytes = b""


@dataclass(frozen=True)
class Notice:
    """To the owner of a request: it is served. `results` are ids and values; none if those have own keys."""

    deadline_us: int
    crowd: int
    """How many requests stood in the line."""
    results: Sequence[tuple[bytes, bytes]] = ()


@dataclass(frozen=True)
class Due:
    """Results that lie ready for `rid` until `deadline_us`."""

    deadline_us: int
    rid: bytes
    damaged: bytes = b""
    """The key, if it is none of ours: due at once, and for nobody."""


class LineKeys:
    def __init__(self, prefix: bytes) -> None:
        columns: list[bytes] = [layer.pack((n,), prefix=prefix) for n in range(RENEWAL + 1)]
        self._request, self._due, self._notice, self._result, self._renewal = columns
        self.prefix = prefix
        # A column ends where the next one begins: what follows its prefix may start with any byte.
        self.requests = slice(columns[REQUEST], columns[DUE])
        self.due = slice(columns[DUE], columns[NOTICE])
        self.activity = slice(columns[REQUEST], columns[NOTICE])
        self.all_notices = slice(columns[NOTICE], columns[RESULT])
        self.all_results = slice(columns[RESULT], columns[RENEWAL])

    def request(self, ticket: Ticket) -> bytes:
        return self._request + ticket.stamp + ticket.rid

    def request_to_be(self, rid: bytes) -> bytes:
        """The key of a request whose stamp the commit will tell, for `set_versionstamped_key`."""
        return self._request + bytes(STAMP_BYTES) + rid + _OFFSET.pack(len(self._request))

    def renewal(self, ticket: Ticket) -> bytes:
        return self._renewal + ticket.stamp + ticket.rid

    def requests_upto(self, ticket: Ticket) -> slice:
        """Those before that of `ticket`, and that one."""
        return slice(self._request, self.request(ticket) + b"\x00")

    def notice(self, rid: bytes) -> bytes:
        return self._notice + rid

    def due_key(self, due: Due) -> bytes:
        return due.damaged or self._due + _NUMBER.pack(due.deadline_us) + due.rid

    def result(self, rid: bytes, item_id: bytes) -> bytes:
        return self._result + rid + item_id

    def results(self, rid: bytes) -> slice:
        under = self._result + rid
        return slice(under, under + b"\xff")

    def is_work(self, activity_key: bytes, now_us: int) -> bool:
        """Whether there is something to see to before a take: a request, or a result left uncollected."""
        return activity_key < self.requests.stop or self.due_of(activity_key).deadline_us < now_us

    def due_of(self, key: bytes) -> Due:
        start = len(self._due)
        if len(key) < start + _NUMBER.size:
            return Due(0, b"", bytes(key))
        return Due(_NUMBER.unpack_from(key, start)[0], key[start + _NUMBER.size :])

    def item_id_of(self, result_key: bytes) -> bytes:
        return result_key[len(self._result) + limits.RANDOM_SUFFIX_BYTES :]

    def ticket_of(self, key: bytes, value: bytes) -> tuple[Ticket, int]:
        """The ticket a request stands for, and its first deadline in microseconds."""
        # A damaged request is one for nothing, of somebody dead: whoever is the first behind it drops it.
        count, deadline_us = _REQUEST.unpack_from(value) if len(value) >= _REQUEST.size else (0, 0)
        rid_at = len(self._request) + STAMP_BYTES
        ticket = Ticket(key[len(self._request) : rid_at], key[rid_at:], count, value[_REQUEST.size :])
        return ticket, deadline_us


def request_value(count: int, deadline_us: int, params: bytes) -> bytes:
    return _REQUEST.pack(count, deadline_us) + params


def renewal_value(deadline_us: int) -> bytes:
    return _NUMBER.pack(deadline_us)


def notice_value(notice: Notice) -> bytes:
    parts = [_NOTICE.pack(notice.deadline_us, notice.crowd)]
    for item_id, value in notice.results:
        parts += (_RESULT_SIZES.pack(len(item_id), len(value)), item_id, value)
    return b"".join(parts)


def deadline_of(renewal: bytes) -> int:
    """0 for a damaged one, whose request looks dead."""
    deadline_us: int = _NUMBER.unpack(renewal)[0] if len(renewal) == _NUMBER.size else 0
    return deadline_us


def notice_of(value: bytes) -> Notice | None:
    """None for a damaged one."""
    try:
        deadline_us, crowd = _NOTICE.unpack_from(value)
        results = list(_results_in(value))
    except struct.error:
        return None
    return Notice(deadline_us, crowd, results)


def _results_in(notice: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = _NOTICE.size
    while at < len(notice):
        id_bytes, value_bytes = _RESULT_SIZES.unpack_from(notice, at)
        id_at = at + _RESULT_SIZES.size
        value_at = id_at + id_bytes
        at = value_at + value_bytes
        if at > len(notice):
            raise struct.error("it is cut")
        yield notice[id_at:value_at], notice[value_at:at]
