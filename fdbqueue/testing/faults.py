"""Faults: what may go wrong, how often, and the dice that decide it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from fdbqueue.limits import CLOCK_SKEW_S


@dataclass(frozen=True)
class Faults:
    """How likely each fault is; zero switches it off. Everything here is within FoundationDB's contract.

    Per commit that writes: `not_committed` (1020), `unknown_done` and `unknown_not_done` (1021, with the
    commit done or not). Per read or commit: `too_old` (1007); per read: `future_version` (1009); per reply:
    `slow_reply`, up to `slow_reply_max_s`. Per watch that is about to fire: `watch_late` (up to two
    seconds), `watch_very_late` (up to a minute), `watch_missed` (a value that has changed back before the
    watch is looked at counts as never changed); per watch: `watch_spurious`. Per scheduling point of a
    client: `die` (it never returns, none of its `finally` runs) and `stall` (its whole machine stops for up
    to `stall_max_s`). Once per client: its clock is up to `clock_skew_s` ahead.
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
    slow_reply_max_s: float = 4.0
    stall_max_s: float = 300.0
    clock_skew_s: float = 0.0

    def without(self, *names: str) -> "Faults":
        """The same faults, save those named. Raises TypeError for an unknown name."""
        return replace(self, **dict.fromkeys(names, 0.0))

    def only(self, *names: str) -> "Faults":
        """None but those named. Raises TypeError for an unknown name."""
        return NONE if not names else replace(NONE, **{name: getattr(self, name) for name in names})

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the faults that can happen."""
        return tuple(name for name in KINDS if getattr(self, name) > 0)

    @classmethod
    def drawn(cls, random: Random) -> "Faults":
        """A mix for one run: each fault is off in two runs of five, else rare or frequent.

        A run with every fault at once rarely gets far enough for two of them to meet in an interesting way;
        and one run in six is calm, so that what is late can be seen to be late without an excuse.
        """
        if random.random() < 1 / 6:
            return NONE
        drawn = {name: _probability(random, low, high) for name, (low, high) in _RANGES.items()}
        skewed = random.random() < 0.6
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
KINDS = (*_RANGES, "clock_skew_s")


def _probability(random: Random, low: float, high: float) -> float:
    """Zero, or anything between, small values as likely as large ones."""
    if random.random() < 0.4:
        return 0.0
    return float(low * (high / low) ** random.random())


class Dice:
    """One throw decides which of several faults happens here, mostly none."""

    __slots__ = ("_faces", "_random", "total")

    def __init__(self, random: Random, faults: Faults, *names: str) -> None:
        self._random = random.random
        self._faces = [(name, getattr(faults, name)) for name in names]
        self.total = sum(probability for _, probability in self._faces)

    def throw(self) -> str | None:
        """The name of the fault that happens now."""
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
    """A duration between two bounds, short ones as likely as long ones."""
    return float(low * (high / low) ** random.random())
