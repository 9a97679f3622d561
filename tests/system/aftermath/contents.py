"""A queue as an aftermath sees it, the time until all that is left can be taken, and what never will be.

Everything that time alone sets free is free at the last of these deadlines:

- the heartbeat of each session;
- the end of each lease, but at most the deadline of its session, and the end of each delay and hand-off;
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

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import Database
from fdbqueue.core.line.decision import LineKeys, deadline_of
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import PIECES, PLAIN, SIMPLE, Definition, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Subspace
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.verify import AnyQueue
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.queue import ElementQueue, SimpleElementQueue
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.group_settling import counts_of, readable_row
from fdbqueue.tasks.limits.rule import LimitKeys, rule_of
from fdbqueue.tasks.options import is_kind, stored_settings
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import HANDED_OFF, Record, TaskKeys, id_text, record_of
from tests.system.audit.model import Mirror

_LOCK_AGE_S = 0.5
"""The age of a lock that a dead holder has left, by the clock that was ahead of all."""

Take = Callable[[Database, float], bool]
"""Wait up to some seconds for one entry, and finish it. False if there was none."""


@dataclass(frozen=True)
class Contents:
    name: str
    make_take: Callable[[Database], Take]
    """Open the queue, and return how to take from it."""
    available: Sequence[slice]
    """The entries that a take may give."""
    lines: Sequence[LineKeys]
    """The lines in which a take that waits meets the requests of the dead."""
    tasks: Sequence[TaskKeys] = ()
    """The partitions of a queue of tasks."""
    shared: SharedKeys | None = None
    definition: Definition | None = None
    retain_us: int = 0
    limits: Sequence[LimitKeys] = ()
    """The limits that may keep an available task waiting."""
    partition_lines: Sequence[LineKeys] = ()
    """Lines in which entries lie ready for requests of the dead, until these are overdue."""


def contents_of(database: Database, registry: Registry, spaces: Sequence[AnyQueue]) -> list[Contents]:
    """All queues of a root, and those over subspaces. A kind that is unknown here is left out."""
    named = (_named(registry, definition) for definition in registry.names(database))
    return [found for found in (*named, *map(_in_space, spaces)) if found is not None]


def _named(registry: Registry, definition: Definition) -> Contents | None:
    subspace, name = registry.contents(definition), definition.name
    if definition.kind == PLAIN:
        make = partial(Queue.named, name=name, create=False)
        return _of_items(name, subspace, _count_of(definition), lambda db: _dequeue(make(db)), definition)
    if definition.kind in (PIECES, SIMPLE):
        kind = ElementQueue if definition.kind == PIECES else SimpleElementQueue
        return _of_elements(name, ElementKeys(subspace), lambda db: kind.named(db, name, create=False))
    return _of_tasks(registry, subspace, definition) if is_kind(definition.kind) else None


def _in_space(queue: AnyQueue) -> Contents | None:
    if isinstance(queue, FairQueue):
        keys = queue._items.shape.keys
        return Contents("a fair queue", lambda _: _get(queue), [keys.ready], [LineKeys(keys.line)], [keys])
    if isinstance(queue, Queue):
        subspace = Subspace((), queue._recipe.zero.keys.prefix)
        return _of_items("a queue", subspace, 1, lambda _: _dequeue(queue), None)
    if isinstance(queue, ElementBase):
        return _of_elements("an element queue", queue.store.keys, lambda _: queue)
    return None


def _count_of(definition: Definition) -> int:
    plan = plan_of(definition)
    return 1 if plan is None else plan.high


def _of_items(
    name: str,
    subspace: Subspace,
    partitions: int,
    make_take: Callable[[Database], Take],
    definition: Definition | None,
) -> Contents:
    keys = [QueueKeys(Subspace((), prefix_of(subspace, number))) for number in range(partitions)]
    line = _line(subspace, definition, keys[0])
    items, own = [each.items for each in keys], [LineKeys(each.line) for each in keys]
    return Contents(name, make_take, items, [line], definition=definition, partition_lines=own)


def _line(subspace: Subspace, definition: Definition | None, first: QueueKeys | TaskKeys) -> LineKeys:
    """The line of all partitions. Those of single partitions are met only by takes that begin there."""
    is_wide = definition is not None and plan_of(definition) is not None
    return LineKeys(SharedKeys(subspace).line if is_wide else first.line)


def _of_elements(name: str, keys: ElementKeys, make: Callable[[Database], ElementBase]) -> Contents:
    return Contents(name, lambda db: _remove(make(db)), [keys.elements], [])


def _of_tasks(registry: Registry, subspace: Subspace, definition: Definition) -> Contents:
    keys = [TaskKeys(subspace, number) for number in range(_count_of(definition))]
    shared, settings = SharedKeys(subspace), stored_settings(definition)
    return Contents(
        definition.name,
        lambda db: _ack(TaskQueue.open(db, definition.name)),
        [each.ready for each in keys],
        [_line(subspace, definition, keys[0])],
        keys,
        shared,
        definition,
        round((settings.retain_s or 0) * 1_000_000),
        [LimitKeys(registry.keys.prefix, limit) for limit in (*settings.limits, *settings.task_limits)],
        [LineKeys(each.line) for each in keys],
    )


def _ack(q: TaskQueue) -> Take:
    def take(db: Database, timeout_s: float) -> bool:
        task = q.take(db, timeout_s)
        if task is not None:
            q.ack(db, task)
        return task is not None

    return take


def _dequeue(q: Queue) -> Take:
    nothing = object()
    return lambda db, timeout_s: q.dequeue(db, nothing, timeout_s) is not nothing


def _get(q: FairQueue) -> Take:
    return lambda db, timeout_s: q.take_item(db, timeout_s)[0]


def _remove(q: ElementBase) -> Take:
    """Nothing waits for an element: each look breaks the locks of dead holders, and takes the first one."""

    def take(db: Database, timeout_s: float) -> bool:
        until = db.runtime.monotonic() + timeout_s
        while True:
            q.purge(db, maxlock=_LOCK_AGE_S)
            locked = next((name for name in q.names(db) if q.lock(db, name)), None)
            if locked is not None:
                q.remove(db, locked)
                return True
            if db.runtime.monotonic() >= until:
                return False
            db.runtime.sleep(_LOCK_AGE_S)

    return take


SETTLED_S = 2.0
_FAR_US = 7_200_000_000
"""A deadline farther ahead than this is none: no workload waits for it."""


def last_deadline_us(rows: Mirror, root: RootKeys, queues: Sequence[Contents], now_us: int) -> int:
    """The last time at which something of the dead is set free; `now_us` if all is free."""
    beats = beats_of(rows, root)
    found = [*beats.values(), now_us]
    for queue in queues:
        found += _due_of_queue(rows, queue, beats)
    return max(deadline for deadline in found if deadline <= now_us + _FAR_US)


def beats_of(rows: Mirror, root: RootKeys) -> dict[bytes, int]:
    """The deadline of each session."""
    under = root.beats_due
    beats = (root.beat_of(key) for key in rows.keys_in(under.start, under.stop))
    return {beat[1]: beat[0] for beat in beats if beat is not None}


def _due_of_queue(rows: Mirror, queue: Contents, beats: dict[bytes, int]) -> Iterator[int]:
    for line in (*queue.lines, *queue.partition_lines):
        yield from _due_of_line(rows, line)
    for keys in queue.tasks:
        for row in rows.under(keys.tasks.start, keys.tasks.stop):
            yield free_at_us(record_of(row.value), beats)
    yield from times_of(rows, queue)


def _due_of_line(rows: Mirror, line: LineKeys) -> Iterator[int]:
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
        is_handed_off = record.session == HANDED_OFF
        return record.until_us if is_handed_off else min(record.until_us, beats.get(record.session, 0))
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
    starts = [rule for rule in rules if rule is not None and rule.has_starts]
    return max(((tasks + rule.burst) * rule.per_us / rule.rate / 1_000_000 for rule in starts), default=0.0)


def tasks_in(rows: Mirror, queues: Sequence[Contents]) -> int:
    ranges = [keys.tasks for queue in queues for keys in queue.tasks]
    return sum(1 for part in ranges for _ in rows.keys_in(part.start, part.stop))


def names_of_limits(rows: Mirror, root: RootKeys) -> Iterable[LimitKeys]:
    for key in rows.keys_in(root.limits.start, root.limits.stop):
        name = root.limit_of(key)
        if name is not None:
            yield LimitKeys(root.prefix, name)


_OF_SESSIONS = {
    columns.SESSION: "a session",
    columns.SESSION_NAME: "the name of a session",
    columns.HEARTBEAT: "a heartbeat",
    columns.BEAT_DUE: "the deadline of a session",
    columns.PRESENCE: "a presence",
    columns.RUN: "a run",
    columns.MEMBERSHIP: "a membership in a run",
}
_OF_SWEEPS = {
    columns.DOUBT: "a group in doubt",
    columns.LOST: "a queue with lost members of groups",
    columns.CANCELLING: "a cancelled group",
}


def left(
    rows: Mirror, root: RootKeys, queues: Sequence[Contents], now_us: int, swept_us: int
) -> Iterator[str]:
    """Tell what is left. `now_us`: a time at which deadlines and all slack are over. `swept_us`: the latest
    time for which the sweeps are over: the aftermath has given tasks new ends.
    """
    beats = beats_of(rows, root)
    held = [list(_still_held(rows, queue, beats, now_us)) for queue in queues]
    for queue, records in zip(queues, held, strict=True):
        for text in chain(_of_queue(rows, queue, records, now_us), _unswept(rows, queue, swept_us)):
            yield f"{queue.name}: {text}"
    yield from _of_root(rows, root, {session for session, due_us in beats.items() if due_us > now_us})
    yield from _of_groups(rows, root)
    yield from _of_limits(rows, root, {record.id for records in held for record in records})
    yield from _of_definitions(
        rows, root, {queue.name for queue, records in zip(queues, held, strict=True) if records}
    )


def _still_held(rows: Mirror, queue: Contents, beats: dict[bytes, int], now_us: int) -> Iterator[Record]:
    """The taken tasks of sessions that are not over: some workloads have sessions without an end."""
    for record in _records(rows, queue):
        if record.state == TaskState.TAKEN and free_at_us(record, beats) > now_us:
            yield record


def _records(rows: Mirror, queue: Contents) -> Iterator[Record]:
    for keys in queue.tasks:
        yield from (record_of(row.value) for row in rows.under(keys.tasks.start, keys.tasks.stop))


def _of_queue(rows: Mirror, queue: Contents, held: Sequence[Record], now_us: int) -> Iterator[str]:
    if not (queue.limits and held):  # these may have the slots
        for part in queue.available:
            yield from _any("are available, and no take finds them", rows.keys_in(part.start, part.stop))
        yield from _stuck_tasks(rows, queue, held, now_us)
    for line in queue.lines:
        yield from _of_line(rows, line)


def _unswept(rows: Mirror, queue: Contents, swept_us: int) -> Iterator[str]:
    for keys in queue.tasks:
        overdue = keys.timers_until(swept_us)
        yield from _any("are timers, and over", rows.keys_in(overdue.start, overdue.stop))
    over = sum(time_us <= swept_us for time_us in times_of(rows, queue))
    if over:
        yield f"{over} windows of unique keys, results, or ended tasks are over"


def _stuck_tasks(rows: Mirror, queue: Contents, held: Sequence[Record], now_us: int) -> Iterator[str]:
    kept, busy = {record.id for record in held}, {record.key for record in held if record.key}
    for record in _records(rows, queue):
        reason = None if record.id in kept or record.key in busy else _stuck(record, now_us)
        if reason is not None:
            yield f"the task {id_text(record.id)} {reason}"


def _any(text: str, keys: Iterable[bytes]) -> Iterator[str]:
    found = list(keys)
    if found:
        yield f"{len(found)} of them {text} (key {found[0].hex()})"


def _of_line(rows: Mirror, line: LineKeys) -> Iterator[str]:
    parts = {
        "requests": line.requests,
        "deadlines of results": line.due,
        "notices": line.all_notices,
        "results": line.all_results,
        "renewals": line.all_renewals,
    }
    for text, part in parts.items():
        yield from _any(f"are {text} in the line, of dead calls", rows.keys_in(part.start, part.stop))


def _stuck(record: Record, now_us: int) -> str | None:
    if record.state == TaskState.TAKEN:
        return "is taken, and its holder is gone"
    if record.state == TaskState.READY:
        return "is ready, and no take finds it"
    if record.state == TaskState.DELAYED and record.until_us <= now_us:
        return "is delayed, and its delay is over"
    return None


def _of_root(rows: Mirror, root: RootKeys, live: set[bytes]) -> Iterator[str]:
    for key in rows.keys_in(root.prefix, root.prefix + b"\xff"):
        column, rest = root.shape_of(key)
        if column in _OF_SESSIONS and not live.intersection(rest):
            yield f"{_OF_SESSIONS[column]} is left of a process that is gone (key {key.hex()})"
        elif column == columns.GROUP_SWEEP and rest[0] in _OF_SWEEPS:
            yield f"{_OF_SWEEPS[rest[0]]} that no sweep settles (key {key.hex()})"


def _of_groups(rows: Mirror, root: RootKeys) -> Iterator[str]:
    for key in rows.keys_in(root.groups.start, root.groups.stop):
        group = root.group_in(key)
        row = readable_row(rows.value(key)) if group is not None and key == root.group(group) else None
        if row is None or group is None or row.ended_us:
            continue
        is_closed = not row.is_open or rows.value(root.group_cancelled(group)) is not None
        if is_closed and counts_of(rows.value(root.group_counts(group))).left <= 0:
            yield f"the group {group.hex()} has no member left, and does not end"


def _of_limits(rows: Mirror, root: RootKeys, held: Collection[bytes]) -> Iterator[str]:
    for limit in names_of_limits(rows, root):
        holders = rows.keys_in(limit.holders.start, limit.holders.stop)
        gone = [key for key in holders if limit.task_in(key)[1] not in held]
        yield from _any(f"hold a slot of the limit {limit.name!r}, and do not run", gone)


def _of_definitions(rows: Mirror, root: RootKeys, holding: Collection[str]) -> Iterator[str]:
    """`holding`: queues with tasks that are still held, in partitions that end when these do."""
    for row in rows.under(root.definitions.start, root.definitions.stop):
        name = root.name_of(row.key)
        definition = None if name is None else Definition.listed(name, row.value)
        if definition is None or not is_kind(definition.kind):
            continue
        plan = plan_of(definition)
        if plan is not None and plan.before and name not in holding:
            yield f"the repartition of {name!r} does not end"
