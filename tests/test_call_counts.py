"""Python calls of one uncontended operation, above the embedded engine and in it: they may not grow."""

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
CALLS = {"put": 48, "take": 61, "ack": 39, "enqueue": 29, "dequeue": 41}
ENGINE_CALLS = {"put": 56, "take": 85, "ack": 58, "enqueue": 55, "dequeue": 60}
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


def calls_of(operation: Callable[[], Any]) -> tuple[int, int]:
    """Return the calls of fdbqueue's functions in this thread: above the engine, and in it."""
    above = inside = 0

    def note(frame: FrameType, event: str, arg: Any) -> None:  # noqa: ARG001
        nonlocal above, inside
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            is_engine = name.startswith(ENGINE)
            above, inside = above + (not is_engine), inside + is_engine

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(before)
    return above, inside


@pytest.mark.parametrize(("place", "known"), [(0, CALLS), (1, ENGINE_CALLS)], ids=["above", "engine"])
def test_an_operation_makes_few_python_calls(
    operations: dict[str, Callable[[], Any]], place: int, known: dict[str, int]
) -> None:
    counts = {name: [calls_of(run)[place] for _ in range(RUNS + WARM_UP)] for name, run in operations.items()}
    medians = {name: median(seen[WARM_UP:]) for name, seen in counts.items()}
    assert {name: calls for name, calls in medians.items() if calls > known[name] * ROOM} == {}
