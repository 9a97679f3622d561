"""Handlers for the tests of `fdbqueue work`: what the worker processes import."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import Bury


def nothing(task: Any) -> None:
    """Done at once."""


def bury_or_die(task: Any) -> None:
    """Ends the process of a task's first attempt if its data says so, before anything is reported."""
    if task.data == "bury":
        raise Bury("told to")
    if task.attempts == 1:
        os._exit(3)


def chatty(task: Any) -> None:
    """Prints and logs; takes long enough for the progress bar to be there."""
    time.sleep(0.2)
    print(f"printed {task.data}")
    logging.getLogger("chatty").info("logged %s", task.data)


def odd(task: Any) -> None:
    if task.data % 2:
        raise ValueError(f"{task.data} is odd")


def counted(tr: Any, task: Any) -> None:
    """Transactional: a counter for each task, in a subspace that the environment names."""
    space = Subspace((os.environ["JOBS_SPACE"],))
    tr.add(space.pack((task.data,)), (1).to_bytes(8, "little"))


def slow(task: Any) -> None:
    """Says that it has begun, and takes as many seconds as its data says."""
    Path(os.environ["JOBS_FOLDER"], task.id).touch()
    time.sleep(task.data)
