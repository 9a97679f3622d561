"""An observer that keeps all that it is told."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fdbqueue import TaskQueue
from fdbqueue.core.observing import Attempt, Call, Ended, Observer, Watcher, observe


@dataclass(eq=False)
class Notes(Observer):
    """Keeps calls and attempts that have ended, in order, and counts transactions."""

    trace: bytes = b""
    calls: list[Call] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    commits: int = 0
    codes: list[int] = field(default_factory=list)

    def call(self, call: Call) -> Ended:
        call.trace = self.trace
        return self.calls.append

    def attempt(self, attempt: Attempt) -> Watcher:  # noqa: ARG002
        return Kept(self.attempts)

    def committed(self) -> None:
        self.commits += 1

    def failed(self, code: int) -> None:
        self.codes.append(code)

    def told(self) -> list[tuple[str, str, bool, int]]:
        return [(call.name, call.queue, call.within, call.count) for call in self.calls]


class Kept(Watcher):
    def __init__(self, attempts: list[Attempt]) -> None:
        self._attempts = attempts

    def ended(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)


@pytest.fixture
def notes() -> Iterator[Notes]:
    noted = Notes()
    with observe(noted):
        yield noted


@pytest.fixture
def queue(db, space) -> TaskQueue:
    return TaskQueue.create(db, "jobs", "fifottl", ttr=30, root=space)
