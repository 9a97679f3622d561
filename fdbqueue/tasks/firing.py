"""Firing: the tasks of a schedule that is due, and its next due time, in one transaction.

Times: the due times of a schedule, as functions of a time and of nothing else; and turns. All times are whole
microseconds since the epoch. The due times of one rule are one set, so each function gives the same answer in
every process, wherever it begins.

Stored values of a schedule: its record, which its verbs write, and its state, which each firing writes. Both
are msgpack arrays that grow at their end only. A record with a larger version than this release knows is
left to newer processes. The state of a schedule that waits has `at_us`, the time of its key in R[13].

Puts of a schedule: its tasks go through the put of their queue, with headers that tell the due time.

Passes: each process with a keeper looks for schedules that are due, and fires them. There is no process for
it alone. A look reads one key by snapshot. The processes under one root share the looks, as they share
sweeping.

The transaction of a firing reads the schedule and its state serialisably, and writes the state. So of two
processes that pass at once, one conflicts, and then sees the next due time. That also holds for a retry after
an unknown result: a firing needs no receipt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text, is_number
from fdbqueue.core.database import Database, is_away
from fdbqueue.core.errors import (
    InvalidArgument,
    QueueFull,
    QueueKindMismatch,
    ScheduleUnfit,
    ScheduleUnreadable,
    UnknownKind,
)
from fdbqueue.core.lazy import needs
from fdbqueue.core.logger import logger
from fdbqueue.core.once import run_once
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.core.sessions.ending import SESSIONLESS
from fdbqueue.core.sessions.keeper import Round
from fdbqueue.core.task import Task
from fdbqueue.core.visible import shortened, text_of
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.options import Draft, PutOptions
from fdbqueue.tasks.shape import Shape, shape_of


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule as it is stored. Times are seconds since the epoch."""

    name: str
    queue: str = ""
    expression: str | None = None
    every: float | None = None
    """The distance of two due times in seconds; None with an expression."""
    timezone: str = "UTC"
    missed: str = "once"
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of its puts that differ from their default."""
    paused: bool = False
    created: float = 0.0
    due: float | None = None
    """The next due time; None while it is paused, and if there is no other."""
    fired: int = 0
    """Number of due times for which a task was put."""
    last_due: float | None = None
    """The last due time for which a task was put."""
    last_fired: float | None = None
    """The time of that put."""
    last_task: str | None = None
    error: str | None = None
    """The reason why the last try has failed, or why it cannot be read; None if all is well."""
    tries: int = 0
    """Number of tries that have failed since the last success."""
    next_try: float | None = None
    """The time of the next try: `due`, or later after a failure."""


ONCE, ALL, SKIP = "once", "all", "skip"
MISSED = (ONCE, ALL, SKIP)
SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_ZONE = (LookupError, ValueError, OSError)
"""Errors of `zoneinfo` for a name that it does not find, or that is a path or a directory."""


class Times(Protocol):
    def after(self, time_us: int) -> int | None:
        """The first one behind this time; None if there is none."""

    def last_until(self, time_us: int, due_us: int) -> int:
        """The last one up to this time, and not before `due_us`, which is one of them."""


class EveryTimes:
    def __init__(self, every_us: int, anchor_us: int) -> None:
        self._every_us = every_us
        self._anchor_us = anchor_us

    def after(self, time_us: int) -> int | None:
        return time_us + self._every_us - (time_us - self._anchor_us) % self._every_us

    def last_until(self, time_us: int, due_us: int) -> int:
        return max(due_us, time_us - (time_us - self._anchor_us) % self._every_us)


class CronTimes:
    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone

    def after(self, time_us: int) -> int | None:
        try:
            found = times_from(self._expression, _datetime(time_us // SECOND_US * SECOND_US, self._zone))
            return next(
                (us for at in found if (us := (at - _EPOCH) // timedelta(microseconds=1)) > time_us), None
            )
        except OverflowError:  # beyond the last year of a datetime
            return None

    def last_until(self, time_us: int, due_us: int) -> int:
        """By halves, as an expression with seconds may have millions of times in an outage."""
        last_us, low_s, high_s = due_us, due_us // SECOND_US, time_us // SECOND_US
        while low_s <= high_s:
            middle_s = (low_s + high_s) // 2
            found = self.after(middle_s * SECOND_US)
            if found is not None and found <= time_us:
                last_us, low_s = found, found // SECOND_US
                continue
            high_s = middle_s - 1
        return last_us


def times_from(expression: str, start: datetime) -> Iterator[datetime]:
    """The times of a cron expression behind `start`, in order, in its time zone.

    In the second pass through an hour that exists twice, the library may begin with a time of the first pass.
    """
    with needs("schedules", "cronsim"):
        from cronsim import CronSim, CronSimError
    try:
        return CronSim(expression, start)
    except (CronSimError, ValueError) as reason:
        wanted = f"a cron expression of five fields, or of six with the seconds first ({reason})"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression) from reason


def zone_named(name: str) -> tzinfo:
    """Raises: InvalidArgument for a name that this machine does not know."""
    if name == "UTC":  # which needs no files
        return UTC
    try:
        return ZoneInfo(name)
    except _NO_ZONE as reason:
        wanted = f"a time zone that this machine knows, such as Europe/Rome ({reason})"
        raise InvalidArgument(name="timezone", wanted=wanted, got=name) from reason


def shown_time(time_us: int, zone: tzinfo) -> datetime:
    return _datetime(time_us, zone)


def next_times(times: Times, time_us: int, count: int) -> list[int]:
    """The first `count` due times behind a time; fewer if there are no more."""
    found: list[int] = []
    due_us = times.after(time_us)
    while due_us is not None and len(found) < min(count, limits.SCHEDULE_TIMES_MAX):
        found.append(due_us)
        due_us = times.after(due_us)
    return found


def _datetime(time_us: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=time_us)).astimezone(zone)


@dataclass(frozen=True)
class Turn:
    """The due times that get a task each, and the next due time; None if there is no other."""

    times_us: Sequence[int]
    next_us: int | None


def turn_of(times: Times, missed: str, due_us: int, now_us: int, most: int | None = None) -> Turn:
    """The turn of a schedule that is due.

    At most `most` due times get a task, by default limits.SCHEDULE_FIRED_MAX; the next turn goes on behind
    them. A due time is missed if it is over for more than limits.SCHEDULE_MISSED_AFTER_S.

    The next due time follows from the due times, never from the clock of the process that passes: clocks that
    differ by less than limits.CLOCK_SKEW_S leave out no due time, and give none twice.
    """
    late_us = now_us - round(limits.SCHEDULE_MISSED_AFTER_S * SECOND_US)
    first_us: int | None = due_us
    if due_us < late_us and missed == ONCE:
        last_us = times.last_until(now_us, due_us)
        return Turn((last_us,), times.after(last_us))
    if due_us < late_us and missed == SKIP:
        first_us = times.after(late_us - 1)
    chosen: list[int] = []
    most = limits.SCHEDULE_FIRED_MAX if most is None else most
    while first_us is not None and first_us <= now_us and len(chosen) < most:
        chosen.append(first_us)
        first_us = times.after(first_us)
    return Turn(chosen, first_us)


def retry_us(now_us: int, tries: int) -> int:
    waits = limits.SCHEDULE_RETRY_FIRST_S * 2.0 ** min(tries - 1, 30)
    return now_us + round(min(waits, limits.SCHEDULE_RETRY_MAX_S) * SECOND_US)


VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """The due times of a schedule. Append fields with a default; never reorder."""

    expression: str | None
    """None with `every_us`."""
    every_us: Count
    anchor_us: Count
    """The time that `every_us` counts from."""
    timezone: str
    missed: str

    def times(self) -> Times:
        """Raises: InvalidArgument for a time zone or an expression that this process does not know."""
        if self.expression is None:
            return EveryTimes(self.every_us, self.anchor_us)
        return CronTimes(self.expression, zone_named(self.timezone))

    def is_at_the_times_of(self, other: "Rule") -> bool:
        """True if both have the same due times, wherever these are counted from."""
        ours = (self.expression, self.every_us, self.timezone)
        return ours == (other.expression, other.every_us, other.timezone)


NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Those of crontab(5), which the library does not know. A schedule stores the fields."""


