"""Commands of a script that takes a task by one command, and ends its lease by another one.

The lease is detached (tasks/detached.py): its holder, as people are told, is the script that has called
`take`. A task is buried by its id, too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import FdbQueueError, NotTaken
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.visible import text_of
from fdbqueue.operate.cli.changing import Pairs, change_where, requires_where, where_options
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.frame import (
    RETAIN,
    WAIT,
    Here,
    Seconds,
    cli,
    command,
    failure_of,
    failure_options,
    queue_argument,
    values_of,
)
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import task_row
from fdbqueue.operate.cli.tasks import do_each
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.tasks.detached import SEPARATOR, detached, forget, target_in
from fdbqueue.tasks.detached import text_of as token_of
from fdbqueue.tasks.queue import TaskQueue

token_argument = click.argument("token", metavar="TOKEN")
_SECONDS = "the lease lasts S seconds from now [the ttr of the task, or 60]"
ttr_option = click.option("--ttr", type=RETAIN, metavar="S", help=_SECONDS)


@command(cli, queue_argument)
@ttr_option
@click.option("--wait", "wait_s", type=WAIT, default=0.0, metavar="S", help="wait up to S seconds")
def take(here: Here, queue: str, ttr: float | None, wait_s: float) -> None:
    """Take the next task of QUEUE, and print its id, the TOKEN of its lease, and its data as JSON.

    The lease outlasts this command. `ack`, `release`, `touch` and `bury` end or lengthen it by the TOKEN. If
    none does in time, the task comes back, and its attempt has failed, as after a crash. Tabs separate the
    three parts. With --json, an object has `token` and all attributes of the task. Status 1: no task is
    ready.
    """
    out = here.out()
    with here.tasks(queue) as (database, found):
        out.wait()  # for a slow reader, while no task is held
        task = found.take(database, wait_s)
        if task is None:
            paused = ": it is paused" if found.paused(database) else ""
            raise Refused(f"no task of {queue!r} is ready{paused}")
        with here.signals.deferred():
            try:
                held = detached(found, database, task, ttr, os.getppid())
                token = token_of(held.id, held.token)
                row = {"token": token, **task_row(held, found.options, whole=True)}
                words = f"{held.id}\t{token}\t".encode() + line_of(held.data)
                out.print(line_of(row) if here.as_json else words)
            except BaseException:  # the token is lost
                with suppress(NotTaken):
                    found.give_back(database, task)
                raise


@contextmanager
def _ending(here: Here, queue: str, token: str) -> Iterator[tuple[Database, TaskQueue, Task]]:
    """Find the task of a lease that the block ends."""
    with here.tasks(queue) as (database, found), here.signals.deferred():
        task = found.leased(database, token)
        yield database, found, task
        _forget(database, here, task)


def _forget(database: Database, place: Place, task: Task) -> None:
    """Clear the session of a lease that has ended. If that fails, a sweep does it at its time."""
    errors: tuple[type[Exception], ...] = (FdbQueueError, *engine_errors())
    try:
        run(database, lambda tr: forget(tr, RootKeys(place.root), task.token or b""))
    except errors as error:
        say(f"the session of the lease of {task.id} stays until its time is over: {text_of(error)}")


@command(cli, queue_argument, token_argument)
@click.option("--result", metavar="DATA", help="of a task put with --result-ttl: JSON, or else text")
@click.option("--text", is_flag=True, help="take DATA as text, never as JSON")
def ack(here: Here, queue: str, token: str, result: str | None, text: bool) -> None:
    """Remove a task that is done. `fdbqueue take` has printed its TOKEN.

    Status 1: the lease is over, or the task has another holder by now; nothing is changed.
    """
    value = None if result is None else values_of((result,), text)[0]
    with _ending(here, queue, token) as (database, found, task):
        row = task_row(found.ack(database, task, result=value), found.options)
    here.tell(f"{row['id']} acked", row)


@command(cli, queue_argument, token_argument)
@click.option("--delay", type=Seconds(), metavar="S", help="ready after S seconds [0; the backoff in force]")
@failure_options
def release(
    here: Here, queue: str, token: str, delay: float | None, failure: str | None, reason: str | None
) -> None:
    """Give a task back to its old place. `fdbqueue take` has printed its TOKEN.

    With --failure, the attempt has failed: the last one buries the task, if it or QUEUE has --attempts.

    Status 1: the lease is over, or the task has another holder by now; nothing is changed.
    """
    failed = failure_of(failure, reason)
    with _ending(here, queue, token) as (database, found, task):
        if failed is None:
            released = found.defer(database, task, delay or 0.0)
        else:
            released = found.release(database, task, delay=delay, failure=failed)
        row = task_row(released, found.options)
    how = "buried" if released.state is TaskState.BURIED else "released"
    here.tell(f"{row['id']} {how}", row)


@command(cli, queue_argument, token_argument)
@ttr_option
def touch(here: Here, queue: str, token: str, ttr: float | None) -> None:
    """Lengthen the lease of a task. `fdbqueue take` has printed its TOKEN, which stays.

    Status 1: the lease is over, or the task has another holder by now; nothing is changed.
    """
    with here.tasks(queue) as (database, found), here.signals.deferred():
        held = detached(found, database, target_in(token), ttr, os.getppid())
        row = task_row(held, found.options)
    here.tell(f"{row['id']} touched", row)


@command(cli, queue_argument)
@click.argument("ids", nargs=-1, metavar="[ID|TOKEN...]")
@failure_options
@where_options
def bury(
    here: Here,
    queue: str,
    ids: tuple[str, ...],
    failure: str | None,
    reason: str | None,
    where: Pairs,
    **walk: Any,
) -> None:
    """Bury tasks: they are not taken until `kick`. The lease of a taken task ends.

    By a TOKEN, which `fdbqueue take` has printed, only under that lease. With --where, waiting tasks that
    match are buried (see `change`). Status 1: a task is not there, or its lease is over.
    """
    requires_where(bool(ids) or bool(where and (failure or reason)), where, walk)
    if where:
        change_where(here, queue, where, walk, verb="bury")
        return
    failed = failure_of(failure, reason)

    def bury_one(found: TaskQueue, database: Database, id_: str) -> Task:
        if SEPARATOR not in id_:
            return found.bury(database, id_, failure=failed)
        task = found.leased(database, id_)
        buried = found.bury(database, task, failure=failed)
        _forget(database, here, task)
        return buried

    do_each(here, queue, ids, bury_one, "buried")
