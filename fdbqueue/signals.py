"""Signals that end the program; they are held back while it holds items."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in ENDING:
            # An ignored signal stays ignored: nohup relies on it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrive)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
