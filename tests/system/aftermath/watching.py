"""Watching: no entry waits beside a take that waits, and calls that wait for other things are answered."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from fdbqueue.core.database import Database
from fdbqueue.core.errors import FdbQueueError, GroupNotFound, GroupTimeout, QueueFull, ResultTimeout
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.tasks.group_settling import readable_row
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.limits.rule import LimitKeys, cells_of, rule_of
from fdbqueue.tasks.limits.state import State
from fdbqueue.tasks.options import kind_named, stored_settings
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_in, id_text, record_of
from fdbqueue.testing.scheduler import EPOCH_S, Scheduler
from fdbqueue.testing.trace import Commit
from tests.system.aftermath.contents import Contents
from tests.system.audit.model import Mirror

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
        rows = (self.rows.keys_in(under.start, under.stop) for under in (limit.counts, limit.keys_tokens))
        if any(True for each in rows for _ in each) or self.rows.value(limit.walk) is not None:
            return True
        rule = rule_of(self.rows.value(limit.row))
        if rule is None:
            return False
        cells = cells_of(self.rows.value(limit.cells))
        tokens = cells_of(self.rows.value(limit.tokens)) if rule.has_both else ()
        return not State(limit, rule, cells, tokens=tokens).free(self.now_us())

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


_OF_EACH = 2
"""Waits of each sort: each is a thread, and all of one sort take the same way."""

Wait = Callable[[Database, float], bool]
"""Wait up to some seconds. False if no answer has come."""


@dataclass
class Waiter:
    name: str
    wait: Wait
    happened_s: Callable[[Watching], float | None]
    """The virtual time of the event that it waits for; None before it."""
    answered_s: float | None = None

    def run(self, db: Database, until_s: float) -> None:
        if self.wait(db, until_s - db.runtime.monotonic()):
            self.answered_s = db.runtime.monotonic()

    def late(self, watching: Watching, until_s: float) -> Iterator[str]:
        """Tell if the wait went on for too long after its event, at most until `until_s`."""
        happened_s = self.happened_s(watching)
        if happened_s is None:
            return
        waited_s = (until_s if self.answered_s is None else self.answered_s) - happened_s
        if waited_s > PROMPT_S:
            yield f"the wait for {self.name} went on for {waited_s:.1f} s after that"


def waiters(watching: Watching, root: RootKeys, queues: Sequence[Contents]) -> Iterator[Waiter]:
    """The waits of one process."""
    yield from islice(_for_groups(watching, root), _OF_EACH)
    for queue in queues:
        if queue.definition is not None and queue.tasks:
            yield from _for_room(watching, queue)
            if len(queue.tasks) == 1:  # a task may move to another partition, which is no end
                yield from islice(_for_ends(watching, queue), _OF_EACH)


def _for_groups(watching: Watching, root: RootKeys) -> Iterator[Waiter]:
    for key in watching.rows.keys_in(root.groups.start, root.groups.stop):
        group = root.group_in(key)
        row = readable_row(watching.rows.value(key)) if group and key == root.group(group) else None
        if row is not None and group is not None and not row.ended_us:
            yield Waiter(
                f"the group {group.hex()}", partial(_end_of_group, group.hex()), partial(_changed, key)
            )


def _changed(key: bytes, watching: Watching) -> float | None:
    row = readable_row(watching.rows.value(key))
    return watching.changed_s.get(key) if row is not None and row.ended_us else None


def _end_of_group(group: str, db: Database, timeout_s: float) -> bool:
    with suppress(GroupNotFound):  # it has ended, and is not kept
        try:
            Group.open(db, group).wait(db, timeout_s)
        except GroupTimeout:
            return False
    return True


def _for_ends(watching: Watching, queue: Contents) -> Iterator[Waiter]:
    for keys in queue.tasks:
        for row in watching.rows.under(keys.tasks.start, keys.tasks.stop):
            record = record_of(row.value)
            if record.state != TaskState.BURIED:
                wait = partial(_end_of_task, queue.name, record)
                yield Waiter(f"the task {id_text(record.id)}", wait, partial(_gone, row.key))


def _gone(key: bytes, watching: Watching) -> float | None:
    return None if watching.rows.value(key) is not None else watching.changed_s.get(key)


def _end_of_task(queue: str, record: Record, db: Database, timeout_s: float) -> bool:
    """Wait for the result, if one was asked for, else for the next change of the progress."""
    q, id_ = TaskQueue.open(db, queue), id_text(record.id)
    try:
        if record.extra is not None and record.extra.result_ttl_us:
            q.result(db, id_, timeout_s)
            return True
        return q.wait_for_progress(db, id_, record.fraction, timeout_s) is not None
    except ResultTimeout:
        return False
    except FdbQueueError:  # the task has ended
        return True


def _for_room(watching: Watching, queue: Contents) -> Iterator[Waiter]:
    """A put into a queue that is full. Into another one, it might wake what should wake by itself. One with
    more tasks than its capacity, which has become smaller, has room later.
    """
    assert queue.definition is not None
    settings, kind = stored_settings(queue.definition), kind_named(queue.definition.kind)
    ranges = [keys.tasks for keys in queue.tasks]
    stored = sum(1 for part in ranges for _ in watching.rows.keys_in(part.start, part.stop))
    if stored == settings.capacity:
        options = {"key": "aftermath"} if kind.supports("key") else {}
        put = partial(_put, queue.name, options)
        yield Waiter(f"room in {queue.name}", put, partial(_first_gone, queue.tasks, watching.scheduler.now))


def _put(queue: str, options: dict[str, str], db: Database, timeout_s: float) -> bool:
    try:
        TaskQueue.open(db, queue).put(db, "aftermath", timeout=timeout_s, **options)  # type: ignore[arg-type]  # options by kind
    except QueueFull:
        return False
    return True


def _first_gone(parts: Sequence[TaskKeys], since_s: float, watching: Watching) -> float | None:
    """The time at which the first task ended. One that has moved to another partition still takes room."""
    ranges, rows = [keys.tasks for keys in parts], watching.rows
    there = {id_in(key) for part in ranges for key in rows.keys_in(part.start, part.stop)}
    gone_s: dict[bytes, float] = {}
    for key, at_s in watching.changed_s.items():
        if at_s >= since_s and any(part.start <= key < part.stop for part in ranges):
            gone_s[id_in(key)] = max(at_s, gone_s.get(id_in(key), 0.0))
    return min((at_s for id_, at_s in gone_s.items() if id_ not in there), default=None)
