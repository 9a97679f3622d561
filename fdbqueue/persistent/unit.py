"""Unit: the work of a thread in a transaction of a proxy, before the commit."""

from dataclasses import dataclass, field

from fdbqueue.errors import NotTaken
from fdbqueue.persistent.unacked import Delivery
from fdbqueue.persistent.work import Work
from fdbqueue.runtime import Stop
from fdbqueue.tasks.kinds import Draft


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
