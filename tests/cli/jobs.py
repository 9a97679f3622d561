"""Handlers for the tests of `fdbqueue work`, which worker processes import."""

import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import Bury, Tasks
from fdbqueue.core.pace import query_of

GO = "go"
"""The file that ends the tasks of `held`."""


def nothing(task: Any) -> None:
    """End at once."""


def bury_or_die(task: Any) -> None:
    """Fail, or end the process at the first attempt if the data says so, before its first report."""
    if task.data == "bury":
        raise Bury("told to")
    if task.attempts == 1:
        os._exit(3)


def tells_options(task: Any) -> None:
    """Print the options of the worker's transactions."""
    print(query_of(task.database.wishes))


def yields(_: Any) -> Iterator[None]:
    yield


async def yields_later(_: Any) -> AsyncIterator[None]:
    yield


def chatty(task: Any) -> None:
    """Print and log, slowly enough for the progress bar to appear."""
    time.sleep(0.2)
    print(f"printed {task.data}")
    logging.getLogger("chatty").info("logged %s", task.data)


def odd(task: Any) -> None:
    if task.data % 2:
        raise ValueError(f"{task.data} is odd")


def counted(tr: Any, task: Any) -> None:
    """Count each task in its transaction, in a subspace that the environment names."""
    space = Subspace(("fdbqueue-test", os.environ["JOBS_SPACE"]))
    tr.add(space.pack((task.data,)), (1).to_bytes(8, "little"))


def held(task: Any) -> None:
    """Report the start, then run until the test lets all tasks go."""
    folder = Path(os.environ["JOBS_FOLDER"])
    (folder / task.id).touch()
    while not (folder / GO).exists():
        time.sleep(0.01)


def slow(task: Any) -> None:
    """Report the start, then run for the number of seconds in the data."""
    Path(os.environ["JOBS_FOLDER"], task.id).touch()
    time.sleep(task.data)


def begin() -> None:
    os.write(1, b"begins\n")  # processes share the pipe, and a `print` without a buffer is two writes


def end() -> None:
    os.write(1, b"ends\n")


calls = Tasks("q")


@calls.task(name="keep", pri=3)
def kept(name: str, text: str = "kept") -> None:
    """Write a file into the folder of the test."""
    Path(os.environ["JOBS_FOLDER"], name).write_text(text)
