"""The interface of a model: a queue as one object, on which the calls of a history happen one after another.

The calls are `put`, whose argument is a value, and `take`, whose result is one, or None for nothing. No two
puts of a history have the same value. Each model names its other calls.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A call by one process of a history, which makes one call at a time.

    Times are microseconds of a clock that all processes of the history share. A call without `end_us` has
    an unknown result: it may have had its effect, at any moment since its begin, or none.
    """

    process: str
    name: str
    argument: Any
    begin_us: int
    end_us: int | None = None
    result: Any = None

    @property
    def is_known(self) -> bool:
        return self.end_us is not None

    def __str__(self) -> str:
        told = "unknown" if self.end_us is None else f"{self.result!r} at {self.end_us} us"
        return f"{self.process}: {self.name}({self.argument!r}) from {self.begin_us} us: {told}"


def in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.begin_us)


State = Any
"""A hashable value: the contents of the queue between two calls."""


class Model(Protocol):
    """Its functions are pure."""

    def start(self) -> Hashable:
        """The state before all calls."""

    def after(self, state: State, call: Call) -> Hashable | None:
        """The state after a call with a known result; None if that result is wrong in this state."""

    def effects(self, state: State, call: Call) -> Iterable[Hashable]:
        """The states after a call with an unknown result, beside the one in which it had no effect."""

    def events(self, state: State) -> Iterable[tuple[int, Hashable]]:
        """Changes that no call makes: for each, the first possible moment in microseconds, and its state."""

    def added(self, call: Call) -> Hashable | None:
        """The value that a call lets later takes find; None for a call that adds none."""

    def taken(self, call: Call) -> Hashable | None:
        """The value that a take with a known result has returned; None for any other call."""


def hashable(value: Any) -> Hashable:
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


class TakenOnce:
    """The part that models of items share: a take removes its item."""

    def added(self, call: Call) -> Hashable | None:
        return hashable(call.argument) if call.name == "put" else None

    def taken(self, call: Call) -> Hashable | None:
        return hashable(call.result) if call.name == "take" and call.is_known else None


def ends_of_takes(calls: Sequence[Call], model: Model) -> dict[Hashable, list[int]]:
    """For each value, the ends of the takes that returned it, in order."""
    ends: dict[Hashable, list[int]] = {}
    for call in calls:
        value = model.taken(call)
        if value is not None and call.end_us is not None:
            ends.setdefault(value, []).append(call.end_us)
    return {value: sorted(found) for value, found in ends.items()}
