"""Groups of members in two queues, one of them under two limits, in one process.

Its clock stands still in each call. The progress of each group, the tasks of `then`, and the used and free
slots and tokens equal those of a model.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_calls import Caller
from tests.system.workloads.exact_groups_deeds import AGAIN_S, NAME, SLOTS, STARTS, Deeds
from tests.system.workloads.exact_groups_looks import require_all
from tests.system.workloads.exact_times import earliest

VERBS = (
    "gather",
    *("put",) * 4,
    "close",
    "cancel",
    *("take",) * 4,
    *("end",) * 6,
    "manage",
    "kick",
    "answer",
    "change",
)
RARE = 0.04


# The model fills each answer and lets all groups end at once: no bound cuts that short.
@workload(
    clients=1,
    steps=60,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=("BATCH_HOLDERS_BYTES_MAX", "GROUPS_ENDED_MAX", "SERVE_BYTES_MAX", "SERVE_MAX"),
)
def exact_groups(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact groups")
    simulation.limit(
        DUE_BATCH=random.choice((1, 3, 8)),
        VERB_BATCH=random.choice((2, 8)),
        GROUPS_SWEPT_MAX=random.choice((1, 8)),
        GROUP_LOOKED_AT_EVERY_S=AGAIN_S,
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
    )

    def use(client: Client) -> None:
        process = Process(Caller(client))
        for _ in range(size.steps):
            client.call(NAME, "step", None, process.step)

    simulation.client(use, "user-0")
    return [no_watch_left_behind]


class Process(Deeds):
    def step(self) -> None:
        self._move()
        verb = "truncate" if self.random.random() < RARE else self.random.choice(VERBS)
        getattr(self, verb)()
        self._settle()
        if self.random.random() < 0.5:
            require_all(self._caller, (self.q, self.apart), self.then, self.books, (SLOTS, STARTS))

    def _move(self) -> None:
        books, random = self.books, self.random
        ends = [end for one in books.members.values() for end in (one.due, one.until, one.expires)]
        ends += [books.tokens.next(books.now), *(group.over for group in books.groups.values())]
        ends += [then.expires for then in books.thens.values()]
        following = earliest(*(end for end in ends if end is not None and end > books.now))
        if random.random() < 0.4 and following is not None:
            books.now = following - random.choice((0, 0, 1))
            self._caller.clock.move_to(books.now)
            self._settle()

    def _settle(self) -> None:
        self.books.sweep()
        for _ in range(4):  # an end of a member lets its group end, and that lets another sweep forget it
            self._caller.tick()
