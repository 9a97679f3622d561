"""Leases: a task that was taken is at no other take until it is released or its lease is over.

The result of `take` is None, or a pair of the task and its lease. The argument of `ack`, `release` and
`renew` is such a pair, and "refused" is their result if the lease is not live. A lease lasts for `ttr_us`
from its take or its last renewal on. After that it ends at any moment, and may be used until then.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from fdbqueue.testing.history.model import Call, hashable
from fdbqueue.testing.history.recorder import REFUSED


class Task(NamedTuple):
    value: Hashable
    lease: Hashable = None
    """None for a task that is ready."""
    until_us: int = 0
    """The first moment at which the lease may end."""


Tasks = frozenset[Task]


class Leases:
    def __init__(self, ttr_us: int) -> None:
        self._ttr_us = ttr_us

    def start(self) -> Tasks:
        return frozenset()

    def after(self, state: Tasks, call: Call) -> Tasks | None:
        if call.name == "put":
            return state | {Task(hashable(call.argument))}
        if call.name == "take":
            return self._taken(state, call)
        held = _held(state, call)
        if (call.result == REFUSED) != (held is None):
            return None
        return state if held is None else self._ended(state, held, call)

    def effects(self, state: Tasks, call: Call) -> Iterable[Tasks]:
        """A take that told no lease has one that may end at once: no caller relies on it."""
        if call.name == "put":
            yield state | {Task(hashable(call.argument))}
        elif call.name == "take":
            for task in state:
                if task.lease is None:
                    lease = "unknown", call.process, call.begin_us
                    yield state - {task} | {Task(task.value, lease, call.begin_us)}
        elif call.name != "renew":  # an unknown renewal can only delay the end, which may come late anyway
            held = _held(state, call)
            if held is not None:
                yield self._ended(state, held, call)

    def events(self, state: Tasks) -> Iterable[tuple[int, Tasks]]:
        for task in state:
            if task.lease is not None:
                yield task.until_us, state - {task} | {Task(task.value)}

    def added(self, call: Call) -> Hashable | None:
        if call.name == "put":
            return hashable(call.argument)
        is_back = call.name == "release" and call.is_known and call.result != REFUSED
        return hashable(call.argument[0]) if is_back else None

    def taken(self, call: Call) -> Hashable | None:
        is_task = call.name == "take" and call.is_known and call.result is not None
        return hashable(call.result[0]) if is_task else None

    def _taken(self, state: Tasks, call: Call) -> Tasks | None:
        if call.result is None:
            return None if any(task.lease is None for task in state) else state
        value, lease = map(hashable, call.result)
        ready = Task(value)
        return state - {ready} | {self._leased(value, lease, call)} if ready in state else None

    def _ended(self, state: Tasks, held: Task, call: Call) -> Tasks:
        rest = state - {held}
        if call.name == "ack":
            return rest
        return rest | {
            Task(held.value) if call.name == "release" else self._leased(held.value, held.lease, call)
        }

    def _leased(self, value: Hashable, lease: Hashable, call: Call) -> Task:
        return Task(value, lease, call.begin_us + self._ttr_us)


def _held(state: Tasks, call: Call) -> Task | None:
    value, lease = map(hashable, call.argument)
    return next((task for task in state if task[:2] == (value, lease)), None)
