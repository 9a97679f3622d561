"""A handler that runs between two steps of other code, as that of a signal does."""

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.support import PATIENCE_S

STEPS = ("call", "c_return")
"""Python runs signal handlers at the begin of a function and after a call (and at jumps back)."""


class At:
    """A profiler that calls `handler` once, at the step of that number. Functions of `skipped` have none."""

    def __init__(self, number: int, handler: Callable[[], object], skipped: str) -> None:
        self._left = number
        self._handler = handler
        self._skipped = skipped
        self.came_at: float | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in STEPS and frame.f_code.co_filename not in (self._skipped, __file__):
            self._step()

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.came_at = time.monotonic()
            self._handler()


def interrupted(at: At, action: Callable[[], object]) -> bool:
    """Run `action` in a thread, as a deadlock must not stop the test. Return True if the handler came."""

    def run() -> None:
        sys.setprofile(at)
        try:
            action()
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the interrupted code and its handler wait for each other"
    return at.came_at is not None
