"""An element queue in one process with a clock that stands still in each call: its elements, their locks, the
answers and the errors equal those of a plain model. Locks are purged at the microsecond of their age.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.common import SPACE
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_elements_deeds import LOCK_S, Deeds
from tests.system.workloads.exact_times import earliest

NAME = "exact_elements"
SCHEMA = {"body": "string"}
VERBS = (
    *("add",) * 3,
    *("acquire",) * 4,
    *("of_a_lock",) * 6,
    "touch",
    "dequeue",
    "peek",
    *("purge",) * 2,
)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_elements(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact elements")
    simulation.limit(PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 90_000)))
    is_named, batch = random.random() < 0.5, random.choice((1, 2, 100))

    def use(client: Client) -> None:
        own = ElementQueue(SPACE[NAME], SCHEMA, maxelts=batch)
        process = Process(Caller(client), ElementQueue.named(client.db, NAME, SCHEMA) if is_named else own)
        for _ in range(size.steps):
            process.step()

    simulation.client(use, "user-0")
    return [no_watch_left_behind, *([] if is_named else [sound(ElementQueue(SPACE[NAME], SCHEMA))])]


class Process(Deeds):
    def step(self) -> None:
        self._move()
        verb = self._random.choice(VERBS)
        self._caller.client.call(NAME, f"to {verb}", self._now, getattr(self, verb))
        db, names = self._caller.client.db, sorted(self._elements)
        require_equal("count", self._caller.answer(self._q.count), len(names))
        require_equal("names", list(self._q.names(db)), names)

    def _move(self) -> None:
        ends = [since + round(LOCK_S * 1_000_000) for since, _ in self._locks.values()]
        following = earliest(*(end for end in ends if end >= self._now))
        if following is not None and self._random.random() < 0.3:
            self._now = max(self._now, following + self._random.choice((-1, 0, 1)))
        else:
            self._now += self._random.choice((0, 0, 1, 400_000))
        self._caller.clock.move_to(self._now)
