"""The commands `trash`: list what operators have purged, put it back, or remove it for good."""

from dataclasses import asdict
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.auditing import actor_of
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.frame import Here, command, group, queue_argument, yes_option
from fdbqueue.operate.cli.show import columns, moment_in
from fdbqueue.operate.exports import trash as lying
from fdbqueue.operate.exports.trash import Restored
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.selected import ChangedTasks

_purge_argument = click.argument("id_", required=False, metavar="[ID]")


def purged(queue: TaskQueue, database: Database, where: Any, **walk: Any) -> ChangedTasks:
    """Purge as the actor of the command line. `walk`: as in `lying.purge`."""
    return lying.purge(queue, database, actor_of(database.runtime), where, **walk)


@group("trash")
def trash() -> None:
    """List what was purged from a queue in the last day, put it back, or remove it for good."""


@command(trash, queue_argument, name="list")
def list_of_purges(here: Here, queue: str) -> None:
    """List the purges of QUEUE that can be restored, the latest first.

    `truncate` and `delete --where` make one each. Columns: id, time, the end of its day, actor, tasks, bytes.
    """
    with here.tasks(queue) as (database, found):
        here.show(map(asdict, lying.listed(found, database)), COLUMNS)


@command(trash, queue_argument, _purge_argument)
def restore(here: Here, queue: str, id_: str | None) -> None:
    """Put the tasks of a purge of QUEUE back, by default those of the latest one.

    They keep their ids, data and failures, without their groups; QUEUE may exceed its capacity. Delays and
    ttls have gone on. A task stays in the trash while another one has its unique key.
    """

    def told(so_far: Restored) -> None:
        here.counts(so_far.tasks)
        if so_far.after is not None:
            here.signals.check()

    with here.tasks(queue) as (database, found), here.signals.deferred():
        done = lying.restore(found, database, id_, told)
    left = f"; {counted(done.left, 'task')} left: unique keys in use, or unreadable" if done.left else ""
    here.tell(f"{done.tasks} restored{left}", {"queue": queue, "restored": done.tasks, "left": done.left})


@command(trash, queue_argument, _purge_argument, yes_option)
def empty(here: Here, queue: str, id_: str | None, yes: bool) -> None:
    """Remove a purge of QUEUE for good, or its whole trash."""
    with here.tasks(queue) as (database, found):
        if not yes:
            there = sum(one.tasks for one in lying.listed(found, database, id_))
            raise Refused(f"empty would remove {counted(there, 'task')} for good: confirm with --yes")
        removed = lying.empty(found, database, id_)
        here.counts(removed)
    here.tell(f"{removed} removed for good", {"queue": queue, "removed": removed})


COLUMNS = columns(
    "id", at=moment_in("at"), until=moment_in("until"), **columns("actor", "tasks", bytes="size_bytes")
)
