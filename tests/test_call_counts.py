"""Python calls of one uncontended operation, in the code that is above the engine: they may not grow."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue, Task, TaskQueue

ROOT = str(Path(fdbqueue.__file__).parent)
ENGINE = str(Path(fdbqueue.__file__).parent / "embedded")
RUNS, WARM_UP = 30, 5
ROOM = 1.1
CALLS = {"put": 119, "take": 152, "ack": 80, "enqueue": 47, "dequeue": 78}
"""Medians as measured with Python 3.11; later versions make fewer calls."""


@pytest.fixture(scope="module")
def operations() -> Iterator[dict[str, Callable[[], Any]]]:
    with fdbqueue.open("memory:") as db:
        tasks, items = TaskQueue.create(db, "tasks"), Queue.named(db, "items")
        taken: list[Task] = []

        def take() -> None:
            task = tasks.take(db, 0)
            assert task is not None
            taken.append(task)

        yield {
            "put": lambda: tasks.put(db, 1),
            "take": take,
            "ack": lambda: tasks.ack(db, taken.pop()),
            "enqueue": lambda: items.enqueue(db, 1),
            "dequeue": lambda: items.dequeue(db),
        }


def calls_of(operation: Callable[[], Any]) -> int:
    """The calls of functions of ours in this thread, without those of the engine."""
    count = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:  # noqa: ARG001
        nonlocal count
        name = frame.f_code.co_filename
        count += event == "call" and name.startswith(ROOT) and not name.startswith(ENGINE)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(before)
    return count


def test_an_operation_makes_few_python_calls(operations: dict[str, Callable[[], Any]]) -> None:
    counts = {name: [calls_of(run) for _ in range(RUNS + WARM_UP)] for name, run in operations.items()}
    medians = {name: median(seen[WARM_UP:]) for name, seen in counts.items()}
    assert {name: calls for name, calls in medians.items() if calls > CALLS[name] * ROOM} == {}
