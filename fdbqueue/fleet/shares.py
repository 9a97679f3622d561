"""Shares: which of several queues comes next, so that each gets its weight and none starves.

Stride scheduling: every queue has walked a distance, each task takes it 1/weight further, and the one that
is behind goes first. One that was empty starts where the others are: nobody saves up turns.
"""

from collections.abc import Sequence


class Shares:
    def __init__(self, weights: Sequence[int]) -> None:
        self._strides = [1 / weight for weight in weights]
        self._walked = [0.0] * len(weights)

    def order(self) -> list[int]:
        """The queues, the one whose turn it is first."""
        return sorted(range(len(self._walked)), key=self._walked.__getitem__)

    def took(self, queue: int, count: int) -> None:
        self._walked[queue] += count * self._strides[queue]

    def was_empty(self, queue: int) -> None:
        ahead = [walked for other, walked in enumerate(self._walked) if other != queue]
        self._walked[queue] = max(self._walked[queue], min(ahead, default=0.0))
