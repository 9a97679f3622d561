"""Schedule: tasks that are put at given times, exactly once per fleet, by any process that passes.

docs/schedules.md is their page. The verbs of schedules are each in one transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from datetime import datetime
from types import EllipsisType
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_instance, checked_text, writable
from fdbqueue.core.codec import stored_codec
from fdbqueue.core.database import Database, Handle, as_database, is_transaction, run
from fdbqueue.core.errors import (
    InvalidArgument,
    PayloadTooLarge,
    ScheduleExists,
    ScheduleNotFound,
    ScheduleUnreadable,
)
from fdbqueue.core.page import Page, checked_limit
from fdbqueue.core.registry import Registry, checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import (
    EXACT,
    AnyDatabase,
    DatabaseOrTransaction,
    KeyValue,
    Range,
    ReadTransaction,
    Transaction,
)
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import firing
from fdbqueue.tasks.firing import (
    NAME_HEADER,
    SECOND_US,
    TIME_HEADER,
    VERSION,
    Rule,
    ScheduleRecord,
    ScheduleState,
    ScheduleStatus,
    checked_missed,
    draft_of,
    headers_of,
    next_times,
    put_for,
    queue_of,
    record_of,
    rule_for,
    shown_time,
    state_of,
    to_bytes,
    write_state,
    zone_named,
)
from fdbqueue.tasks.options import UNIQUE_OPTIONS, PutOptions
from fdbqueue.tasks.shape import Shape

REFUSE, KEEP, CHANGE = "refuse", "keep", "change"
IF_EXISTS = (REFUSE, KEEP, CHANGE)


@dataclass(frozen=True)
class Wanted:
    """The parts of a schedule that a caller gives; a part that is missing keeps its present value."""

    parts: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    record: ScheduleRecord
    state: ScheduleState


def ask_stored(tr: ReadTransaction, keys: RootKeys, name: str) -> Callable[[], Stored | None]:
    """Ask for a schedule and its state; the reply is None if there is none. Raises: ScheduleUnreadable."""
    record, state = tr.get(keys.schedule(name)), tr.get(keys.schedule_state(name))

    def reply() -> Stored | None:
        if record.value is None:
            return None
        return Stored(record_of(name, record.value), state_of(state.value) or ScheduleState())

    return reply


def stored(tr: ReadTransaction, keys: RootKeys, name: str) -> Stored:
    found = ask_stored(tr, keys, name)()
    if found is None:
        raise ScheduleNotFound(name=name)
    return found


def create(
    tr: Transaction, registry: Registry, name: str, wanted: Wanted, paused: bool, if_exists: str, now_us: int
) -> None:
    """Store a new schedule, or do with one of that name as `if_exists` says."""
    there = ask_stored(tr, registry.keys, name)()
    if there is None:
        record = _fitting(tr, registry, name, _new(wanted, paused, now_us), wanted)
        _begin(tr, registry.keys, name, record, ScheduleState(), now_us)
    elif if_exists == REFUSE:
        raise ScheduleExists(name=name)
    elif if_exists == CHANGE:
        options = dict.fromkeys(PutOptions.named()) | dict(wanted.options)
        _change(tr, registry, name, there, Wanted(wanted.parts, options), now_us)


def change(tr: Transaction, registry: Registry, name: str, wanted: Wanted, now_us: int) -> None:
    """Raises: ScheduleNotFound, ScheduleUnreadable; as `_fitting`."""
    _change(tr, registry, name, stored(tr, registry.keys, name), wanted, now_us)


def _new(wanted: Wanted, paused: bool, now_us: int) -> ScheduleRecord:
    parts = wanted.parts
    rule = rule_for(parts["expression"], parts["every"], parts["timezone"], parts["missed"], now_us)
    options = _options_for(wanted.options)
    return ScheduleRecord(VERSION, rule, parts["queue"], "", b"", options, paused, now_us)


def _change(
    tr: Transaction, registry: Registry, name: str, there: Stored, wanted: Wanted, now_us: int
) -> None:
    before = there.record
    changed = replace(
        before,
        rule=_changed_rule(before.rule, wanted.parts, now_us),
        queue=wanted.parts.get("queue", before.queue),
        options=_options_for(_changed_options(before.options.given(), wanted.options)),
    )
    record = _fitting(tr, registry, name, changed, wanted)
    keeps_its_times = record.rule.is_at_the_times_of(before.rule)
    if keeps_its_times:
        record = replace(record, rule=replace(record.rule, anchor_us=before.rule.anchor_us))
    # A state that was damaged or lost has no due time: with it, the schedule would never be fired again.
    if keeps_its_times and (before.paused or there.state.due_us is not None):
        tr.set(registry.keys.schedule(name), to_bytes(record))
        # A failure so far no longer puts it off.
        state = replace(there.state, error=None, tries=0)
        write_state(tr, registry.keys, name, there.state, state, state.due_us)
    else:
        _begin(tr, registry.keys, name, record, there.state, now_us)


def _changed_options(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Without its unique key, a put has no options about it either."""
    ended = UNIQUE_OPTIONS if "unique" in given and given["unique"] is None else ()
    return {name: value for name, value in before.items() if name not in ended} | dict(given)


