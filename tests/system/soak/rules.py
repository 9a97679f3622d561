"""Rules about the evidence of one subject: each yields a sentence for a promise that was broken.

A call without an answer has an unknown result: it may have had its effect, or not. Takers meet, so most rules
of order judge the last client, which is alone.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise

from fdbqueue.testing.history import REFUSED, Call

PUTS = ("put", "group")
OPENINGS = ("open",)
"""Puts of a task that starts later, and perhaps never: see subjects/groups.py."""
LEASES = ("take",)
ENDING_TAKES = ("dequeue", "consume")
TAKES = (*LEASES, *ENDING_TAKES, "move")
ENDS = ("finish", "ack")
PROOFS = (*ENDS, "renew")


@dataclass(frozen=True)
class Stored:
    """The database at the end, when all that could be taken had been taken."""

    effects: Mapping[str, int] = field(default_factory=dict)
    left: Sequence[str] = ()
    counters: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each counter, its value and the number that a scan of the keys has found."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """The number of puts and of acks that the queue has counted."""
    findings: Sequence[str] = ()
    """Contradictions of stored keys, as `verify` tells them."""
    batches: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """For each batch, the leases that its transaction has acked (subjects/outcomes.py)."""


@dataclass(frozen=True)
class Strike:
    """A stop or a kill of a process. `end_us` is the moment at which it went on; None after a kill."""

    process: str
    begin_us: int
    end_us: int | None = None


@dataclass(frozen=True)
class Taken:
    """A value in the answer of a take. `token`: of its lease; "" if it has ended."""

    value: str
    token: str
    call: Call
    end_us: int


@dataclass(frozen=True)
class Held:
    """A time in which a client had a live lease, as a later success under its token proves."""

    value: str
    token: str
    from_us: int
    until_us: int


@dataclass(frozen=True)
class Evidence:
    calls: Sequence[Call]
    stored: Stored = Stored()
    strikes: Sequence[Strike] = ()
    ttr_us: int = 2_000_000
    session_ttr_us: int = 10_000_000

    def named(self, *names: str) -> Iterator[Call]:
        return (call for call in self.calls if call.name in names)

    def succeeded(self, *names: str) -> Iterator[tuple[Call, int]]:
        """The calls that have returned, without the refused ones, and the ends of each."""
        for call in self.named(*names):
            if call.end_us is not None and call.result != REFUSED:
                yield call, call.end_us

    @cached_property
    def puts(self) -> dict[str, Call]:
        """For each value, the call that has put it, or may have."""
        return {value: call for call in self.named(*PUTS, *OPENINGS) for value in call.argument}

    @cached_property
    def told(self) -> set[str]:
        """The values of puts that have returned."""
        return {value for value, call in self.puts.items() if call.is_known and call.name in PUTS}

    @cached_property
    def taken(self) -> list[Taken]:
        """All values in answers of takes, by the begins of the calls."""
        found = []
        for call, end_us in self.succeeded(*TAKES):
            for answer in call.result:
                value, token = answer if call.name in LEASES else (answer, "")
                found.append(Taken(value, token, call, end_us))
        return found

    @cached_property
    def takes_of(self) -> dict[str, list[Taken]]:
        by_value: dict[str, list[Taken]] = defaultdict(list)
        for taken in self.taken:
            by_value[taken.value].append(taken)
        return by_value

    @cached_property
    def ends(self) -> dict[str, list[Call]]:
        """For each value, the calls that have ended it and have returned."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call, _ in self.succeeded(*ENDS):
            for value, _ in call.argument:
                found[value].append(call)
        for taken in self.taken:
            if taken.call.name in ENDING_TAKES:
                found[taken.value].append(taken.call)
        return found

    @cached_property
    def apart(self) -> dict[str, int]:
        """For each value, the number of its known ends that have left no effect in the database."""
        return {
            value: sum(call.name in ("ack", "dequeue") for call in calls)
            for value, calls in self.ends.items()
        }

    @cached_property
    def perhaps_acked(self) -> set[str]:
        """The values of acks with an unknown result."""
        return {value for call in self.named("ack") if not call.is_known for value, _ in call.argument}

    @cached_property
    def held(self) -> list[Held]:
        proven: dict[tuple[str, str], int] = {}
        for call, _ in self.succeeded(*PROOFS):
            for value, token in call.argument:
                proven[value, token] = max(call.begin_us, proven.get((value, token), 0))
        found = []
        for taken in self.taken:
            until_us = proven.get((taken.value, taken.token), 0)
            if until_us > taken.end_us:
                found.append(Held(taken.value, taken.token, taken.end_us, until_us))
        return found

    @cached_property
    def released(self) -> dict[tuple[str, str], int]:
        """For each lease that a release may have ended, the begin of the release."""
        return {
            (value, token): call.begin_us for call in self.named("release") for value, token in call.argument
        }

    @cached_property
    def ended_early(self) -> dict[tuple[str, str], int]:
        """As `released`, also for the leases that the ttl of a hand-off ends, with that time."""
        ends = dict(self.released)
        for call in self.named("hand off"):
            value, token, _, ttl_s = call.argument
            until_us = call.begin_us + round(ttl_s * 1e6)
            ends[value, token] = min(until_us, ends.get((value, token), until_us))
        return ends


