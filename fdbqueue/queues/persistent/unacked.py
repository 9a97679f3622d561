"""The fetched and un-acked items of a proxy, in the order of fetching.

`ack` is given the object that `get` returned. It is found by identity; if the same object was fetched several
times, the first one counts. Otherwise the first equal item is meant. Items need not be hashable.
"""

from dataclasses import dataclass, field
from typing import Any

from fdbqueue.core.errors import NotTaken, NotUnacked
from fdbqueue.core.runtime import Lock, Stop
from fdbqueue.core.task import Task
from fdbqueue.queues.persistent.stored import Work
from fdbqueue.tasks.kinds import Draft


@dataclass(frozen=True, eq=False)
class Delivery:
    """A task held by a proxy: its place in the order of fetching, and the thread that fetched it."""

    number: int
    task: Task
    thread: int

    @property
    def item(self) -> Any:
        return self.task.data


class Unacked:
    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._next = self._first = 0
        self._deliveries: dict[int, Delivery] = {}
        self._of_object: dict[int, list[Delivery]] = {}

    def add(self, task: Task, thread: int) -> Delivery:
        with self._lock:
            delivery = Delivery(self._next, task, thread)
            self._next += 1
            self._insert(delivery)
        return delivery

    def pick(self, item: Any) -> Delivery:
        """Remove and return the delivery that `ack(item)` means. Raises: NotUnacked."""
        with self._lock:
            same = self._of_object.get(id(item)) or [d for d in self._deliveries.values() if d.item == item]
            if not same:
                raise NotUnacked(item=item)
            return self._remove(same[0])

    def pick_oldest(self, thread: int) -> Delivery | None:
        """Remove and return the oldest delivery of `thread`; of all threads, if it has none.

        Threads may share a proxy and call task_done() for finished items. One must not ack an item on which
        another still works: it would be lost if the process died now.
        """
        with self._lock:
            own = (d for d in self._deliveries.values() if d.thread == thread)
            oldest = next(own, None) or next(iter(self._deliveries.values()), None)
            return None if oldest is None else self._remove(oldest)

    def discard(self, deliveries: list[Delivery]) -> None:
        with self._lock:
            for delivery in deliveries:
                if delivery.number in self._deliveries:
                    self._remove(delivery)

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Make these items un-acked again, each in its old place, but none of a session that is over."""
        with self._lock:
            held = (delivery for delivery in deliveries if delivery.number >= self._first)
            there = sorted([*self._deliveries.values(), *held], key=lambda d: d.number)
            self._clear()
            for delivery in there:
                self._insert(delivery)

    def clear(self) -> None:
        with self._lock:
            self._first = self._next
            self._clear()

    def items(self) -> list[Any]:
        with self._lock:
            return [delivery.item for delivery in self._deliveries.values()]

    def _insert(self, delivery: Delivery) -> None:
        self._deliveries[delivery.number] = delivery
        self._of_object.setdefault(id(delivery.item), []).append(delivery)

    def _remove(self, delivery: Delivery) -> Delivery:
        del self._deliveries[delivery.number]
        same = self._of_object[id(delivery.item)]
        same.remove(delivery)
        if not same:
            del self._of_object[id(delivery.item)]
        return delivery

    def _clear(self) -> None:
        self._deliveries, self._of_object = {}, {}


@dataclass
class Unit:
    """Deliveries and puts to commit together. An ack outside of a transaction is a unit of its own."""

    fetched: list[Delivery] = field(default_factory=list)
    acked: list[Delivery] = field(default_factory=list)
    puts: list[Draft] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    """The events of its puts: each of them stops the wait for room."""
    until: float | None = None
    """The earliest time limit of the puts, as runtime.monotonic()."""
    done: bool = False

    def put(self, draft: Draft, until: float | None, stop: Stop | None) -> None:
        self.puts.append(draft)
        if stop is not None:
            self.stops.append(stop)
        if until is not None:
            self.until = until if self.until is None else min(until, self.until)

    def work(self) -> Work:
        acked = {delivery.number for delivery in self.acked}
        kept = [delivery.task for delivery in self.fetched if delivery.number not in acked]
        return Work([delivery.task for delivery in self.acked], kept, self.puts)

    def lose(self, late: NotTaken) -> Delivery:
        """Remove and return the delivery of a task that is no longer held."""
        lost = next(d for d in (*self.acked, *self.fetched) if d.task.id == vars(late)["id"])
        self.acked = [delivery for delivery in self.acked if delivery is not lost]
        self.fetched = [delivery for delivery in self.fetched if delivery is not lost]
        return lost
