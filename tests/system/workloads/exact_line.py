"""Items and the waiting line in one process with a clock that stands still in each call.

Requests join the line, look, leave, and die; readers hold items, and takes pass by. Each answer, each item in
its place, and each request equals that of a plain model, also at the microsecond of a deadline.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.common import SPACE
from tests.system.workloads.exact_calls import Caller
from tests.system.workloads.exact_line_deeds import NAME
from tests.system.workloads.exact_line_requests import Requests
from tests.system.workloads.exact_line_values import HELD
from tests.system.workloads.exact_times import earliest

VERBS = (
    *("enqueue",) * 5,
    "enqueue_many",
    "give_back",
    *("dequeue",) * 4,
    *("register",) * 3,
    *("look",) * 6,
    "withdraw",
    "hold",
    *("settle",) * 2,
)
RARE = 0.02


# The model fills each answer: no bound cuts one short.
@workload(
    clients=1,
    steps=60,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=("SERVE_MAX", "SERVE_BYTES_MAX"),
)
def exact_line(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact line")
    simulation.limit(
        PLAIN_ATTEMPTS_MAX=12,  # so that a take tidies before it stands in the line
        CROWD_MIN=1_000,
        RESULTS_RETURNED_MAX=random.choice((1, 2, 10)),
        NOTICE_BYTES_MAX=random.choice((0, 8_000)),
        PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 90_000)),
    )
    simulation.outage(1e9, 1.0)  # far away: but now the requests of a live process may end as dead
    is_named = random.random() < 0.5

    def use(client: Client) -> None:
        caller = Caller(client)
        q = Queue.named(client.db, NAME) if is_named else Queue(SPACE[NAME])
        process = Process(caller, q)
        for _ in range(size.steps):
            process.step()

    simulation.client(use, "user-0")
    return [no_watch_left_behind, *([] if is_named else [sound(Queue(SPACE[NAME]))])]


class Process(Requests):
    def step(self) -> None:
        self._move()
        verb = "clear" if self.random.random() < RARE else self.random.choice(VERBS)
        self.caller.client.call(NAME, verb, self.model.now, getattr(self, verb))
        self.require_all()

    def _move(self) -> None:
        """Move the clock: mostly to a deadline, or to just before or after it."""
        model, random = self.model, self.random
        ends = [request.alive_until for request in model.requests]
        ends += [request.registered + HELD for request in model.requests]
        ends += [ready.until for ready in model.ready.values()]
        following = earliest(*(end for end in ends if end >= model.now))
        to = model.now
        if random.random() < 0.4 and following is not None:
            to = following + random.choice((-1, 0, 0, 1, 1))
        elif random.random() < 0.2:
            to += random.choice((1, 100_000, 3_000_000))
        model.now = max(model.now, to)
        self.caller.clock.move_to(model.now)
