"""Schedules in one process with a clock that stands still in each call: each due time, task and status equals
that of a plain model over datetimes.

Passes are steps: on time, late, and after an outage. Queues are full, dropped, and made again. Some changes
come from a clock that is a little behind.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_calls import Caller
from tests.system.workloads.exact_schedules_deeds import Deeds
from tests.system.workloads.exact_schedules_looks import Looks
from tests.system.workloads.exact_schedules_model import Model
from tests.system.workloads.exact_schedules_passes import Passes
from tests.system.workloads.exact_schedules_times import SECOND
from tests.system.workloads.exact_times import earliest, known

NAME = "exact_schedules"
VERBS = (*("create",) * 4, *("change",) * 4, "pause", *("resume",) * 2, *("run",) * 2, "delete")
BEGINNING = ("create", "change", "resume", "resume")
PASSES = (*("fire",) * 6, "drop_or_make", *("empty",) * 2)
BEGINS = [
    datetime(2026, month, day, hour, tzinfo=UTC)
    for month, day, hour in ((3, 28, 20), (10, 24, 20), (10, 24, 20), (3, 7, 20), (10, 31, 20), (12, 30, 20))
]
"""Before changes of daylight saving in Rome and in New York, and before the end of a year."""
FAR = {True: (3_600, 20_000, 86_400, 300_000), False: (5, 90)}
"""Seconds, for slow and for fast schedules."""
BEHIND_S = (0.5, 4.0)


@workload(clients=1, steps=50, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_schedules(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact schedules")
    simulation.limit(
        SCHEDULE_FIRED_MAX=random.choice((2, 10)),
        SCHEDULES_DUE_READ=random.choice((1, 2, 100)),
        SCHEDULES_PASSED_EVERY_S=1e6,
        SCHEDULES_SOUGHT_EVERY_S=1e6,
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
    )
    is_slow, begin = random.random() < 0.5, random.choice(BEGINS)
    room = random.choice((3, 12))

    def use(client: Client) -> None:
        caller, model = Caller(client), Model()
        caller.tick()
        caller.clock.move_to(round(begin.timestamp()) * SECOND + random.randrange(SECOND))
        model.now, model.room = caller.clock.now, room
        process = Process(caller, model, is_slow)
        for _ in range(size.steps):
            process.step()

    simulation.client(use, "user-0")
    return [no_watch_left_behind]


class Process:
    def __init__(self, caller: Caller, model: Model, is_slow: bool) -> None:
        self._caller, self._model, self._random, self._is_slow = caller, model, caller.random, is_slow
        self._deeds, self._passes = Deeds(caller, model, is_slow), Passes(caller, model)
        self._looks = Looks(caller, model)

    def step(self) -> None:
        random = self._random
        self._move()
        if random.random() < 0.5:
            self._call(self._passes, random.choice(PASSES))
        elif random.random() < 0.3:
            self._by_a_slower_clock(random.choice(BEGINNING))
        else:
            self._call(self._deeds, random.choice(VERBS))
        self._looks.look()

    def _call(self, user: Deeds | Passes, verb: str) -> None:
        self._caller.client.call(NAME, verb, self._model.now, getattr(user, verb))

    def _by_a_slower_clock(self, verb: str) -> None:
        """Let another process do it, the clock of which is a little behind."""
        model, runtime = self._model, self._caller.client.runtime
        now = model.now
        model.now -= round(self._random.uniform(*BEHIND_S) * SECOND)
        runtime.hold(model.now)
        self._call(self._deeds, verb)
        model.now = now
        runtime.hold(now)

    def _move(self) -> None:
        """Move the clock: to the next try of a schedule, to the moment at which its due time is missed, to
        just before or after these, or far.
        """
        model, random = self._model, self._random
        moments = [at for plan in model.plans.values() for at in (plan.tries_at, plan.is_missed_at)]
        following = earliest(*(at for at in known(moments) if at > model.now))
        to = model.now
        reach = 8 * max(FAR[self._is_slow]) * SECOND // 3  # further away, too many due times would pass
        if random.random() < 0.5 and following is not None and following < model.now + reach:
            to = following + random.choice((-1, 0, 0, 0, 1))
        elif random.random() < 0.3:
            to += round(random.random() * random.choice(FAR[self._is_slow]) * SECOND)
        model.now = max(model.now, to)
        self._caller.clock.move_to(model.now)
