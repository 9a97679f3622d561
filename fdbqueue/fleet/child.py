"""A worker process of a fleet; `main` is given three file descriptors: lifeline, reports, tasks at work.

The process reads its orders from the lifeline. The lifeline ends when the supervisor dies; then the process
stops. It writes a report twice a second, and each task when its handler begins.

On SIGTERM or SIGINT the process takes no more tasks. Running handlers have `grace_s` to end; then their tasks
are released, and the process exits with status 0. A second signal releases them at once. A process that
cannot start reports the reason, and exits with status 2.
"""

import os
import select
import signal
from contextlib import suppress
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import client_knobs
from fdbqueue.database import Database
from fdbqueue.errors import HandlerNotFound, InvalidArgument, QueueNotFound, UnknownCodec, UnknownKind
from fdbqueue.fleet import handlers
from fdbqueue.fleet.at_work import AtWork
from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.logs import logging_at, write_above_the_bar
from fdbqueue.fleet.memory import rss_bytes
from fdbqueue.fleet.orders import Orders, Report, orders_of, to_line
from fdbqueue.fleet.worker import Worker
from fdbqueue.open import open as open_database

REPORT_EVERY_S = 0.5
REFUSED = 2
# Errors with which every other process of the fleet would fail, too.
NO_START = (HandlerNotFound, QueueNotFound, InvalidArgument, UnknownKind, UnknownCodec)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Child:
    def __init__(self, orders: Orders, lifeline: int, reports: int, signals: int, at_work: AtWork) -> None:
        self._orders = orders
        self._at_work = at_work
        self._lifeline = lifeline
        self._reports = reports
        self._signals = signals
        self._asked_to_stop = 0
        self._retiring = False

    def run(self) -> int:
        """Work until a stop; return the exit status of the process."""
        try:
            with open_database(self._orders.url) as database:
                return self._work(worker_of(self._orders, database, self._at_work))
        except NO_START as error:
            self._report(Report("refused", reason=str(error)))
            return REFUSED

    def _work(self, worker: Worker) -> int:
        worker.start(until_empty=self._orders.until_empty)
        while not worker.join(0):
            self._listen(worker)
            self._retire_if_due(worker)
            self._report(self._report_of(worker))
        self._report(self._report_of(worker))
        if worker.error is not None:
            raise worker.error
        return 0

    def _listen(self, worker: Worker) -> None:
        """Wait for a signal or for the end of the supervisor; then stop the worker."""
        heard, _, _ = select.select([self._signals, self._lifeline], [], [], REPORT_EVERY_S)
        if self._signals in heard:
            for number in os.read(self._signals, 64):
                if number in SIGNALS:  # the modules of a handler may catch other signals
                    self._asked_to_stop += 1
                    worker.stop(at_once=self._asked_to_stop > 1)
        if self._lifeline in heard and not os.read(self._lifeline, 64):
            worker.stop()
            self._lifeline = self._signals  # the lifeline stays readable at its end: select on signals only

    def _retire_if_due(self, worker: Worker) -> None:
        orders = self._orders
        tasks, mb = orders.recycle_tasks, orders.recycle_mb
        old = tasks is not None and worker.status().tally.ended >= tasks
        fat = mb is not None and rss_bytes() > mb * 1_000_000
        stuck = worker.status().overrun > 0
        if (old or fat or stuck) and not self._retiring and not self._asked_to_stop:
            self._retiring = True
            worker.stop()

    def _report_of(self, worker: Worker) -> Report:
        status = worker.status()
        retiring = self._retiring and status.state != "ended"
        return Report(
            "retiring" if retiring else status.state,
            status.tally,
            status.running,
            rss_bytes(),
            emptied=worker.emptied,
            retired=self._retiring,
        )

    def _report(self, report: Report) -> None:
        with suppress(OSError):  # the supervisor died: the end of the lifeline stops this process
            os.write(self._reports, to_line(report))


def worker_of(orders: Orders, database: Database, at_work: AtWork) -> Worker:
    """Raises HandlerNotFound, QueueNotFound, InvalidArgument."""
    handler: Any = handlers.handler_named(orders.handler)
    if orders.argument is not None:
        handler = handlers.made(orders.handler, handler, orders.argument)
    else:
        handler = handlers.returning(orders.handler, handler)
    return Worker(
        database,
        orders.queues,
        handler,
        hooks=at_work.told_to(hooks_named(orders.hooks)),
        root=Subspace((), bytes.fromhex(orders.root)),
        run_id=bytes.fromhex(orders.run),
        **vars(orders.options),
    )


def hooks_named(target: str | None) -> Hooks:
    """Raises HandlerNotFound."""
    if target is None:
        return Hooks()
    found = handlers.named(target)
    if not isinstance(found, Hooks):
        raise HandlerNotFound(target=target, reason="it is not an fdbqueue.Hooks")
    return found


def signals_to_pipe() -> int:
    """Return a descriptor that delivers signal numbers, so that no code runs in a signal handler."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    return reading


def main(arguments: list[str]) -> int:
    lifeline, reports, at_work = map(int, arguments)
    client_knobs.for_this_program()
    signals = signals_to_pipe()
    for descriptor in (lifeline, reports, at_work):
        os.set_inheritable(descriptor, False)
    with os.fdopen(os.dup(lifeline), "rb", buffering=0) as stream:
        line = stream.readline()
    if not line:
        return REFUSED  # the supervisor died before it wrote the orders
    orders = orders_of(line)
    write_above_the_bar()
    with logging_at(orders.log_level):
        return Child(orders, lifeline, reports, signals, AtWork(at_work, orders.options.places)).run()
