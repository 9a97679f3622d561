"""A fleet that a coroutine waits for: its supervisor runs in a thread."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.aio.hub import Hub, Unheard, hub_of
from fdbqueue.aio.threads import in_thread
from fdbqueue.aio.verbs import Face, constructor_of
from fdbqueue.core.deferred import checked_function
from fdbqueue.fleet.supervisor import Fleet as BlockingFleet
from fdbqueue.fleet.supervisor import FleetStatus

OnTick = Callable[[FleetStatus], object]


class Supervisor(BlockingFleet):
    """A `fdbqueue.Fleet` that looks at its database in `run`: a constructor on a loop must not wait."""

    def _require_all(self, root: Any) -> None:
        """Do nothing: `run` does it."""

    def run(self, on_tick: OnTick | None = None) -> None:
        super()._require_all(self._root)
        super().run(on_tick)


class Fleet(Face[Supervisor]):
    """`fdbqueue.Fleet` beside an event loop: `await fleet.run()`. The constructor reads nothing.

    The processes have loops of their own for handlers that are coroutine functions. The fleet handles no
    signals: `loop.add_signal_handler(signal.SIGTERM, fleet.stop)`. All else is as in `fdbqueue.Fleet`.
    """

    __slots__ = ()

    @constructor_of(Supervisor)
    def __init__(self) -> None: ...

    async def run(self, on_tick: OnTick | None = None) -> None:
        """Work until `stop`, or with `until_empty` until the queues are empty.

        The loop calls `on_tick` with the status several times a second.
        If it is cancelled, the fleet stops, and running handlers have `grace_s` to end; a second cancel stops
        it at once. Either way it returns when all processes have ended.
        Raises: as the constructor and `run` of `fdbqueue.Fleet`.
        """
        hub = hub_of(asyncio.get_running_loop())
        if on_tick is not None:
            on_tick = partial(_call_on, hub, checked_function("on_tick", on_tick))
        work = partial(in_thread, hub, partial(self._blocking.run, on_tick))
        running = hub.loop.create_task(hub.call(work, Unheard()))
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                self.stop(at_once=cancelled is not None)
                cancelled = error
        if cancelled is not None:
            raise cancelled from running.exception()
        running.result()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop as `fdbqueue.Fleet.stop` does, and return at once. A signal handler may call it."""
        self._blocking.stop(at_once=at_once)

    def status(self) -> FleetStatus:
        return self._blocking.status()


def _call_on(hub: Hub, function: OnTick, status: FleetStatus) -> None:
    """Call `function` on the loop, from another thread. Raises: its errors."""

    async def call() -> None:
        function(status)

    asyncio.run_coroutine_threadsafe(call(), hub.loop).result()
