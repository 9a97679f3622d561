"""A tap takes messages in a thread of its own, for a channel on the event loop of a worker."""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fdbqueue.core.errors import heals
from fdbqueue.core.runtime import Event, Runtime
from fdbqueue.core.task import Task
from fdbqueue.integrations.celery.databases import BrokerLost
from fdbqueue.tasks.queue import TaskQueue


class Want(NamedTuple):
    """A queue from which messages are wanted for a channel."""

    channel: Any
    name: str
    queue: TaskQueue


Wants = Mapping[Want, int]
"""The largest number of messages of each queue."""


class Found(NamedTuple):
    want: Want
    task: Task


WAIT_S = 30.0


class Tap:
    """A thread that takes messages for one channel, and wakes the event loop of a worker. `wants()` tells
    from where to `take`. Messages wait here until the loop calls `drawn`.
    """

    def __init__(
        self,
        runtime: Runtime,
        take: Callable[[Wants, float, Event], Sequence[Found]],
        wants: Callable[[], Wants],
        receive: Callable[[Found], bool],
    ) -> None:
        self._runtime = runtime
        self._take = take
        self._wants = wants
        self._receive = receive
        self._inbox: deque[Found] = deque()
        self._error: Exception | None = None
        self._changed = self._runtime.event()
        self._stop: Event = self._runtime.event()
        self._ended = False
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that is readable when there is something to draw."""
        self._thread = self._runtime.spawn(self._run, "fdbqueue-celery-tap")

    def changed(self) -> None:
        """Look again from where to take, and end a wait that is under way."""
        self._changed.set()
        self._stop.set()

    def freed(self) -> None:
        """Look again from where to take, after a wait that is under way."""
        self._changed.set()

    def drawn(self) -> list[Found]:
        """The messages that have come. Raises the error that ended the takes, as BrokerLost if it heals."""
        os.eventfd_read(self.bell)
        if self._error is not None:
            if not heals(self._error):
                raise self._error
            raise BrokerLost(str(self._error)) from self._error
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def end(self) -> list[Found]:
        """Stop taking. Return the messages that have not been drawn."""
        self._ended = True
        self.changed()
        self._thread.join()
        os.close(self.bell)
        return list(self._inbox)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._take_some()
        except Exception as error:
            self._error = error
            self._ring()

    def _take_some(self) -> None:
        self._changed.clear()
        # Before the look: a change after it ends the wait.
        stop = self._stop = self._runtime.event()
        wants = self._wants()
        if not wants or self._ended:
            if not self._ended:
                self._changed.wait()
            return
        taken = self._take(wants, WAIT_S, stop)
        if held := [found for found in taken if self._receive(found)]:
            self._inbox.extend(held)
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self.bell, 1)
