"""A model of the order of takes: which tasks a take must find, and which it must not pass over."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.system.workloads.notes import Op
from tests.system.workloads.task_model import Life, Rules, passages_in, settled
from tests.system.workloads.task_turns import Turns


class Order:
    """The tasks of a queue, and the turns of their task keys."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lives: dict[str, Life] = {}
        self.turns = Turns(rules.options.get("weights", {}))

    def takeable(self, op: Op, stored: bool = False) -> list[Life]:
        """The tasks that a take must find, whichever sweeps there were: ready, of a task key that is open.

        `stored`: it need not sweep, since tasks that are ready already are enough for it.
        """
        lives = [life for life in self.lives.values() if not stored or life.state == "r"]
        ready = [life for life in lives if all(a and a.state == "r" for a, _ in passages_in(life, op))]
        return [life for life in ready if self._taken_at_most(life.key, op, stored) < self._open]

    @property
    def _open(self) -> float:
        return self.rules.key_concurrency or float("inf")

    def _taken_at_most(self, key: Any, op: Op, stored: bool) -> int:
        of_key = [life for life in self.lives.values() if life.key == key]
        return sum(
            (stored and life.state == "t") or any(a and a.state == "t" for a, _ in passages_in(life, op))
            for life in of_key
        )

    def crowded(self, op: Op) -> Iterator[str]:
        """Yield each task key with too many tasks that are taken for sure."""
        taken = Counter(x.key for x in self.lives.values() if x.state == "t" and settled(x, op))
        yield from (f"{n} tasks of the key {key!r} are taken" for key, n in taken.items() if n > self._open)

    def overtaken(self, op: Op, life: Life) -> Iterator[str]:
        place: Callable[[Life], tuple[int, str]] = self.rules.place
        others = [other for other in self.takeable(op, stored=True) if self._is_comparable(other, life)]
        if self.rules.has_turns and life in others:
            heads = [min((x for x in others if x.key == key), key=place) for key in {x.key for x in others}]
            place, others = self.turns.place, heads if life in heads else [life]
        yield from (f"{life.id} overtook {other.id}" for other in others if place(other) < place(life))

    def _is_comparable(self, one: Life, other: Life) -> bool:
        """True if the order of two tasks is known. Sweeps decide the rounds of a fair queue; and a first task
        of its key that has expired hides the others from takes, until a sweep removes it.
        """
        if self.rules.kind == "fair" and not self.rules.has_turns and one.key != other.key:
            return False
        place = self.rules.place
        same = (x for x in self.lives.values() if x.key == one.key and x.key is not None and x.state == "r")
        return self.rules.has_turns or all(place(one) <= place(x) or x.expires is None for x in same)
