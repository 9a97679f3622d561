"""What holds for all keys: they agree, counters count, no change is unseen, a power cut loses no end.

A commit may break the agreement of the keys that it has changed, of those that they named before, and of no
others. Clears of whole ranges see nothing, and conflict with all. A commit that a power cut may undo changes
leases and requests only: docs/protocols.md has the rule. The cells of a limit equal its holders.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue.core import limits, root_keys
from fdbqueue.core.line.decision import NOTICE, REQUEST, LineKeys
from fdbqueue.core.once import ATTEMPT
from fdbqueue.core.partitions import POINT, UNIQUE, WINDOW
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Checks, Count, Counted, Row, Suspect, Tally, Under
from fdbqueue.core.sessions.ending import RUN_ENDS, deadline_if_readable, run_of
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import count_in
from fdbqueue.operate.verify.partitions import ElementChecks, RecipeChecks
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.queues.elements import store
from fdbqueue.queues.recipe import items
from fdbqueue.tasks.limits.rule import (
    CELLS_MAX,
    COUNT,
    HOLDER,
    KEY_HOLDER,
    OF_KEY,
    LimitKeys,
    cells_of,
    held_of,
    rule_of,
)
from fdbqueue.tasks.limits.state import number_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import STATE, Keyed
from fdbqueue.tasks.stored.keyed import parts_of as parts_beside
from fdbqueue.tasks.stored.records import HANDED_OFF, LIVE_NAMES, LIVE_OF, Record, TaskKeys, id_text, unpacked
from fdbqueue.testing.trace import Commit
from tests.system.audit.line import LineStep, Liveness
from tests.system.audit.model import Mirror, Step, TaskStep, is_taken, signed
from tests.system.audit.tasks import SLACK_US


class Agreement:
    def __init__(self, checks: Checks, prefix: bytes, apart: slice | None = None) -> None:
        """`apart`: keys below the prefix that have checks of their own."""
        self._checks = checks
        self._prefix = prefix
        self._apart = apart

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for row in self._concerned(step, mirror):
            for suspect in self._checks.judge(row, mirror):
                if not any(_explained(suspect, mirror)):
                    yield f"{suspect.text} (key {row.key.hex()})"

    def _concerned(self, step: Step, mirror: Mirror) -> Iterator[Row]:
        """The changed rows, and the rows that they named before."""
        seen = set(step.changes)
        for key, values in step.changes.items():
            if values.after is not None:
                yield Row(key, values.after)
            if values.before is not None:
                for row in self._named(Row(key, values.before), mirror):
                    if row.key not in seen and self._has(row.key):
                        seen.add(row.key)
                        yield row

    def _has(self, key: bytes) -> bool:
        is_apart = self._apart is not None and self._apart.start <= key < self._apart.stop
        return key.startswith(self._prefix) and not is_apart

    def _named(self, row: Row, mirror: Mirror) -> Iterator[Row]:
        for wanted in self._checks.asks(row):
            if isinstance(wanted, Under):
                yield from mirror.rows(wanted)
                continue
            value = mirror.value(wanted)
            if value is not None:
                yield Row(wanted, value)


def _explained(suspect: Suspect, mirror: Mirror) -> Iterator[bool]:
    return (excuse.explains(mirror.rows(excuse.under)) for excuse in suspect.excuses)


class Counters:
    """The counters of one queue, and the numbers of the keys that they count as of the last commit."""

    def __init__(self, counts: Iterable[Count]) -> None:
        self._counts = [(count, next(iter(count.tally.ranges.items()))) for count in counts]
        self._numbers = [0] * len(self._counts)

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        """Compare the counters that the commit has changed, and those with keys that it has changed."""
        come = [key for key, (before, _) in step.changes.items() if before is None]
        gone = [key for key, (_, after) in step.changes.items() if after is None]
        for at, (count, (name, under)) in enumerate(self._counts):
            grown = _number(count.tally, under, come) - _number(count.tally, under, gone)
            self._numbers[at] += grown
            if grown or count.tally.counter in step.changes:
                values = {count.tally.counter: mirror.value(count.tally.counter)}
                suspect = count.compare(Counted({name: self._numbers[at]}, values, None), "")
                if suspect is not None:
                    yield suspect.text


def numbers_counted(counts: Iterable[Count], mirror: Mirror) -> Iterator[str]:
    for count in counts:
        [(name, under)] = count.tally.ranges.items()
        number = sum(count.tally.counts(key) for key in mirror.keys_in(under.start, under.stop))
        values = {count.tally.counter: mirror.value(count.tally.counter)}
        suspect = count.compare(Counted({name: number}, values, None), "")
        if suspect is not None:
            yield suspect.text


def _number(tally: Tally, under: slice, keys: Iterable[bytes]) -> int:
    return sum(tally.counts(key) for key in keys if under.start <= key < under.stop)


class ClassCounters:
    """The counters of the classes of failure."""

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = self._keys
        start, stop = keys.classed.start, keys.class_counts.stop
        for error in {self._class_of(key) for key in step.changes if start <= key < stop}:
            under = keys.classed_under(error)
            found = len(list(mirror.keys_in(under.start, under.stop)))
            counted = count_in(mirror.value(keys.class_count(error)))
            if found != counted:
                yield f"{found} buried tasks have the class {error!r}, and {counted} are counted"

    def _class_of(self, key: bytes) -> str:
        _, rest = self._keys.parts_of(key)
        return self._keys.class_at(rest)


def key_counters(keyed: Keyed, step: TaskStep, mirror: Mirror) -> Iterator[str]:
    """Compare the counters of the task keys of the tasks that the commit has changed."""
    for key in {record.key for record in step.records()}:
        found = Counter(LIVE_OF[record.state] for record in step.after.values() if record.key == key)
        stored = unpacked(LIVE_NAMES, mirror.value(keyed.counts.counts_key(slug_of(key))))
        if +Counter(stored) != found:
            yield f"the task key {key!r} counts {stored}, and has {dict(found)}"


class Ended(NamedTuple):
    """The numbers of leases that a commit has ended, and of those that it has to count for runs."""

    leases: int = 0
    of_runs: int = 0


def leases_ended(step: TaskStep, keys: RootKeys, mirror: Mirror) -> Ended:
    moves = [
        (old, new)
        for old, new in step.moves.values()
        if old is not None and is_taken(old) and (new is None or new.token != old.token)
    ]
    counts = [_counts(old, new, step) and _has_row(old, keys, mirror) for old, new in moves]
    return Ended(len(moves), sum(counts))


def _counts(old: Record, new: Record | None, step: TaskStep) -> bool:
    """True if this end of a lease counts. A release without a failure may, and a truncate never does."""
    if new is None:
        return not step.calls["other"]
    return new.state == TaskState.BURIED or new.failures > old.failures


def _has_row(lease: Record, keys: RootKeys, mirror: Mirror) -> bool:
    """True if the lease belongs to a run that is there: its session is a member, or the supervisor lives."""
    run = run_of(lease.token)
    rows = (keys.membership(lease.session), keys.session(run))
    return bool(run) and any(mirror.value(row) is not None for row in rows)


def ends_counted(keys: RootKeys, step: Step, ended: Ended) -> Iterator[str]:
    """`ended`: the leases that the commit has ended in all queues."""
    counted = 0
    for key, values in step.changes.items():
        if keys.shape_of(key)[0] == root_keys.RUN:
            old, new = unpacked(RUN_ENDS, values.before), unpacked(RUN_ENDS, values.after)
            counted += sum(max(0, signed(new[name]) - signed(old[name])) for name in RUN_ENDS)
    if not ended.of_runs <= counted <= ended.leases:
        yield f"{counted} ends are counted, of {ended.leases} leases, of which {ended.of_runs} are of runs"


_OF_TASKS: dict[int, str] = {
    records.TASK: "record of a task",
    records.REDRIVE: "redrive",
    records.ENDED_AT: "entry of an ended task",
    POINT: "point of a chronicle",
}
_OF_LINE: dict[int, str] = {REQUEST: "request", NOTICE: "notice"}
_OF_ROOT = {
    root_keys.DEFINITION: "definition",
    root_keys.SESSION: "session",
    root_keys.SESSION_NAME: "name of a session",
    root_keys.HEARTBEAT: "heartbeat",
    root_keys.LIMIT: "limit",
}


def changed_unseen(checks: Checks, step: Step) -> Iterator[str]:
    """Judge the keys of a queue."""
    for key in step.unseen:
        told = _told(checks, key)
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def changed_unseen_in_line(keys: LineKeys, step: Step) -> Iterator[str]:
    for key in step.unseen:
        told = _in_line(keys, key)
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def changed_unseen_in_root(keys: root_keys.RootKeys, step: Step) -> Iterator[str]:
    for key in step.unseen:
        told = _OF_ROOT.get(keys.shape_of(key)[0])
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def _told(checks: Checks, key: bytes) -> str | None:
    """The name of a value that no transaction changes unseen; None for other keys."""
    if isinstance(checks, RecipeChecks):
        keys = checks.recipe.keys
        return "item" if keys.parts_of(key)[0] == items.ITEM else _in_line(LineKeys(keys.line), key)
    if isinstance(checks, ElementChecks):
        return "lock of an element" if checks.keys.parts_of(key)[0] == store.LOCK else None
    if not isinstance(checks, TaskChecks):
        return None
    column, _ = checks.keys.parts_of(key)
    if column == records.BESIDE and checks.beside is not None:
        is_state = parts_beside(checks.keys.beside, key)[0] == STATE
        return "state of a task key" if is_state else None
    if column == records.LINE:
        return _in_line(LineKeys(checks.keys.line), key)
    return _OF_TASKS.get(column)


def _in_line(keys: LineKeys, key: bytes) -> str | None:
    column, _ = keys.parts_of(key)
    return _OF_LINE.get(column)


_COLUMNS = frozenset(
    {
        *(records.TASK, records.READY, records.TAKEN, records.DELAYED, records.TIMER),
        *(records.BESIDE, records.COUNTERS, records.LINE, records.FAILURE),
        UNIQUE,  # a put that finds the key of a taken task free makes that take durable
        WINDOW,  # a task that waits again takes its unique key over from a window that has ended
    }
)
_CALLS = frozenset({"take", "ttr", "release", "other"})
_MOVES = frozenset(
    {
        (TaskState.READY, TaskState.TAKEN),
        (TaskState.TAKEN, TaskState.TAKEN),
        (TaskState.TAKEN, TaskState.READY),
        (TaskState.TAKEN, TaskState.DELAYED),
    }
)
_UNDONE = "a power cut may undo it, and"


def lost_in_root(keys: RootKeys, step: Step) -> Iterator[str]:
    """Heartbeats of sessions without a name have no opener; the ends of leases count for a run. Takes under
    limits use slots and tokens, and ends of leases give slots back.
    """
    for key in step.changes if step.commit.may_be_lost else ():
        column, rest = keys.shape_of(key)
        is_beat = column in (root_keys.HEARTBEAT, root_keys.BEAT_DUE)
        is_of_takes = column in (root_keys.RUN, root_keys.LIMITED)
        if not is_of_takes and (not is_beat or (column == root_keys.HEARTBEAT and len(rest) > 1)):
            yield f"{_UNDONE} it changes more than a heartbeat (key {key.hex()})"


def lost_items(step: Step) -> Iterator[str]:
    """An item of a queue without leases leaves as it is taken."""
    if step.commit.may_be_lost:
        yield f"{_UNDONE} the queue has no leases"


def lost_leases(
    shape: Shape,
    step: TaskStep,
    line: LineStep,
    mirror: Mirror,
    keys_of: Callable[[bytes], TaskKeys] | None = None,
) -> Iterator[str]:
    """`keys_of` tells the keys of the partition of a key."""
    if not step.commit.may_be_lost:
        return
    for key in step.changes.changes:
        keys = shape.keys if keys_of is None else keys_of(key)
        if keys.parts_of(key)[0] not in _COLUMNS and shape.shared.column_of(key) is None:
            yield f"{_UNDONE} it changes more than leases (key {key.hex()})"
    if not _CALLS.issuperset(step.calls):
        yield f"{_UNDONE} it counts {dict(step.calls)}"
    for id_, (before, after) in step.moves.items():
        if before is None or after is None or (before.state, after.state) not in _MOVES:
            yield f"{_UNDONE} it does more to the task {id_text(id_)} than lease it"
        elif after.session == HANDED_OFF:
            yield f"{_UNDONE} the task {id_text(id_)} is handed off"
        elif before.token == after.token and before.session != HANDED_OFF and not _is_renewed(before, after):
            yield f"{_UNDONE} it does more to the task {id_text(id_)} than renew its lease"
    yield from _for_named_sessions(shape, step, line, mirror)


def _is_renewed(before: Record, after: Record) -> bool:
    return is_taken(after) and replace(after, until_us=before.until_us) == before


def _for_named_sessions(shape: Shape, step: TaskStep, line: LineStep, mirror: Mirror) -> Iterator[str]:
    """A call of a named session that has taken a task: another process may go on with that. A renewal that is
    undone leaves an earlier deadline.
    """
    delivered = {item.id for handed in line.laid for item in handed.items}
    collected = {item.id for handed in line.collected for item in handed.items}
    taken = {id_ for id_, (before, after) in step.moves.items() if _is_leased_anew(before, after)}
    returned = taken - delivered | collected
    for id_ in returned:
        record = step.after.get(id_)
        session = None if record is None else mirror.value(shape.root.session(record.session))
        if is_taken(record) and _is_named(session):
            yield f"{_UNDONE} a named session takes the task {id_text(id_)}"


def _is_leased_anew(before: Record | None, after: Record | None) -> bool:
    return after is not None and is_taken(after) and (before is None or before.token != after.token)


def _is_named(session: bytes | None) -> bool:
    try:
        return session is not None and layer.unpack(session)[1] is not None
    except (ValueError, IndexError, struct.error):
        return False


class LimitRules:
    def __init__(self, keys: RootKeys) -> None:
        self._keys = keys
        self._held: Counter[tuple[str, int]] = Counter()
        """Holders by limit and cell."""
        self._of_keys: Counter[tuple[str, bytes]] = Counter()
        """Holders by limit and key."""

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        touched: dict[str, None] = {}
        keys: dict[tuple[str, bytes], None] = {}
        for key, values in step.changes.items():
            column, rest = self._keys.shape_of(key)
            if column not in (root_keys.LIMIT, root_keys.LIMITED):
                continue
            touched[rest[0]] = None
            if column == root_keys.LIMITED and rest[1] == HOLDER:
                self._count(rest[0], values.before, -1)
                self._count(rest[0], values.after, 1)
            if column == root_keys.LIMITED and rest[1] in (COUNT, OF_KEY):
                keys[rest[0], rest[2]] = None
                if rest[1] == OF_KEY and rest[3] == KEY_HOLDER:
                    change = (values.after is not None) - (values.before is not None)
                    self._of_keys[rest[0], rest[2]] += change
        for name in touched:
            yield from self._judge_limit(name, step, mirror)
            yield from self._judge_total(name, mirror)
        for name, key in keys:
            yield from self._judge_key(name, key, step, mirror)

    def _count(self, name: str, value: bytes | None, change: int) -> None:
        held = None if value is None else held_of(value)
        if held is not None:
            self._held[name, held.cell] += change

    def _judge_limit(self, name: str, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        rule = rule_of(mirror.value(keys.row))
        if rule is None or not rule.has_slots:
            return
        numbers = cells_of(mirror.value(keys.cells))
        held = [self._held[name, cell] for cell in range(CELLS_MAX)]
        if numbers != held:
            yield f"the cells of the limit {name!r} are {numbers}, and its holders {held}"
        change = step.changes.get(keys.cells)
        grows = change is not None and sum(numbers) > sum(cells_of(change.before))
        if grows and sum(numbers) > rule.slots:
            yield f"{sum(numbers)} tasks run under the limit {name!r} of {rule.slots} slots"

    def _judge_key(self, name: str, key: bytes, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        rule = rule_of(mirror.value(keys.row))
        if rule is None or not rule.has_slots or not rule.per_key:
            return
        used, held = number_of(mirror.value(keys.count(key))), self._of_keys[name, key]
        if used != held:
            yield f"{used} slots of the key {key!r} of the limit {name!r} are in use, and tasks hold {held}"
        change = step.changes.get(keys.count(key))
        if change is not None and used > number_of(change.before) and used > rule.slots:
            yield f"{used} tasks of the key {key!r} run under the limit {name!r} of {rule.slots} slots"

    def _judge_total(self, name: str, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        total = number_of(mirror.value(keys.total))
        held = sum(count for (of, _), count in self._of_keys.items() if of == name)
        rule = rule_of(mirror.value(keys.row))
        if rule is not None and rule.has_slots and total != held:
            yield f"{total} slots of the limit {name!r} are in use by keys, and tasks hold {held}"


class Receipts:
    def __init__(self) -> None:
        self._writers: dict[bytes, str] = {}
        """The machine that has written each receipt."""

    def judge(self, step: Step) -> Iterator[str]:
        for key, values in step.changes.items():
            if values.after is not None:
                self._writers[key] = step.commit.machine
            elif values.before is not None:
                yield from self.cleared_in_time(step.commit, key, values.before)

    def cleared_in_time(self, commit: Commit, key: bytes, receipt: bytes) -> Iterator[str]:
        writer, (written_us, _) = self._writers.pop(key), ATTEMPT.unpack(receipt)
        age_s = (commit.now_us - written_us) / 1_000_000
        if writer != commit.machine and age_s < limits.RECEIPT_STALE_S:
            yield f"a receipt of {writer} is cleared by {commit.machine}, {age_s:.0f} s old (key {key.hex()})"


class Sessions:
    def __init__(self, keys: RootKeys, is_member: Callable[[bytes], bool], liveness: Liveness) -> None:
        self._is_member = is_member
        self._liveness = liveness
        self._keys = keys
        self._openers: dict[bytes, set[str]] = {}
        """The machines that have written the heartbeat of each session, or the entry of an opener: a second
        opener leaves a later heartbeat as it is.
        """
        self._ended: set[bytes] = set()

    def judge(self, step: Step) -> Iterator[str]:
        commit = step.commit
        for key, values in step.changes.items():
            column, rest = self._keys.shape_of(key)
            if column == root_keys.SESSION:
                yield from self.record_step(step, rest[0], values.before, values.after)
            elif column == root_keys.HEARTBEAT and values.after is not None:
                openers = self._openers.setdefault(rest[0], set())
                if rest[0] in self._ended:
                    yield f"the session {rest[0].hex()} has ended, and has a heartbeat again"
                openers.add(commit.machine)

    def record_step(
        self, step: Step, session: bytes, before: bytes | None, after: bytes | None
    ) -> Iterator[str]:
        commit = step.commit
        if before is None and session in self._ended:
            yield f"the session {session.hex()} has ended, and is there again"
        if after is not None:
            if before is not None and ttr_us_of(after) < ttr_us_of(before):
                yield f"the ttr of the session {session.hex()} was {ttr_us_of(before)} us: {ttr_us_of(after)}"
            return
        self._ended.add(session)
        beat = step.changes.get(self._keys.heartbeat(session))
        deadline_us = None if beat is None or beat.before is None else deadline_if_readable(beat.before)
        is_overdue = deadline_us is None or deadline_us <= commit.now_us + SLACK_US
        openers = self._openers.get(session, set())
        is_own = commit.machine in openers
        if is_own or self._is_member(session):
            return
        if not is_overdue:
            yield (
                f"the session {session.hex()} is ended by {commit.machine}, and lives until {deadline_us}: "
                f"it is {commit.now_us}"
            )
        elif name_of(before) is None and any(map(self._liveness.is_in_time, openers)):
            yield f"the session {session.hex()} ends as dead, and {min(openers)} goes on without a fault"


def name_of(record: bytes | None) -> str | None:
    name: str | None = None if record is None else layer.unpack(record)[1]
    return name


def ttr_us_of(record: bytes) -> int:
    ttr_us: int = layer.unpack(record)[2]
    return ttr_us
