"""Schedules: processes that pass, die, stall and have fast clocks; outages; pauses, changes and runs by hand.

One schedule belongs to a queue that is gone: it must stop no other.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound, ScheduleNotFound
from fdbqueue.core.page import every_row
from fdbqueue.tasks.firing import ALL, MISSED, NAME_HEADER, ONCE, TIME_HEADER, ScheduleStatus
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import draw_limits
from tests.system.workloads.stage import play

LASTS_S = 12.0
OUTAGE_S = 12.0
QUIET_S = OUTAGE_S + 10.0
"""After this time, a process without faults has made up for an outage that goes on at its start."""
PERIODS_S = (1, 2, 3)
NAME, BROKEN = "scheduled", "broken"
PASSED_S = 2.0
"""The longest time from a due time to its pass, in a process that nothing delays."""
_ROUNDING_S = 1e-3
_SLOW_S = 9.0
"""A put may be this much later than the moment at which its pass looked at the clock: four seconds until its
transaction has a read version, and five seconds behind that.
"""


@workload(clients=3, steps=4)
def schedules(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = simulation.random
    simulation.limit(SCHEDULE_RETRY_MAX_S=4.0)
    draw_limits(
        simulation,
        random,
        SCHEDULE_MISSED_AFTER_S=(3.0, 6.0),
        SCHEDULE_FIRED_MAX=(2, 10),
        SCHEDULES_DUE_READ=(1, 100),
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

    play(simulation, size, {"operator": operate, "passer-": stay}, {"survivor": survive})
    calm = [prompt] if simulation.faults.are_calm and not simulation._outages else []
    return [*PROMISES, *calm, no_watch_left_behind]


# Checkers.


class Made(NamedTuple):
    """A schedule of a run."""

    missed: str
    every_s: float

    @property
    def name(self) -> str:
        return f"{self.missed} missed"


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


class Fired(NamedTuple):
    """A task of a schedule. `due_s` is None for a run by hand; both times are those of wall clocks."""

    id: str
    due_s: float | None
    put_s: float


class Left(NamedTuple):
    """The tasks of each schedule, in order of their due times, and the schedules, at the end of a run."""

    now_s: float
    tasks: Mapping[str, Sequence[Fired]]
    found: Mapping[str, ScheduleStatus]


def left(client: Client, q: TaskQueue, made: Sequence[Made]) -> Left:
    tasks: defaultdict[str, list[Fired]] = defaultdict(list)
    for task in every_row(partial(q.tasks, client.db, "r", 100)):
        due = task.headers.get(TIME_HEADER)
        due_s = None if due is None else datetime.fromisoformat(due).timestamp()
        tasks[task.headers[NAME_HEADER]].append(Fired(task.id, due_s, task.created))
    ordered = {name: sorted(few, key=lambda one: one.due_s or 0.0) for name, few in tasks.items()}
    names = [one.name for one in made] + [BROKEN]
    return Left(
        client.runtime.now(),
        ordered,
        {name: Schedule.open(client.db, name).status(client.db) for name in names},
    )


def looks(trace: Trace) -> Iterator[Left]:
    """The looks at the end of the run: one, or none if the run did not reach it."""
    yield from (op.result for op in trace.of(NAME, "left") if op.done)


def due(fired: Sequence[Fired]) -> list[tuple[float, float]]:
    """The due times with the times of their puts, without runs by hand."""
    return [(one.due_s, one.put_s) for one in fired if one.due_s is not None]


def each_due_time_is_fired_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no due time of a schedule has two tasks, over all changes of its times."""
    for look in looks(trace):
        for name, fired in look.tasks.items():
            for earlier, later in pairwise(due(fired)):
                if earlier[0] == later[0]:
                    yield f"{name} has two tasks for {later[0]}"


