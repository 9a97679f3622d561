"""Is there an order of the calls in which each result is right? The search of Wing, Gong and Lowe.

The order must keep the order in time: a call comes before all calls that began after its end. A call with a
known result stands in it once. A call with an unknown result stands in it once or never. Events come as they
may. The answer is exact. The search remembers the states in which it has failed. A history without such an
order may still need more steps than `steps_max`, and is undecided then.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from fdbqueue.testing.history.model import Call, Model, ends_of_takes, in_order

STEPS_MAX = 1_000_000


@dataclass(frozen=True)
class Verdict:
    """The verdict on a history: "sound", "broken", or "undecided"."""

    outcome: str
    steps: int
    stuck: tuple[Call, ...] = ()
    """The calls behind the longest order that was found, one of which had to come next."""

    @property
    def is_sound(self) -> bool:
        return self.outcome == "sound"

    def __str__(self) -> str:
        calls = [f"\n  {call}" for call in self.stuck]
        return f"{self.outcome} after {self.steps} steps" + "".join(calls)


class _Node(NamedTuple):
    """A place in the search: the calls that have happened, and the state after them."""

    first: int
    """All known calls before this index have happened."""
    later: int
    """Bit n is set if the known call `first` + n has happened."""
    unknown: int
    """Bit n is set if the unknown call n has had its effect."""
    state: Hashable


def judge(calls: Sequence[Call], model: Model, *, steps_max: int = STEPS_MAX) -> Verdict:
    """Judge a history by a model. `steps_max` bounds the search."""
    return _Search(calls, model).run(steps_max)


class _Search:
    def __init__(self, calls: Sequence[Call], model: Model) -> None:
        self._model = model
        self._takes = ends_of_takes(calls, model)
        # A put has happened if its value was taken. Otherwise an unknown one makes no order right.
        self._known = in_order(call for call in calls if call.is_known or model.added(call) in self._takes)
        self._unknown = in_order(call for call in calls if not call.is_known and model.added(call) is None)
        self._ends = [self._end_of(call) for call in self._known]
        self._ranks = [self._rank(call) for call in self._known]

    def run(self, steps_max: int) -> Verdict:
        start = _Node(0, 0, 0, self._model.start())
        seen, best, steps = {start}, start, 0
        path = [self._next(start)]
        while path:
            node = next(path[-1], None)
            if node is None:
                path.pop()
            elif node.first == len(self._known):
                return Verdict("sound", steps)
            elif node not in seen:
                steps += 1
                if steps > steps_max:
                    return Verdict("undecided", steps_max, self._candidates_of(best))
                seen.add(node)
                best = max(best, node, key=lambda one: one.first + one.later.bit_count())
                path.append(self._next(node))
        return Verdict("sound" if not self._known else "broken", steps, self._candidates_of(best))

    def _next(self, node: _Node) -> Iterator[_Node]:
        """The nodes after one more step, the likeliest first."""
        candidates, deadline_us = self._open(node)
        for index in sorted(candidates, key=self._ranks.__getitem__):
            state = self._model.after(node.state, self._known[index])
            if state is not None:
                yield self._happened(node, index, state)
        for since_us, state in self._model.events(node.state):
            if since_us <= deadline_us:
                yield node._replace(state=state)
        for index, call in enumerate(self._unknown):
            if call.begin_us > deadline_us:
                break
            if not node.unknown >> index & 1:
                for state in self._model.effects(node.state, call):
                    yield node._replace(unknown=node.unknown | 1 << index, state=state)

    def _open(self, node: _Node) -> tuple[list[int], float]:
        """The known calls that may come next, and the end of the first that is to come."""
        candidates, deadline_us = [], inf
        for index in range(node.first, len(self._known)):
            if self._known[index].begin_us > deadline_us:
                break
            if not node.later >> (index - node.first) & 1:
                candidates.append(index)
                deadline_us = min(deadline_us, self._ends[index])
        return [index for index in candidates if self._known[index].begin_us <= deadline_us], deadline_us

    def _happened(self, node: _Node, index: int, state: Hashable) -> _Node:
        first, later = node.first, node.later | 1 << (index - node.first)
        while later & 1:
            first, later = first + 1, later >> 1
        return _Node(first, later, node.unknown, state)

    def _candidates_of(self, node: _Node) -> tuple[Call, ...]:
        return tuple(self._known[index] for index in self._open(node)[0])

    def _rank(self, call: Call) -> tuple[float, ...]:
        """Takes come first, in the order of their ends, and puts in the order in which their values are
        taken. It decides the order of the search only, and so its length: in a sound history the first path
        is mostly right.
        """
        value = self._model.added(call)
        if value is None:
            return 0, self._end_of(call)
        ends = self._takes.get(value, [])
        place = bisect_right(ends, call.begin_us)
        return 1, ends[place] if place < len(ends) else inf, self._end_of(call)

    @staticmethod
    def _end_of(call: Call) -> float:
        return inf if call.end_us is None else call.end_us
