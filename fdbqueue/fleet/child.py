"""A worker process of a fleet; `main` is given three file descriptors: lifeline, reports, tasks at work.

The process reads its orders from the lifeline. The lifeline ends when the supervisor dies; then the process
stops. It writes a report twice a second, and each task when its handler begins.

On SIGTERM or SIGINT the process takes no more tasks. Running handlers have `grace_s` to end; then their tasks
are released, and the process exits with status 0. A second signal releases them at once. A process that
cannot start, or meets an error that does not heal, reports the reason, and exits with status 2.

A handler may leave a thread or a child that never ends, and the end of Python waits for these. The supervisor
kills such a process; without a supervisor, the process ends itself.
"""

import importlib
import os
import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import binding, signals
from fdbqueue.core.arguments import deferred_body, is_of_generator, require_finished
from fdbqueue.core.database import Database
from fdbqueue.core.errors import (
    DatabaseNotFound,
    DeferredBody,
    FdbQueueError,
    HandlerNotFound,
    InvalidArgument,
    LayoutNewer,
    QueueNotFound,
    UnknownCodec,
    UnknownKind,
    heals,
)
from fdbqueue.core.open import open as open_database
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.logs import logging_at, write_above_the_bar
from fdbqueue.fleet.options import Hooks
from fdbqueue.fleet.status import KILL_AFTER_S, AtWork, Orders, Report, orders_of, to_line
from fdbqueue.fleet.worker import Worker


def named(target: str) -> Any:
    """Import "module:function": a process cannot be given a function. All errors raise HandlerNotFound."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise HandlerNotFound(target=target, reason='it must be written as "module:function"')
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"importing {module_name} fails ({type(error).__name__}: {error})"
        raise HandlerNotFound(target=target, reason=reason) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise HandlerNotFound(target=target, reason=f"{module_name} has no {path}") from None
    return found


def handler_named(target: str) -> Callable[..., Any]:
    found = named(target)
    if not callable(found):
        raise HandlerNotFound(target=target, reason="it cannot be called")
    handler: Callable[..., Any] = found
    return handler


def returning(target: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of that name. Raises DeferredBody for a generator function."""
    kind = deferred_body(handler)
    if kind is not None and is_of_generator(kind):
        message = f"The handler {target} is {kind}: a handler returns, and does not yield."
        raise DeferredBody(message, name="handler", kind=kind, got=handler)
    return handler


def made(target: str, factory: Callable[[Any], Any], argument: Any) -> Callable[..., Any]:
    """Return the handler that `factory` makes. Raises HandlerNotFound if it makes none, or raises."""
    try:
        handler = require_finished("it", factory(argument))
    except (Exception, SystemExit) as error:
        reason = f"making the handler fails ({type(error).__name__}: {error})"
        raise HandlerNotFound(target=target, reason=reason) from error
    if not callable(handler):
        raise HandlerNotFound(target=target, reason="its result cannot be called")
    made_handler: Callable[..., Any] = handler
    return made_handler


REPORT_EVERY_S = 0.5
REFUSED = 2
# Errors with which every other process of the fleet would fail, too. Those that do not heal are also the
# supervisor's: it has the database open.
FOR_ALL = (
    DatabaseNotFound,
    HandlerNotFound,
    InvalidArgument,
    LayoutNewer,
    QueueNotFound,
    UnknownCodec,
    UnknownKind,
)


