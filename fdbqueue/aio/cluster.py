"""The official binding on an event loop: a future that a fiber waits for parks the fiber.

All waiting of the binding goes through one method, `Future.block_until_ready`. The binding itself replaces it
for its event models; this module does so for fibers. Code in a thread waits as before, so a program may use
both. Code that takes the binding's transactions (its directory layer, a program's own functions) works in a
fiber without a change.
"""

import importlib
from functools import partial, wraps
from typing import Any

from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.runtime import LoopEvent
from fdbqueue.aio.threads import in_thread
from fdbqueue.core.open import open_cluster


def open_on(hub: Hub, cluster_file: str | None) -> Any:
    """The binding's database, in a fiber. Raises: ClientLibraryMissing, ClientLibraryTooOld."""
    database = in_thread(hub, partial(open_cluster, cluster_file))  # loads a library, and reads files
    let_fibers_park()
    return database


def let_fibers_park() -> None:
    """From now on, the binding's futures park the fibers that wait for them."""
    future: Any = importlib.import_module("fdb.impl").Future
    waits = future.block_until_ready
    if hasattr(waits, "__wrapped__"):
        return

    @wraps(waits)
    def block_until_ready(self: Any) -> None:
        fiber = current_fiber()
        if fiber is None:
            waits(self)
        elif not self.is_ready():
            ready = LoopEvent(hub_of(fiber.loop))
            self.on_ready(lambda _: ready.set())
            ready.wait()

    future.block_until_ready = block_until_ready
