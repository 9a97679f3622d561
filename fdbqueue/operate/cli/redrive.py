"""`fdbqueue redrive`: buried tasks go back at a bounded rate; any process goes on where another stopped."""

from collections.abc import Callable
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.signals import Interrupted
from fdbqueue.operate.cli.dead import error_option, letters_of, match_option
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import Here, again, command, group, queue_argument
from fdbqueue.operate.cli.session import CREATE_TASKS
from fdbqueue.operate.cli.show import PLAIN_EVERY_S, Row, columns, time_in
from fdbqueue.tasks.dead.letters import RATE_PER_S, DeadLetters
from fdbqueue.tasks.dead.values import Redrive, RedriveState

RATE = click.FloatRange(min=0, min_open=True, max=1e9)
Verb = Callable[[DeadLetters, Database], Redrive]


@group("redrive")
def redrive() -> None:
    """Send buried tasks back at a bounded rate, into their own queue or another one.

    The progress is stored. A redrive that was interrupted, killed or paused goes on in any process.
    """


@command(redrive)
@queue_argument
@error_option
@match_option
@click.option("--rate", type=RATE, default=RATE_PER_S, metavar="N", help="at most N tasks a second [100]")
@click.option("--into", metavar="OTHER", help="put them into another queue, as new tasks")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="at most N tasks")
@click.option("--detach", is_flag=True, help="begin only: `fdbqueue redrive run` moves the tasks")
def start(
    here: Here,
    queue: str,
    error: str | None,
    text: str | None,
    rate: float,
    into: str | None,
    limit: int | None,
    detach: bool,
) -> None:
    """Begin a redrive of the buried tasks of QUEUE, and run it to its end.

    It ends after as many tasks as are buried now: those that fail again stay buried.
    """

    def begin(letters: DeadLetters, database: Database) -> Redrive:
        try:
            return letters.begin_redrive(
                database, error=error, text=text, rate_per_s=rate, into=into, limit=limit
            )
        except QueueNotFound:
            raise here.missing(database, into or queue, CREATE_TASKS) from None

    _turn(here, queue, begin, runs=not detach)


@command(redrive)
@queue_argument
def run(here: Here, queue: str) -> None:
    """Go on with the redrive of QUEUE, beside other processes or alone, until it is done or paused."""
    with letters_of(here, queue) as (database, letters):
        _run(here, database, letters)


@command(redrive)
@queue_argument
def status(here: Here, queue: str) -> None:
    """Show the last redrive of QUEUE. Status 1: there was none.

    Columns: state, tasks moved, left and passed over, rate, class, text, the other queue, age.
    """
    with letters_of(here, queue) as (database, letters):
        found = letters.redrive(database)
        if found is None:
            raise Refused(f"there was no redrive of {queue!r}")
        age_s = max(0.0, database.runtime.now() - found.began)
        here.show([{**_row(found), "age_s": age_s}], COLUMNS)


@command(redrive)
@queue_argument
def pause(here: Here, queue: str) -> None:
    """Let the redrive of QUEUE move no task until `resume`; processes that run it end."""
    _turn(here, queue, DeadLetters.pause_redrive)


@command(redrive)
@queue_argument
@click.option("--detach", is_flag=True, help="do not run it: `fdbqueue redrive run` does")
def resume(here: Here, queue: str, detach: bool) -> None:
    """Let the redrive of QUEUE go on, and run it to its end."""
    _turn(here, queue, DeadLetters.resume_redrive, runs=not detach)


@command(redrive)
@queue_argument
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
            here.tell(_told(turned), _row(turned))


def _run(here: Here, database: Database, letters: DeadLetters) -> None:
    """Run it to its end, and report. A signal takes effect between two steps."""
    runtime = database.runtime
    next_s = runtime.monotonic() + PLAIN_EVERY_S
    try:
        while True:
            with here.signals.deferred():
                step = letters.step_redrive(database)
            if step.redrive.state != RedriveState.RUNNING:
                break
            if runtime.monotonic() >= next_s and not here.as_json:
                say(_told(step.redrive) + (f"; {step.redrive.into!r} is full" if step.is_full else ""))
                next_s = runtime.monotonic() + PLAIN_EVERY_S
            runtime.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
    except Interrupted:
        say(f"interrupted: `{again('redrive', 'run', letters.name)}` goes on")
        raise
    here.tell(_told(step.redrive), _row(step.redrive))


def _row(found: Redrive) -> Row:
    return {name: value for name, value in asdict(found).items() if name != "cursor"}


def _told(found: Redrive) -> str:
    passed = f", {found.passed} passed over" if found.passed else ""
    left = f", {found.left} left" if found.is_open else ""
    return f"{found.state.value}: {found.moved} moved{passed}{left}"


COLUMNS = columns(
    *("state", "moved", "left", "passed"),
    rate=lambda row: f"{row['rate_per_s']:g}/s",
    **{"class": "error", "text": "text", "into": "into", "age": time_in("age_s")},
)
