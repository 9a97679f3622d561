"""The demo's processes: started, watched, one of them killed, and none of them left behind."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.cli.signals import ENDING
from fdbqueue.demo.workers import consume, produce
from fdbqueue.errors import FdbQueueError

PRODUCERS = 2
CONSUMERS = 3


class WorkerDied(FdbQueueError):
    """{name} ended with status {status}, which is not part of the demo."""


class Fleet:
    """A context manager: at its end no process is left."""

    def __init__(self, url: str, space: Subspace) -> None:
        self._url = url
        self._space = space
        self._context = multiprocessing.get_context("spawn")
        self._hired = 0
        self.kills = 0
        self.producers: list[SpawnProcess] = []
        self.consumers: list[SpawnProcess] = []

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self.producers, *self.consumers]:
            process.kill()
            process.join()

    def start(self) -> None:
        for share in range(PRODUCERS):
            arguments = (self._url, self._space, f"producer-{share}", share, PRODUCERS)
            self._start(produce, arguments, self.producers)
        for _ in range(CONSUMERS):
            self._hire()

    def kill_one(self) -> None:
        """SIGKILL the first consumer, whatever it is doing, and start another."""
        victim = self.consumers.pop(0)
        victim.kill()
        victim.join()
        self.kills += 1
        self._hire()

    def running(self, tick_s: float) -> bool:
        """Whether any process still works, after at most `tick_s` seconds. Raises WorkerDied."""
        processes = [*self.producers, *self.consumers]
        alive = [process for process in processes if process.is_alive()]
        wait([process.sentinel for process in alive], tick_s)
        for process in processes:
            if process.exitcode:
                raise WorkerDied(name=process.name, status=process.exitcode)
        return bool(alive)

    @property
    def producing(self) -> bool:
        return any(process.is_alive() for process in self.producers)

    def _hire(self) -> None:
        name = f"consumer-{self._hired}"
        self._hired += 1
        self._start(consume, (self._url, self._space, name), self.consumers)

    def _start(
        self, work: Callable[..., None], arguments: tuple[Any, ...], among: list[SpawnProcess]
    ) -> None:
        process = self._context.Process(target=work, name=arguments[2], args=arguments)
        # No signal may come between a start and the note of it. The child inherits this mask, and should:
        # Ctrl-C reaches the whole terminal, but it is this process's to end the others.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            process.start()
            among.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