def _changed_rule(before: Rule, parts: Mapping[str, Any], now_us: int) -> Rule:
    if not {"expression", "every", "timezone"} & set(parts):
        return replace(before, missed=checked_missed(parts.get("missed", before.missed)))
    every = before.every_us / SECOND_US if before.expression is None else None
    given: dict[str, Any] = {"expression": before.expression, "every": every, "timezone": before.timezone}
    if parts.get("every") is not None:
        given |= {"expression": None, "timezone": "UTC"}
    elif parts.get("expression") is not None:
        given["every"] = None
    given |= {part: parts[part] for part in given if part in parts}
    return rule_for(**given, missed=parts.get("missed", before.missed), now_us=now_us)


def _fitting(
    tr: Transaction, registry: Registry, name: str, record: ScheduleRecord, wanted: Wanted
) -> ScheduleRecord:
    """The record with the data in the codec of its queue, once the queue takes its options."""
    shape = queue_of(tr, registry, record.queue)
    if "data" in wanted.parts:
        payload = _payload_for(shape, wanted.parts["data"])
    elif record.codec != shape.settings.codec:
        payload = _payload_for(shape, stored_codec(record.codec).decode(record.payload))
    else:
        payload = record.payload
    fitting = replace(record, codec=shape.settings.codec, payload=payload)
    draft_of(shape, fitting, headers_of(name, fitting, 1))  # as long as the headers of any time
    return fitting


def _payload_for(shape: Shape, data: Any) -> bytes:
    """Raises: PayloadTooLarge; TypeError for data that the codec of the queue cannot carry."""
    payload = shape.codec.encode(data)
    if len(payload) > limits.SCHEDULE_DATA_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.SCHEDULE_DATA_BYTES_MAX)
    return payload


def _options_for(given: Mapping[str, Any]) -> PutOptions:
    """Raises: as PutOptions.of; InvalidArgument for headers that the schedule gives its tasks."""
    options = PutOptions.of(given)
    if {NAME_HEADER, TIME_HEADER} & set(options.headers or ()):
        wanted = f"without {NAME_HEADER!r} and {TIME_HEADER!r}, which the schedule gives its tasks"
        raise InvalidArgument(name="headers", wanted=wanted, got=given["headers"])
    return options


def _begin(
    tr: Transaction, keys: RootKeys, name: str, record: ScheduleRecord, state: ScheduleState, now_us: int
) -> None:
    """Store a schedule, and let it begin with the first due time behind now.

    A process with a faster clock may have fired due times that are still ahead: these do not come again.
    """
    last_us, skew_us = state.last_due_us or 0, round(limits.CLOCK_SKEW_S * SECOND_US)
    begin_us = max(now_us, last_us) if last_us <= now_us + skew_us else now_us
    due_us = None if record.paused else record.rule.times().after(begin_us)
    tr.set(keys.schedule(name), to_bytes(record))
    write_state(tr, keys, name, state, replace(state, due_us=due_us, error=None, tries=0), due_us)


def renew(tr: Transaction, keys: RootKeys, name: str, now_us: int) -> None:
    """Write the state anew: it was lost. The counts begin at zero."""
    _begin(tr, keys, name, stored(tr, keys, name).record, ScheduleState(), now_us)


def pause(tr: Transaction, keys: RootKeys, name: str) -> None:
    found = stored(tr, keys, name)
    if not found.record.paused:
        tr.set(keys.schedule(name), to_bytes(replace(found.record, paused=True)))
        write_state(tr, keys, name, found.state, replace(found.state, due_us=None), None)


def resume(tr: Transaction, keys: RootKeys, name: str, now_us: int) -> None:
    """Raises: ScheduleNotFound, ScheduleUnreadable; InvalidArgument, ModuleNotFoundError as `Rule.times`."""
    found = stored(tr, keys, name)
    if found.record.paused:
        _begin(tr, keys, name, replace(found.record, paused=False), found.state, now_us)


