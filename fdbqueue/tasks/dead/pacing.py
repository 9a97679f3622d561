"""The pace of a redrive: how many tasks its next step may move, and when. Pure functions over values.

All processes that run a redrive share its key, so they share its rate. The rate bounds the tasks of any span
of time to that of the span and limits.REDRIVE_STEP_S more, and one step. Times are of the clocks of these
processes. A time farther ahead than clocks may differ is that of a wrong clock, and does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fdbqueue.core import limits
from fdbqueue.tasks.dead.places import Place
from fdbqueue.tasks.dead.values import Redrive, RedriveState


@dataclass(frozen=True)
class Turn:
    """The next step: `count` tasks now, or none before `wait_s` are over."""

    count: int
    wait_s: float = 0.0


def turn_of(redrive: Redrive, now: float) -> Turn:
    wait_s = redrive.due - now
    count = step_size(redrive)
    if 0 < wait_s <= count / redrive.rate_per_s + limits.CLOCK_SKEW_S:
        return Turn(0, wait_s)
    left = redrive.left if redrive.limit is None else min(redrive.left, redrive.limit - redrive.moved)
    return Turn(min(count, left))


def step_size(redrive: Redrive) -> int:
    """The tasks of one step: those of limits.REDRIVE_STEP_S, at least one."""
    return max(1, min(limits.VERB_BATCH, int(redrive.rate_per_s * limits.REDRIVE_STEP_S)))


def stepped(
    redrive: Redrive, now: float, places: Sequence[Place], moved: int, passed: int, *, is_last: bool
) -> Redrive:
    """The redrive after a step that has looked at the tasks at `places`."""
    last = places[-1] if places else Place(redrive.partition, redrive.cursor)
    after = replace(
        redrive,
        left=max(0, redrive.left - len(places)),
        moved=redrive.moved + moved,
        passed=redrive.passed + passed,
        cursor=last.key,
        partition=last.partition,
        due=_due(redrive, now, moved),
    )
    is_over = is_last or not after.left or after.moved == after.limit
    return replace(after, state=RedriveState.DONE) if is_over else after


def _due(redrive: Redrive, now: float, moved: int) -> float:
    """The time of the next step. A step that came late makes up for at most limits.REDRIVE_STEP_S."""
    if not moved:
        return redrive.due
    earliest = now - limits.REDRIVE_STEP_S
    begun = now if redrive.due > now else max(redrive.due, earliest)
    return begun + moved / redrive.rate_per_s