def rule_for(expression: Any, every: Any, timezone: Any, missed: Any, now_us: int) -> Rule:
    """Raises: InvalidArgument; ModuleNotFoundError for an expression, without the extra."""
    if (expression is None) == (every is None):
        between = "the seconds between two due times, without an `expression`"
        wanted = between if every is None else "None beside an `expression`"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    checked_missed(missed)
    zone = checked_text("timezone", timezone, limits.SCHEDULE_TIMEZONE_BYTES_MAX)
    if expression is None:
        if zone != "UTC":
            raise InvalidArgument(name="timezone", wanted="UTC with `every`", got=timezone)
        anchor_us = now_us // SECOND_US * SECOND_US
        return Rule(None, _checked_every_us(every), anchor_us, zone, missed)
    text = checked_text("expression", expression, limits.SCHEDULE_EXPRESSION_BYTES_MAX)
    rule = Rule(NICKNAMES.get(text, text), 0, 0, zone, missed)
    if rule.times().after(now_us) is None:
        wanted = "an expression with a time within the next fifty years"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression)
    return rule


def checked_missed(missed: Any) -> str:
    if missed not in MISSED:
        raise InvalidArgument(name="missed", wanted='"once", "all" or "skip"', got=missed)
    return str(missed)


def _checked_every_us(every: Any) -> int:
    if not is_number(every) or not limits.SCHEDULE_EVERY_MIN_S <= every < limits.SPAN_MAX_S:
        wanted = f"{limits.SCHEDULE_EVERY_MIN_S:g} or more seconds, less than a hundred years"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    return round(float(every) * SECOND_US)


