"""Keys of a waiting line: the only file that builds or parses them.

Line L, a subspace of the queue that it serves. `RID` is the random name of a request. The comment of a column
has its value, and behind the semicolon its readers.

The stamp is the versionstamp of the commit that wrote the request. So no request is ever inserted before
another, and a transaction that sees its own request sees all requests ahead of it. In a database with lower
versions, the requests of a restored backup stand behind all new ones. Their callers are gone, and the first
live request removes them.

Requests and due results are neighbours, so one read with limit 1 tells whether there is any of both. Below a
column number come plain bytes, and numbers in eight bytes, big-endian. The tuple layer would add a third to
the cost of a contended take, which packs and parses some forty keys.
"""

import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.columns import Table, number, sized

STAMP_BYTES = 10
STAMP, RID, DEADLINE = sized(STAMP_BYTES), sized(limits.RANDOM_SUFFIX_BYTES), number(8)

L = Table()
REQUEST = L.column(
    0, STAMP, RID
)  # count, deadline_us, params; each look; its owner's watch, and that behind it
DUE = L.column(1, DEADLINE, RID)  # empty; looks that tidy, takes that find nothing
NOTICE = L.column(2, RID)  # deadline_us, crowd, and small results; its owner, the return of overdue results
RESULT = L.column(3, RID, sized(1, limits.KEY_BYTES_MAX))  # item-id: value of a Delivery; as the notice
RENEWAL = L.column(4, STAMP, RID)  # deadline_us; looks of requests behind, past the deadline

_NUMBER = struct.Struct(">Q")
_REQUEST = struct.Struct(">IQ")
_NOTICE = struct.Struct(">QI")
_OFFSET = struct.Struct("<I")
_RESULT_SIZES = struct.Struct(">HI")


class Ticket(Struct, frozen=True):
    stamp: bytes
    """The versionstamp of its registration; empty for a take without a request."""
    rid: bytes
    """Its random name."""
    count: int
    """Items that it waits for."""
    params: bytes = b""
    """Data for the source, such as a session."""


class Notice(Struct, frozen=True):
    """Tells the owner of a request that it is served."""

    deadline_us: int
    crowd: int
    """Number of requests in the line at that time."""
    results: Sequence[tuple[bytes, bytes]] = ()
    """Ids and values of the items; empty if they have keys of their own."""


class Due(Struct, frozen=True):
    """The results of the request `rid` wait for its owner until `deadline_us`."""

    deadline_us: int
    rid: bytes
    damaged: bytes = b""
    """The key, if it cannot be parsed: it is due at once, and belongs to no request."""


class LineKeys:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._request, self.requests = REQUEST.start(prefix), REQUEST.all(prefix)
        self._due, self.due = DUE.start(prefix), DUE.all(prefix)
        self.activity = slice(self.requests.start, self.due.stop)
        self.notice, self.all_notices = NOTICE.key(prefix), NOTICE.all(prefix)
        self.result, self.all_results = RESULT.key(prefix), RESULT.all(prefix)
        self.results, self.item_id_of = RESULT.of(prefix, b"\xff"), RESULT.last(prefix)
        self._renewal, self.rid_of_renewal = RENEWAL.start(prefix), RENEWAL.last(prefix)
        self.all_renewals = slice(self._renewal, self._renewal + b"\xff" * (STAMP_BYTES + 1))
        self.parts_of, self.has_shape = L.parts_of(prefix), L.has_shape(prefix)

    def request(self, ticket: Ticket) -> bytes:
        return self._request + ticket.stamp + ticket.rid

    def request_to_be(self, rid: bytes) -> bytes:
        """The key of a new request, for `set_versionstamped_key`: the commit fills in the stamp."""
        return self._request + bytes(STAMP_BYTES) + rid + _OFFSET.pack(len(self._request))

    def renewal(self, ticket: Ticket) -> bytes:
        return self._renewal + ticket.stamp + ticket.rid

    def requests_upto(self, ticket: Ticket) -> slice:
        """The request of `ticket` and all requests ahead of it."""
        return slice(self._request, self.request(ticket) + b"\x00")

    def requests_at(self, version: int) -> slice:
        """All requests with stamps of at most this version."""
        return slice(self._request, self._request + _NUMBER.pack(version + 1))

    def due_key(self, due: Due) -> bytes:
        return due.damaged or self._due + _NUMBER.pack(due.deadline_us) + due.rid

    def is_work(self, activity_key: bytes, now_us: int) -> bool:
        """True if the first key in `activity` is a request or an overdue result: a take must pass by."""
        return activity_key < self.requests.stop or self.due_of(activity_key).deadline_us < now_us

    def due_of(self, key: bytes) -> Due:
        start = len(self._due)
        if len(key) < start + _NUMBER.size:
            return Due(0, b"", bytes(key))
        return Due(_NUMBER.unpack_from(key, start)[0], key[start + _NUMBER.size :])

    def ticket_of(self, key: bytes, value: bytes) -> tuple[Ticket, int]:
        """The ticket of a request, and its first deadline in microseconds."""
        # A damaged request counts as a dead one for no items: the first request behind it removes it.
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
    """The deadline in a renewal, in microseconds; 0 if it is damaged: then its request counts as dead."""
    deadline_us: int = _NUMBER.unpack(renewal)[0] if len(renewal) == _NUMBER.size else 0
    return deadline_us


def notice_of(value: bytes) -> Notice | None:
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
