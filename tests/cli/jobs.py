"""Handlers for the tests of `fdbqueue work`: what the worker processes import."""

import os
import time
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace


def nothing(task: Any) -> None:
    """Done at once."""


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
