"""An operator in a simulation: it begins redrives, turns them, and makes their steps."""

from contextlib import suppress
from functools import partial

from fdbqueue.core.database import run
from fdbqueue.core.errors import NoRedrive, RedriveUnderWay
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.dead.reading import Redrive, RedriveState
from fdbqueue.testing.simulation import Client
from tests.system.workloads.redrive_checks import MOVED_EARLIER, NAME, moved_in

OTHER = "redriven, other"
RATES_PER_S = (0.5, 4.0, 1_000.0)


def turn(client: Client, letters: DeadLetters) -> None:
    """Begin a redrive, if none is under way; pause, resume or stop it, by chance."""
    verb = client.random.choice(("begin", "begin", "begin", "pause", "pause", "resume", "stop", ""))
    verbs = {
        "begin": partial(run, client.db, partial(begin, letters, drawn(client))),
        "pause": partial(letters.pause_redrive, client.db),
        "resume": partial(letters.resume_redrive, client.db),
        "stop": partial(letters.stop_redrive, client.db),
    }
    if verb:
        with suppress(NoRedrive, RedriveUnderWay):
            client.call(NAME, verb, None, verbs[verb])


def drawn(client: Client) -> Redrive:
    choice = client.random.choice
    error, text = choice((None, None, "A", "")), choice((None, None, None, "x"))
    rate_per_s, limit = choice(RATES_PER_S), choice((None, None, 3))
    return Redrive(RedriveState.RUNNING, rate_per_s, error, text, choice((None, None, OTHER)), limit)


def begin(letters: DeadLetters, wanted: Redrive, tr: Transaction) -> Redrive:
    """Begin a redrive, and add the tasks that the one before has moved to a sum."""
    before = letters.redrive(tr)
    begun = letters.begin_redrive(
        tr,
        error=wanted.error,
        text=wanted.text,
        rate_per_s=wanted.rate_per_s,
        into=wanted.into,
        limit=wanted.limit,
    )
    tr.add(MOVED_EARLIER, (0 if before is None else before.moved).to_bytes(8, "little"))
    return begun


def step(client: Client, letters: DeadLetters) -> None:
    """A step by a database, which happens once; or by a transaction, which tells the tasks that it moves."""
    with suppress(NoRedrive):
        if client.random.random() < 0.5:
            client.call(NAME, "step", None, lambda: (letters.step_redrive(client.db), ()))
        else:
            client.call(NAME, "step", None, lambda: run(client.db, partial(moved_in, letters)))
