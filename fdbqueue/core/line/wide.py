"""Wide: all partitions of a queue as one source, for takes that look beyond their home, or wait.

The line of this source is shared by the partitions. A look reads the flags, and then the flagged partitions
together. If it finds nothing, it clears the flags without an item behind them, and has read this
serialisably; so the next item of such a partition sets the flag again, and rings the bell. A look that finds
an item clears them only now and then: takes that wait are behind it, and look before they sleep.

The parts of a queue in one process are its partitions, with its takes from them. Without partitions, the
queue is its own only part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec.structs import asdict

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.line.decision import Ask, Delivery, LineKeys, Offer, Source, Swept
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Taker, Takes
from fdbqueue.core.partitions import Current, Plan, SharedKeys, homes_of, lowered
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Range, ReadTransaction, Transaction
from fdbqueue.core.unreadable import Passed

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate


T = TypeVar("T")


class Part(Source, Protocol):
    """One partition, the `Source` of its own line."""

    partition: int
    passed: Passed
    doorbell: bytes
    limit_bells: Sequence[bytes]
    """As in `Untimed`."""

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Hand out offers to the caller of a take."""

    def hand_out_beside(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Hand out offers behind others. Conflicts: every use of these offers alone."""

    def ask_gate(self, tr: Transaction, now_us: int) -> "Gate | None":
        """Ask for the items that the limits of the queue allow; None without limits."""

    def rely_on_limits(self, tr: Transaction) -> None:
        """Conflict with each change that may let one of its items through a limit."""

    def available(
        self, tr: Transaction, limit: int, now_us: int, gate: "Gate | None" = None
    ) -> Iterable[Offer]:
        """As Source.available; only items that `gate` lets through."""


P = TypeVar("P", bound=Part)


class Placed(Offer, frozen=True):
    partition: int = 0


class Wide(ABC, Generic[P]):
    def __init__(
        self,
        zero: P,
        keys: SharedKeys,
        holding: Callable[[], Sequence[P]],
        turn: Callable[[], int],
        now_us: Callable[[Transaction], int],
    ) -> None:
        """`holding`: partitions that may hold an item, by the present plan. `turn`: the flagged partition to
        begin with. `now_us`: the time of a look in this transaction.
        """
        self._zero = zero
        self._keys = keys
        self._holding = holding
        self._turn = turn
        self._now_us = now_us
        self.hands_out_leases, self.comes_due = zero.hands_out_leases, True
        self.name = zero.name
        self.guard = zero.guard
        self.aside = zero.aside
        self.doorbell = keys.bell
        self.ready = keys.flags
        """Without a flag, no partition has an available item."""
        self.line = Line(LineKeys(keys.line), self)

    def taker(self, *asks: Ask) -> Taker:
        """Takes that may go on if the replies to `asks` do not raise."""
        return Taker(self.line, (self.guard, *asks), self.hand_out, self.hand_out_beside)

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        return self._each(offers, partition_of, lambda part, few: part.hand_out(tr, few, params))

    def hand_out_beside(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        return self._each(offers, partition_of, lambda part, few: part.hand_out_beside(tr, few, params))

    def ask_available(self, tr: Transaction) -> Callable[[], bool]:
        check, found = self.guard(tr), self.available(tr, 1, self._now_us(tr))

        def reply() -> bool:
            check()
            return next(iter(found), None) is not None

        return reply

    def has_passed(self) -> bool:
        """True if this process has passed over a item that it cannot read."""
        return any(source.passed for source in self._holding())

    def lowered(self, tr: Transaction, plan: Plan, let_go: Callable[[int], bool]) -> Plan:
        """`plan` without its last partitions, as far as they hold nothing; clears their keys.

        `let_go(number)`: true if a partition holds nothing, not even a live request. Reads serialisably.
        """
        high = plan.high
        if high == plan.count or ask_first(tr, self.line.keys.due).to_list():
            return plan  # the return of an item that lies ready for a request counts in its partition
        while high > plan.count and let_go(high - 1):
            high -= 1
            under = self._keys.under(high)
            tr.clear_range(under.start, under.stop)
            tr.clear(self._keys.flag(high))
        return plan if high == plan.high else lowered(plan, high)

    # The line's Source.

    def doorbells(self) -> Sequence[bytes]:
        # The flag of a task that was passed over stays: a later task of its partition does not ring the bell.
        passed = [source.doorbell for source in self._holding() if source.passed]
        return [self.doorbell, *passed, *self._zero.limit_bells]

    def tidy(self, tr: Transaction) -> bool:
        return bool(self.ask_tidy(tr, self._now_us(tr))())

    @abstractmethod
    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        """Ask all partitions for items that have come due. The reply sweeps one batch of them."""

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked = [source.ask_next_due(tr) for source in self._holding()]
        return lambda: min((due for reply in asked if (due := reply()) is not None), default=None)

    def available(self, tr: Transaction, limit: int, now_us: int) -> Iterable[Offer]:
        flags = tr.snapshot.get_range(self.ready.start, self.ready.stop)
        gate = self._zero.ask_gate(tr, now_us)  # all partitions share the limits of their queue
        return islice(self._offers(tr, flags, limit, now_us, gate), limit)

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        for number, few in grouped(offers, partition_of).items():
            self.part(number).claim(tr, few)

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        def deliver(source: P, few: Sequence[Offer]) -> list[Delivery]:
            number = bytes((source.partition,))
            return [Delivery(one.id, one.value + number) for one in source.deliver(tr, few, params)]

        return self._each(offers, partition_of, deliver)

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        return self._each(
            deliveries, _partition_in, lambda source, few: source.collect(tr, [*map(_unplaced, few)])
        )

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        return self.collect(tr, self.deliver(tr, offers, params))

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        for number, few in grouped(deliveries, _partition_in).items():
            self.part(number).give_back(tr, [*map(_unplaced, few)])

    def require_none_passed(self, tr: Transaction) -> None:
        for source in self._holding():
            source.rely_on_limits(tr)  # the flag of an item over a limit is there already
            if source.passed:
                source.require_none_passed(tr)

    def is_paused(self, tr: Transaction) -> bool:
        return self._zero.is_paused(tr)  # a pause is of all partitions

    # Implementation:

    def _offers(
        self, tr: Transaction, flags: Range, limit: int, now_us: int, gate: "Gate | None"
    ) -> Iterator[Offer]:
        turn = self._turn()
        asked = [
            (source, source.available(tr, limit, now_us, gate), ask_first(tr.snapshot, source.ready))
            for source in self._flagged(flags, turn)
        ]
        firsts = [(source, first) for source, _, first in asked]
        # Beside a take only now and then: a put into a partition whose flag is cleared conflicts with it.
        clears, is_nothing_found = turn % limits.LOOKS_PER_CLEARING == 0, True
        if clears:
            self._clear_flags(tr, firsts)
        for source, offers, _ in asked:
            for offer in offers:
                is_nothing_found = False
                yield Placed(**asdict(offer), partition=source.partition)
        if is_nothing_found and not clears:
            self._clear_flags(tr, firsts)

    def _flagged(self, flags: Range, turn: int) -> list[P]:
        holding = self._holding()
        numbers = [number for row in flags if (number := self._keys.flagged(row.key)) < len(holding)]
        at = turn % max(1, len(numbers))
        return [holding[number] for number in chain(numbers[at:], numbers[:at])]

    def _clear_flags(self, tr: Transaction, firsts: Iterable[tuple[P, Range]]) -> None:
        for source, first in firsts:
            if not first.to_list():
                self._clear_flag(tr, source)

    def _clear_flag(self, tr: Transaction, source: P) -> None:
        """A change that makes a task ready conflicts with this: by the range, or by the flag."""
        tr.add_read_conflict_range(source.ready.start, source.ready.stop)
        tr.clear(self._keys.flag(source.partition))

    def _each(
        self,
        things: Sequence[T],
        partition_of: Callable[[T], int],
        act: Callable[[P, Sequence[T]], list[Any]],
    ) -> list[Any]:
        groups = grouped(things, partition_of).items()
        return list(chain.from_iterable(act(self.part(number), few) for number, few in groups))

    def part(self, number: int) -> P:
        """The partition; partition 0 in place of one that has gone, with its last task and its counters."""
        holding = self._holding()
        return holding[number] if number < len(holding) else holding[0]


def ask_first(tr: ReadTransaction, under: slice) -> Range:
    return tr.get_range(under.start, under.stop, limit=1)


def is_unused(tr: Transaction, line: Line, now_us: int, *under: slice) -> bool:
    """True if the ranges have no key, and no live request is in the line. Reads serialisably."""
    asked = [ask_first(tr, keys) for keys in under]
    is_used = any(first.to_list() for first in asked)
    return not is_used and line.is_left(tr, now_us)  # no other call looks at that line


def grouped(things: Sequence[T], partition_of: Callable[[T], int]) -> dict[int, list[T]]:
    groups: dict[int, list[T]] = {}
    for thing in things:
        groups.setdefault(partition_of(thing), []).append(thing)
    return groups


def partition_of(offer: Offer) -> int:
    assert isinstance(offer, Placed)
    return offer.partition


def _partition_in(delivery: Delivery) -> int:
    return delivery.value[-1]


def _unplaced(delivery: Delivery) -> Delivery:
    return Delivery(delivery.id, delivery.value[:-1])


class Homes:
    """The partitions from which a process takes first.

    Each partition belongs to one of the live sessions. Most takes of a session begin at a partition of its
    own, so they meet few others. Some begin at another one, in turn: no partition waits for its session.
    """

    def __init__(self, database: Database, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._turns = Turns(self._runtime.now_us())
        self._sessions: list[bytes] = []
        self._looked_at = float("-inf")
        self._chosen: dict[tuple[bytes, int], list[int]] = {}

    def next(self, shared: int, drained: int, session: bytes) -> int:
        """The partition at which the next take of `session` begins. `shared`: the number of partitions that
        are homes. `drained`: the number of partitions that may have items.

        Round trips: 1 in limits.HOMES_CHOSEN_EVERY_S, for the live sessions; else 0.
        """
        if drained == 1:
            return 0
        homes = self._homes(shared, session) if shared > 1 else (0,)
        return self._turns.next(homes, shared, drained, self._runtime.monotonic())

    def found_nothing(self, number: int) -> None:
        self._turns.found_nothing(number, self._runtime.monotonic())

    def _homes(self, count: int, session: bytes) -> list[int]:
        now = self._runtime.monotonic()
        if now >= self._looked_at + limits.HOMES_CHOSEN_EVERY_S:
            self._looked_at = now
            self._sessions = run(self._database, self._live)
            self._chosen = {}
        known = self._chosen.get((session, count))
        if known is None:
            known = self._chosen[session, count] = homes_of(session, self._sessions, count)
        return known

    def _live(self, tr: Transaction) -> list[bytes]:
        """Live sessions, at most limits.HOME_SESSIONS_MAX. Reads by snapshot."""
        beats = self._root.beats_due_after(self._runtime.now_us())
        found = tr.snapshot.get_range(beats.start, beats.stop, limit=limits.HOME_SESSIONS_MAX)
        return [beat[1] for row in found if (beat := self._root.beat_of(row.key)) is not None]


class Turns:
    """The partitions at which the takes of a process begin, one after the other."""

    def __init__(self, first: int) -> None:
        """`first` differs from process to process: of many that take one item each, some have to visit."""
        self._takes = count(first)
        self._empty_until: dict[int, float] = {}

    def next(self, homes: Sequence[int], shared: int, drained: int, now: float) -> int:
        """One of `homes`, each in its turn. One take of limits.TAKES_PER_VISIT begins at one of all `drained`
        partitions, each in its turn; not at one from `shared` on in which nothing was found lately.
        """
        take = next(self._takes)
        visits, is_at_home = divmod(take, limits.TAKES_PER_VISIT)
        visited = visits % drained
        if is_at_home or (visited >= shared and now < self._empty_until.get(visited, now)):
            return homes[(take - visits) % len(homes)]
        return visited

    def found_nothing(self, number: int, now: float) -> None:
        """A take has found nothing in this partition. Those below `shared` are visited all the same."""
        self._empty_until[number] = now + limits.EMPTY_VISITED_EVERY_S


class Holder(Protocol):
    """The session of a take, or the process."""

    @property
    def lost(self) -> bool:
        """True if it takes nothing any more."""


class Process:
    """The holder of takes that belong to no session."""

    lost = False


Own = TypeVar("Own")
H = TypeVar("H", bound=Holder)

WIDE = -1
"""The number of all partitions together, among the takes."""


class Partitioned(Generic[Own]):
    def __init__(self, current: Current | None, make: Callable[[int], Own]) -> None:
        """`make` makes the items of a partition. `current`: the plan; None for a queue without a name."""
        self.current = current
        self._make = make
        self.zero = make(0)
        self._known = [self.zero]

    @property
    def plan(self) -> Plan | None:
        """The present plan; None for a queue without partitions."""
        return None if self.current is None else self.current.plan

    def holding(self) -> Sequence[Own]:
        """The partitions that may hold an item, by the present plan."""
        plan = self.plan
        return self.upto(1 if plan is None else plan.high)

    def part(self, number: int) -> Own:
        return self.upto(number + 1)[number]

    def upto(self, high: int) -> Sequence[Own]:
        """The partitions below the number `high`."""
        known = self._known
        if len(known) < high:
            known = [*known, *map(self._make, range(len(known), high))]
            self._known = known  # replaced as a whole: threads read it without a lock
        return known[:high]


class TakesOfParts(Generic[H]):
    """The takes of each holder from a partition, or from all together: only these combine."""

    def __init__(
        self,
        runtime: Runtime,
        parts: Partitioned[Any],
        make: Callable[[H, int, Callable[[], bool]], Takes],
    ) -> None:
        """`make(holder, number, has_ended)` makes takes; `has_ended`: as in `Takes`."""
        self._lock = runtime.lock()
        self._parts = parts
        self._make = make
        self.known: dict[tuple[H, int], Takes] = {}
        """Those that have been made: replaced as a whole, so threads read it without a lock."""
        if parts.current is not None:
            parts.current.on_partitions(self._end_waits_elsewhere)

    def of(self, holder: H, number: int) -> Takes:
        with self._lock:
            found = self.known.get((holder, number))
            if found is None:
                living = {known: takes for known, takes in self.known.items() if not known[0].lost}
                ended = self._has_no_parts if number == WIDE else self._has_parts
                found = self._make(holder, number, ended)
                self.known = {**living, (holder, number): found}
            return found

    def _has_parts(self) -> bool:
        return self._parts.plan is not None

    def _has_no_parts(self) -> bool:
        return self._parts.plan is None

    def _end_waits_elsewhere(self) -> None:
        """Let takes that wait for partition 0 wait for all; or the other way round."""
        ended = WIDE if self._parts.plan is None else 0
        for (_, number), takes in list(self.known.items()):
            if number == ended:
                takes.end_waits()
