"""Posting: from a form to a confirmation, to an action, to the page that shows its outcome.

Without `sure`, a form gets the page that asks. So every action has its confirmation, also without a script.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.logger import logger
from fdbqueue.core.visible import shown
from fdbqueue.operate.dashboard.actions import QUEUE_ACTIONS, TASK_ACTIONS, Action, Target
from fdbqueue.operate.dashboard.guard import Access, FormRefused, form_of
from fdbqueue.operate.dashboard.pages import address_of, queue_of
from fdbqueue.operate.dashboard.rendering import Renderer
from fdbqueue.operate.dashboard.room import DatabaseSilent, Room
from fdbqueue.operate.dashboard.streams import Sampler
from fdbqueue.operate.dashboard.texts import segment
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.redrive import RedriveState, RedriveStep

_log = logger("fdbqueue.dashboard")


class Drivers:
    """At most one task of the event loop for each redrive that this dashboard has begun. A redrive is stored:
    `fdbqueue redrive run` goes on with it after the end of this process.
    """

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


_log = logger("fdbqueue.dashboard")
NO_ACTION = "There is no such action."
READ_ONLY = "This dashboard is read-only: `fdbqueue dashboard --write` changes queues."


class Posting:
    def __init__(
        self, room: Room, access: Access, renderer: Renderer, drivers: Drivers, sampler: Sampler
    ) -> None:
        self._room = room
        self._access = access
        self._renderer = renderer
        self._drivers = drivers
        self._sampler = sampler

    async def queue(self, request: Request) -> Response:
        target = Target(self._room.database, self._room.root, queue_of(request))
        return await self._post(request, target, QUEUE_ACTIONS)

    async def task(self, request: Request) -> Response:
        target = Target(self._room.database, self._room.root, queue_of(request), request.path_params["id"])
        return await self._post(request, target, TASK_ACTIONS)

    async def _post(self, request: Request, target: Target, actions: Mapping[str, Action]) -> Response:
        form = dict(await form_of(request, self._access))
        if not self._access.write:
            raise FormRefused(READ_ONLY, 403)
        action = actions.get(request.path_params["action"])
        if action is None:
            raise FormRefused(NO_ACTION, 404)
        if form.pop("sure", "") != "yes":
            return self._renderer.page(
                request, "confirm.html", action=action, queue=target.queue, id=target.id, form=form
            )
        outcome = await self._perform(request, action, target, form)
        signed = urlencode({"done": outcome, "by": self._access.signed(outcome)})
        return RedirectResponse(f"{self._next(request, action, target, form)}?{signed}", 303)

    async def _perform(self, request: Request, action: Action, target: Target, form: dict[str, str]) -> str:
        said = f"{action.name} of {shown(target.queue)} {target.id}".rstrip()
        address, given = address_of(request), {name: text for name, text in form.items() if name != "data"}
        try:
            outcome = await self._room.call(partial(action.perform, target, form))
        except FdbQueueError as error:
            _log.warning("%s by %s %s was refused: %s", said, address, shown(given), error)
            raise
        except DatabaseSilent as error:
            _log.warning("%s by %s %s has no known outcome: %s", said, address, shown(given), error)
            raise DatabaseSilent(f"{error}. It is not known whether the action has happened.") from error
        _log.info("%s by %s %s: %s", said, address, shown(given), outcome)
        self._sampler.expire()
        if action.drives:
            self._drivers.start(target.queue)
        return outcome

    def _next(self, request: Request, action: Action, target: Target, form: Mapping[str, str]) -> str:
        path = f"{request.scope.get('root_path', '')}/queues/{segment(target.queue)}"
        if form.get("back") == "dead":
            path += "/dead"
        elif target.id and action.name not in ("delete", "cancel"):
            path += f"/tasks/{target.id}"
        return path