def key_of(value: str) -> str:
    """The key in a value; "" without one."""
    return value.rpartition("/")[0]


Rule = Callable[[Evidence], Iterator[str]]
SHOWN = 5


def found(flaw: str, values: Iterable[str]) -> Iterator[str]:
    """One sentence for all values with a flaw, none without one."""
    listed = sorted(values)
    if listed:
        yield f"{flaw}: {len(listed)}, the first of them {', '.join(listed[:SHOWN])}"


def lost(evidence: Evidence) -> Iterator[str]:
    """Each acknowledged put is there or has ended."""
    return lost_but(evidence, lambda _: False)


def lost_but(evidence: Evidence, may_fade: Callable[[str], bool]) -> Iterator[str]:
    """The same, but for values that may end by themselves.

    A dequeue without an answer may have removed values, up to the number that it asked for.
    """
    missing = evidence.told - set(evidence.stored.effects) - set(evidence.stored.left)
    missing = {value for value in missing if not evidence.apart.get(value) and not may_fade(value)}
    missing -= evidence.perhaps_acked
    if len(missing) > sum(call.argument for call in evidence.named("dequeue") if not call.is_known):
        yield from found("lost", missing)


def doubled(evidence: Evidence) -> Iterator[str]:
    """Each value has one end, and is not there afterwards."""
    left, effects = Counter(evidence.stored.left), evidence.stored.effects
    values = {value for value, count in left.items() if count > 1} | (set(left) & set(effects))
    ended = set(effects) | set(evidence.ends)
    values |= {value for value in ended if effects.get(value, 0) + evidence.apart.get(value, 0) > 1}
    values |= {value for value, count in evidence.apart.items() if count and value in left}
    yield from found("twice", values)


def given_after_the_end(evidence: Evidence) -> Iterator[str]:
    """No take gives a value after a call that has ended it has returned."""
    for value, calls in evidence.ends.items():
        end_us = min(call.end_us or call.begin_us for call in calls)
        if any(taken.call.begin_us > end_us for taken in evidence.takes_of.get(value, ())):
            yield f"given after its end: {value}"


def from_nowhere(evidence: Evidence) -> Iterator[str]:
    """Each value was put."""
    seen = {*evidence.stored.effects, *evidence.stored.left, *evidence.takes_of}
    yield from found("from nowhere", seen - set(evidence.puts))


def without_effect(evidence: Evidence) -> Iterator[str]:
    """A transaction that has returned has left its effects."""
    told = {value for call, _ in evidence.succeeded("finish") for value, _ in call.argument}
    told |= {taken.value for taken in evidence.taken if taken.call.name == "consume"}
    yield from found("told as done, without its effect", told - set(evidence.stored.effects))


def stuck(evidence: Evidence) -> Iterator[str]:
    """Everything could be taken at the end."""
    yield from found("stuck", evidence.stored.left)


def held_twice(evidence: Evidence) -> Iterator[str]:
    """While a lease is proved to be live, no other take gives its value."""
    for held in evidence.held:
        for other in evidence.takes_of[held.value]:
            inside = held.from_us <= other.call.begin_us and other.end_us <= held.until_us
            if inside and other.token != held.token:
                yield f"two live leases: {held.value}"


def given_too_early(evidence: Evidence) -> Iterator[str]:
    """A value that was not released comes again only after its lease, or after a strike at its holder."""
    for value, takes in evidence.takes_of.items():
        leases = [taken for taken in takes if taken.token]
        for first, second in pairwise(leases):
            is_other_order = second.call.begin_us < first.end_us and not _is_early(evidence, second, first)
            if _is_early(evidence, first, second) and not is_other_order:
                after_s = (second.end_us - first.call.begin_us) / 1e6
                yield f"given again {after_s:.3f} s after its take: {value}"


def _is_early(evidence: Evidence, first: Taken, second: Taken) -> bool:
    if second.end_us >= first.call.begin_us + evidence.ttr_us:
        return False
    ended_us = evidence.ended_early.get((first.value, first.token))
    if ended_us is not None and ended_us <= second.end_us:
        return False
    since_us = first.call.begin_us - evidence.session_ttr_us
    return not any(
        strike.process == first.call.process
        and strike.begin_us <= second.end_us
        and (strike.end_us is None or strike.end_us >= since_us)
        for strike in evidence.strikes
    )