def delete(tr: Transaction, keys: RootKeys, name: str) -> None:
    """Remove a schedule, also one that cannot be read. Raises: ScheduleNotFound."""
    record, state = tr.get(keys.schedule(name)), tr.get(keys.schedule_state(name))
    if record.value is None:
        raise ScheduleNotFound(name=name)
    known = state_of(state.value)
    if known is not None and known.at_us is not None:
        tr.clear(keys.schedule_due(known.at_us, name))
    tr.clear(keys.schedule(name))
    tr.clear(keys.schedule_state(name))


class Row(NamedTuple):
    """A schedule as it is stored; `state` is None for one that was lost."""

    name: str
    record: bytes
    state: bytes | None


def page(tr: ReadTransaction, keys: RootKeys, limit: int, after: str) -> Page[ScheduleStatus]:
    """At most `limit` schedules behind that name, in order. Reads: by snapshot."""
    rows = ask_rows(tr, keys, min(limit, limits.SCHEDULES_LISTED_MAX), after)()
    return Page([_listed(*row) for row in rows], rows.next)


def ask_rows(tr: ReadTransaction, keys: RootKeys, most: int, after: str) -> Callable[[], Page[Row]]:
    """Ask for at most `most` schedules behind that name, in order."""
    under = keys.schedules_after(after)

    def ask(start: bytes) -> Range:
        return tr.get_range(start, under.stop, limit=2 * most, streaming_mode=EXACT)

    asked = ask(under.start)

    def reply() -> Page[Row]:
        rows = asked.to_list()
        named = _named(keys, rows)
        while len(rows) == 2 * most and len(named) < 2:  # keys of another program are in the way
            rows = ask(rows[-1].key + b"\x00").to_list()
            named += _named(keys, rows)
        is_full = len(rows) == 2 * most
        if is_full and not named[-1][1]:
            named.pop()  # its state is on the next page
        states = {name: value for name, is_state, value in named if is_state}
        found = [Row(name, value, states.get(name)) for name, is_state, value in named if not is_state]
        last = named[-1][0] if is_full else None
        return Page(found, last) if len(found) <= most else Page(found[:most], found[most - 1].name)

    return reply


def _named(keys: RootKeys, rows: Sequence[KeyValue]) -> list[tuple[str, bool, bytes]]:
    """The names in rows of schedules, true for a state, and the values."""
    parsed = [(keys.schedule_in(bytes(row.key)), bytes(row.value)) for row in rows]
    return [(*place, value) for place, value in parsed if place is not None]


def _listed(name: str, record: bytes, state: bytes | None) -> ScheduleStatus:
    try:
        return status_of(name, Stored(record_of(name, record), state_of(state) or ScheduleState()))
    except ScheduleUnreadable as error:
        return ScheduleStatus(name, error=str(error))


def status_of(name: str, found: Stored) -> ScheduleStatus:
    record, state = found.record, found.state
    return ScheduleStatus(
        name,
        record.queue,
        record.rule.expression,
        record.rule.every_us / SECOND_US if record.rule.expression is None else None,
        record.rule.timezone,
        record.rule.missed,
        shown(stored_codec(record.codec), lambda: record.payload),
        record.options.given(),
        record.paused,
        record.created_us / SECOND_US,
        _seconds(state.due_us),
        state.fired,
        _seconds(state.last_due_us),
        _seconds(state.last_fired_us),
        state.last_task,
        state.error,
        state.tries,
        _seconds(state.at_us),
    )


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / SECOND_US


T = TypeVar("T")


