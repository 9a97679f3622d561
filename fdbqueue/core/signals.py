"""Handlers of signals, which belong to one process: a child that it forks has the handlers from before.

A child that kept them could not be ended by a signal. If it kept the descriptor that wakes its parent, too,
each signal for the child would stop the parent.

`Signals` are those that end the program; they are held back while it holds items.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from fdbqueue.core.runtime import RealRuntime

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def heard() -> list[signal.Signals]:
    """The signals that end a program, without the ignored ones: those stay ignored, as nohup relies on it."""
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def install(numbers: Iterable[int], handler: Handler, wakes_fd: int = -1) -> Callable[[], None]:
    """Handle signals in this process, and return a function that restores the handlers from before.

    Each signal is also written to the descriptor `wakes_fd`.
    Raises: ValueError in another thread than the main one.
    """
    if wakes_fd >= 0:  # first: a signal that comes before would be lost
        signal.set_wakeup_fd(wakes_fd)
    installed = _Installed(handler, wakes_fd, {number: signal.signal(number, handler) for number in numbers})
    _installed.append(installed)

    def restore() -> None:
        if installed in _installed:  # a forked child has restored them by now
            _installed.remove(installed)
            for number, before in installed.before.items():
                signal.signal(number, before)

    return restore


def hear_of_children() -> Callable[[], None]:
    """Let the kernel keep the exit statuses of children. Return a function that ends this.

    A process that ignores SIGCHLD gets none, and `subprocess` takes each child for one that has succeeded. A
    parent may have handed that on. Raises: ValueError in another thread than the main one.
    """
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return lambda: None
    return install([signal.SIGCHLD], signal.SIG_DFL)


@dataclass(frozen=True, eq=False)
class _Installed:
    """A handler, and those that it has replaced, by signal."""

    handler: Handler
    wakes_fd: int
    before: dict[int, Any]

    def leave(self) -> None:
        """In a forked child, restore the handlers from before; those of other code stay."""
        for number, before in self.before.items():
            if signal.getsignal(number) == self.handler:
                signal.signal(number, before)
        if self.wakes_fd >= 0 and (wakes_fd := signal.set_wakeup_fd(-1)) != self.wakes_fd:
            signal.set_wakeup_fd(wakes_fd)


_installed: list[_Installed] = []
_blocked: dict[int, set[int | signal.Signals]] = {}
"""By thread that forks: the signals that it had blocked before."""


def _before_fork() -> None:
    """Hold signals back until the child has its handlers: an early one would be lost, or wake the parent."""
    if _installed:
        # Noted before the change, as that may run a handler, which may raise.
        _blocked[RealRuntime.thread_id()] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _after_fork() -> None:
    blocked = _blocked.pop(RealRuntime.thread_id(), None)
    if blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _after_fork_in_child() -> None:
    while _installed:
        _installed.pop().leave()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class Interrupted(BaseException):
    """A signal asked this process to end. Not a KeyboardInterrupt, as click handles that itself."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


class Signals:
    """A context manager. Within it, a signal raises Interrupted, at once or after a `deferred` block."""

    def __init__(self, finally_deaf: bool = False) -> None:
        """With `finally_deaf`, signals after the first are ignored, so none interrupts the cleaning up."""
        self._finally_deaf = finally_deaf
        self.arrived: int | None = None
        self._deferring = False

    def __enter__(self) -> "Signals":
        self._restore = install(heard(), self._arrive)
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold the first signal back until the end of the block; the second one interrupts it."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def check(self) -> None:
        """Raises Interrupted if a signal has arrived."""
        if self.arrived is not None:
            raise Interrupted(self.arrived)

    def _arrive(self, number: int, _: FrameType | None) -> None:
        first, self.arrived = self.arrived is None, number
        ignored = self._deferring if first else self._finally_deaf
        if not ignored:
            raise Interrupted(number)
