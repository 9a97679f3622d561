"""Backoff: the delay of a failed task before its next attempt."""

from dataclasses import dataclass
from typing import Any

from fdbqueue.core.arguments import checked_seconds, checked_whole, is_number
from fdbqueue.core.errors import InvalidArgument

GROWTH_MAX = 1_000.0
"""The bound of `growth`: 64 steps of it stay far below the largest float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay of `first_s` after the first failure, and `growth` times as long after each further one.

    It is `cap_s` at most. A task waits for a random part of it, between a half and the whole, so that tasks
    that failed together are not ready again together. Raises InvalidArgument.
    """

    first_s: float = 1.0
    growth: float = 2.0
    cap_s: float = 600.0

    def __post_init__(self) -> None:
        checked_seconds("first_s", self.first_s)
        checked_seconds("cap_s", self.cap_s)
        if not is_number(self.growth) or not 1 <= self.growth <= GROWTH_MAX:
            raise InvalidArgument(name="growth", wanted=f"a number from 1 to {GROWTH_MAX:g}", got=self.growth)

    def delay_s(self, failures: int, random: float) -> float:
        """Return the delay after `failures` failures in a row; `random` is uniform in [0, 1).

        Raises InvalidArgument.
        """
        checked_whole("failures", failures, 0)
        checked_seconds("random", random)
        steps = min(max(failures, 1) - 1, 64)
        whole = min(self.first_s * self.growth**steps, self.cap_s)
        return whole * (0.5 + random / 2)


def checked_backoff(backoff: Any) -> Backoff:
    if not isinstance(backoff, Backoff):
        raise InvalidArgument(name="backoff", wanted="fdbqueue.Backoff", got=backoff)
    return backoff
