"""Waiters: the calls of one process that may wait on one database, and the two things that end a wait early.

The caller's `stop` event ends one call, closing the database ends them all. A wait ends in the thread that
waits, which first leaves the line and gives back the results that lie ready. So closing has to wait for them:
sessions may end, and the engine may close, only when no call can take anything any more.

`listen` callbacks run in the thread that sets the event, perhaps in a signal handler that has interrupted one
of these calls. On that way nothing here takes a lock but `Event.set`, which holds its own for an instant.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, WaitStopped
from fdbqueue.core.runtime import Event, Runtime, Stop
from fdbqueue.core.seam import Future
from fdbqueue.core.visible import SURVIVED


class Waiter(Struct, eq=False):
    """One call that may wait. A `Waitable`: ready when its wait has to end."""

    _waiters: "Waiters"
    _stops: Sequence[Stop | None] = ()
    thread_id: int = 0
    _forget: list[Callable[[], None]] = field(default_factory=list)
    reason: type[DatabaseClosed | WaitStopped] | None = None
    """The error that ends the wait; None as long as it may go on."""
    _callback: Callable[[Any], None] | None = None

    def __enter__(self) -> "Waiter":
        """Raises DatabaseClosed, WaitStopped if `stop` is set already, InvalidArgument if it is no event."""
        self.thread_id = self._waiters.runtime.thread_id()
        self._waiters.inside[self] = None
        try:
            # Looked at after entering: either this call sees the closing, or the closing sees this call.
            if self._waiters.left is not None:
                raise DatabaseClosed
            for stop in self._stops:
                if stop is not None:
                    self._forget.append(self._waiters.listen(stop, lambda: self.end(WaitStopped)))
            if self.reason is not None:
                raise self.reason
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for forget in self._forget:
            forget()
        waiters = self._waiters
        waiters.inside.pop(self, None)
        if waiters.left is not None:
            waiters.left.set()

    def is_ready(self) -> bool:
        return self.reason is not None

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """The last callback counts: a call waits for one future at a time."""
        self._callback = callback
        if self.reason is not None:  # between the question and this
            callback(self)

    def end(self, reason: type[DatabaseClosed | WaitStopped]) -> None:
        """End the wait. The first reason is the one that the call raises."""
        self.reason = self.reason or reason
        callback = self._callback
        if callback is not None:
            callback(self)

    def check(self) -> None:
        """Raises WaitStopped, DatabaseClosed if the wait has to end."""
        if self.reason is not None:
            raise self.reason

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raises WaitStopped, DatabaseClosed."""
        self._waiters.runtime.wait_any([self], max(0.0, seconds))
        self.check()

    def sleep(self, watches: Sequence[Future], seconds: float) -> None:
        """Wait up to `seconds` for one of `watches`, and cancel them. Raises WaitStopped, DatabaseClosed."""
        try:
            self._waiters.runtime.wait_any([*watches, self], max(0.0, seconds))
        finally:  # an interrupted wait, too: a watch with a callback outlives its last reference
            for watch in watches:
                watch.cancel()
        self.check()


class Waiters:
    """The waiting calls of one database in this process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        # A dict for its order, which simulation must be able to repeat.
        self.inside: dict[Waiter, None] = {}
        self.left: Event | None = None
        """Set by each call that returns while the database closes; None before."""
        self._deaf = DeafStops(runtime)

    def listen(self, stop: Stop, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when `stop` is set, at once if it is; returns a function that takes that back."""
        # isinstance(stop, Event) takes 60 us, as it looks for each method of the protocol.
        hears = getattr(stop, "listen", None)
        if hears is None:
            return self._deaf.listen(stop, callback)
        forget: Callable[[], None] = hears(callback)
        return forget

    def close(self, timeout_s: float) -> None:
        """End all waits, and wait up to `timeout_s` for the calls to return. No call enters any more."""
        left = self.left = self.runtime.event()
        for waiter in list(self.inside):
            waiter.end(DatabaseClosed)
        until = self.runtime.monotonic() + timeout_s
        # A call of this very thread is below us on the stack, under a signal handler: it cannot return now.
        mine = self.runtime.thread_id()
        mine_inside = sum(waiter.thread_id == mine for waiter in list(self.inside))
        while len(self.inside) > mine_inside:
            patience_s = until - self.runtime.monotonic()
            if patience_s <= 0:
                return
            left.wait(patience_s)
            left.clear()


class DeafStops:
    """Events that cannot call back, as `threading.Event`: one thread looks at them while a call waits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._callbacks: dict[object, tuple[Stop, Callable[[], None]]] = {}
        self._is_looking = False

    def listen(self, stop: Stop, callback: Callable[[], None]) -> Callable[[], None]:
        if stop.is_set():
            callback()
        key = object()
        with self._lock:
            self._callbacks[key] = stop, callback
            if not self._is_looking:
                self._is_looking = True
                self._runtime.spawn(self._look, "fdbqueue-stops")
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        with suppress(KeyError):
            del self._callbacks[key]

    def _look(self) -> None:
        pause = self._runtime.event()
        try:
            while self._anyone_listens():
                for stop, callback in list(self._callbacks.values()):
                    if _is_set(stop):
                        callback()
                pause.wait(limits.STOP_LOOK_S)
        except BaseException:
            self._runtime.spawn(self._look, "fdbqueue-stops")  # something ends this thread (GreenletExit)
            raise

    def _anyone_listens(self) -> bool:
        with self._lock:
            self._is_looking = bool(self._callbacks)
            return self._is_looking


def _is_set(stop: Stop) -> bool:
    """True also for a broken event: a wait for it might never end."""
    try:
        return bool(stop.is_set())
    except SURVIVED:
        return True
