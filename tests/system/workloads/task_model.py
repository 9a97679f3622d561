"""A model of one task: its possible lives, which follow from the calls in the notes and from sweeps.

No call tells of a sweep. So a task whose time has come has several possible lives: before the sweep, and
after it. An answer is right if it fits one of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.system.workloads.notes import Op, Seen

SLACK_S = 1e-5
"""Tasks have microseconds, clocks have more."""


@dataclass(frozen=True)
class Rules:
    """The kind of the queue, its options, and the difference of the clients' clocks."""

    kind: str
    timed: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    skew_s: float = 0.0
    rare: bool = False
    """With task keys and priorities near their limits."""

    @property
    def delays(self) -> bool:
        """True if a release without a failure may have a delay."""
        return self.timed and self.kind != "fair"

    @property
    def has_turns(self) -> bool:
        """True if the model knows the round of each task key. Sweeps would change them at unknown times."""
        return self.kind == "fair" and not self.timed

    @property
    def key_concurrency(self) -> int | None:
        return self.options.get("key_concurrency", 1) if "utube" in self.kind else None

    def place(self, life: "Life") -> tuple[int, str]:
        """The order among ready tasks, among those of one task key, or among buried ones.

        In a bag only buried tasks have an order.
        """
        return (0, "") if self.kind == "bag" and life.state != "!" else (life.pri, life.id)


class Life(NamedTuple):
    """A task between two calls. Times are seconds since the epoch, None for never."""

    id: str
    state: str
    data: Any
    pri: int
    key: Any
    ttr: float | None
    until: float | None
    expires: float | None
    attempts: int = 0
    failures: int = 0
    orphaned: int = 0
    token: bytes | None = None
    cancelled: bool = False
    cost: int = 1

    @property
    def timer(self) -> float | None:
        return self.until if self.state in "t~" else self.expires

    def freed(self, **changes: Any) -> "Life":
        return self._replace(**{"state": "r", "until": None, "token": None, "cancelled": False, **changes})

    def fits(self, seen: Seen) -> bool:
        """True if the answer shows this life; its times are compared elsewhere."""
        shown = (seen.id, seen.state, seen.data, seen.pri, seen.key, seen.attempts, seen.failures)
        rest = (seen.orphaned, seen.token, seen.cancelled)
        mine = (self.id, self.state, self.data, self.pri, self.key, self.attempts, self.failures)
        return (*mine, self.orphaned, self.token, self.cancelled) == (*shown, *rest)


Passage = tuple[Life | None, tuple[str, ...]]
"""A life after sweeps, None if the task has gone, and the calls that the sweeps have counted."""


def swept(life: Life | None, calls: tuple[str, ...] = ()) -> Passage:
    """The life after a sweep at the time of its timer."""
    assert life is not None
    if life.state == "t" and life.cancelled:
        return None, (*calls, "cancel")
    if life.state == "t":
        freed = life.freed(failures=life.failures + 1, orphaned=life.orphaned + 1)
        return _expired(freed, life.until, (*calls, "ttr"))
    if life.state == "~":
        return _expired(life.freed(), life.until, (*calls, "delay"))
    return None, (*calls, "ttl", "delete")


def _expired(life: Life, now: float | None, calls: tuple[str, ...]) -> Passage:
    if life.expires is not None and now is not None and life.expires <= now:
        return None, (*calls, "ttl", "delete")
    return life, calls


def passages(life: Life, began: float, latest: float) -> Iterator[Passage]:
    """The lives that a call may meet between `began`, by its own clock, and `latest`."""
    passage: Passage = life, ()
    while passage[0] is not None and (timer := passage[0].timer) is not None and timer <= latest + SLACK_S:
        if timer >= began - SLACK_S:
            yield passage
        passage = swept(*passage)
    yield passage


def passages_in(life: Life, op: Op) -> list[Passage]:
    """The lives that this call may meet."""
    return list(passages(life, op.began, op.latest))


def settled(life: Life, op: Op) -> bool:
    """True if no sweep can have changed the task before the end of this call."""
    return life.timer is None or life.timer > op.latest + SLACK_S
