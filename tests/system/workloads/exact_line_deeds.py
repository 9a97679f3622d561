"""The calls of the workload `exact_line`, each with the same call of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.queues.recipe.queue import Queue
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_line_model import Model

NAME = "exact_line"


class Deeds:
    def __init__(self, caller: Caller, q: Queue) -> None:
        self.caller, self.q, self.model, self.random = caller, q, Model(), caller.random
        self.model.now = caller.clock.now
        self._held: list[tuple[Holder, bytes, int]] = []
        self._taken: list[str] = []
        self._number = 0

    def _once(self, call: Callable[[Any], Any], is_alone: bool | None = None) -> Any:
        """Call it with the database, or in a transaction."""
        alone = self.random.random() < 0.5 if is_alone is None else is_alone
        found = self.caller.answer(call, always_alone=True) if alone else self.caller.within(call)
        assert not isinstance(found, Exception), f"refused: {found!r}"
        return found

    def _values(self, count: int) -> list[str]:
        self._number += count
        longer = self.random.choice((1, 1, 5))
        return [f"{number}." * longer for number in range(self._number - count, self._number)]

    # Items.

    def enqueue(self) -> None:
        values = self._values(1)
        self._once(lambda tr: self.q.enqueue(tr, values[0]))
        self.model.enqueue(values)

    def enqueue_many(self) -> None:
        values = self._values(self.random.choice((2, 3, 4)))
        self._once(lambda tr: self.q.enqueue_many(tr, values))
        self.model.enqueue(values)

    def give_back(self) -> None:
        if self.model.may_share_a_place():
            return
        values = self._taken[-self.random.choice((1, 2)) :]
        self._once(lambda tr: self.q.give_back(tr, values))
        self._taken = [value for value in self._taken if value not in values]
        if values:
            self.model.give_back(values)

    def dequeue(self) -> None:
        alone, count = self.random.random() < 0.6, self.random.choice((1, 1, 2, 3))
        found = self._once(partial(self._dequeued, count), alone)
        wanted = self.model.take_in_turn(count) if alone else self.model.remove(self.model.take(count))
        require_equal(f"dequeue {count}, {'alone' if alone else 'within'}", found, wanted)
        self._taken += found

    def _dequeued(self, count: int, tr: Any) -> list[str]:
        if count > 1:
            return self.q.dequeue_many(tr, count)
        value = self.q.dequeue(tr)
        return [] if value is None else [value]

    def clear(self) -> None:
        self._once(self.q.clear)
        self.model.clear()

    # Readers that hold items.

    def hold(self) -> None:
        holder, count = self.q.holder(self.caller.client.db), self.random.choice((1, 2, 4))
        found = holder.hold(count)
        items = self.model.take(count)
        require_equal("hold", found, [item.value for item in items])
        if items:
            rid = holder._ticket.rid
            self.model.lay_ready(rid, items)
            self._held.append((holder, rid, len(items)))

    def settle(self) -> None:
        if self._held:
            holder, rid, count = self._held.pop(self.random.randrange(len(self._held)))
            shown = self.random.randint(0, count)
            is_there = rid in self.model.ready
            require_equal("settle", holder.settle(shown), is_there)
            if is_there:
                self._taken += self.model.collect(rid, shown)
