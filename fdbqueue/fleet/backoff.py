"""Backoff: how long a task that failed waits for its next attempt."""

from dataclasses import dataclass

from fdbqueue.errors import InvalidArgument
from fdbqueue.tasks.kinds import is_number


@dataclass(frozen=True)
class Backoff:
    """`first_s` after the first failure, `growth` times as much after each further one, `cap_s` at most;
    of that, a random part between a half and the whole, so that what failed together does not come back
    together.

    Raises InvalidArgument.
    """

    first_s: float = 1.0
    growth: float = 2.0
    cap_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low in (("first_s", 0), ("growth", 1), ("cap_s", 0)):
            got = getattr(self, name)
            if not is_number(got) or got < low:
                raise InvalidArgument(name=name, wanted=f"a number, {low} or more", got=got)

    def delay_s(self, failures: int, random: float) -> float:
        """The delay after so many failures in a row; `random` is uniform in [0, 1)."""
        steps = min(max(failures, 1) - 1, 64)
        whole = min(self.first_s * self.growth**steps, self.cap_s)
        return whole * (0.5 + random / 2)
