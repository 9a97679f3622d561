"""`fdbqueue dead`, the buried tasks of a queue by class of failure, and `fdbqueue redrive`, their way back.

A redrive has a bounded rate, and any process goes on where another stopped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotBuried, TaskNotFound
from fdbqueue.core.redaction import HIDDEN, whole
from fdbqueue.core.signals import Interrupted
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.frame import Here, again, command, first_option, group, queue_argument, values_of
from fdbqueue.operate.cli.redacting import in_environment, require_open, seen_failures
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import (
    PLAIN_EVERY_S,
    Row,
    columns,
    json_in,
    most_of,
    paged,
    span,
    task_row,
    time_in,
)
from fdbqueue.operate.cli.tasks import id_argument, refusing_missing
from fdbqueue.tasks.dead_letters import RATE_PER_S, DeadLetters
from fdbqueue.tasks.redrive import DeadLetter, FailureClass, Redrive, RedriveState


def _searched(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        require_open("--match")
    return text


error_option = click.option("--error", metavar="CLASS", help='of this class; "" for no failure')
match_option = click.option(
    "--match", "text", metavar="TEXT", callback=_searched, help="with TEXT in their last failure"
)
NO_ERROR, OTHERS = "(no failure)", "(other classes)"


@contextmanager
def letters_of(place: Place, queue: str) -> Iterator[tuple[Database, DeadLetters]]:
    """Open the buried tasks of a task queue. Raises CommandError if there is no such queue."""
    with place.tasks(queue) as (database, found):
        yield database, DeadLetters.open(database, found.name, root=place.root)


@group("dead")
def dead() -> None:
    """Look at buried tasks by class of failure, mend them, and kick them.

    A class of failure is the error of the last failure, such as ValueError.
    """


@command(dead, queue_argument)
@click.option("-n", "count", type=click.IntRange(min=1), default=20, metavar="N", help="the largest N [20]")
def classes(here: Here, queue: str, count: int) -> None:
    """List the classes of failure of QUEUE, those with the most buried tasks first.

    Columns: tasks, class, the id of the first task, its age since that failure, its message. Further classes
    are counted in one line, as "(other classes)".
    """
    with letters_of(here, queue) as (database, letters):
        now = database.runtime.now()
        found = letters.classes(database, count)
        rows = ({**asdict(one), **_failure(one, None, now)} for one in found)
        here.show(rows, CLASS_COLUMNS)


@command(dead, queue_argument, error_option, match_option, first_option, name="list")
def list_(here: Here, queue: str, error: str | None, text: str | None, count: int) -> None:
    """List the first buried tasks of QUEUE, in order.

    Columns: id, time since the failure, attempts, the most failures and their source, key, data, class,
    message. With --json, each task has all its attributes, and its last failure with its traceback.
    """
    with letters_of(here, queue) as (database, letters):
        read, now = partial(letters.tasks, database, error=error, text=text), database.runtime.now()
        found = paged(read, count, f"more tasks may follow the first {count}")
        rows = (  # the options after the tasks: a session of the shell may not have met a change yet
            {**task_row(one.task, letters.options), "error": one.error, **_failure(one, one.task, now)}
            for one in found
        )
        here.show(rows, LETTER_COLUMNS)


def _failure(found: FailureClass | DeadLetter, task: Task | None, now: float) -> Row:
    """The failure of a task. That of a class is hidden by any redaction, as its task is not read."""
    if found.failure is None:
        return {"failure": None, "age_s": None}
    redaction = whole() if task is None and in_environment() else in_environment()
    known = task or Task("", TaskState.BURIED, None)
    [failure] = [found.failure] if redaction is None else redaction.failures(known, [found.failure])
    return {"failure": asdict(failure), "age_s": max(0.0, now - failure.when)}


@command(dead, queue_argument, id_argument, name="show")
def show_(here: Here, queue: str, id_: str) -> None:
    """Show the failures of a task of QUEUE, in any state, each with its traceback; the last one is last.

    With --json, one object has the task and its failures.
    """
    with here.tasks(queue) as (database, found), refusing_missing(database, found, id_):
        task, failures = found.peek(database, id_), found.failures(database, id_)
        row, failures = task_row(task, found.options), [*seen_failures(task, failures)]
    if here.as_json:
        here.print({**row, "history": [asdict(failure) for failure in failures]})
        return
    out = here.out()
    for failure in failures:
        out.print(_told(failure, database.runtime.now()))
    if not failures:
        say("it has no failures")


def _told(failure: Failure, now: float) -> bytes:
    """A failure as lines of text, with control characters as escapes."""
    head = f"attempt {failure.attempt}, {span(now - failure.when)} ago, {failure.outcome}"
    head += f", {failure.worker}" if failure.worker else ""
    said = f"{failure.error}: {failure.message}" if failure.message else failure.error
    parts = [visible(head), visible(said), visible(failure.detail.rstrip(), keep="\n\t")]
    return ("\n".join(part for part in parts if part) + "\n\n").encode()


@command(dead, queue_argument, id_argument)
@click.argument("data")
@click.option("--text", "as_text", is_flag=True, help="take DATA as text, never as JSON")
@click.option("--kick", "at_once", is_flag=True, help="kick it, in the same transaction")
def edit(here: Here, queue: str, id_: str, data: str, as_text: bool, at_once: bool) -> None:
    """Give a buried task of QUEUE other DATA: JSON, or else text, as `put` takes it.

    It keeps its id, its place and its failures, and stays buried unless --kick is given.
    """
    (value,) = values_of((data,), as_text)
    with letters_of(here, queue) as (database, letters), here.signals.deferred():
        try:
            row = task_row(letters.edit(database, id_, value, kick=at_once), letters.options)
        except TaskNotFound:
            raise Refused(f"no such task in {queue!r}: {id_}") from None
        except TypeError as reason:
            raise Refused(str(reason)) from None
    here.tell(f"{id_} edited{' and kicked' if at_once else ''}", row)


@command(dead, queue_argument)
@click.argument("ids", nargs=-1, metavar="[ID...]")
@error_option
@match_option
def kick(here: Here, queue: str, ids: tuple[str, ...], error: str | None, text: str | None) -> None:
    """Make buried tasks of QUEUE ready: those with an ID, or all that match, at once.

    `fdbqueue redrive` does so at a bounded rate. Status 1: an ID was no buried task.
    """
    if bool(ids) == (error is not None or text is not None):
        raise click.UsageError("kick takes IDs, or --error and --match")
    with letters_of(here, queue) as (database, letters):
        if ids:
            _kick_each(here, database, letters, ids)
            return
        kicked, after = 0, None
        while True:
            with here.signals.deferred():
                more, after = letters.kick_some(database, error=error, text=text, after=after)
            kicked += more
            here.counts(kicked)
            if after is None:
                break
    here.tell(f"{kicked} kicked", {"queue": queue, "kicked": kicked})


def _kick_each(here: Here, database: Database, letters: DeadLetters, ids: tuple[str, ...]) -> None:
    """Kick each task. Tasks that are missing, or not buried, are reported at the end."""
    wrong = []
    for id_ in ids:
        try:
            with here.signals.deferred():
                task = letters.kick(here.about(database, id_), id_)
        except (TaskNotFound, NotBuried) as reason:
            wrong.append(str(reason))
        else:
            here.tell(f"{id_} kicked", task_row(task, letters.options))
    if wrong:
        raise Refused(" ".join(wrong))


def _message(row: Row) -> str:
    return "" if row["failure"] is None else str(row["failure"]["message"])


def _class_name(row: Row) -> str:
    error = row["error"]
    return OTHERS if error is None else error or NO_ERROR


FAILED = time_in("age_s")
CLASS_COLUMNS = columns("tasks", **{"class": _class_name}, first="first", failed=FAILED, message=_message)
LETTER_COLUMNS = {
    **columns("id", failed=FAILED, attempts="attempts", most=most_of, key=json_in("key")),
    **columns(data=json_in("data", null=True), **{"class": _class_name}, message=_message),
}


RATE, _RATE_HELP = click.FloatRange(min=0, min_open=True, max=1e9), "at most N tasks a second [100]"
Verb = Callable[[DeadLetters, Database], Redrive]


@group("redrive")
def redrive() -> None:
    """Send buried tasks back at a bounded rate, into their own queue or another one.

    The progress is stored. A redrive that was interrupted, killed or paused goes on in any process.
    """


@command(redrive, queue_argument, error_option, match_option)
@click.option("--rate", "rate_per_s", type=RATE, default=RATE_PER_S, metavar="N", help=_RATE_HELP)
@click.option("--into", metavar="OTHER", help="put them into another queue, as new tasks")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="at most N tasks")
@click.option("--detach", is_flag=True, help="begin only: `fdbqueue redrive run` moves the tasks")
def start(here: Here, queue: str, detach: bool, **given: Any) -> None:
    """Begin a redrive of the buried tasks of QUEUE, and run it to its end.

    It ends after as many tasks as are buried now: those that fail again stay buried.
    """

    _turn(here, queue, partial(DeadLetters.begin_redrive, **given), runs=not detach)


@command(redrive, queue_argument)
def run(here: Here, queue: str) -> None:
    """Go on with the redrive of QUEUE, beside other processes or alone, until it is done or paused."""
    with letters_of(here, queue) as (database, letters):
        _run(here, database, letters)


@command(redrive, queue_argument)
def status(here: Here, queue: str) -> None:
    """Show the last redrive of QUEUE. Status 1: there was none.

    Columns: state, tasks moved, left and passed over, rate, class, text, the other queue, age.
    """
    with letters_of(here, queue) as (database, letters):
        found = letters.redrive(database)
        if found is None:
            raise Refused(f"there was no redrive of {queue!r}")
        age_s = max(0.0, database.runtime.now() - found.began)
        here.show([{**_redrive_row(found), "age_s": age_s}], REDRIVE_COLUMNS)


@command(redrive, queue_argument)
def pause(here: Here, queue: str) -> None:
    """Let the redrive of QUEUE move no task until `resume`; processes that run it end."""
    _turn(here, queue, DeadLetters.pause_redrive)


@command(redrive, queue_argument)
@click.option("--detach", is_flag=True, help="do not run it: `fdbqueue redrive run` does")
def resume(here: Here, queue: str, detach: bool) -> None:
    """Let the redrive of QUEUE go on, and run it to its end."""
    _turn(here, queue, DeadLetters.resume_redrive, runs=not detach)


@command(redrive, queue_argument)
def stop(here: Here, queue: str) -> None:
    """End the redrive of QUEUE for good. The tasks that are left stay buried."""
    _turn(here, queue, DeadLetters.stop_redrive)


def _turn(here: Here, queue: str, verb: Verb, *, runs: bool = False) -> None:
    with letters_of(here, queue) as (database, letters):
        with here.signals.deferred():
            turned = verb(letters, database)
        if runs:
            _run(here, database, letters)
        else:
            here.tell(_moves_of(turned), _redrive_row(turned))


def _run(here: Here, database: Database, letters: DeadLetters) -> None:
    """Run it to its end, and report. A signal takes effect between two steps."""
    runtime, moved = database.runtime, 0
    next_s = runtime.monotonic() + PLAIN_EVERY_S
    try:
        while True:
            with here.signals.deferred():
                step = letters.step_redrive(database)
            moved += step.moved
            here.counts(moved)
            if step.redrive.state != RedriveState.RUNNING:
                break
            if runtime.monotonic() >= next_s and not here.as_json:
                say(_moves_of(step.redrive) + (f"; {step.redrive.into!r} is full" if step.is_full else ""))
                next_s = runtime.monotonic() + PLAIN_EVERY_S
            runtime.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
    except Interrupted:
        say(f"interrupted: `{again('redrive', 'run', letters.name)}` goes on")
        raise
    here.tell(_moves_of(step.redrive), _redrive_row(step.redrive))


def _redrive_row(found: Redrive) -> Row:
    if found.text and in_environment():
        found = replace(found, text=HIDDEN)
    return {name: value for name, value in asdict(found).items() if name != "cursor"}


def _moves_of(found: Redrive) -> str:
    passed = f", {found.passed} passed over" if found.passed else ""
    left = f", {found.left} left" if found.is_open else ""
    return f"{found.state.value}: {found.moved} moved{passed}{left}"


REDRIVE_COLUMNS = columns(
    *("state", "moved", "left", "passed"),
    rate=lambda row: f"{row['rate_per_s']:g}/s",
    **{"class": "error", "text": "text", "into": "into", "age": time_in("age_s")},
)
