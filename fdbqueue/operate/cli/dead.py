"""`fdbqueue dead`: the buried tasks of a queue by class of failure, their tracebacks, and their mending."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotBuried, TaskNotFound
from fdbqueue.core.page import Page
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Failure
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.ended import told_end
from fdbqueue.operate.cli.exits import CommandError, Refused, say
from fdbqueue.operate.cli.group import (
    cli,
    help_without_command,
    in_a_place,
    json_option,
    queue_argument,
    stdout_of,
)
from fdbqueue.operate.cli.paging import paged
from fdbqueue.operate.cli.rows import task_row
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span, tell
from fdbqueue.operate.cli.values import line_of, value_of
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.dead.values import DeadLetter, FailureClass

error_option = click.option("--error", metavar="CLASS", help='of this class; "" for no failure')
match_option = click.option("--match", "text", metavar="TEXT", help="with TEXT in their last failure")
NO_ERROR, OTHERS = "(no failure)", "(other classes)"


@contextmanager
def letters_of(place: Place, queue: str) -> Iterator[tuple[Database, DeadLetters]]:
    """Open the buried tasks of a task queue. Raises CommandError if there is no such queue."""
    with place.tasks(queue) as (database, found):
        yield database, DeadLetters.open(database, found.name, root=place.root)


@cli.group("dead", invoke_without_command=True)
@click.pass_context
def dead(context: click.Context) -> None:
    """Look at buried tasks by class of failure, mend them, and kick them.

    A class of failure is the error of the last failure, such as ValueError.
    """
    help_without_command(context)


@dead.command()
@queue_argument
@click.option("-n", "count", type=click.IntRange(min=1), default=20, metavar="N", help="the largest N [20]")
@json_option
@in_a_place
@click.pass_obj
def classes(signals: Signals, place: Place, queue: str, count: int, as_json: bool) -> None:
    """List the classes of failure of QUEUE, those with the most buried tasks first.

    Columns: tasks, class, the id of the first task, its age since that failure, its message. Further classes
    are counted in one line, as "(other classes)".
    """
    with letters_of(place, queue) as (database, letters):
        now = database.runtime.now()
        rows = (_class_row(found, now) for found in letters.classes(database, count))
        show(signals, rows, CLASS_COLUMNS, as_json)


@dead.command("list")
@queue_argument
@error_option
@match_option
@click.option("-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]")
@json_option
@in_a_place
@click.pass_obj
def list_(
    signals: Signals,
    place: Place,
    queue: str,
    error: str | None,
    text: str | None,
    count: int,
    as_json: bool,
) -> None:
    """List the first buried tasks of QUEUE, in order.

    Columns: id, time since the failure, attempts, key, data, class, message. With --json, each task has all
    its attributes, and its last failure with its traceback.
    """
    with letters_of(place, queue) as (database, letters):
        rows = _listed(database, letters, error, text, count)
        show(signals, rows, LETTER_COLUMNS, as_json)


@dead.command("show")
@queue_argument
@click.argument("id_", metavar="ID")
@json_option
@in_a_place
@click.pass_obj
def show_(signals: Signals, place: Place, queue: str, id_: str, as_json: bool) -> None:
    """Show the failures of a task of QUEUE, in any state, each with its traceback; the last one is last.

    With --json, one object has the task and its failures.
    """
    with place.tasks(queue) as (database, found):
        try:
            task, failures = found.peek(database, id_), found.failures(database, id_)
        except TaskNotFound:
            raise _missing(queue, f"{id_}{told_end(database, found, id_)}") from None
    out = stdout_of(signals)
    if as_json:
        out.print(line_of({**task_row(task), "history": [asdict(failure) for failure in failures]}))
        return
    for failure in failures:
        out.print(_told(failure, database.runtime.now()))
    if not failures:
        say("it has no failures")


@dead.command()
@queue_argument
@click.argument("id_", metavar="ID")
@click.argument("data")
@click.option("--text", "as_text", is_flag=True, help="take DATA as text, never as JSON")
@click.option("--kick", "at_once", is_flag=True, help="kick it, in the same transaction")
@json_option
@in_a_place
@click.pass_obj
def edit(
    signals: Signals,
    place: Place,
    queue: str,
    id_: str,
    data: str,
    as_text: bool,
    at_once: bool,
    as_json: bool,
) -> None:
    """Give a buried task of QUEUE other DATA: JSON, or else text, as `put` takes it.

    It keeps its id, its place and its failures, and stays buried unless --kick is given.
    """
    try:
        value = value_of(data, as_text)
    except ValueError as reason:
        raise CommandError(str(reason)) from None
    with letters_of(place, queue) as (database, letters), signals.deferred():
        try:
            task = letters.edit(database, id_, value, kick=at_once)
        except TaskNotFound:
            raise _missing(queue, id_) from None
        except TypeError as reason:
            raise Refused(str(reason)) from None
    tell(signals, f"{id_} edited{' and kicked' if at_once else ''}", task_row(task), as_json)


@dead.command()
@queue_argument
@click.argument("ids", nargs=-1, metavar="[ID...]")
@error_option
@match_option
@json_option
@in_a_place
@click.pass_obj
def kick(
    signals: Signals,
    place: Place,
    queue: str,
    ids: tuple[str, ...],
    error: str | None,
    text: str | None,
    as_json: bool,
) -> None:
    """Make buried tasks of QUEUE ready: those with an ID, or all that match, at once.

    `fdbqueue redrive` does so at a bounded rate. Status 1: an ID was no buried task.
    """
    if bool(ids) == (error is not None or text is not None):
        raise click.UsageError("kick takes IDs, or --error and --match")
    with letters_of(place, queue) as (database, letters):
        if ids:
            _kick_each(signals, database, letters, ids, as_json)
            return
        kicked = _kick_matching(signals, database, letters, error, text)
    tell(signals, f"{kicked} kicked", {"queue": queue, "kicked": kicked}, as_json)


def _kick_each(
    signals: Signals, database: Database, letters: DeadLetters, ids: tuple[str, ...], as_json: bool
) -> None:
    """Kick each task. Tasks that are missing, or not buried, are reported at the end."""
    wrong = []
    for id_ in ids:
        try:
            with signals.deferred():
                task = letters.kick(database, id_)
        except (TaskNotFound, NotBuried) as reason:
            wrong.append(str(reason))
        else:
            tell(signals, f"{id_} kicked", task_row(task), as_json)
    if wrong:
        raise Refused(" ".join(wrong))


def _kick_matching(
    signals: Signals, database: Database, letters: DeadLetters, error: str | None, text: str | None
) -> int:
    """Kick in bounded transactions. A signal takes effect between two of them."""
    kicked, after = 0, None
    while True:
        with signals.deferred():
            more, after = letters.kick_some(database, error=error, text=text, after=after)
        kicked += more
        if after is None:
            return kicked


def _listed(
    database: Database, letters: DeadLetters, error: str | None, text: str | None, count: int
) -> Iterator[Row]:
    def read(limit: int, after: str | None) -> Page[DeadLetter]:
        return letters.tasks(database, limit, error=error, text=text, after=after)

    now = database.runtime.now()
    for letter in paged(read, count, f"more tasks may follow the first {count}"):
        yield _letter_row(letter, now)


def _class_row(found: FailureClass, now: float) -> Row:
    failure = found.failure
    return {
        "error": found.error,
        "tasks": found.tasks,
        "first": found.first,
        "failure": None if failure is None else asdict(failure),
        "age_s": None if failure is None else max(0.0, now - failure.when),
    }


def _letter_row(letter: DeadLetter, now: float) -> Row:
    failure = letter.failure
    return {
        **task_row(letter.task),
        "error": letter.error,
        "failure": None if failure is None else asdict(failure),
        "age_s": None if failure is None else max(0.0, now - failure.when),
    }


def _told(failure: Failure, now: float) -> bytes:
    """A failure as lines of text, with control characters as escapes."""
    head = f"attempt {failure.attempt}, {span(now - failure.when)} ago, {failure.outcome}"
    head += f", {failure.worker}" if failure.worker else ""
    said = f"{failure.error}: {failure.message}" if failure.message else failure.error
    parts = [visible(head), visible(said), visible(failure.detail.rstrip(), keep="\n\t")]
    return ("\n".join(part for part in parts if part) + "\n\n").encode()


def _missing(queue: str, id_: str) -> Refused:
    return Refused(f"no such task in {queue!r}: {id_}")


def _message(row: Row) -> str:
    return "" if row["failure"] is None else str(row["failure"]["message"])


def _class_name(row: Row) -> str:
    error = row["error"]
    return OTHERS if error is None else error or NO_ERROR


def _json_of(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else line_of(row[name]).decode().strip()


CLASS_COLUMNS: Columns = {
    "tasks": field("tasks"),
    "class": _class_name,
    "first": field("first"),
    "failed": lambda row: span(row["age_s"]),
    "message": _message,
}
LETTER_COLUMNS: Columns = {
    "id": field("id"),
    "failed": lambda row: span(row["age_s"]),
    "attempts": field("attempts"),
    "key": _json_of("key"),
    "data": lambda row: line_of(row["data"]).decode().strip(),
    "class": _class_name,
    "message": _message,
}
