"""Schedules: processes that pass, die, stall and have fast clocks; outages; pauses, changes and runs by hand.

One schedule belongs to a queue that is gone: it must stop no other.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.errors import QueueNotFound, ScheduleNotFound
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules.schedule import Schedule
from fdbqueue.tasks.schedules.times import MISSED
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.schedule_checks import BROKEN, NAME, PROMISES, Made, left, prompt

LASTS_S = 12.0
OUTAGE_S = 12.0
QUIET_S = OUTAGE_S + 10.0
"""After this time, a process without faults has made up for an outage that goes on at its start."""
PERIODS_S = (1, 2, 3)


@workload(clients=3, steps=4)
def schedules(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = simulation.random
    simulation.limit(
        SCHEDULE_MISSED_AFTER_S=random.choice((3.0, 6.0)),
        SCHEDULE_FIRED_MAX=random.choice((2, 10)),
        SCHEDULES_DUE_READ=random.choice((1, 100)),
        SCHEDULE_RETRY_MAX_S=4.0,
    )
    made = [Made(missed, random.choice(PERIODS_S)) for missed in MISSED]
    over_s = 0.0
    if random.random() < 0.4:
        start_s, seconds = random.uniform(1, LASTS_S), random.uniform(0.5, OUTAGE_S)
        simulation.outage(start_s, seconds)
        over_s = start_s + seconds

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, "fifottl", if_not_exists=True)

    def prepare(client: Client) -> None:
        opened(client)
        with suppress(QueueNotFound):  # another client has dropped it
            broken = TaskQueue.create(client.db, BROKEN, if_not_exists=True)
            Schedule.create(client.db, BROKEN, every=1, queue=BROKEN, if_exists="keep")
            broken.drop(client.db)
        for one in made:
            client.call(NAME, "create", one, partial(created, client, one))

    def stay(client: Client) -> None:
        prepare(client)
        client.runtime.sleep(client.random.uniform(2.0, LASTS_S))

    def operate(client: Client) -> None:
        prepare(client)
        for _ in range(size.steps):
            client.runtime.sleep(client.random.uniform(0, LASTS_S / size.steps))
            with suppress(ScheduleNotFound):
                operated(client, client.random.choice(made), client.random.choice(DEEDS))

    def survive(client: Client) -> None:
        prepare(client)
        for one in made:
            call(client, one, "resume", lambda schedule: schedule.resume(client.db))
        # All others may have died before the outage.
        outage_s = max(0.0, over_s - client.runtime.monotonic())
        client.runtime.sleep(outage_s + QUIET_S)
        client.call(NAME, "left", None, partial(left, client, opened(client), made))

    simulation.client(operate, "operator")
    for number in range(size.clients):
        simulation.client(stay, f"passer-{number}")
    simulation.afterwards(survive, "survivor")
    calm = [prompt] if simulation.faults.are_calm and not simulation._outages else []
    return [*PROMISES, *calm, no_watch_left_behind]


def created(client: Client, one: Made) -> str:
    every = {"every": one.every_s, "missed": one.missed, "if_exists": "keep"}
    return Schedule.create(client.db, one.name, queue=NAME, **every).name  # type: ignore[arg-type]


DEEDS = ("run", "pause", "resume", "change", "data")


def operated(client: Client, one: Made, deed: str) -> None:
    """Do a deed of an operator to a schedule."""
    deeds: dict[str, Callable[[Schedule], object]] = {
        "run": lambda schedule: schedule.run(client.db).id,
        "pause": lambda schedule: schedule.pause(client.db),
        "resume": lambda schedule: schedule.resume(client.db),
        "change": lambda schedule: schedule.change(client.db, every=client.random.choice(PERIODS_S)),
        "data": lambda schedule: schedule.change(client.db, data=client.random.random()),
    }
    call(client, one, deed, deeds[deed])


def call(client: Client, one: Made, deed: str, body: Callable[[Schedule], object]) -> None:
    schedule = Schedule.open(client.db, one.name)
    client.call(NAME, deed, one.name, lambda: body(schedule))