class Schedule(Handle):
    """A schedule of a root, which puts tasks into a task queue. A value: threads may share it.

    Every method takes a database or a transaction first, ours or the binding's. Each process with a worker, a
    session or a queue that was opened with a database fires the schedules of its root that are due.
    Raises: NotADatabase for any other first argument; ScheduleNotFound after it was deleted.
    """

    __slots__ = ("_database", "_registry", "name")

    def __init__(self, target: DatabaseOrTransaction, name: str, registry: Registry) -> None:
        """Use `Schedule.create` or `Schedule.open`. Raises: InvalidArgument."""
        self.name = checked_schedule_name(name)
        self._registry = checked_instance("registry", registry, Registry)
        self._database = as_database(target.db if is_transaction(target) else target)
        if not is_transaction(target):
            keeper_of(self._database, registry.keys).start()
            firing.pass_of(self._database, registry.keys).wake()

    def _shown(self) -> dict[str, Any]:
        return {"name": self.name, **self._database._shown()}

    @classmethod
    def create(
        cls,
        db: DatabaseOrTransaction,
        name: str,
        expression: str | None = None,
        *,
        every: float | None = None,
        queue: str,
        data: Any = None,
        timezone: str = "UTC",
        missed: str = "once",
        paused: bool = False,
        if_exists: str = REFUSE,
        root: Any = DEFAULT_ROOT,
        **options: Any,
    ) -> "Schedule":
        """Store a schedule that puts a task with `data` into `queue` at each of its due times.

        `expression`: a cron expression of five fields, or of six with the seconds first, in `timezone`; it
        needs the extra `schedules`. `every`: the seconds between two due times, counted from now. `options`
        are those of `TaskQueue.put` that the kind of the queue has, `delay` and `ttl` counted from the put.

        `missed`: the effect of due times that are over for more than limits.SCHEDULE_MISSED_AFTER_S when a
        process passes. "once" puts one task for the last due time, "all" one for each, "skip" none.

        `if_exists`: of a schedule of that name, "refuse" raises ScheduleExists, "keep" leaves it as it is,
        and "change" gives it these values. Its due times go on if its times are the same.
        Reads: the schedule; the definition of the queue.
        Writes: the schedule, its state, the key of its next due time.
        Conflicts: a firing, a change of the schedule; create, drop of the queue.
        Raises: ScheduleExists, QueueNotFound, QueueKindMismatch, UnsupportedOption, InvalidArgument,
        PayloadTooLarge above limits.SCHEDULE_DATA_BYTES_MAX; TypeError for data that the codec of the queue
        cannot carry; ModuleNotFoundError for an expression without the extra.
        Round trips: 2.
        """
        registry = Registry(root)
        if if_exists not in IF_EXISTS:
            raise InvalidArgument(name="if_exists", wanted='"refuse", "keep" or "change"', got=if_exists)
        parts = {
            "expression": expression,
            "every": every,
            "queue": checked_name(queue),
            "data": data,
            "timezone": timezone,
            "missed": missed,
        }
        made = cls(db, name, registry)
        made._write(
            db,
            lambda tr, now_us: create(
                tr, registry, made.name, Wanted(parts, options), bool(paused), if_exists, now_us
            ),
        )
        return made

    @classmethod
    def open(cls, db: DatabaseOrTransaction, name: str, *, root: Any = DEFAULT_ROOT) -> "Schedule":
        """The schedule of that name.

        Reads: the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable.
        """
        found = cls(db, name, Registry(root))
        found.status(db)
        return found

    def status(self, tr: DatabaseOrTransaction) -> ScheduleStatus:
        """The schedule as it is stored, with its next due time, and the error of its last try.

        Reads: the schedule, its state.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable.
        """
        found = run(tr, lambda tr: stored(tr, self._keys, self.name))
        return status_of(self.name, found)

    def next_times(self, tr: DatabaseOrTransaction, count: int = 5) -> list[datetime]:
        """The first due times after now, in the time zone of the schedule, at most
        limits.SCHEDULE_TIMES_MAX. A pause does not count.

        Reads: the schedule, its state.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable, InvalidArgument; ModuleNotFoundError for an expression
        without the extra.
        """
        most = checked_count("count", count)
        rule = run(tr, lambda tr: stored(tr, self._keys, self.name)).record.rule
        zone, now_us = zone_named(rule.timezone), self._of(tr).runtime.now_us()
        return [shown_time(due_us, zone) for due_us in next_times(rule.times(), now_us, most)]

    def change(
        self,
        /,
        tr: DatabaseOrTransaction,
        *,
        expression: str | EllipsisType | None = ...,
        every: float | EllipsisType | None = ...,
        queue: str | EllipsisType = ...,
        data: Any = ...,
        timezone: str | EllipsisType = ...,
        missed: str | EllipsisType = ...,
        **options: Any,
    ) -> None:
        """Give the schedule other values; those that are left out stay. None takes back an option of its put.

        With other times, the next due time is the first one after now. A failure so far puts nothing off.
        Reads: the schedule, its state; the definition of the queue.
        Writes: the schedule, its state, the key of its next due time.
        Conflicts: a firing, a change of the schedule; create, drop of the queue.
        Raises: ScheduleNotFound, ScheduleUnreadable; as `create`.
        """
        given = {
            "expression": expression,
            "every": every,
            "queue": queue if queue is ... else checked_name(queue),
            "data": data,
            "timezone": timezone,
            "missed": missed,
        }
        wanted = Wanted({name: value for name, value in given.items() if value is not ...}, options)
        self._write(tr, lambda tr, now_us: change(tr, self._registry, self.name, wanted, now_us))

    def pause(self, tr: DatabaseOrTransaction) -> None:
        """Let it put no task until `resume`. Due times of the pause are never made up for.

        Reads: the schedule, its state.
        Writes: the same; clears the key of its next due time.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable.
        """
        self._write(tr, lambda tr, _: pause(tr, self._keys, self.name))

    def resume(self, tr: DatabaseOrTransaction) -> None:
        """Let it go on with the first due time after now.

        Reads: the schedule, its state.
        Writes: the same; the key of its next due time.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable; InvalidArgument for a time zone that this machine does
        not know; ModuleNotFoundError for an expression without the extra.
        """
        self._write(tr, lambda tr, now_us: resume(tr, self._keys, self.name, now_us))

    def run(self, tr: DatabaseOrTransaction) -> Task:
        """Put a task of the schedule now, also while it is paused. Its due times stay as they are.

        The task has no header "scheduled-for".
        Reads: the schedule; the definition of the queue; as `TaskQueue.put`.
        Writes: as `TaskQueue.put`.
        Conflicts: a firing, a change of the schedule; as `TaskQueue.put`.
        Raises: ScheduleNotFound, ScheduleUnreadable, QueueNotFound, ScheduleUnfit, QueueFull; as
        `TaskQueue.put`.
        """
        return self._write(tr, lambda inner, _: self._put(inner, self._of(tr)))

    def delete(self, tr: DatabaseOrTransaction) -> None:
        """Remove the schedule. Its tasks stay.

        Reads: the schedule, its state.
        Writes: clears both, and the key of its next due time.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound.
        """
        self._write(tr, lambda tr, _: delete(tr, self._keys, self.name))

    # How it is done.

    @property
    def _keys(self) -> RootKeys:
        return self._registry.keys

    def _put(self, tr: Transaction, database: Database) -> Task:
        record = stored(tr, self._keys, self.name).record
        task = put_for(tr, database, self._registry, self.name, record, [None])[0]
        return replace_fields(task, data=stored_codec(record.codec).decode(record.payload))

    def _write(self, target: DatabaseOrTransaction, body: Callable[[Transaction, int], T]) -> T:
        """Run `body` with the present time; given a database, its effect happens once."""
        now_us = self._of(target).runtime.now_us

        def timed(tr: Transaction) -> T:
            # First: if the process stands still behind its look at the clock, the transaction is too old.
            tr.get_read_version().wait()
            return body(tr, now_us())

        return self._registry.write(target, timed)

    def _of(self, target: DatabaseOrTransaction) -> Database:
        """The database of a call: that of the handle, if both have the same engine."""
        if not is_transaction(target):
            return as_database(target)
        return self._database if target.db == self._database.engine else as_database(target.db)


