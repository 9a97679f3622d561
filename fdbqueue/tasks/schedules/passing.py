"""Passes: each process with a keeper looks for schedules that are due, and fires them.

There is no process for it alone. A look reads one key by snapshot. The processes under one root share the
looks, as they share sweeping.

Firing: the tasks of a schedule that is due, and its next due time, in one transaction.

The transaction reads the schedule and its state serialisably, and writes the state. So of two processes that
pass at once, one conflicts, and then sees the next due time. That also holds for a retry after an unknown
result: a firing needs no receipt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, is_away
from fdbqueue.core.errors import InvalidArgument, QueueFull, ScheduleUnreadable, UnknownKind
from fdbqueue.core.logger import logger
from fdbqueue.core.once import run_once
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.core.sessions.keeper import Round
from fdbqueue.core.task import Task
from fdbqueue.core.visible import shortened, text_of
from fdbqueue.tasks.schedules.puts import put_for
from fdbqueue.tasks.schedules.records import Record, State, record_of, state_of, to_bytes
from fdbqueue.tasks.schedules.times import Times, Turn, retry_us, turn_of

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
            page = round_.ask(partial(due_until, keys=self._keys, now_us=now_us, after=after))
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
            return len(round_.ask(body))
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
            round_.ask(note)
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
    record: Record, due_us: int, now_us: int, put: Callable[[Sequence[int]], list[Task]]
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


def _stored(tr: Transaction, keys: RootKeys, due: Due) -> tuple[Record | None, State]:
    """The schedule, and its state, which begins anew at the entry if it is damaged. Raises: NotHere."""
    found, state = tr.get(keys.schedule(due.name)), tr.get(keys.schedule_state(due.name))
    known = state_of(state.value) or State(due_us=due.at_us, at_us=due.at_us)
    if found.value is None:
        return None, known
    try:
        return record_of(due.name, found.value), known
    except ScheduleUnreadable as error:
        raise NotHere(str(error)) from error


def times_here(record: Record) -> Times:
    """Raises: NotHere without the library, or the time zone."""
    try:
        times = record.rule.times()
        times.after(record.created_us)
    except (InvalidArgument, ModuleNotFoundError) as error:
        raise NotHere(str(error)) from error
    return times


def write_state(
    tr: Transaction, keys: RootKeys, name: str, before: State | None, after: State, at_us: int | None
) -> None:
    """Store a state, and move the schedule to the time of its next try; None for none."""
    if before is not None and before.at_us is not None and before.at_us != at_us:
        tr.clear(keys.schedule_due(before.at_us, name))
    if at_us is not None:
        tr.set(keys.schedule_due(at_us, name), b"")
    tr.set(keys.schedule_state(name), to_bytes(replace(after, at_us=at_us)))
