"""The blocking database underneath one of an event loop."""

from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.seam import Transaction


class Underneath(BlockingDatabase):
    """A blocking database for the thread of one loop: its locks hold back fibers, but not threads."""

    runtime: LoopRuntime

    def create_transaction(self) -> Transaction:
        """A fresh transaction of the engine. Raises DatabaseClosed; WrongLoop in another thread."""
        self.runtime.hub.require_thread()
        return super().create_transaction()
