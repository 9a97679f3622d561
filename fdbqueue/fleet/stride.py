"""Stride scheduling: which of several queues comes next, by weight and without starvation.

Each queue has a distance, a task adds 1/weight to it, and the queue with the least distance comes first. An
empty queue is moved up to the place of the last turn, so it saves up no turns. (The other queues are no
measure: a second empty queue, or one that is gone, stays behind.)
"""

from collections.abc import Sequence


class StrideScheduler:
    def __init__(self, weights: Sequence[int]) -> None:
        self._strides = [1 / weight for weight in weights]
        self._walked = [0.0] * len(weights)
        self._last_turn = 0.0
        """The distance at which a queue had the last turn."""

    def order(self) -> list[int]:
        """Return the numbers of the queues; the queue with the next turn is first."""
        return sorted(range(len(self._walked)), key=self._walked.__getitem__)

    def took(self, queue: int, count: int) -> None:
        self._last_turn = max(self._last_turn, self._walked[queue])
        self._walked[queue] += count * self._strides[queue]

    def was_empty(self, queue: int) -> None:
        self._walked[queue] = max(self._walked[queue], self._last_turn)
