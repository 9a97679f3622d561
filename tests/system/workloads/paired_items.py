"""Queues of plain items in the workload `paired`: the recipe queue, and the FairQueue."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_calls import Call
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import World, text_of

NAME = "paired"
ALL = 99


class Items(World):
    verbs = (
        *("enqueue",) * 4,
        *("dequeue",) * 3,
        *("dequeue_many",) * 2,
        *("give_back",) * 2,
        "look",
        "clear",
        "repartition",
    )
    partitions: Sequence[int] = (0, 0, 1, 3)

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._partitions = random.choice(self.partitions)
        self.forgets = self._partitions > 1
        if self._partitions:
            Queue.named(twins.own, NAME, partitions=self._partitions)
        self.space = None if self._partitions else self._own()

    def __str__(self) -> str:
        return f"a queue with {self._partitions} partitions" if self._partitions else "a queue"

    def _own(self) -> Queue:
        return Queue(SPACE[NAME])

    def opened(self, db: Database) -> Queue:
        return Queue.named(db, NAME) if self._partitions else self._own()

    def is_loose(self, one: Call, other: Call) -> bool:
        """A take or a peek is of one partition, and an answer of fewer relies on no other one. Values
        that are enqueued at the same time have any order, also for a take or a peek behind an enqueue of its
        own transaction.
        """
        names = {one.name, other.name}
        if "both" in names and names <= {"both", "peek"} and one.adds and other.adds:
            return True
        return self.forgets and any(verb in f"{one} {other}" for verb in ("dequeue", "peek"))

    def may_vary(self, one: Call) -> bool:
        return self.forgets and one.name in ("dequeue", "peek", "both")

    def promises(self, one: Call, other: Call) -> bool:
        """Enqueues. A queue without a name looks at its subspace until it has seen a key, and one with
        partitions sets flags.
        """
        return (
            self._partitions == 1
            and one.name == "enqueue"
            and other.name in ("enqueue", "dequeue", "give_back", "look")
        )

    def demands(self, one: Call, other: Call, answer: Any) -> bool:
        """A dequeue relies on the head of the queue, up to its last value."""
        return not self.forgets and bool(answer) and (one.name, other.name) == ("dequeue", "give_back")

    # Calls.

    def _enqueue(self) -> Call:
        data = self.data(self.random.choice((1, 1, 2)))
        if len(data) == 1:
            return self._call("enqueue", f"enqueue {data}", lambda q, tr: q.enqueue(tr, data[0]), adds=data)
        return self._call("enqueue", f"enqueue {data}", lambda q, tr: q.enqueue_many(tr, data), adds=data)

    def _dequeue(self) -> Call:
        return self._call("dequeue", "dequeue", lambda q, tr: q.dequeue(tr))

    def _dequeue_many(self) -> Call:
        """In a transaction: given a database, an answer of fewer does not rely on the end of the queue."""
        count = self.random.choice((2, 3, 50))
        text = f"dequeue {count}"
        return Call("dequeue", text, lambda q, tr: q.dequeue_many(tr, count), within=True)

    def _give_back(self) -> Call:
        data = self.data(self.random.choice((1, 2)))
        return self._call("give_back", f"give back {data}", lambda q, tr: q.give_back(tr, data), adds=data)

    def _look(self) -> Call | None:
        """A peek beside a put: the put relies on what it has seen."""
        (mark,) = self.data(1)

        def verb(q: Queue, tr: Any) -> Any:
            found = q.peek(tr)
            q.enqueue(tr, mark)
            return found

        return Call("peek", f"peek, and enqueue {mark}", verb, [mark], within=True)

    def _clear(self) -> Call | None:
        if self.random.random() < 0.5:
            return None
        return self._call("clear", "clear", lambda q, tr: q.clear(tr))

    def _repartition(self) -> Call | None:
        if self._partitions < 2:
            return None
        count = self.random.choice((1, 2, 4))
        return self._call("repartition", f"repartition {count}", lambda q, tr: q.repartition(tr, count))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        q = self.opened(self.twins.own)
        found: dict[str, Sequence[str]] = {"size": [text_of(q.size, tr)]}
        if self._partitions > 1:
            found["items"] = list(every_row(partial(q.items, tr, ALL)))
            return found
        return {
            **found,
            "order of items": list(every_row(partial(q.items, tr, ALL))),
            "order of takes": list(q.dequeue_many(tr, ALL)),
            "size at the end": [text_of(q.size, tr)],
        }


class FairItems(World):
    verbs: Sequence[str] = (*("put",) * 4, *("get",) * 3, "give_back", "look")
    KEYS = ("a", "b", "c")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._capacity = random.choice((None, 4, 8))
        if self._capacity is not None:  # an item that is given back counts for no capacity
            self.verbs = tuple(verb for verb in self.verbs if verb != "give_back")
        self.space = self._q = FairQueue(
            SPACE[NAME], key=lambda item: item[0], capacity=self._capacity, weights={"a": 2}
        )

    def __str__(self) -> str:
        return f"a FairQueue of the capacity {self._capacity}"

    def opened(self, db: Database) -> FairQueue:  # noqa: ARG002  # it belongs to no database
        return self._q

    def is_loose(self, one: Call, other: Call) -> bool:
        """The size is read by snapshot, also by a put that is refused in a transaction that goes on."""
        may_be_refused = self._capacity is not None and "both" in (one.name, other.name)
        return may_be_refused or "size" in one.text + other.text

    def promises(self, one: Call, other: Call) -> bool:
        """Puts of other task keys."""
        return (
            self._capacity is None
            and one.name == other.name == "put"
            and one.touches.isdisjoint(other.touches)
        )

    # Calls.

    def _put(self) -> Call:
        return self._adding("put", "put", lambda q: q.put)

    def _give_back(self) -> Call:
        return self._adding("give_back", "give back", lambda q: q.give_back)

    def _adding(self, name: str, text: str, verb: Any) -> Call:
        (data,), key, cost = self.data(1), self.random.choice(self.KEYS), self.random.choice((1, 1, 2))
        item = [key, data]
        return self._call(
            name,
            f"{text} {item} of the cost {cost}",
            lambda q, tr: verb(q)(tr, item, cost=cost),
            adds=[data],
            touches=frozenset(key),
        )

    def _get(self) -> Call:
        return self._call("get", "get", lambda q, tr: q.take_item(tr))

    def _look(self) -> Call:
        return self._call("look", "size", lambda q, tr: q.size(tr))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        page = self._q.snapshot(tr, ALL)
        lines = [page.round, *(items for _, items in page.lines)]
        found: dict[str, Sequence[str]] = {
            "size": [text_of(self._q.size, tr)],
            "keys": [f"{one.key}: {one.ready}" for one in self._q.key_statistics(tr, ALL)],
        }
        taken = []
        while (one := self._q.take_item(tr))[0]:
            taken.append(one[1])
        for key in self.KEYS:
            found[f"order of {key}"] = [data for of, data in taken if of == key]
        found["taken"] = [data for _, data in taken]
        found["listed"] = [item[1] for items in lines for item in items]
        return found
