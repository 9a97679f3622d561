"""`fdbqueue redrive`: buried tasks go back at a bounded rate; any process goes on where another stopped."""

import shlex
from collections.abc import Callable
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.signals import Interrupted, Signals
from fdbqueue.operate.cli.dead import error_option, letters_of, match_option
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import (
    cli,
    help_without_command,
    in_a_place,
    in_this_place,
    json_option,
    queue_argument,
)
from fdbqueue.operate.cli.progress import PLAIN_EVERY_S
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Columns, Row, field, show, span, tell
from fdbqueue.tasks.dead.letters import RATE_PER_S, DeadLetters
from fdbqueue.tasks.dead.values import Redrive, RedriveState, RedriveStep

RATE = click.FloatRange(min=0, min_open=True, max=1e9)


@cli.group("redrive", invoke_without_command=True)
@click.pass_context
def redrive(context: click.Context) -> None:
    """Send buried tasks back at a bounded rate, into their own queue or another one.

    The progress is stored. A redrive that was interrupted, killed or paused goes on in any process.
    """
    help_without_command(context)


@redrive.command()
@queue_argument
@error_option
@match_option
@click.option("--rate", type=RATE, default=RATE_PER_S, metavar="N", help="at most N tasks a second [100]")
@click.option("--into", metavar="OTHER", help="put them into another queue, as new tasks")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="at most N tasks")
@click.option("--detach", is_flag=True, help="begin only: `fdbqueue redrive run` moves the tasks")
@json_option
@in_a_place
@click.pass_obj
def start(
    signals: Signals,
    place: Place,
    queue: str,
    error: str | None,
    text: str | None,
    rate: float,
    into: str | None,
    limit: int | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Begin a redrive of the buried tasks of QUEUE, and run it to its end.

    It ends after as many tasks as are buried now: those that fail again stay buried.
    """
    with letters_of(place, queue) as (database, letters):
        try:
            with signals.deferred():
                begun = letters.begin_redrive(
                    database, error=error, text=text, rate_per_s=rate, into=into, limit=limit
                )
        except QueueNotFound:
            raise place.missing(database, into or queue, "`fdbqueue create {name}` makes one") from None
        if detach:
            tell(signals, told(begun), redrive_row(begun), as_json)
            return
        _run(signals, database, letters, as_json)


@redrive.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def run(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Go on with the redrive of QUEUE, beside other processes or alone, until it is done or paused."""
    with letters_of(place, queue) as (database, letters):
        _run(signals, database, letters, as_json)


@redrive.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def status(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Show the last redrive of QUEUE. Status 1: there was none.

    Columns: state, tasks moved, left and passed over, rate, class, text, the other queue, age.
    """
    with letters_of(place, queue) as (database, letters):
        found = letters.redrive(database)
        if found is None:
            raise Refused(f"there was no redrive of {queue!r}")
        age_s = max(0.0, database.runtime.now() - found.began)
        show(signals, [{**redrive_row(found), "age_s": age_s}], COLUMNS, as_json)


@redrive.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def pause(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """Let the redrive of QUEUE move no task until `resume`; processes that run it end."""
    _turn(signals, place, queue, as_json, DeadLetters.pause_redrive)


@redrive.command()
@queue_argument
@click.option("--detach", is_flag=True, help="do not run it: `fdbqueue redrive run` does")
@json_option
@in_a_place
@click.pass_obj
def resume(signals: Signals, place: Place, queue: str, detach: bool, as_json: bool) -> None:
    """Let the redrive of QUEUE go on, and run it to its end."""
    if detach:
        _turn(signals, place, queue, as_json, DeadLetters.resume_redrive)
        return
    with letters_of(place, queue) as (database, letters):
        with signals.deferred():
            letters.resume_redrive(database)
        _run(signals, database, letters, as_json)


@redrive.command()
@queue_argument
@json_option
@in_a_place
@click.pass_obj
def stop(signals: Signals, place: Place, queue: str, as_json: bool) -> None:
    """End the redrive of QUEUE for good. The tasks that are left stay buried."""
    _turn(signals, place, queue, as_json, DeadLetters.stop_redrive)


def _turn(
    signals: Signals,
    place: Place,
    queue: str,
    as_json: bool,
    verb: Callable[[DeadLetters, Database], Redrive],
) -> None:
    with letters_of(place, queue) as (database, letters):
        with signals.deferred():
            turned = verb(letters, database)
        tell(signals, told(turned), redrive_row(turned), as_json)


def _run(signals: Signals, database: Database, letters: DeadLetters, as_json: bool) -> None:
    """Run it to its end, and report. A signal takes effect between two steps."""
    runtime = database.runtime
    next_s = runtime.monotonic() + PLAIN_EVERY_S
    try:
        while (step := _step(signals, database, letters)).redrive.state == RedriveState.RUNNING:
            if runtime.monotonic() >= next_s and not as_json:
                say(told(step.redrive) + (f"; {step.redrive.into!r} is full" if step.is_full else ""))
                next_s = runtime.monotonic() + PLAIN_EVERY_S
            runtime.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
    except Interrupted:
        name = ["--", letters.name] if letters.name.startswith("-") else [letters.name]
        run_again = shlex.join(["fdbqueue", "redrive", "run", *name])
        say(f"interrupted: `{in_this_place(run_again)}` goes on")
        raise
    tell(signals, told(step.redrive), redrive_row(step.redrive), as_json)


def _step(signals: Signals, database: Database, letters: DeadLetters) -> RedriveStep:
    with signals.deferred():
        return letters.step_redrive(database)


def redrive_row(found: Redrive) -> Row:
    row = asdict(found)
    del row["cursor"]
    return row


def told(found: Redrive) -> str:
    passed = f", {found.passed} passed over" if found.passed else ""
    left = f", {found.left} left" if found.is_open else ""
    return f"{found.state.value}: {found.moved} moved{passed}{left}"


COLUMNS: Columns = {
    "state": field("state"),
    "moved": field("moved"),
    "left": field("left"),
    "passed": field("passed"),
    "rate": lambda row: f"{row['rate_per_s']:g}/s",
    "class": field("error"),
    "text": field("text"),
    "into": field("into"),
    "age": lambda row: span(row["age_s"]),
}
