"""The legal steps of a waiting line: its requests, their renewals, and the items that lie ready for them.

A request joins once. It leaves by its owner, with a notice to it, or past its deadline. A notice leaves by
its owner, past its deadline, or by a clear of the queue. Processes, not threads, own requests. In a calm run,
a heartbeat or a request that is overdue is a bug of its owner, as long as that process goes on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fdbqueue.core.columns import UNKNOWN
from fdbqueue.core.line.decision import (
    DUE,
    NOTICE,
    RENEWAL,
    REQUEST,
    RESULT,
    Delivery,
    LineKeys,
    Notice,
    deadline_of,
    notice_of,
)
from fdbqueue.embedded.writes import STAMP_BYTES
from fdbqueue.operate.verify.partitions import RID_BYTES
from fdbqueue.testing.trace import Commit
from tests.system.audit.model import Mirror, Step, Values


class Liveness:
    def __init__(
        self,
        is_calm: Callable[[], bool] = lambda: False,
        goes_on: Callable[[str], bool] = lambda _: True,
        gives_signs: Callable[[], bool] = lambda: False,
        overtake: Callable[[], int] = lambda: 0,
    ) -> None:
        """`goes_on`: true for a machine that has neither finished nor died. `gives_signs`: true if requests
        give signs of life, and a silent owner counts as dead before its deadline. `overtake`: the number of
        older items that a take may leave behind.
        """
        self.is_calm = is_calm
        self._goes_on = goes_on
        self.gives_signs = gives_signs
        self.overtake = overtake

    def is_in_time(self, machine: str) -> bool:
        return self.is_calm() and self._goes_on(machine)


@dataclass
class Request:
    """A request, of the process that has registered it."""

    owner: str
    count: int
    joined: int
    """The version of its registration; 0 for a holder, which has a notice only."""
    deadline_us: int
    left: int | None = None
    """The version in which it left the line."""
    renewed: int = 0
    """The version of its last renewal."""

    def waits_at(self, version: int) -> bool:
        return 0 < self.joined <= version and (self.left is None or self.left > version)


class Handed(NamedTuple):
    """The items of a notice that has come or gone."""

    rid: bytes
    owner: str
    items: Sequence[Delivery]
    by_owner: bool
    """True if a commit of the owner has changed the notice."""


@dataclass
class LineStep:
    """The items that a commit has laid ready, and those that are no longer ready."""

    laid: list[Handed] = field(default_factory=list)
    collected: list[Handed] = field(default_factory=list)
    cleared: list[Handed] = field(default_factory=list)
    """The items that have gone with all others of the queue."""
    served: int = 0
    """Items for which the requests waited that have left the line."""


def joined(one: LineStep, other: LineStep) -> LineStep:
    """The steps that a commit has made in two lines."""
    return LineStep(
        [*one.laid, *other.laid],
        [*one.collected, *other.collected],
        [*one.cleared, *other.cleared],
        one.served + other.served,
    )


def in_partition(wide: LineStep, number: int) -> LineStep:
    """The part that the items of one partition have in the step of the line that all partitions share."""
    laid, collected, cleared = (_few(some, number) for some in (wide.laid, wide.collected, wide.cleared))
    return LineStep(laid, collected, cleared, wide.served)


def _few(handed: Sequence[Handed], number: int) -> list[Handed]:
    """Deliveries of that line end in the number of the partition of the item."""
    parted = [
        one._replace(
            items=[Delivery(item.id, item.value[:-1]) for item in one.items if item.value[-1] == number]
        )
        for one in handed
    ]
    return [one for one in parted if one.items]


class Requests:
    """The requests of one line, those that have left it too."""

    def __init__(self, keys: LineKeys, liveness: Liveness) -> None:
        self._keys = keys
        self._liveness = liveness
        self._known: dict[bytes, Request] = {}
        self.laid: dict[bytes, int] = {}
        """The items that lie ready for requests, each since a version. Those that a commit has collected are
        among them until the next commit.
        """
        self._collected: list[bytes] = []

    def follow(self, step: Step, mirror: Mirror, errors: list[str]) -> LineStep:
        """Take over a commit. Appends a sentence to `errors` for each step that is not legal."""
        moves = LineStep()
        for id_ in self._collected:
            self.laid.pop(id_, None)
        parts: dict[int, list[tuple[bytes, Values]]] = {
            column: [] for column in (REQUEST, DUE, NOTICE, RESULT)
        }
        parts[RENEWAL] = []
        for key, values in step.changes.items():
            column, rest = self._keys.parts_of(key)
            if column != UNKNOWN:
                parts[column].append((rest, values))
        for rest, values in parts[REQUEST]:
            errors += self.request_step(step.commit, rest, values, mirror, moves)
        beside = _results_before(parts[RESULT])
        for rid, values in parts[NOTICE]:
            errors += self.notice_step(step, rid, values, beside, mirror, moves)
        for rest, values in parts[RENEWAL]:
            errors += self.renewal_step(step.commit, rest[STAMP_BYTES:], values)
        laid = {item.id: step.commit.version for handed in moves.laid for item in handed.items}
        self.laid |= laid
        self._collected = [item.id for one in moves.collected for item in one.items if item.id not in laid]
        return moves

    def items_asked_at(self, version: int) -> int:
        return sum(request.count for request in self._known.values() if request.waits_at(version))

    def request_step(
        self, commit: Commit, rest: bytes, values: Values, mirror: Mirror, moves: LineStep
    ) -> Iterator[str]:
        rid = rest[STAMP_BYTES:]
        if values.before is not None and values.after is not None:
            yield f"the request {rid.hex()} has changed"
        elif values.after is not None:
            ticket, deadline_us = self._keys.ticket_of(self._keys.requests.start + rest, values.after)
            if rid in self._known:
                yield f"the request {rid.hex()} joins the line again"
            self._known[rid] = Request(commit.machine, ticket.count, commit.version, deadline_us)
        else:
            yield from self._left(commit, rid, mirror, moves)

    def _left(self, commit: Commit, rid: bytes, mirror: Mirror, moves: LineStep) -> Iterator[str]:
        request = self._known[rid]
        request.left = commit.version
        moves.served += request.count
        is_served = mirror.value(self._keys.notice(rid)) is not None
        if is_served or commit.machine == request.owner:
            return
        if request.deadline_us >= commit.now_us:
            yield (
                f"the request {rid.hex()} of {request.owner} is removed, neither served nor overdue: its "
                f"deadline is {request.deadline_us}, and it is {commit.now_us}"
            )
        elif self._liveness.is_in_time(request.owner):
            yield f"the request {rid.hex()} is dropped as dead, and {request.owner} goes on without a fault"
        if commit.read_version is not None and request.renewed > commit.read_version:
            yield f"the request {rid.hex()} of {request.owner} is removed by a commit that missed its renewal"

    def renewal_step(self, commit: Commit, rid: bytes, values: Values) -> Iterator[str]:
        request = self._known.get(rid)
        if request is None or values.after is None:
            return
        deadline_us = deadline_of(values.after)
        if commit.machine != request.owner:
            yield f"the request {rid.hex()} of {request.owner} is renewed by {commit.machine}"
        if request.left is not None and request.left < commit.version:
            yield f"the request {rid.hex()} is renewed, and has left the line"
        if deadline_us < request.deadline_us:
            yield f"the deadline of the request {rid.hex()} moves back to {deadline_us}: {request}"
        request.deadline_us = max(request.deadline_us, deadline_us)
        request.renewed = commit.version

    def notice_step(
        self,
        step: Step,
        rid: bytes,
        values: Values,
        beside: Mapping[bytes, list[Delivery]],
        mirror: Mirror,
        moves: LineStep,
    ) -> Iterator[str]:
        commit = step.commit
        # A holder has no request: the items belong to the process that holds them back.
        request = self._known.setdefault(rid, Request(commit.machine, 0, 0, 0, commit.version))
        by_owner = commit.machine == request.owner
        if values.before is not None and values.after is not None:
            yield f"the notice to {rid.hex()} has changed"
        elif values.after is not None:
            notice = notice_of(values.after)
            items = self._items(notice, rid, mirror)
            moves.laid.append(Handed(rid, request.owner, items, by_owner))
            if request.left != commit.version:
                yield f"a notice to {rid.hex()}, which did not wait: {request}"
            if request.joined and not 0 < len(items) <= request.count:
                yield f"a notice to {rid.hex()} with {len(items)} items, and {request.count} were wanted"
        else:
            notice = notice_of(values.before or b"")
            handed = Handed(rid, request.owner, _deliveries(notice) or beside.get(rid, []), by_owner)
            if step.is_cleared(self._keys.notice(rid)):
                moves.cleared.append(handed)
                return
            moves.collected.append(handed)
            if not by_owner and notice is not None and notice.deadline_us >= commit.now_us:
                yield from self._returned_early(request.owner, notice)

    def _returned_early(self, owner: str, notice: Notice) -> Iterator[str]:
        if not self._liveness.gives_signs():
            yield f"the items of {owner} are returned before their deadline {notice.deadline_us}"
        elif self._liveness.is_in_time(owner):
            yield f"the items of {owner} are returned as it is silent, and it goes on without a fault"

    def _items(self, notice: Notice | None, rid: bytes, mirror: Mirror) -> list[Delivery]:
        under = self._keys.results(rid)
        rows = mirror.under(under.start, under.stop)
        return _deliveries(notice) or [Delivery(self._keys.item_id_of(row.key), row.value) for row in rows]


def _deliveries(notice: Notice | None) -> list[Delivery]:
    return [] if notice is None else [Delivery(id_, value) for id_, value in notice.results]


def _results_before(changes: Sequence[tuple[bytes, Values]]) -> dict[bytes, list[Delivery]]:
    """The results beside notices that the commit has removed, by request."""
    found: dict[bytes, list[Delivery]] = {}
    for rest, values in changes:
        if values.before is not None:
            found.setdefault(rest[:RID_BYTES], []).append(Delivery(rest[RID_BYTES:], values.before))
    return found
