"""Driving: the redrives that this dashboard has begun, each moved by one task of its event loop.

A redrive is stored, so it survives this process: `fdbqueue redrive run` goes on with it.
"""

import asyncio
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.logger import logger
from fdbqueue.operate.dashboard.room import DatabaseSilent, Room
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.dead.values import RedriveState, RedriveStep

_log = logger("fdbqueue.dashboard")


class Drivers:
    """At most one driver for each queue."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, queue: str) -> None:
        running = self._running.get(queue)
        if running is None or running.done():
            self._running[queue] = asyncio.get_running_loop().create_task(self._drive(queue))

    async def stop(self) -> None:
        """End all drivers. The steps that are under way are finished."""
        running, self._running = list(self._running.values()), {}
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _drive(self, queue: str) -> None:
        try:
            while True:
                try:
                    step = await self._room.call(partial(self._step, queue))
                except DatabaseSilent as reason:
                    _log.warning("the redrive of %s waits: %s", queue, reason)
                    await asyncio.sleep(limits.LOOK_TIMEOUT_S)
                    continue
                if step.redrive.state != RedriveState.RUNNING:
                    _log.info(
                        "the redrive of %s is %s: %d moved", queue, step.redrive.state, step.redrive.moved
                    )
                    return
                await asyncio.sleep(min(step.wait_s, limits.REDRIVE_LOOK_S))
        except FdbQueueError as error:
            _log.warning("the redrive of %s has ended here: %s", queue, error)

    def _step(self, queue: str) -> RedriveStep:
        database = self._room.database
        return DeadLetters.open(database, queue, root=self._room.root).step_redrive(database)
