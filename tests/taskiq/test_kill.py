"""Workers of Taskiq, killed with SIGKILL in the middle of their messages, and schedulers that start again."""

import asyncio
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from taskiq import BrokerMessage, ScheduledTask, TaskiqMessage

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueScheduleSource
from tests.conftest import SLOW
from tests.support import wait_until
from tests.taskiq.processes import place, taskiq

pytestmark = pytest.mark.in_turn(4)

MESSAGES, KILLS = (1_000, 5) if SLOW else (100, 2)
ASYNC_TASKS = 4
PROGRAM = """
import os

from taskiq import TaskiqScheduler

from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueScheduleSource

name = os.environ["NAME"]
broker = FdbQueueBroker(os.environ["PLACE"], namespace=name, session_ttr_s=1)
scheduler = TaskiqScheduler(broker, [FdbQueueScheduleSource(broker)])


@broker.task("note")
async def note(number: int) -> None:
    key = DEFAULT_ROOT.pack(("ran", name, number, os.getpid()))
    await (await broker.database()).set(key, b"1")
"""


@pytest.fixture(params=["embedded", "fdb"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return place(request.param, tmp_path)


def ran(db: fdbqueue.Database, name: str) -> Counter[int]:
    """The number of processes in which each message ran."""
    under = DEFAULT_ROOT.range(("ran", name))
    return Counter(int(DEFAULT_ROOT.unpack(row.key)[2]) for row in db.get_range(under.start, under.stop))


async def send(url: str, name: str) -> None:
    broker = FdbQueueBroker(url, namespace=name)
    for number in range(MESSAGES):
        message = TaskiqMessage(task_id=str(number), task_name="note", labels={}, args=[number], kwargs={})
        data = message.model_dump_json().encode()
        await broker.kick(BrokerMessage(task_id=str(number), task_name="note", message=data, labels={}))
    await broker.shutdown()


@pytest.mark.timeout(600)
def test_no_message_is_lost_by_kills(tmp_path: Path, shared: str) -> None:
    """A message that ran twice was running at a kill, or its ack had not committed."""
    name = f"kills-{os.urandom(4).hex()}"
    options = ("--workers", "1", "--max-async-tasks", str(ASYNC_TASKS))
    command = ("worker", "program:broker", *options)
    asyncio.run(send(shared, name))
    with fdbqueue.open(shared) as db:
        for kill in range(1, KILLS + 1):
            with taskiq(*command, folder=tmp_path, PLACE=shared, NAME=name):
                wait_until(lambda done=MESSAGES * kill // (KILLS + 1): len(ran(db, name)) >= done, 300)
        queue = fdbqueue.TaskQueue.open(db, f"{name}.default")
        with taskiq(*command, folder=tmp_path, PLACE=shared, NAME=name):
            wait_until(lambda: queue.statistics(db)["calls"]["ack"] >= MESSAGES, 300)
        counts, tasks = ran(db, name), queue.statistics(db)["tasks"]
    assert sorted(counts) == list(range(MESSAGES))
    assert tasks["ready"] + tasks["taken"] + tasks["buried"] == 0
    assert sum(count - 1 for count in counts.values()) <= KILLS * ASYNC_TASKS


async def add_schedule(url: str, name: str) -> None:
    broker = FdbQueueBroker(url, namespace=name)
    schedule = ScheduledTask(task_name="note", labels={}, args=[1], kwargs={}, interval=1, schedule_id=name)
    await FdbQueueScheduleSource(broker).add_schedule(schedule)
    await broker.shutdown()


def test_two_schedulers_fire_an_interval_once(tmp_path: Path, shared: str) -> None:
    name = f"fires-{os.urandom(4).hex()}"
    command = ("scheduler", "program:scheduler", "--update-interval", "1")
    asyncio.run(add_schedule(shared, name))
    with fdbqueue.open(shared) as db:
        queue = fdbqueue.TaskQueue.create(db, f"{name}.default", "fifottl", codec="bytes", if_not_exists=True)
        for fired in (2, 3):
            with (
                taskiq(*command, folder=tmp_path, PLACE=shared, NAME=name),
                taskiq(*command, folder=tmp_path, PLACE=shared, NAME=name),
            ):
                wait_until(lambda fired=fired: queue.statistics(db)["tasks"]["ready"] >= fired, 120)
        times = sorted(task.created for task in queue.tasks(db, fdbqueue.TaskState.READY, 100))
    assert all(later - earlier >= 0.5 for earlier, later in pairwise(times))  # schedulers count whole seconds