def checked_schedule_name(name: Any) -> str:
    return checked_text("name", name, limits.SCHEDULE_NAME_BYTES_MAX)


def list_schedules(
    db: DatabaseOrTransaction,
    limit: int = limits.SCHEDULES_LISTED_MAX,
    *,
    after: str = "",
    root: Any = DEFAULT_ROOT,
) -> Page[ScheduleStatus]:
    """A page of the schedules of a root, in order of their names, at most limits.SCHEDULES_LISTED_MAX.

    The page's `next` is the `after` of the following page, None at the end. One that cannot be read has the
    reason as its `error`.
    Reads: by snapshot.
    Conflicts: none.
    Raises: InvalidArgument.
    Round trips: 1.
    """
    keys, most = RootKeys(root), checked_limit(limit)
    behind = checked_schedule_name(after) if after else ""
    return run(db, lambda tr: page(writable(tr).snapshot, keys, most, behind))


def fire_due(db: AnyDatabase, *, root: Any = DEFAULT_ROOT) -> int:
    """Fire the schedules that are due, for a program without a worker or a session. Return the number of
    tasks that were put.

    One call does at most limits.SCHEDULES_FIRED_PER_PASS transactions. An error of one schedule is stored
    with it, and stops no other.
    Reads: the schedules that are due, by snapshot; each with its state, and as a put.
    Writes: as a put; the state, and the key of the next due time.
    Conflicts: another firing; a change of the schedule; as a put.
    Raises: NotADatabase; the error of a database that is away.
    """
    return firing.fire_due(as_database(db), RootKeys(root))
