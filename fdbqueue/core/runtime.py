"""Time, randomness, threads, locks and waiting: the only module that touches them.

Everything else asks its `Runtime`, so that simulation can put a seed in charge of them all. A Runtime
belongs to one machine: `RealRuntime` to this process, a simulated one to a simulated client.
"""

import atexit
import os
import platform
import random as _random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol, runtime_checkable


class Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Stop(Protocol):
    """An event that ends a wait: one of `Runtime.event`, or a `threading.Event`."""

    def is_set(self) -> bool: ...


@runtime_checkable
class Event(Stop, Protocol):
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the event is set, at once if it is; returns a function that takes that back.

        It runs in the thread that sets the event, and perhaps twice.
        """


class Thread(Protocol):
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Waitable(Protocol):
    """The common part of the binding's futures and ours: enough to wait for one of several."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...


class Runtime(Protocol):
    def now(self) -> float:
        """Wall clock, seconds since the epoch: deadlines that other machines read."""

    def now_us(self) -> int:
        """`now`, in whole microseconds."""

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
        """Returns a function, for any thread, that is true while the calling thread runs."""

    def at_exit(self, callback: Callable[[float], None]) -> Callable[[], None]:
        """Call `callback` when the process ends normally and its threads have ended, except daemon threads.

        Its argument is the monotonic() at which the first callback of this process was called. Returns a
        function that takes the registration back. A callback may be called twice.
        """

    def process_id(self) -> int:
        """Changes in a forked child, where nothing of the parent's may be used."""

    def host_name(self) -> str:
        """The name of the machine, to be shown."""

    def memory_bytes(self) -> int:
        """The resident bytes of the process now; without /proc, the maximum until now."""

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        """Until one of `futures` is ready; False when `timeout_s` passed first (None: for ever)."""


class Listeners:
    """The callbacks of one event.

    A dict's steps are atomic. A lock could be held by the code that a signal handler interrupts.
    """

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None], is_set: Callable[[], bool]) -> Callable[[], None]:
        key = object()
        self._callbacks[key] = callback
        if is_set():  # looked at after adding: it may have been set just before
            callback()

        def forget() -> None:
            self._callbacks.pop(key, None)

        return forget

    def tell(self) -> None:
        for callback in list(self._callbacks.values()):
            callback()


class RealEvent:
    """An event between threads, as `threading.Event`, that also calls back.

    It has no lock: a signal handler may set it at each step of `set` or `wait` of the thread it interrupts.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._listeners = Listeners()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._listeners.tell()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        # Its `put` may interrupt itself, and comes before a `get` or ends it.
        woken = SimpleQueue[None]()
        forget = self.listen(lambda: woken.put(None))
        try:
            woken.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            return False
        finally:
            forget()
        return True

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.add(callback, self.is_set)


class RealRuntime:
    """This process's own clock, threads and randomness."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random_bytes = staticmethod(os.urandom)
    # Random numbers of the system: children of a fork do not jitter in step, and the program's own seed
    # stays.
    random = staticmethod(_random.SystemRandom().random)
    lock = staticmethod(threading.Lock)
    event = staticmethod(RealEvent)
    thread_id = staticmethod(threading.get_ident)
    process_id = staticmethod(os.getpid)
    host_name = staticmethod(platform.node)

    def now_us(self) -> int:
        return round(self.now() * 1_000_000)

    @staticmethod
    def memory_bytes() -> int:
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            resource: Any = import_module("resource")  # only here: most machines have /proc
            peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak * (1 if sys.platform == "darwin" else 1_024)

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def thread_is_alive(self) -> Callable[[], bool]:
        return threading.current_thread().is_alive

    def at_exit(self, callback: Callable[[float], None]) -> Callable[[], None]:
        def end() -> None:
            callback(_Exit.begun())

        atexit.register(end)
        forget_child = _at_child_exit(end)

        def forget() -> None:
            atexit.unregister(end)
            forget_child()

        return forget

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        return wait_any(self, futures, timeout_s)


class _Exit:
    _began: float | None = None

    @classmethod
    def begun(cls) -> float:
        """The monotonic time of the first call of this method."""
        if cls._began is None:
            cls._began = time.monotonic()
        return cls._began


class _LastThread(threading.Thread):
    """Calls a function when all threads that the process waits for have ended, others of this class aside."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__(name="fdbqueue-exit", daemon=False)
        self._callback = callback

    def run(self) -> None:
        while awaited := [thread for thread in threading.enumerate() if self._is_awaited(thread)]:
            awaited[0].join()
        self._callback()

    @staticmethod
    def _is_awaited(thread: threading.Thread) -> bool:
        return not (thread.daemon or isinstance(thread, _LastThread) or thread is threading.main_thread())


def _at_child_exit(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` at the end of a multiprocessing child, too: a forked one ends without atexit."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is None or util is None or process.parent_process() is None:
        return lambda: None
    # A thread: finalizers run before the child waits for its other threads, which may be at work.
    finalizer = util.Finalize(None, lambda: _LastThread(callback).start(), exitpriority=0)
    forget: Callable[[], None] = finalizer.cancel
    return forget


@contextmanager
def parent_only(runtime: Runtime) -> Iterator[None]:
    """End a child that the code of the block forks: what follows the block is the work of its parent."""
    process_id = runtime.process_id()
    try:
        yield
    finally:
        if runtime.process_id() != process_id:
            os._exit(0)


def wait_any(runtime: Runtime, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
    """`Runtime.wait_any` for any runtime that has events."""
    woken = runtime.event()
    for future in futures:
        if future.is_ready():
            return True
        future.on_ready(lambda _: woken.set())
    return woken.wait(timeout_s)
