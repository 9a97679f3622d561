"""Faults: their kinds, their probabilities, and the dice that decide when one happens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fdbqueue.core.limits import CLOCK_SKEW_S
from fdbqueue.core.seam import CLUSTER_VERSION_CHANGED
from fdbqueue.embedded.surface import Future
from fdbqueue.embedded.transaction import Transaction

# A process that meets one of these may be late with a heartbeat.
DELAYING = frozenset(
    {
        "die",
        "stall",
        "slow_reply",
        "clock_skew_s",
        "unknown_done",
        "unknown_not_done",
        "unknown_after_conflict",
    }
)


@dataclass(frozen=True)
class Faults:
    """The probability of each fault; zero switches it off. FoundationDB's contract allows all of them.

    - Each commit that writes: `not_committed` (1020); `unknown_done` and `unknown_not_done` (1021, after a
      commit or without one).
    - Each commit that writes, in a workload that asks for it: `version_changed` (1039). The commit arrives
      within two seconds, or never, and not after the next commit of its transaction.
    - Each commit that writes, right after a conflict of the same transaction: `unknown_after_conflict` (1021,
      after a commit or without one).
    - Each read or commit: `too_old` (1007). Each read: `future_version` (1009).
    - Each reply: `slow_reply`, up to `slow_reply_max_s`.
    - Each watch that is about to fire: `watch_late` (up to two seconds), `watch_very_late` (up to a minute),
      `watch_missed` (a value that changes back before the next look counts as unchanged).
    - Each watch: `watch_spurious` (it fires without a change).
    - Each scheduling point: `die` (the machine's calls never return, and no `finally` runs); `stall` (the
      whole machine stops for up to `stall_max_s`).
    - Once per client: its clock is up to `clock_skew_s` ahead.
    """

    not_committed: float = 0.0
    unknown_done: float = 0.0
    unknown_not_done: float = 0.0
    too_old: float = 0.0
    future_version: float = 0.0
    slow_reply: float = 0.0
    watch_late: float = 0.0
    watch_very_late: float = 0.0
    watch_missed: float = 0.0
    watch_spurious: float = 0.0
    die: float = 0.0
    stall: float = 0.0
    version_changed: float = 0.0
    unknown_after_conflict: float = 0.0
    slow_reply_max_s: float = 4.0
    stall_max_s: float = 300.0
    clock_skew_s: float = 0.0

    def without(self, *names: str) -> "Faults":
        """Return these faults without those of `names`.

        Raises: TypeError for an unknown name.
        """
        return replace(self, **dict.fromkeys(names, 0.0))

    def only(self, *names: str) -> "Faults":
        """Return only the faults of `names`.

        Raises: TypeError for an unknown name.
        """
        return NONE if not names else replace(NONE, **{name: getattr(self, name) for name in names})

    @property
    def are_calm(self) -> bool:
        """True if none of them delays a process for long."""
        return not DELAYING & {*self.active}

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the faults that can happen."""
        return tuple(name for name in KINDS if getattr(self, name) > 0)

    @classmethod
    def drawn(cls, random: Random, more: Sequence[str] = ()) -> "Faults":
        """Draw the faults of one run: each is off in two runs of five, otherwise rare or frequent. `more`:
        the faults that other workloads do without.

        With all faults at once, a run ends before two of them can meet. One run in six has no fault at all,
        so that a late answer has no excuse.
        """
        if random.random() < 1 / 6:
            return NONE
        drawn = {name: _probability(random, low, high) for name, (low, high) in _RANGES.items()}
        skewed = random.random() < 0.6
        drawn |= {name: _probability(random, *_RANGES_OF_MORE[name]) for name in more}
        drawn |= {name: _probability(random, *bounds) for name, bounds in _RANGES_DRAWN_LAST.items()}
        return cls(**drawn, clock_skew_s=CLOCK_SKEW_S if skewed else 0.0)


NONE = Faults()

_RANGES: Mapping[str, tuple[float, float]] = {
    "not_committed": (0.01, 0.3),
    "unknown_done": (0.01, 0.3),
    "unknown_not_done": (0.01, 0.2),
    "too_old": (0.001, 0.05),
    "future_version": (0.001, 0.05),
    "slow_reply": (0.005, 0.3),
    "watch_late": (0.1, 0.9),
    "watch_very_late": (0.02, 0.5),
    "watch_missed": (0.1, 1.0),
    "watch_spurious": (0.05, 0.5),
    "die": (0.0003, 0.01),
    "stall": (0.0003, 0.01),
}
_RANGES_OF_MORE: Mapping[str, tuple[float, float]] = {"version_changed": (0.02, 0.5)}
# Last, so that the other faults of a seed stay as they were before there was this one.
_RANGES_DRAWN_LAST: Mapping[str, tuple[float, float]] = {"unknown_after_conflict": (0.1, 1.0)}
KINDS = (*_RANGES, *_RANGES_OF_MORE, *_RANGES_DRAWN_LAST, "clock_skew_s")


def _probability(random: Random, low: float, high: float) -> float:
    """Return zero, or a value between the bounds, small ones as likely as large ones."""
    if random.random() < 0.4:
        return 0.0
    return float(low * (high / low) ** random.random())


class Dice:
    """Decides by one random number which one of several faults happens, mostly none."""

    __slots__ = ("_faces", "_random", "total")

    def __init__(self, random: Random, faults: Faults, *names: str) -> None:
        self._random = random.random
        self._faces = [(name, getattr(faults, name)) for name in names]
        self.total = sum(probability for _, probability in self._faces)

    def throw(self) -> str | None:
        """Return the name of the fault that happens now, or None."""
        if not self.total:
            return None
        rest = self._random()
        if rest >= self.total:
            return None
        for name, probability in self._faces:
            rest -= probability
            if rest < 0:
                return name
        return None


def scattered(random: Random, low: float, high: float) -> float:
    """Return a duration between two bounds, short ones as likely as long ones."""
    return float(low * (high / low) ** random.random())


class PatientTransaction(Transaction):
    """A transaction of a client with the libraries of two releases: it tries again after 1039, too."""

    def on_error(self, error: Any) -> Future:
        is_changed = getattr(error, "code", error) == CLUSTER_VERSION_CHANGED
        return super().on_error(1021 if is_changed else error)
