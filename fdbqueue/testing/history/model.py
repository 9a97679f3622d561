"""The interface of a model: a queue as one object, on which the calls of a history happen one after another.

The calls are `put`, whose argument is a value, and `take`, whose result is one, or None for nothing. No two
puts of a history have the same value. Each model names its other calls.

A bag gives its values in any order. From a line they leave first in, first out: a put that has returned
before another one began is the first. With `keyed`, values are pairs of a key and a value: each key is in
order, and keys come in any order.

An answer of nothing is true. A take with an unknown result may hold one value: its process was killed while
the queue gave it one. The queue may give it to another take later. A line then has it at its old place.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


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


class Contents(NamedTuple):
    there: frozenset[Hashable] = frozenset()
    held: frozenset[Hashable] = frozenset()
    """Values that takes with unknown results hold."""


class Bag(TakenOnce):
    def start(self) -> Contents:
        return Contents()

    def after(self, state: Contents, call: Call) -> Contents | None:
        if call.name == "put":
            return state._replace(there=state.there | {hashable(call.argument)})
        if call.result is None:
            return None if state.there else state
        value = hashable(call.result)
        return state._replace(there=state.there - {value}) if value in state.there else None

    def effects(self, state: Contents, call: Call) -> Iterable[Contents]:
        if call.name == "put":
            yield state._replace(there=state.there | {hashable(call.argument)})
            return
        for value in state.there:
            yield Contents(state.there - {value}, state.held | {value})

    def events(self, state: Contents) -> Iterable[tuple[int, Contents]]:
        """A value that a dead process holds comes back."""
        for value in state.held:
            yield 0, Contents(state.there | {value}, state.held - {value})


class Item(NamedTuple):
    place: int
    key: Hashable
    value: Hashable


class Line(NamedTuple):
    puts: int = 0
    """Number of puts, which is the place of the next one."""
    there: frozenset[Item] = frozenset()
    held: frozenset[Item] = frozenset()
    """Items that takes with unknown results hold."""


class Fifo(TakenOnce):
    def __init__(self, *, keyed: bool = False) -> None:
        self._keyed = keyed

    def start(self) -> Line:
        return Line()

    def after(self, state: Line, call: Call) -> Line | None:
        if call.name == "put":
            return self._put(state, call)
        if call.result is None:
            return None if state.there else state
        wanted = hashable(call.result)
        found = [item for item in _first_of_keys(state) if item.value == wanted]
        return state._replace(there=state.there - set(found)) if found else None

    def effects(self, state: Line, call: Call) -> Iterable[Line]:
        if call.name == "put":
            yield self._put(state, call)
            return
        for item in _first_of_keys(state):
            yield Line(state.puts, state.there - {item}, state.held | {item})

    def events(self, state: Line) -> Iterable[tuple[int, Line]]:
        """An item that a dead process holds comes back to its old place."""
        for item in state.held:
            yield 0, Line(state.puts, state.there | {item}, state.held - {item})

    def _put(self, state: Line, call: Call) -> Line:
        value = hashable(call.argument)
        key = call.argument[0] if self._keyed else None
        return state._replace(puts=state.puts + 1, there=state.there | {Item(state.puts, key, value)})


def _first_of_keys(state: Line) -> Iterable[Item]:
    firsts: dict[Hashable, Item] = {}
    for item in state.there:
        other = firsts.get(item.key)
        if other is None or item.place < other.place:
            firsts[item.key] = item
    return firsts.values()