def miscounted(evidence: Evidence) -> Iterator[str]:
    """Each counter equals a scan, and the totals equal the calls."""
    for name, (counter, real) in evidence.stored.counters.items():
        if counter != real:
            yield f"the counter of {name} says {counter}, there are {real}"
    for name, (least, most) in _bounds(evidence).items():
        total = evidence.stored.totals.get(name)
        if total is not None and not least <= total <= most:
            yield f"the counter of {name} says {total}, the notes tell of {least} to {most}"


def _bounds(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """For each total, its value without and with the unknown calls."""
    acked = sum(evidence.stored.effects.values()) + sum(evidence.apart.values())
    return {
        "puts": (len(evidence.told), len(evidence.puts)),
        "acks": (acked, acked + len(evidence.perhaps_acked - set(evidence.apart))),
    }


def unsound(evidence: Evidence) -> Iterator[str]:
    """A verification of the keys finds nothing."""
    yield from evidence.stored.findings


SOUND: tuple[Rule, ...] = (doubled, given_after_the_end, without_effect, stuck, miscounted, unsound)
"""The rules of every subject."""
ITEMS: tuple[Rule, ...] = (lost, from_nowhere, *SOUND)
"""Those of queues that get values from the soak only."""
LEASED: tuple[Rule, ...] = (*ITEMS, held_twice, given_too_early)


LAST = "last"
"""The client that puts and takes when all others have ended, and the queue is empty."""


def in_turn(evidence: Evidence) -> Iterator[str]:
    """The last client takes all values in the order of their puts."""
    return _in_order(evidence, lambda _: "", lambda values: values)


def in_turn_by_key(evidence: Evidence) -> Iterator[str]:
    """The last client takes the values of each key in the order of their puts."""
    return _in_order(evidence, key_of, lambda values: values)


def by_priority(evidence: Evidence) -> Iterator[str]:
    """The last client takes the values of the lowest number first, each in order of the puts."""
    return _in_order(evidence, lambda _: "", lambda values: sorted(values, key=key_of))


def _in_order(
    evidence: Evidence, group: Callable[[str], str], wanted: Callable[[list[str]], list[str]]
) -> Iterator[str]:
    put = [value for call in evidence.named("put") if call.process == LAST for value in call.argument]
    got = [taken.value for taken in evidence.taken if taken.call.process == LAST]
    for key in sorted({*map(group, put), *map(group, got)}):
        expected = wanted([value for value in put if group(value) == key])
        found = [value for value in got if group(value) == key]
        if found != expected:
            yield f"out of order: {', '.join(found)} in place of {', '.join(expected)}"


def ends_in_turn(evidence: Evidence) -> Iterator[str]:
    """Of two values of a key, the one that was put before ends first, among all clients.

    Values of puts that overlap have no order.
    """
    ended: dict[str, list[tuple[Call, int, str]]] = defaultdict(list)
    for value in evidence.ends:
        put = evidence.puts.get(value)
        if put is not None and put.end_us is not None:
            ended[key_of(value)].append((put, put.argument.index(value), value))
    for key in sorted(ended):
        yield from _overtaken(evidence, ended[key])


def _overtaken(evidence: Evidence, values: list[tuple[Call, int, str]]) -> Iterator[str]:
    """Compare the end of each value with the latest end of a value that was put before it."""
    by_put_end = sorted(values, key=lambda one: (one[0].end_us or 0, one[1]))
    ends_us = [put.end_us or 0 for put, _, _ in by_put_end]
    latest: list[tuple[int, str]] = []
    for _, _, value in by_put_end:
        begin_us = max(call.begin_us for call in evidence.ends[value])
        latest.append(max(latest[-1], (begin_us, value)) if latest else (begin_us, value))
    for put, place, value in values:
        before = bisect_left(ends_us, put.begin_us)
        earlier = [latest[before - 1]] if before else []
        if place:
            neighbour = _neighbour(put, place, value)
            earlier += [(call.begin_us, neighbour) for call in evidence.ends.get(neighbour, ())]
        end_us = min(call.end_us or call.begin_us for call in evidence.ends[value])
        for begin_us, other in earlier:
            if begin_us > end_us:
                yield f"{value} has ended before {other}, which was put before it"


def _neighbour(put: Call, place: int, value: str) -> str:
    """The value before this one in the same put."""
    before: str = put.argument[place - 1]
    return before if key_of(before) == key_of(value) else value


def one_at_a_time(evidence: Evidence) -> Iterator[str]:
    """At no moment two values of one key are proved to be held."""
    for key, group in groupby(sorted(evidence.held, key=_key_and_time), lambda held: key_of(held.value)):
        last: Held | None = None
        for held in group:
            if last is not None and held.from_us < last.until_us and held.value != last.value:
                yield f"two live leases of the key {key}: {last.value}, {held.value}"
            if last is None or held.until_us > last.until_us:
                last = held


def _key_and_time(held: Held) -> tuple[str, int]:
    return key_of(held.value), held.from_us
