"""Left: the keys that nothing will ever take, end or clear, though an aftermath is over. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from fdbqueue.core import root_keys as columns
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import plan_of
from fdbqueue.core.registry import Definition
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.group_settling import counts_of, readable_row
from fdbqueue.tasks.options import is_kind
from fdbqueue.tasks.stored.records import Record, id_text, record_of
from tests.system.aftermath.bounds import beats_of, free_at_us, names_of_limits, times_of
from tests.system.aftermath.contents import Contents
from tests.system.audit.mirror import Mirror

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