class Child:
    def __init__(self, orders: Orders, lifeline: int, reports: int, asked: int, at_work: AtWork) -> None:
        self._orders = orders
        self._at_work = at_work
        self._lifeline = lifeline
        self._reports = reports
        self._asked = asked
        self._asked_to_stop = 0
        self._retiring = False

    def run(self) -> int:
        """Work until a stop; return the exit status of the process."""
        try:
            with open_database(self._orders.url, create=False) as database:
                return self._work(worker_of(self._orders, database, self._at_work))
        except FdbQueueError as error:
            if heals(error) and not isinstance(error, FOR_ALL):
                raise
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
        heard, _, _ = select.select([self._asked, self._lifeline], [], [], REPORT_EVERY_S)
        if self._asked in heard:
            for number in os.read(self._asked, 64):
                if number in signals.ENDING:  # the modules of a handler may catch other signals
                    self._asked_to_stop += 1
                    worker.stop(at_once=self._asked_to_stop > 1)
        if self._lifeline in heard and not os.read(self._lifeline, 64):
            worker.stop()
            self._lifeline = self._asked  # the lifeline stays readable at its end: select on signals only

    def _retire_if_due(self, worker: Worker) -> None:
        orders = self._orders
        tasks, mb = orders.recycle_tasks, orders.recycle_mb
        old = tasks is not None and worker.status().tally.ended >= tasks
        fat = mb is not None and RealRuntime.memory_bytes() > mb * 1_000_000
        stuck = worker.status().overrun > 0
        if (old or fat or stuck) and not (self._retiring or self._asked_to_stop or worker.drained):
            self._retiring = True
            worker.stop()

    def _report_of(self, worker: Worker) -> Report:
        status = worker.status()
        retiring = self._retiring and status.state != "ended" and not worker.drained
        return Report(
            "retiring" if retiring else status.state,
            status.tally,
            status.running,
            RealRuntime.memory_bytes(),
            emptied=worker.emptied,
            retired=self._retiring and not worker.drained,
            drained=worker.drained,
        )

    def _report(self, report: Report) -> None:
        with suppress(OSError):  # the supervisor died: the end of the lifeline stops this process
            os.write(self._reports, to_line(report))


def worker_of(orders: Orders, database: Database, at_work: AtWork) -> Worker:
    handler: Any = handler_named(orders.handler)
    if orders.argument is not None:
        handler = made(orders.handler, handler, orders.argument)
    else:
        handler = returning(orders.handler, handler)
    return Worker(
        database,
        orders.queues,
        handler,
        hooks=at_work.told_to(hooks_named(orders.hooks)),
        root=Subspace((), bytes.fromhex(orders.root)),
        run_id=bytes.fromhex(orders.run),
        setup=None if orders.setup is None else handler_named(orders.setup),
        teardown=None if orders.teardown is None else handler_named(orders.teardown),
        **orders.options.keywords(),
    )


def hooks_named(target: str | None) -> Hooks:
    if target is None:
        return Hooks()
    found = named(target)
    if not isinstance(found, Hooks):
        raise HandlerNotFound(target=target, reason="it is not an fdbqueue.Hooks")
    return found


def signals_to_pipe() -> int:
    """Return a descriptor that delivers signal numbers, so that no code runs in a signal handler."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signals.install(signals.ENDING, lambda *_: None, writing)
    return reading


def end_after_supervisor(lifeline: int, grace_s: float) -> None:
    """End this process when the supervisor has died, and the grace is long over."""
    select.select([lifeline], [], [])  # the orders have been read: it is readable at its end
    RealRuntime.sleep(grace_s + KILL_AFTER_S)
    os._exit(1)


def main(arguments: list[str]) -> int:
    lifeline, reports, at_work = map(int, arguments)
    binding.for_this_program()
    asked = signals_to_pipe()
    signals.hear_of_children()
    for descriptor in (lifeline, reports, at_work):
        os.set_inheritable(descriptor, False)
    with os.fdopen(os.dup(lifeline), "rb", buffering=0) as stream:
        line = stream.readline()
    if not line:
        return REFUSED  # the supervisor died before it wrote the orders
    orders = orders_of(line)
    watch = partial(end_after_supervisor, lifeline, orders.options.grace_s)
    RealRuntime().spawn(watch, "fdbqueue-lifeline")
    write_above_the_bar()
    with logging_at(orders.log_level, orders.redact):
        return Child(orders, lifeline, reports, asked, AtWork(at_work, orders.options.places)).run()
