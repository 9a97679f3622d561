"""Models of items: a bag and a line.

A bag gives its values in any order. From a line they leave first in, first out: a put that has returned
before another one began is the first. With `keyed`, values are pairs of a key and a value: each key is in
order, and keys come in any order.

An answer of nothing is true. A take with an unknown result may hold one value: its process was killed while
the queue gave it one. The queue may give it to another take later. A line then has it at its old place.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from fdbqueue.testing.history.model import Call, TakenOnce, hashable


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