class ScheduleRecord(msgspec.Struct, frozen=True, array_like=True):
    """A schedule. Append values to `more` (`Extra`)."""

    version: Count
    rule: Rule
    queue: str
    codec: str
    """The codec of `payload`."""
    payload: bytes
    options: PutOptions
    paused: bool
    created_us: Count
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


class ScheduleState(msgspec.Struct, frozen=True, array_like=True):
    """The results of the firings of a schedule. Append values to `more` (`Extra`)."""

    due_us: Count | None = None
    """The next due time; None while it is paused, and if there is no other."""
    at_us: Count | None = None
    """The time of the next try: that of its key in R[13]."""
    fired: Count = 0
    """Number of due times for which a task was put."""
    last_due_us: Count | None = None
    last_fired_us: Count | None = None
    last_task: str | None = None
    error: str | None = None
    """The reason why the last try has failed; None after a success."""
    tries: Count = 0
    """Number of tries that have failed since."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


_to_bytes = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(ScheduleRecord).decode
_decode_state = msgspec.msgpack.Decoder(ScheduleState).decode


class _Versioned(msgspec.Struct, array_like=True):
    version: int


_decode_version = msgspec.msgpack.Decoder(_Versioned).decode


def to_bytes(value: ScheduleRecord | ScheduleState) -> bytes:
    return _to_bytes(value)


def record_of(name: str, value: bytes) -> ScheduleRecord:
    """Raises: ScheduleUnreadable for a damaged value, and for that of a newer release."""
    try:
        if _decode_version(value).version > VERSION:
            raise ScheduleUnreadable(name=name, reason="a newer release wrote it")
        return _decode_record(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as reason:
        raise ScheduleUnreadable(name=name, reason=f"it is damaged: {reason}") from reason


def state_of(value: bytes | None) -> ScheduleState | None:
    """None for a missing or damaged state: the next firing writes it anew."""
    try:
        return None if value is None else _decode_state(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


NAME_HEADER, TIME_HEADER = "schedule", "scheduled-for"
"""Headers of a task that a schedule has put: its name, and the due time."""


def put_for(
    tr: Transaction,
    database: Database,
    registry: Registry,
    name: str,
    record: ScheduleRecord,
    times_us: Sequence[int | None],
) -> list[Task]:
    """Put a task for each of these due times; for None, one for no due time.

    Reads: the definition of the queue; as a put.
    Raises: QueueNotFound, QueueKindMismatch, UnknownKind, ScheduleUnfit; as a put.
    """
    shape = queue_of(tr, registry, record.queue)
    require_codec(shape, name, record)
    drafts = [draft_of(shape, record, headers_of(name, record, time_us)) for time_us in times_us]
    return calls_of(database, shape).put_within(tr, drafts)


def queue_of(tr: Transaction, registry: Registry, queue: str) -> Shape:
    """The shape of a task queue. Raises: QueueNotFound, QueueKindMismatch, UnknownKind."""
    definition = registry.find(tr, queue)
    if definition.kind in SESSIONLESS:
        raise QueueKindMismatch(name=queue, found=definition.kind, wanted="a kind of task queue")
    return shape_of(registry, definition)


def require_codec(shape: Shape, name: str, record: ScheduleRecord) -> None:
    """Raises: ScheduleUnfit for a queue that was made again with another codec."""
    if shape.settings.codec != record.codec:
        reason = f"its data is encoded as {record.codec}, and the queue has the codec {shape.settings.codec}"
        raise ScheduleUnfit(name=name, queue=shape.name, reason=reason)


def headers_of(name: str, record: ScheduleRecord, time_us: int | None) -> dict[str, str]:
    """The headers of a task: those of the schedule, its name and the due time, in its time zone."""
    headers = {**(record.options.headers or {}), NAME_HEADER: name}
    if time_us is not None:
        headers[TIME_HEADER] = shown_time(time_us, zone_named(record.rule.timezone)).isoformat()
    return headers


def draft_of(shape: Shape, record: ScheduleRecord, headers: Mapping[str, str]) -> Draft:
    """A task of the schedule. Raises: UnsupportedOption, InvalidArgument."""
    return shape.draft(None, record.payload, {**record.options.given(), "headers": headers})


T = TypeVar("T")

_log = logger("fdbqueue")

Ask = Callable[[Callable[[Transaction], T]], T]


def ask_first(tr: Transaction, keys: RootKeys) -> Callable[[], int | None]:
    """Ask for the next due time, by snapshot; 0 for an unreadable key, as others may be behind it."""
    under = keys.schedules_due
    rows = tr.snapshot.get_range(under.start, under.stop, limit=1)
    return lambda: next(((keys.schedule_due_in(bytes(row.key)) or (0, ""))[0] for row in rows), None)


class Pass:
    name = "a pass over the schedules"

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._registry = Registry(keys)
        self._keys = keys
        self._look_at = database.runtime.monotonic() + limits.SCHEDULES_SOUGHT_EVERY_S
        self._left_to_others: dict[str, float] = {}
        """The schedules that this process cannot fire, and the time of its next try, by monotonic()."""

    def close(self) -> None:
        """Does nothing: the keeper passes."""

    def is_needed(self) -> bool:
        return True

    def wake(self) -> None:
        """Look in the next round: this process knows that the root has schedules."""
        self._look_at = float("-inf")

    def do(self, round_: Round) -> None:
        now = self._database.runtime.monotonic()
        if now < self._look_at:
            return
        first = round_.ask(lambda tr: ask_first(tr, self._keys)())
        every_s = limits.SCHEDULES_SOUGHT_EVERY_S if first is None else limits.SCHEDULES_PASSED_EVERY_S
        self._look_at = now + round_.sharers * every_s
        if first is not None and first <= self._database.runtime.now_us():
            self.fire_all(round_)

    def fire_all(self, round_: Round) -> int:
        """Fire the schedules that are due, and return the number of tasks that were put.

        One pass has at most limits.SCHEDULES_FIRED_PER_PASS transactions.
        Raises: the error of a database that is away.
        """
        after: bytes | None = None
        has_more = False
        tasks = transactions = 0
        while transactions < limits.SCHEDULES_FIRED_PER_PASS:
            now_us = self._database.runtime.now_us()
            page = round_.ask_at_once(partial(due_until, keys=self._keys, now_us=now_us, after=after))
            for due in filter(self._may_fire, page.found):
                fired = self._fired(due, round_)
                tasks, transactions = tasks + fired, transactions + 1
                has_more = has_more or fired == limits.SCHEDULE_FIRED_MAX
                round_.beat()
                if round_.is_stopping:
                    return tasks
            after = page.next
            if after is None and not has_more:
                return tasks
            has_more = has_more and after is not None
        self.wake()
        return tasks

    def _may_fire(self, due: "Due") -> bool:
        return self._left_to_others.get(due.name, 0.0) <= self._database.runtime.monotonic()

    def _fired(self, due: "Due", round_: Round) -> int:
        """The number of tasks that were put.

        An error of one schedule is stored with it, and stops no other.
        """
        try:
            body = partial(fire, database=self._database, registry=self._registry, due=due)
            return len(round_.ask_at_once(body))
        except NOT_HERE as error:
            self._leave_to_others(due, error)
        except Exception as error:
            if is_away(error) or isinstance(error, ReferenceError):  # the engine below is gone
                raise
            self._met(due, error)
            note = partial(
                fail,
                database=self._database,
                keys=self._keys,
                due=due,
                error=f"{type(error).__name__}: {text_of(error)}",
            )
            round_.ask_at_once(note)
        return 0

    def _leave_to_others(self, due: "Due", error: Exception) -> None:
        now = self._database.runtime.monotonic()
        living = {name: until for name, until in self._left_to_others.items() if until > now}
        self._left_to_others = {**living, due.name: now + limits.SCHEDULE_RETRY_MAX_S}
        self._met(due, error)

    def _met(self, due: "Due", error: Exception) -> None:
        text = f"the schedule {due.name!r} is not fired, and will be tried again"
        self._database.troubles.met(_log, text, error)


def pass_of(database: Database, keys: RootKeys) -> Pass:
    return database.service(("schedules", keys.prefix), lambda owner: Pass(owner, keys))


class _Alone:
    sharers = 1
    is_stopping = False

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys

    def ask(self, body: Callable[[Transaction], T]) -> T:
        """A firing has a receipt: the pass counts its tasks, and would end before the missed due times do."""
        return run_once(self._database, self._keys, body, wrote=lambda answer: isinstance(answer, list))

    ask_at_once = ask

    def beat(self) -> None:
        """Does nothing: the keeper does."""


def fire_due(database: Database, keys: RootKeys) -> int:
    """Fire the schedules that are due. Return the number of tasks that were put."""
    return Pass(database, keys).fire_all(_Alone(database, keys))


class NotHere(Exception):
    """This process lacks something that a schedule needs, and another process may have it."""


NOT_HERE = (NotHere, UnknownKind)


@dataclass(frozen=True)
class Due:
    """An entry of R[13]."""

    at_us: int
    name: str


@dataclass(frozen=True)
class DuePage:
    """Schedules that are due; `next` is the place behind them, None at the end."""

    found: Sequence[Due]
    next: bytes | None


def due_until(tr: Transaction, keys: RootKeys, now_us: int, after: bytes | None) -> DuePage:
    """The first schedules that are due, behind the place `after`, among limits.SCHEDULES_DUE_READ keys.

    Reads: by snapshot.
    """
    under, most = keys.schedules_due_until(now_us), limits.SCHEDULES_DUE_READ
    begin = under.start if after is None else after + b"\x00"
    rows = tr.snapshot.get_range(begin, under.stop, limit=most, streaming_mode=EXACT).to_list()
    entries = [keys.schedule_due_in(bytes(row.key)) for row in rows]
    found = [Due(*entry) for entry in entries if entry is not None]
    return DuePage(found, bytes(rows[-1].key) if len(rows) == most else None)


def fire(tr: Transaction, database: Database, registry: Registry, due: Due) -> list[Task]:
    """Put the tasks of a schedule that is due. Return them; none if another process was first.

    Reads: the schedule, its state, the definition of its queue; as a put.
    Writes: the state, its key in R[13]; as a put.
    Conflicts: another firing; a change of the schedule; as a put.
    Raises: one of NOT_HERE; QueueNotFound, QueueKindMismatch, ScheduleUnfit; as a put.
    Round trips: 3.
    """
    keys, now_us = registry.keys, database.runtime.now_us()
    found, state = _stored(tr, keys, due)
    if found is None or found.paused or state.at_us != due.at_us or state.due_us is None:
        tr.clear(keys.schedule_due(due.at_us, due.name))  # an entry that nothing stands for
        return []
    if due.at_us > now_us:
        return []
    turn, tasks = _put_turn(
        found, state.due_us, now_us, partial(put_for, tr, database, registry, due.name, found)
    )
    after = replace(state, due_us=turn.next_us, error=None, tries=0)
    if tasks:
        after = replace(
            after,
            fired=state.fired + len(tasks),
            last_due_us=turn.times_us[-1],
            last_fired_us=now_us,
            last_task=tasks[-1].id,
        )
    write_state(tr, keys, due.name, state, after, turn.next_us)
    return tasks


def _put_turn(
    record: ScheduleRecord, due_us: int, now_us: int, put: Callable[[Sequence[int]], list[Task]]
) -> tuple[Turn, list[Task]]:
    times, missed = times_here(record), record.rule.missed
    turn = turn_of(times, missed, due_us, now_us)
    try:
        return turn, put(turn.times_us) if turn.times_us else []
    except QueueFull as full:  # a small queue may never have room for all of them at once
        turn = turn_of(times, missed, due_us, now_us, most=max(1, full.capacity - full.current_size))
        return turn, put(turn.times_us)


def fail(tr: Transaction, database: Database, keys: RootKeys, due: Due, error: str) -> None:
    """Note that a try has failed, and put the next one off.

    Reads: the schedule, its state.
    Writes: the state, its key in R[13].
    Conflicts: a firing, a change of the schedule.
    """
    found, state = _stored(tr, keys, due)
    if found is None or state.at_us != due.at_us:
        return
    tries = state.tries + 1
    after = replace(state, error=shortened(error, limits.SCHEDULE_ERROR_LENGTH_MAX), tries=tries)
    write_state(tr, keys, due.name, state, after, retry_us(database.runtime.now_us(), tries))


def _stored(tr: Transaction, keys: RootKeys, due: Due) -> tuple[ScheduleRecord | None, ScheduleState]:
    """The schedule, and its state, which begins anew at the entry if it is damaged. Raises: NotHere."""
    found, state = tr.get(keys.schedule(due.name)), tr.get(keys.schedule_state(due.name))
    known = state_of(state.value) or ScheduleState(due_us=due.at_us, at_us=due.at_us)
    if found.value is None:
        return None, known
    try:
        return record_of(due.name, found.value), known
    except ScheduleUnreadable as error:
        raise NotHere(str(error)) from error


def times_here(record: ScheduleRecord) -> Times:
    """Raises: NotHere without the library, or the time zone."""
    try:
        times = record.rule.times()
        times.after(record.created_us)
    except (InvalidArgument, ModuleNotFoundError) as error:
        raise NotHere(str(error)) from error
    return times


def write_state(
    tr: Transaction,
    keys: RootKeys,
    name: str,
    before: ScheduleState | None,
    after: ScheduleState,
    at_us: int | None,
) -> None:
    """Store a state, and move the schedule to the time of its next try; None for none."""
    if before is not None and before.at_us is not None and before.at_us != at_us:
        tr.clear(keys.schedule_due(before.at_us, name))
    if at_us is not None:
        tr.set(keys.schedule_due(at_us, name), b"")
    tr.set(keys.schedule_state(name), to_bytes(replace(after, at_us=at_us)))