def nothing_is_fired_early(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task was put before its due time, by the clock of the process that put it."""
    for look in looks(trace):
        for name, fired in look.tasks.items():
            for due_s, put_s in due(fired):
                if put_s < due_s - _ROUNDING_S:
                    yield f"{name} was fired {due_s - put_s} s before {due_s}"


def nothing_is_left_overdue(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the process at the end has fired all due times, and tells the error of the broken one."""
    for look in looks(trace):
        for name, found in look.found.items():
            if name == BROKEN:
                if found.error is None or "QueueNotFound" not in found.error:
                    yield f"the broken schedule has the error {found.error}"
            elif found.error is not None:
                yield f"{name} has the error {found.error}"
            elif found.due is None or found.due < look.now_s - PASSED_S:
                yield f"{name} is due at {found.due}, and it is {look.now_s}"


def unmoved(trace: Trace, name: str) -> bool:
    """True if nothing but firings has moved the due times of a schedule."""
    moving = [op for op in trace.of(NAME, "pause", "change") if op.argument == name]
    return not moving


def missed_times_follow_the_rule(trace: Trace, _: Database) -> Iterator[str]:
    """Check the due times that have no task, of schedules that nothing else has moved."""
    every = {op.argument.name: op.argument for op in trace.of(NAME, "create")}
    for look in looks(trace):
        for name, fired in look.tasks.items():
            if name in every and unmoved(trace, name):
                for before, (due_s, put_s) in pairwise(due(fired)):
                    yield from wrong_gap(every[name], before[0], due_s, put_s)


def wrong_gap(made: Made, before_s: float, due_s: float, put_s: float) -> Iterator[str]:
    """Tell why the due times between two fired ones were not to be left out; nothing if they were."""
    late_s = limits.SCHEDULE_MISSED_AFTER_S - _ROUNDING_S
    first_s, last_s = before_s + made.every_s, due_s - made.every_s
    was_late = put_s - first_s > late_s
    if made.missed == ONCE:
        if was_late and due_s + made.every_s + _SLOW_S < put_s:
            yield f"{made.name}: {due_s} is not the last due time before {put_s}"
        if first_s < due_s and not was_late:
            yield f"{made.name}: {first_s} has no task, and was not missed at {put_s}"
    elif first_s < due_s and (made.missed == ALL or put_s - last_s <= late_s):
        yield f"{made.name}: {last_s} has no task, and was not missed at {put_s}"
    elif made.missed not in (ALL, ONCE) and put_s - due_s > late_s + _SLOW_S:
        yield f"{made.name}: {due_s} was missed at {put_s}, and has a task"


def runs_by_hand_put_one_task(trace: Trace, _: Database) -> Iterator[str]:
    for look in looks(trace):
        for name, fired in look.tasks.items():
            there = {one.id for one in fired if one.due_s is None}
            runs = [op for op in trace.of(NAME, "run") if op.argument == name]
            done = {op.result for op in runs if op.done}
            if done - there:
                yield f"the task of a run of {name} is gone"
            if len(there) > len(done) + sum(op.unknown for op in runs):
                yield f"{len(there)} tasks of {len(runs)} runs of {name}"


def a_pause_puts_nothing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no due time between a pause and the next resume has a task that was put then."""
    for look_op in (op for op in trace.of(NAME, "left") if op.done):
        look, offset_s = look_op.result, look_op.result.now_s - (look_op.ended_s or 0.0)
        for name, fired in look.tasks.items():
            for begin_s, end_s in pauses(trace, name):
                for due_s, put_s in due(fired):
                    # A fast clock tells a later time than that of the put.
                    if begin_s + offset_s < put_s - limits.CLOCK_SKEW_S and put_s < end_s + offset_s:
                        yield f"{name}: {due_s} was fired at {put_s}, in a pause"


def pauses(trace: Trace, name: str) -> Iterator[tuple[float, float]]:
    """The times in which a schedule surely was paused, in seconds of the run."""
    moving = [op for op in trace.of(NAME, "pause", "resume") if op.argument == name]
    for op in moving:
        if op.name == "pause" and op.done and op.ended_s is not None:
            begun = [other.began_s for other in moving if is_later_resume(op, other)]
            yield op.ended_s, min(begun, default=op.ended_s)


def is_later_resume(pause: Operation, other: Operation) -> bool:
    """True for a resume that had not ended when the pause began."""
    return other.name == "resume" and (other.ended is None or other.ended > pause.began)


def prompt(trace: Trace, _: Database) -> Iterator[str]:
    """Check, in runs without delays, that the due times were fired soon while a process lived."""
    began_s = min((op.ended_s for op in trace.of(NAME, "create") if op.ended_s is not None), default=0.0)
    for look_op in (op for op in trace.of(NAME, "left") if op.done):
        offset_s = look_op.result.now_s - (look_op.ended_s or 0.0)
        end_s = min(time_s for time_s, _, what, _ in trace.events if what == "finished")
        for name, fired in look_op.result.tasks.items():
            for due_s, put_s in due(fired):
                lived = began_s <= due_s - offset_s <= end_s - PASSED_S
                if lived and put_s - due_s > PASSED_S:
                    yield f"{name}: {due_s} was fired {put_s - due_s} s late"


PROMISES: tuple[Checker, ...] = (
    each_due_time_is_fired_once,
    nothing_is_fired_early,
    nothing_is_left_overdue,
    missed_times_follow_the_rule,
    runs_by_hand_put_one_task,
    a_pause_puts_nothing,
)
