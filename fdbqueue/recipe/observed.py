"""Stand-ins for a recipe queue and its services that tell the observers of each call."""

from collections.abc import Sequence
from typing import Any

from fdbqueue.line.take import Taken
from fdbqueue.observing import Call
from fdbqueue.recipe.calls import Calls
from fdbqueue.recipe.parts import RecipeParts
from fdbqueue.runtime import Runtime, Stop
from fdbqueue.seam import Transaction


class ObservedCalls:
    """`Calls` of a queue given a database."""

    def __init__(self, calls: Calls, name: str, runtime: Runtime) -> None:
        self._calls = calls
        self.recipe = calls.recipe
        self._name = name
        self._runtime = runtime

    def append(self, payloads: Sequence[bytes]) -> None:
        with Call(self._runtime, "enqueue", self._name, count=len(payloads)):
            self._calls.append(payloads)

    def take(self, count: int, stop: Stop | None = None) -> Sequence[Any]:
        with Call(self._runtime, "dequeue", self._name, count=0) as call:
            found = self._calls.take(count, stop)
            call.count = len(found)
            return found

    def wait(self, timeout_s: float, stop: Stop | None = None) -> Sequence[Any]:
        with Call(self._runtime, "dequeue", self._name, waits=True, count=0) as call:
            found = self._calls.wait(timeout_s, stop)
            call.count = len(found)
            return found

    def close(self) -> None:
        """Does nothing: it stands in for one call."""

    def is_needed(self) -> bool:
        return False


class ObservedRecipe:
    """The recipe in a transaction of the caller."""

    def __init__(self, recipe: RecipeParts, name: str, runtime: Runtime) -> None:
        self._recipe = recipe
        self._name = name
        self._runtime = runtime

    def append(self, tr: Transaction, payloads: Sequence[bytes], random: bytes) -> None:
        with Call(self._runtime, "enqueue", self._name, within=True, count=len(payloads)):
            self._recipe.append(tr, payloads, random)

    def take(self, tr: Transaction, count: int, now_us: int) -> Taken:
        with Call(self._runtime, "dequeue", self._name, within=True, count=0) as call:
            taken = self._recipe.take(tr, count, now_us)
            call.count = len(taken.values)
            return taken
