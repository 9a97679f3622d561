"""The demo's processes: started, watched, one of them killed, and none of them left behind."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from fdb.subspace_impl import Subspace

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
        for share in range(PRODUCERS):
            name = f"producer-{share}"
            arguments = (self._url, self._space, name, share, PRODUCERS)
            self.producers.append(self._start(produce, name, arguments))
        for _ in range(CONSUMERS):
            self._hire()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self.producers, *self.consumers]:
            process.kill()
            process.join()

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
        self.consumers.append(self._start(consume, name, (self._url, self._space, name)))

    def _start(self, work: Callable[..., None], name: str, arguments: tuple[Any, ...]) -> SpawnProcess:
        process = self._context.Process(target=work, name=name, args=arguments)
        # Ctrl-C reaches the whole terminal: it is this process's to end the others, who inherit this mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process
