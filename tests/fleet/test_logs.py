"""Logs of worker processes, and the slots for their running tasks."""

import os
import subprocess
import sys

import pytest

from fdbqueue import HeldTask, Hooks
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.fleet.options import Event
from fdbqueue.fleet.status import AtWork, named

LOGGING = """
import logging
from fdbqueue.fleet.logs import logging_at
with logging_at("info"):
    logging.getLogger("mine").info("one")
    logging.basicConfig(format="mine: %(message)s", level=logging.WARNING)
    logging.getLogger("mine").warning("two")
    logging.getLogger("mine").info("three")
"""


PRINTING = """
import sys
from fdbqueue.fleet.logs import write_above_the_bar
write_above_the_bar()
print("a")
print("b", file=sys.stderr)
"""


def test_a_log_that_the_program_configures_is_used_alone() -> None:
    """No line is written twice, and none in our format."""
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first.endswith("] one")
    assert second == "mine: two"


@pytest.fixture
def at_work():
    made = AtWork.create(2)
    yield made
    made.close()


def event(name, id_):
    task = HeldTask(**dict.fromkeys(HeldTask.__dataclass_fields__) | {"id": id_, "queue": "jobs"})
    return Event(name, task)


def test_a_task_has_a_slot_while_its_handler_runs(at_work):
    told = []
    hooks = at_work.told_to(Hooks(started=told.append))
    hooks.started(event("started", "A"))
    hooks.started(event("started", "B"))
    assert sorted(AtWork(at_work.descriptor, 2).tasks()) == ["task A of jobs", "task B of jobs"]
    hooks.lease_lost(event("lease_lost", "A"))
    assert at_work.tasks() == ["task B of jobs"]
    hooks.started(event("started", "C"))
    assert sorted(at_work.tasks()) == ["task B of jobs", "task C of jobs"]
    assert [told_of.task.id for told_of in told] == ["A", "B", "C"]


def test_a_task_without_a_free_slot_is_left_out(at_work):
    hooks = at_work.told_to(Hooks())
    for id_ in "ABC":
        hooks.started(event("started", id_))
    hooks.succeeded(event("succeeded", "C"))
    assert len(at_work.tasks()) == 2


def test_only_the_first_tasks_are_named():
    assert named([]) == ""
    assert named(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_a_task_without_a_worker_has_no_database():
    with pytest.raises(InvalidArgument, match="passed to a handler"):
        _ = event("started", "A").task.database


def test_a_line_on_a_terminal_erases_the_progress_bar():
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", PRINTING], stdout=theirs, stderr=theirs, check=True)
    assert os.read(ours, 100) == b"\r\x1b[Ka\r\n\r\x1b[Kb\r\n"
    os.close(ours)
    os.close(theirs)
