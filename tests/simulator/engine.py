"""The engine: the official binding over the databases that the simulator hands over.

A program's own path is the binding's: its transactions, futures and ranges run here as they are. Three things
differ. A future that a task waits for parks the task. A callback of a future gives the tasks a turn when it
has ended, as nothing else goes on in a simulator. The simulator owns the databases: none is destroyed here.

The simulator's own unknown results are rare. So dice of the machine make more: a commit that is done, and one
that is never sent.
"""

import importlib
from collections.abc import Callable
from typing import Any

from fdbqueue.aio.engines import let_fibers_park
from fdbqueue.core import binding
from fdbqueue.testing.engine import Machine
from tests.simulator.scheduler import SimulatorScheduler

Turn = Callable[[], None]
UNKNOWN = 1021
UNHEARD = ("unknown_done", "unknown_not_done")
WRITES = ("set", "clear", "clear_range", "_atomic_operation")


def load(scheduler: Callable[[], SimulatorScheduler], turn: Turn) -> Any:
    """Load the binding, whose futures park the tasks of a scheduler. Returns its module `impl`."""
    binding.load()
    impl = importlib.import_module("fdb.impl")
    listen = impl.Future.on_ready

    def on_ready(self: Any, callback: Callable[[Any], None]) -> None:
        def told(future: Any) -> None:
            try:
                callback(future)
            finally:
                turn()

        listen(self, told)

    def block_until_ready(self: Any) -> None:
        if not self.is_ready():
            scheduler().wait_for(self)

    impl.Future.on_ready, impl.Future.block_until_ready = on_ready, block_until_ready
    let_fibers_park()
    return impl


def _noted(write: Callable[..., None]) -> Callable[..., None]:
    """A method that writes: only a commit with writes may have an unknown result."""

    def noted(self: Any, *arguments: Any) -> None:
        self.has_writes = True
        write(self, *arguments)

    return noted


def database(impl: Any, place: int, machine: Machine) -> Any:
    """The binding's database of one machine, over the database at an address."""

    class Unknown(impl.FutureVoid):  # type: ignore[misc]
        """A future that hides its success from the client. It tells an error: nothing is done then."""

        def wait(self) -> None:
            super().wait()
            raise impl.FDBError(UNKNOWN)

    class Transaction(impl.Transaction):  # type: ignore[misc]
        """Each answer that a machine waits for is a point where it may die or stall."""

        has_writes = False

        def commit(self) -> Any:
            machine.point()
            trouble = machine.commits.throw() if self.has_writes else None
            if trouble not in UNHEARD:
                return super().commit()
            machine.fault(trouble)
            unheard = super().commit() if trouble == "unknown_done" else self.get_read_version()
            unheard.__class__ = Unknown
            return unheard

        def on_error(self, error: Any) -> Any:
            code = getattr(error, "code", error)
            machine.trace.fault(machine.scheduler.now, machine.thread_name(), f"error {code}")
            machine.point()
            self.has_writes = False
            return super().on_error(error)

    for name in WRITES:
        setattr(Transaction, name, _noted(getattr(impl.Transaction, name)))

    class Database(impl.Database):  # type: ignore[misc]
        _runtime = machine.runtime
        """By which code that is given a transaction finds the machine's clock."""

        def create_transaction(self) -> Any:
            made = super().create_transaction()
            made.__class__ = Transaction
            return made

        def __del__(self) -> None:
            """Leave the database to the simulator."""

    return Database(place)
