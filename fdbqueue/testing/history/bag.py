"""A bag: takes return its values in any order, and an answer of nothing is true.

A take with an unknown result may hold one value, as its process was killed while the queue gave it one. The
queue may give that value to another take later.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from fdbqueue.testing.history.call import Call
from fdbqueue.testing.history.model import TakenOnce, hashable


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
