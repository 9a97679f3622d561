"""The verbs of schedules, each in one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.codec import stored_codec
from fdbqueue.core.errors import (
    InvalidArgument,
    PayloadTooLarge,
    ScheduleExists,
    ScheduleNotFound,
    ScheduleUnreadable,
)
from fdbqueue.core.page import Page
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, KeyValue, Range, ReadTransaction, Transaction
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks.options import UNIQUE_OPTIONS, PutOptions
from fdbqueue.tasks.schedules.passing import write_state
from fdbqueue.tasks.schedules.puts import NAME_HEADER, TIME_HEADER, draft_of, headers_of, queue_of
from fdbqueue.tasks.schedules.records import (
    VERSION,
    Record,
    Rule,
    State,
    checked_missed,
    record_of,
    rule_for,
    state_of,
    to_bytes,
)
from fdbqueue.tasks.schedules.times import SECOND_US, ScheduleStatus
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
    record: Record
    state: State


def ask_stored(tr: ReadTransaction, keys: RootKeys, name: str) -> Callable[[], Stored | None]:
    """Ask for a schedule and its state; the reply is None if there is none. Raises: ScheduleUnreadable."""
    record, state = tr.get(keys.schedule(name)), tr.get(keys.schedule_state(name))

    def reply() -> Stored | None:
        if record.value is None:
            return None
        return Stored(record_of(name, record.value), state_of(state.value) or State())

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
        _begin(tr, registry.keys, name, record, State(), now_us)
    elif if_exists == REFUSE:
        raise ScheduleExists(name=name)
    elif if_exists == CHANGE:
        options = dict.fromkeys(PutOptions.named()) | dict(wanted.options)
        _change(tr, registry, name, there, Wanted(wanted.parts, options), now_us)


def change(tr: Transaction, registry: Registry, name: str, wanted: Wanted, now_us: int) -> None:
    """Raises: ScheduleNotFound, ScheduleUnreadable; as `_fitting`."""
    _change(tr, registry, name, stored(tr, registry.keys, name), wanted, now_us)


def _new(wanted: Wanted, paused: bool, now_us: int) -> Record:
    parts = wanted.parts
    rule = rule_for(parts["expression"], parts["every"], parts["timezone"], parts["missed"], now_us)
    options = _options_for(wanted.options)
    return Record(VERSION, rule, parts["queue"], "", b"", options, paused, now_us)


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


def _fitting(tr: Transaction, registry: Registry, name: str, record: Record, wanted: Wanted) -> Record:
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


def _begin(tr: Transaction, keys: RootKeys, name: str, record: Record, state: State, now_us: int) -> None:
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
    _begin(tr, keys, name, stored(tr, keys, name).record, State(), now_us)


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
        return status_of(name, Stored(record_of(name, record), state_of(state) or State()))
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
