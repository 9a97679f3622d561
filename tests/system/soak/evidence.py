"""The evidence about one subject: the notes of all clients, the stored keys, and the strikes.

A call without an answer has an unknown result: it may have had its effect, or not.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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


def key_of(value: str) -> str:
    """The key in a value; "" without one."""
    return value.rpartition("/")[0]
