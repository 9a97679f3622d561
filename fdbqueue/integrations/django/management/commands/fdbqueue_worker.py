"""`manage.py fdbqueue_worker`: run the tasks of a backend until a signal."""

import logging
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from fdbqueue.core import binding, signals
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.visible import text_of
from fdbqueue.fleet.options import WorkerOptions
from fdbqueue.fleet.worker import Worker
from fdbqueue.integrations.django.api import DEFAULT_TASK_BACKEND_ALIAS, LOGGER, InvalidTaskBackend
from fdbqueue.integrations.django.backend import Attempts, FdbQueueBackend, backend_of

LOGGERS = (LOGGER, "fdbqueue")
REFUSED = 2
"""The exit status after an error of the arguments, the settings or the database."""

LOOK_S = 0.2
"""The kernel may give a signal to any thread, and Python's handler waits for the main one to wake."""

_LEVELS = {0: logging.ERROR, 1: logging.INFO}


class Command(BaseCommand):
    help = (
        "Run tasks of a backend of fdbqueue. A first TERM, INT or HUP ends it when the running tasks have "
        "ended; a second one gives them back at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="A queue of the backend; may be given several times (default: all in QUEUES).",
        )
        parser.add_argument(
            "--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS (default: %(default)s)."
        )
        parser.add_argument(
            "--threads",
            type=int,
            default=WorkerOptions.threads,
            help="Number of tasks that run at the same time (default: %(default)s).",
        )
        parser.add_argument(
            "--grace",
            type=float,
            default=WorkerOptions.grace_s,
            metavar="SECONDS",
            help="Time that running tasks have after a signal (default: %(default)s).",
        )
        parser.add_argument(
            "--until-empty",
            "--batch",
            action="store_true",
            help="End when no task is left, also none that is delayed by run_after.",
        )

    def handle(self, **options: Any) -> None:
        try:
            backend = backend_of(options["backend"])
            names = checked_names(backend, options["queues"])
            WorkerOptions.checked(threads=options["threads"], grace_s=options["grace"])
            binding.for_this_program()
            worker = worker_of(backend, names, options["threads"], options["grace"])
            for name in LOGGERS:
                log = logging.getLogger(name)
                log.setLevel(_LEVELS.get(options["verbosity"], logging.DEBUG))
                if not is_shown(name):
                    log.addHandler(logging.StreamHandler(self.stderr))
            if options["verbosity"] > 0:
                self.stdout.write(f"fdbqueue_worker: tasks of {', '.join(names)}")
                self.stdout.flush()
            run(worker, options["until_empty"])
        except (InvalidTaskBackend, FdbQueueError, *engine_errors()) as error:
            raise CommandError(text_of(error), returncode=REFUSED) from error


def is_shown(name: str) -> bool:
    """True if the project shows the log of that name, or Django does, as it debugs."""
    configured = bool(settings.LOGGING or logging.getLogger().handlers)
    return configured or (settings.DEBUG and name.startswith("django."))


def checked_names(backend: FdbQueueBackend, given: list[str] | None) -> list[str]:
    names = given or sorted(backend.queues)
    if not names:
        raise CommandError("The setting QUEUES of the backend is empty: name the queues with --queue.")
    for name in names:
        if backend.queues and name not in backend.queues:
            known = ", ".join(sorted(backend.queues))
            raise CommandError(f"The backend {backend.alias!r} has no queue {name!r}; it has {known}.")
    return list(dict.fromkeys(names))


def run(worker: Worker, until_empty: bool) -> None:
    """Run the worker until its end, or until signals end it. Raises: as Worker.run."""
    with stopped_by_signals(worker):
        worker.start(until_empty=until_empty)
        while not worker.join(LOOK_S):
            pass
    if worker.error is not None:
        raise worker.error


@contextmanager
def stopped_by_signals(worker: Worker) -> Iterator[None]:
    """In the block, stop the worker at the first signal, and at once at the second one."""
    asked: list[int] = []

    def stop(number: int, _: Any) -> None:
        # Noted first: the second signal may interrupt this call.
        asked.append(number)
        worker.stop(at_once=len(asked) > 1)

    restore = signals.install(signals.heard(), stop)
    try:
        yield
    finally:
        restore()


def worker_of(backend: FdbQueueBackend, queue_names: Sequence[str], threads: int, grace_s: float) -> Worker:
    """A worker, not started, for queues that are made if missing. Raises: InvalidTaskBackend."""
    queues = {name: backend.task_queues.made(name) for name in queue_names}
    return Worker(
        backend.database,
        list(queues.values()),
        Attempts(backend, queues),
        threads=threads,
        grace_s=grace_s,
        attempts=backend.settings.attempts,
        session_ttr_s=backend.settings.session_ttr,
    )
