"""Every figure costs as many reads for many tasks as for few, and as many round trips."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, Overview, TaskQueue, diagnose
from tests.dashboard.support import browsing, path_of
from tests.overview.test_figures import clock, trips
from tests.tasks.trips import Trips

__all__ = ["clock", "trips"]  # fixtures

FEW, PAGE, MANY, KEYS, BATCH = 10, 100, 3_000, 5, 500
LISTINGS = {"explain", "pages"}
"""They read the first tasks: as many reads as tasks, up to a page."""


def explained(db: Database, queue: TaskQueue) -> None:
    queue.explain(db, queue.tasks(db, "r", 1)[0])


def paged(db: Database, queue: TaskQueue) -> None:
    with browsing(db) as browser:
        for path in ("/", path_of(queue.name)):
            browser.get(path)


def aged(db: Database, queue: TaskQueue) -> None:
    """The second look has the ages of the keys that the first one has found."""
    overview = Overview(queue.name)
    for _ in range(2):
        overview.figures(db)


FIGURES: dict[str, Callable[[Database, TaskQueue], Any]] = {
    "ages, status and top": aged,
    "statistics": lambda db, queue: queue.statistics(db),
    "doctor": lambda db, _: diagnose(db, watch_s=0.1),
    "explain": explained,
    "pages": paged,
}


def cost_of(db: Database, engine: Trips, queue: TaskQueue, look: Callable[..., Any]) -> tuple[int, int]:
    before = engine.reads, engine.count
    look(db, queue)
    return engine.reads - before[0], engine.count - before[1]


@pytest.mark.parametrize("kind", ["fifo", "fair", "utube"])
def test_figures_of_many_tasks_cost_no_more_reads(trips: tuple[Database, Trips], kind: str) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "q", kind, chronicle=True)
    options: list[dict[str, Any]] = [{}] if kind == "fifo" else [{"key": key} for key in range(KEYS)]
    costs = []
    for tasks in (FEW, PAGE, MANY):
        for one in options:
            for start in range(0, tasks // len(options), BATCH):
                queue.put_many(db, range(start, min(start + BATCH, tasks // len(options))), **one)
        costs.append({name: cost_of(db, engine, queue, look) for name, look in FIGURES.items()})
    few, page, many = costs
    assert many == page
    assert {name: few[name] for name in few.keys() - LISTINGS}.items() <= many.items()
    assert all(reads for reads, _ in few.values())
