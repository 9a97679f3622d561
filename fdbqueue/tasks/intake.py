"""Intake: takes from several queues, by weight and without starvation, in one thread of its owner.

An idle process has one request in the line of each queue, whatever the number of its threads. So it has one
watch per queue, and a put wakes one process, not all of them. Its owner decides about a queue that fails or
was dropped: it chooses the queues of each take, and the function that takes from one of them.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.runtime import Event, Runtime, Thread
from fdbqueue.core.task import Task

K = TypeVar("K", bound=Hashable)
"""A queue, by a name, number or handle that its owner chooses."""

Take = Callable[[K, int, float, Event], Sequence[Task]]
"""Given a queue, a count, a time in seconds and an event that ends the wait: take from that queue.

A function that cannot end its wait before it has begun may listen to the event, which is set repeatedly.
"""
Found = list[tuple[K, Task]]


class StrideScheduler(Generic[K]):
    """Which of several queues comes next, by weight and without starvation.

    Each queue has a distance, a task adds 1/weight to it, and the queue with the least distance comes first.
    An empty or a new queue is moved up to the place of the last turn, so it saves up no turns. (The other
    queues are no measure: a second empty queue, or one that is gone, stays behind.)
    """

    def __init__(self, weights: Mapping[K, int]) -> None:
        """A queue without a weight has the weight 1."""
        self._weights = weights
        self._walked: dict[K, float] = {}
        self._last_turn = 0.0
        """The distance at which a queue had the last turn."""

    def order(self, queues: Iterable[K]) -> list[K]:
        """Return the queues; that with the next turn is first. Others are forgotten."""
        self._walked = {queue: self._walked.get(queue, self._last_turn) for queue in queues}
        return sorted(self._walked, key=self._walked.__getitem__)

    def took(self, queue: K, count: int) -> None:
        walked = self._walked.get(queue, self._last_turn)
        self._last_turn = max(self._last_turn, walked)
        self._walked[queue] = walked + count / self._weights.get(queue, 1)

    def was_empty(self, queue: K) -> None:
        self._walked[queue] = max(self._walked[queue], self._last_turn)


class Intake(Generic[K]):
    def __init__(self, runtime: Runtime, weights: Mapping[K, int], rest_s: float = 0) -> None:
        """`rest_s`: time for which `look` passes over a queue that was empty."""
        self._runtime = runtime
        self._rest_s = rest_s
        self._scheduler = StrideScheduler[K](weights)
        self._look_at: dict[K, float] = {}
        """By queue that was empty: the time from which it is asked again, as runtime.monotonic()."""

    def take(self, take: Take[K], wanted: Mapping[K, int], timeout_s: float, stop: Event) -> Found[K]:
        """Take up to the wanted number from one queue, and wait up to `timeout_s` for the first task.

        After a wait, the tasks are one of each queue that had one at the same moment. Empty after that time,
        and when `stop` is set. Raises: the errors of `take`, unless another queue has a task.
        """
        return self.look(take, wanted, timeout_s, stop) or self.wait(take, wanted, timeout_s, stop)

    def look(self, take: Take[K], wanted: Mapping[K, int], timeout_s: float, stop: Event) -> Found[K]:
        """Take without a wait from the first of several queues, in the order of their turns, with a task.

        A queue that was empty is passed over for `rest_s`, unless no wait follows: others may be busy.
        """
        if len(wanted) == 1:
            return []
        now = self._runtime.monotonic()
        order = self._scheduler.order(wanted)
        resting = [queue for queue in order if self._look_at.get(queue, now) > now]
        for queue in resting:
            self._scheduler.was_empty(queue)
        asked = [queue for queue in order if queue not in resting]
        for queue in asked if timeout_s > 0 else [*asked, *resting]:
            try:
                found = self._taken(take, queue, wanted[queue], 0, stop)
            except Exception:
                self._scheduler.took(queue, 1)  # it has had its turn: otherwise it would keep it for ever
                raise
            if found:
                self._scheduler.took(queue, len(found))
                return found
            self._scheduler.was_empty(queue)
            self._look_at[queue] = now + self._rest_s
        return []

    def wait(self, take: Take[K], wanted: Mapping[K, int], timeout_s: float, stop: Event) -> Found[K]:
        """Wait in the line of the one queue, or in those of all at once, until one take returns a task."""
        if len(wanted) == 1:
            [(queue, count)] = wanted.items()
            return self._taken(take, queue, count, timeout_s, stop)
        found = self._wait(take, wanted, timeout_s, stop) if timeout_s > 0 else []
        self._look_at.clear()
        for queue, _ in found:
            self._scheduler.took(queue, 1)
        return found

    def _wait(self, take: Take[K], queues: Iterable[K], timeout_s: float, stop: Event) -> Found[K]:
        """One waiting take per queue, each in a thread of its own; the first that returns ends the others."""
        found: Found[K] = []
        errors: list[Exception] = []
        over = self._runtime.event()

        def stand(queue: K) -> None:
            try:
                found.extend(self._taken(take, queue, 1, timeout_s, over))
            except Exception as error:
                errors.append(error)
            finally:
                over.set()

        threads: list[Thread] = []
        forget = stop.listen(over.set)
        try:
            threads.extend(self._runtime.spawn(partial(stand, queue), "fdbqueue-waiter") for queue in queues)
            over.wait(timeout_s)
        except RuntimeError as error:  # no thread can be started: the others may return a task
            errors.append(error)
        finally:
            over.set()
            forget()
        for thread in threads:
            while thread.is_alive():
                over.set()  # again, as the end of a wait may miss one that is about to begin
                thread.join(limits.EMPTY_QUEUE_LOOK_S / 10)
        if errors and not found:
            raise errors[0]
        return found

    @staticmethod
    def _taken(take: Take[K], queue: K, count: int, timeout_s: float, stop: Event) -> Found[K]:
        with suppress(WaitStopped):
            return [(queue, task) for task in take(queue, count, timeout_s, stop)]
        return []
