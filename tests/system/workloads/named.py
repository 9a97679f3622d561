"""Named queues: all clients create the same names at once and use them, and one client drops them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueDropped, QueueNotFound
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import CONTENTS, DEFAULT_ROOT
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import total_queue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import dequeue, enqueue, values_of
from tests.system.workloads.stage import play

NAMES = ("red", "blue")


@workload(clients=2, steps=4)
def named(simulation: Simulation, size: Size) -> Sequence[Checker]:
    def produce(client: Client) -> None:
        kept = Handles(client)
        for value in values_of(client, size.steps):
            kept.use(client.random.choice(NAMES), enqueue, [value])
            client.pause(0.1)

    def consume(client: Client) -> None:
        kept = Handles(client)
        for _ in range(size.steps):
            kept.use(client.random.choice(NAMES), dequeue, client.random.choice((0, 0, 2)))
            client.pause(0.1)

    def drop(client: Client) -> None:
        for name in NAMES:
            client.pause(0.3)
            try:
                # A drop counts as a clear: the items that it removes are not lost.
                client.call(name, "clear", None, partial(Registry(DEFAULT_ROOT).drop, client.db, name))
            except QueueNotFound:
                continue

    def look(client: Client) -> None:
        for name in NAMES:
            q = Queue.named(client.db, name)
            client.runtime.sleep(60)
            while dequeue(client, q, name):
                pass

    roles = {"producer-": produce, "consumer-": consume, "dropper": drop}
    play(simulation, size, roles, {"survivor": look})
    return [*(total_queue(name) for name in NAMES), no_orphans, distinct_ids]


class Handles:
    """The queues of a client. It keeps some handles: one of a dropped queue must tell so, and put nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[str, Queue] = {}

    def use(self, name: str, deed: Callable[..., Any], argument: Any) -> None:
        """Use a queue; open it again if it was dropped in between."""
        while True:
            try:
                deed(self._client, self._opened(name), name, argument)
                return
            except QueueDropped:
                self._kept.pop(name, None)
                self._client.pause(0.01)

    def _opened(self, name: str) -> Queue:
        if name not in self._kept or self._client.random.random() < 0.5:
            self._kept[name] = Queue.named(self._client.db, name)
        return self._kept[name]


def no_orphans(_: Trace, database: Database) -> Iterator[str]:
    """Check that no key is left in the contents of a dropped queue."""
    live = {definition.id for definition in Registry(DEFAULT_ROOT).names(database)}
    for entry in database.get_range_startswith(DEFAULT_ROOT[CONTENTS].key()):
        id_ = DEFAULT_ROOT.unpack(entry.key)[1]
        if id_ not in live:
            yield f"orphan of dropped queue {id_}: {entry.key!r}"


def distinct_ids(_: Trace, database: Database) -> Iterator[str]:
    """Check that no two queues share their contents."""
    ids = [definition.id for definition in Registry(DEFAULT_ROOT).names(database)]
    if len(ids) != len(set(ids)):
        yield f"two queues have one id: {ids}"
