"""A queue with a chronicle that several processes sweep, by clocks that differ."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.points import HOUR_US, MINUTE_US, Places, ask_points
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import values_of
from tests.system.workloads.stage import Tasks, play

NAME, POINTS = "chronicled", "points"


@workload(clients=3, steps=6)
def chronicled(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Processes put, take, ack and sweep over some minutes; each minute has one point."""
    partitions = simulation.random.choice((1, 1, 3))
    queue = Tasks(NAME, if_exists="any", ttr=20, chronicle=True, partitions=partitions)

    def live(client: Client, q: TaskQueue) -> None:
        for number, value in enumerate(values_of(client, 4 * size.steps)):
            if number % (2 * size.steps) == 0:
                client.runtime.sleep(_to_the_end_of_a_minute_s(client))
            q.put(client.db, value)
            for task in q.take_many(client.db, 2):
                with suppress(NotTaken):
                    q.ack(client.db, task)
            client.pause(client.random.choice((0.1, 0.3, 1.0)))

    def look(client: Client, q: TaskQueue) -> None:
        client.call(NAME, POINTS, None, partial(run, client.db, partial(_points, client, q)))

    play(simulation, size, {"process-": queue.using(live)}, {"survivor": queue.using(look)})
    return [points_agree]


def _to_the_end_of_a_minute_s(client: Client) -> float:
    """Two points come at that end, as the clocks differ."""
    return max(0.0, 58.0 - client.runtime.now() % 60)


def _points(client: Client, q: TaskQueue, tr: Transaction) -> tuple[Places, Places]:
    later_us = client.runtime.now_us() + MINUTE_US  # another process may have a faster clock
    return ask_points(tr, q._shape.shared, later_us)()


def points_agree(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the point of an hour is the last one of its minutes, and that no rate is counted twice: of
    two points, the later one has the higher counters.
    """
    for operation in trace.of(NAME, POINTS):
        if not operation.done:
            continue
        minutes, hours = ([point for point in points if point is not None] for points in operation.result)
        last = {point.at_us // HOUR_US: point for point in minutes}
        if hours != list(last.values()):
            yield f"the points of the hours are {hours}, and those of the minutes end with {last}"
        for before, after in pairwise(minutes):
            if after.put < before.put or after.done < before.done:
                yield f"a counter goes back from {before} to {after}"
