"""Bounds: the virtual time until all that dead processes have left can be taken, and is cleared. Pure.

Everything that time alone sets free is free at the last of these deadlines:

- the heartbeat of each session;
- the end of each lease, but at most the deadline of its session, and the end of each delay;
- REQUEST_DEADLINE_S after the deadline of each request: live takes serve it until then, and its result waits
  for that time; and the deadline of each result that waits now;
- the end of each window of a unique key, of each result of a task, and of each ended task that is kept.

After that, `slack_s` is the time that live processes need:

    SETTLED_S + sharers * (SESSIONS_SWEPT_EVERY_S + SWEEP_EVERY_S) + sweeps * SWEEP_EVERY_S + passes

`sharers`: processes that share the sweeping, as far as a process knows: one, and at most
limits.SWEEPERS_MAX - 1 sessions that it takes for alive. `sweeps`: rounds for groups: one of them lets
limits.GROUPS_ENDED_MAX groups end, or clears the doubts of limits.GROUPS_REMEMBERED_MAX, and looks twice.
`passes`: SCHEDULES_SOUGHT_EVERY_S, and `late_s` for a due time, if there are schedules. Queues under limits
of starts get `tokens_s` more: the time in which each of them has a token for every task.
"""

from collections.abc import Iterable, Iterator, Sequence

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys, deadline_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.limits.rule import LimitKeys, rule_of
from fdbqueue.tasks.stored.records import Record, record_of
from tests.system.aftermath.contents import Contents
from tests.system.audit.mirror import Mirror

SETTLED_S = 2.0
_FAR_US = 7_200_000_000
"""A deadline farther ahead than this is none: no workload waits for it."""


def last_deadline_us(rows: Mirror, root: RootKeys, queues: Sequence[Contents], now_us: int) -> int:
    """The last time at which something of the dead is set free; `now_us` if all is free."""
    beats = beats_of(rows, root)
    found = [*beats.values(), now_us]
    for queue in queues:
        found += _of_queue(rows, queue, beats)
    return max(deadline for deadline in found if deadline <= now_us + _FAR_US)


def beats_of(rows: Mirror, root: RootKeys) -> dict[bytes, int]:
    """The deadline of each session."""
    under = root.beats_due
    beats = (root.beat_of(key) for key in rows.keys_in(under.start, under.stop))
    return {beat[1]: beat[0] for beat in beats if beat is not None}


def _of_queue(rows: Mirror, queue: Contents, beats: dict[bytes, int]) -> Iterator[int]:
    for line in (*queue.lines, *queue.partition_lines):
        yield from _of_line(rows, line)
    for keys in queue.tasks:
        for row in rows.under(keys.tasks.start, keys.tasks.stop):
            yield free_at_us(record_of(row.value), beats)
    yield from times_of(rows, queue)


def _of_line(rows: Mirror, line: LineKeys) -> Iterator[int]:
    for key in rows.keys_in(line.due.start, line.due.stop):
        yield line.due_of(key).deadline_us
    requests = rows.under(line.requests.start, line.requests.stop)
    deadlines = [line.ticket_of(row.key, row.value)[1] for row in requests]
    renewals = rows.under(line.all_renewals.start, line.all_renewals.stop)
    for deadline_us in (*deadlines, *(deadline_of(row.value) for row in renewals)):
        yield deadline_us + round(limits.REQUEST_DEADLINE_S * 1_000_000)


def free_at_us(record: Record, beats: dict[bytes, int]) -> int:
    """The end of the delay or of the lease of a task; 0 in other states."""
    if record.state == TaskState.TAKEN:
        return min(record.until_us, beats.get(record.session, 0))
    return record.until_us if record.state == TaskState.DELAYED else 0


def times_of(rows: Mirror, queue: Contents) -> Iterator[int]:
    """The times at which sweeps have something to clear: windows, results, and ended tasks."""
    shared = queue.shared
    if shared is None:
        return
    for key in rows.keys_in(shared.windows.start, shared.windows.stop):
        yield shared.window_parts(key)[0]
    for key in rows.keys_in(shared.result_times.start, shared.result_times.stop):
        yield shared.result_time(key)
    for keys in queue.tasks:
        for key in rows.keys_in(keys.ended_times.start, keys.ended_times.stop):
            yield keys.ended_time(key) + queue.retain_us


def slack_s(rows: Mirror, root: RootKeys, now_us: int) -> float:
    """The time that live processes need after the last deadline."""
    rounds_s = sharers(rows, root, now_us) * (limits.SESSIONS_SWEPT_EVERY_S + limits.SWEEP_EVERY_S)
    groups = sum(1 for _ in rows.keys_in(root.groups.start, root.groups.stop))
    sweeps = 2 * (groups / limits.GROUPS_ENDED_MAX + groups / limits.GROUPS_REMEMBERED_MAX)
    passes_s = limits.SCHEDULES_SOUGHT_EVERY_S + late_s(rows, root, now_us)
    settled_s = SETTLED_S + rounds_s + sweeps * limits.SWEEP_EVERY_S
    return settled_s + (passes_s if has_schedules(rows, root) else 0.0)


def sharers(rows: Mirror, root: RootKeys, now_us: int) -> int:
    """The processes that share the sweeping, as one that begins now counts them."""
    live = sum(deadline > now_us for deadline in beats_of(rows, root).values())
    return 1 + min(limits.SWEEPERS_MAX - 1, live)


def late_s(rows: Mirror, root: RootKeys, now_us: int) -> float:
    """The time after which the due time of a schedule has been handled."""
    return SETTLED_S / 2 + sharers(rows, root, now_us) * limits.SCHEDULES_PASSED_EVERY_S


def has_schedules(rows: Mirror, root: RootKeys) -> bool:
    return next(rows.keys_in(root.schedules.start, root.schedules.stop), None) is not None


def are_groups_swept(rows: Mirror, root: RootKeys) -> bool:
    """True if sweeps of groups still have something to do at once."""
    under = root.group_sweeps
    return next(rows.keys_in(under.start, under.stop), None) is not None


def tokens_s(rows: Mirror, root: RootKeys, tasks: int) -> float:
    """The longest time in which a limit of starts gets `tasks` tokens, and those of a burst."""
    rules = (rule_of(row.value) for row in rows.under(root.limits.start, root.limits.stop))
    starts = [rule for rule in rules if rule is not None and not rule.is_of_slots]
    return max(((tasks + rule.burst) * rule.per_us / rule.rate / 1_000_000 for rule in starts), default=0.0)


def tasks_in(rows: Mirror, queues: Sequence[Contents]) -> int:
    ranges = [keys.tasks for queue in queues for keys in queue.tasks]
    return sum(1 for part in ranges for _ in rows.keys_in(part.start, part.stop))


def names_of_limits(rows: Mirror, root: RootKeys) -> Iterable[LimitKeys]:
    for key in rows.keys_in(root.limits.start, root.limits.stop):
        name = root.limit_of(key)
        if name is not None:
            yield LimitKeys(root.prefix, name)
