"""Time, randomness, threads, locks and waiting: the only module that touches them.

Everything else asks its `Runtime`, so that simulation can put a seed in charge of them all. A Runtime
belongs to one machine: `RealRuntime` to this process, a simulated one to a simulated client.
"""

import atexit
import os
import random as _random
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol


class Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Event(Protocol):
    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Waitable(Protocol):
    """What the binding's futures and ours share: enough to wait for one of several."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...


class Runtime(Protocol):
    def now(self) -> float:
        """Wall clock, seconds since the epoch: deadlines that other machines read."""

    def monotonic(self) -> float:
        """Seconds that never go back: intervals of this process."""

    def sleep(self, seconds: float) -> None: ...

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes: item suffixes, ids, tokens."""

    def random(self) -> float:
        """Uniform in [0, 1): jitter."""

    def lock(self) -> Lock: ...

    def event(self) -> Event: ...

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        """Start a daemon thread."""

    def thread_id(self) -> int: ...

    def thread_is_alive(self) -> Callable[[], bool]:
        """Asks, from whatever thread, whether the one that called this is still running."""

    def at_exit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the interpreter ends in good order; returns what takes that back."""

    def process_id(self) -> int:
        """Changes in a forked child, where nothing of the parent's may be used."""

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        """Until one of `futures` is ready; False when `timeout_s` passed first (None: for ever)."""


class RealRuntime:
    """This process's own clock, threads and randomness."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random_bytes = staticmethod(os.urandom)
    # The system's: children of a fork do not jitter in step, and nobody else's seed or sequence is touched.
    random = staticmethod(_random.SystemRandom().random)
    lock = staticmethod(threading.Lock)
    event = staticmethod(threading.Event)
    thread_id = staticmethod(threading.get_ident)
    process_id = staticmethod(os.getpid)

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def thread_is_alive(self) -> Callable[[], bool]:
        return threading.current_thread().is_alive

    def at_exit(self, callback: Callable[[], None]) -> Callable[[], None]:
        atexit.register(callback)
        return lambda: atexit.unregister(callback)

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        return wait_any(self, futures, timeout_s)


def wait_any(runtime: Runtime, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
    """`Runtime.wait_any` for any runtime that has events."""
    woken = runtime.event()
    for future in futures:
        if future.is_ready():
            return True
        future.on_ready(lambda _: woken.set())
    return woken.wait(timeout_s)
