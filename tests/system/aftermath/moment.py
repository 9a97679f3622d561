"""Moment: the state of a database from which an aftermath begins; Moments chooses one of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from fdbqueue.testing.scheduler import EPOCH_S, Scheduler
from fdbqueue.testing.trace import Commit
from tests.system.audit.mirror import Mirror

_CHOSEN_P, _AT_END_P = 0.5, 0.5


@dataclass(frozen=True)
class Moment:
    """The keys at one version, its virtual time, and the latest clock by which a machine has committed."""

    rows: Mapping[bytes, bytes]
    at_s: float
    now_us: int

    @property
    def skew_s(self) -> float:
        """The seconds by which that clock is ahead of virtual time."""
        return self.now_us / 1_000_000 - EPOCH_S - self.at_s


class Moments:
    """Chooses the moment of a run: the end of its clients, or one of their commits; none in half of the runs,
    as an aftermath costs a quarter of a run.

    At a commit, all clients die at once: in the middle of their calls, with requests in the line and results
    on the way. At the end, each has left what its death, or its last call, has left.
    """

    def __init__(self, random: Random, scheduler: Scheduler) -> None:
        self.chosen: Moment | None = None
        self._random = random.random
        self._scheduler = scheduler
        self._is_over = random.random() >= _CHOSEN_P
        self._is_at_end = random.random() < _AT_END_P
        self._commits = self._now_us = 0

    def committed(self, commit: Commit, mirror: Mirror) -> None:
        """Choose this commit, each of a run as likely as any other: the n-th takes the place of the one
        before with a probability of 1 / n.
        """
        if self._is_over:
            return
        self._commits += 1
        self._now_us = max(self._now_us, commit.now_us)
        if not self._is_at_end and self._random() * self._commits < 1:
            self.chosen = self._moment(mirror)

    def over(self, mirror: Mirror) -> None:
        """All clients have ended or died."""
        if not self._is_over and self._is_at_end and self._commits:
            self.chosen = self._moment(mirror)
        self._is_over = True

    def _moment(self, mirror: Mirror) -> Moment:
        now_us = max(self._now_us, round((EPOCH_S + self._scheduler.now) * 1_000_000))
        return Moment(mirror.copied(), self._scheduler.now, now_us)
