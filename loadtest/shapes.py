"""How many users there are at what time: steady, ramp, burst, soak.

`--users` is the most there are, `--run-time` how long it takes, `--spawn-rate` how fast they come.
"""

import time
from collections.abc import Callable

from locust import LoadTestShape

USERS, RUN_TIME_S, SPAWN_RATE = 10, 60.0, 100.0
SOAK_TIME_S = 600.0
RAMP_STEPS = 4
BURST_PERIOD_S, BURST_SHARE, QUIET = 10.0, 0.3, 0.1


def steady(_seconds: float, _total_s: float, users: int) -> int:
    """All of them, from beginning to end."""
    return users


def ramp(seconds: float, total_s: float, users: int) -> int:
    """Steps, each twice the last, up to all: rates and conflicts by the number of clients."""
    step = min(int(seconds / total_s * RAMP_STEPS), RAMP_STEPS - 1)
    return max(1, round(users / (1 << RAMP_STEPS - 1 - step)))


def burst(seconds: float, _total_s: float, users: int) -> int:
    """A tenth of them, and every ten seconds all for three: does the backlog go away again?"""
    return users if seconds % BURST_PERIOD_S < BURST_PERIOD_S * BURST_SHARE else max(1, round(users * QUIET))


def soak(seconds: float, total_s: float, users: int) -> int:
    """Up within a tenth of a long time, then all: what grows that should not?"""
    return max(1, round(users * min(1.0, 10 * seconds / total_s)))


SHAPES: dict[str, Callable[[float, float, int], int]] = {
    shape.__name__: shape for shape in (steady, ramp, burst, soak)
}


def users_at(shape: str, seconds: float, total_s: float, users: int) -> int | None:
    """How many users the shape wants `seconds` after the start; None when it is over."""
    return None if seconds >= total_s else SHAPES[shape](seconds, total_s, users)


class ChosenShape(LoadTestShape):
    """The shape that `--shape` names. Locust wants one class; which it is to be is known only later."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        assert self.runner.environment.parsed_options is not None
        parsed = self.runner.environment.parsed_options
        total_s = float(parsed.run_time or (SOAK_TIME_S if parsed.shape == "soak" else RUN_TIME_S))
        users = users_at(parsed.shape, time.perf_counter() - self.start_time, total_s, parsed.num_users)
        # One of each kind at least: a consumer alone is no load.
        return None if users is None else (max(users, len(self.runner.user_classes)), parsed.spawn_rate)
