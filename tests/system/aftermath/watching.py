"""Watching: the commits of an aftermath. No entry waits beside a take that waits; no end goes untold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from fdbqueue.embedded.store import Store
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.tasks.limits.rule import LimitKeys, cells_of, rule_of
from fdbqueue.tasks.limits.state import State
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing.scheduler import EPOCH_S, Scheduler
from fdbqueue.testing.trace import Commit
from tests.system.aftermath.contents import Contents
from tests.system.audit.mirror import Mirror

PROMPT_S = 1.5
"""Waits look again by themselves after limits.LOOK_EVERY_S, and requests renew themselves a little later:
an answer that only these bring is late.
"""


@dataclass
class _Waiting:
    """A queue in which a take waits."""

    queue: Contents
    began_us: int
    since_s: float | None = None
    """The time since which a take could have given an entry."""
    is_told: bool = False


@dataclass
class Watching:
    """Hears of each commit, as the auditor of a run does."""

    scheduler: Scheduler
    skew_s: float
    """The seconds by which the clock of the aftermath is ahead of virtual time."""
    rows: Mirror
    violations: list[str] = field(default_factory=list)
    changed_s: dict[bytes, float] = field(default_factory=dict)
    """The virtual times of the last changes of keys."""
    dead_requests: Sequence[bytes] = ()
    """The requests that dead processes have left in lines."""
    swept_within_s: float = 0.0
    """The longest time between two sweeps of a live process."""
    _waiting: list[_Waiting] = field(default_factory=list)

    def begin(self, queue: Contents) -> None:
        """A take waits in the queue from now on, but for the moments in which it finishes an entry."""
        waiting = _Waiting(queue, self.now_us())
        self._waiting.append(waiting)
        self._look(waiting, was_touched=True)

    def end(self) -> None:
        """No take waits any more."""
        for waiting in self._waiting:
            self._look(waiting, was_touched=False)
        self._waiting.clear()

    def now_us(self) -> int:
        return round((EPOCH_S + self.scheduler.now + self.skew_s) * 1_000_000)

    def committed(self, store: Store, request: CommitRequest, _: Commit) -> None:
        with store.begin() as txn:
            changed = self.rows.follow(txn, request)
        self.changed_s |= dict.fromkeys(changed, self.scheduler.now)
        for waiting in self._waiting:
            self._look(waiting, _touches(list(changed), waiting.queue))

    def _look(self, waiting: _Waiting, was_touched: bool) -> None:
        now, since_s = self.scheduler.now, waiting.since_s
        if since_s is not None and now - since_s > PROMPT_S:
            self._tell(waiting, "an entry lay beside a take that waits", now - since_s)
        if was_touched:
            waiting.since_s = now if self._could_give(waiting.queue) else None
        late_s = max(map(partial(self._overdue_s, waiting), waiting.queue.tasks), default=0.0)
        if late_s > PROMPT_S + self.swept_within_s:
            self._tell(waiting, "no sweep has moved a task that is due", late_s)

    def _tell(self, waiting: _Waiting, text: str, seconds: float) -> None:
        if not waiting.is_told:
            waiting.is_told = True
            self.violations.append(f"{waiting.queue.name}: {text}, for {seconds:.1f} s")

    def _could_give(self, queue: Contents) -> bool:
        """True if a take may have an entry at once. A dead request ahead of it keeps it waiting, until its
        deadline: the take behind it watches that one, and not the doorbell.
        """
        requests = [line.requests for line in queue.lines]
        is_behind = any(self.rows.value(key) is not None for key in self._dead_requests(requests))
        return (
            is_any(self.rows, queue.available)
            and not is_behind
            and not any(map(self._may_block, queue.limits))
        )

    def _dead_requests(self, ranges: Sequence[slice]) -> Iterator[bytes]:
        return (key for key in self.dead_requests if any(part.start <= key < part.stop for part in ranges))

    def _may_block(self, limit: LimitKeys) -> bool:
        """True if a limit has no slot or token for one more task; also if a key uses it, or sweeps walk."""
        of_key = next(iter(self.rows.keys_in(limit.counts.start, limit.counts.stop)), None)
        if of_key is not None or self.rows.value(limit.walk) is not None:
            return True
        rule = rule_of(self.rows.value(limit.row))
        if rule is None:
            return False
        return not State(limit, rule, cells_of(self.rows.value(limit.cells))).free(self.now_us())

    def _overdue_s(self, waiting: _Waiting, keys: TaskKeys) -> float:
        """The most seconds for which a timer has been over beside the take. A task that comes back from a
        dead session may have one that was over before.
        """
        over = keys.timers_until(self.now_us())
        timers = self.rows.keys_in(over.start, over.stop)
        return max((self._over_s(waiting, timer, keys.time_of(timer)) for timer in timers), default=0.0)

    def _over_s(self, waiting: _Waiting, timer: bytes, time_us: int) -> float:
        over_s = (self.now_us() - max(time_us, waiting.began_us)) / 1_000_000
        return min(over_s, self.scheduler.now - self.changed_s.get(timer, float("-inf")))


def _touches(keys: Sequence[bytes], queue: Contents) -> bool:
    """True if one of these keys decides if a take could give an entry."""
    limits = [slice(limit.row, limit.row + b"\x00") for limit in queue.limits]
    beside = [limit.beside for limit in queue.limits]
    ranges = [*queue.available, *(line.requests for line in queue.lines), *limits, *beside]
    return any(part.start <= key < part.stop for key in keys for part in ranges)


def is_any(rows: Mirror, ranges: Sequence[slice]) -> bool:
    """True if a key lies in one of these ranges."""
    return any(next(rows.keys_in(part.start, part.stop), None) is not None for part in ranges)
