"""Schedule: tasks that are put at given times, exactly once per fleet (docs/schedules.md)."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from types import EllipsisType
from typing import Any, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_instance, checked_text, writable
from fdbqueue.core.codec import stored_codec
from fdbqueue.core.database import Database, Handle, as_database, is_transaction, run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import Page, checked_limit
from fdbqueue.core.registry import Registry, checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.task import Task
from fdbqueue.tasks.schedules import passing, store
from fdbqueue.tasks.schedules.puts import put_for
from fdbqueue.tasks.schedules.store import IF_EXISTS, REFUSE, Wanted
from fdbqueue.tasks.schedules.times import ScheduleStatus, next_times, shown, zone_named

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
            passing.pass_of(self._database, registry.keys).wake()

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
            lambda tr, now_us: store.create(
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
        found = run(tr, lambda tr: store.stored(tr, self._keys, self.name))
        return store.status_of(self.name, found)

    def next_times(self, tr: DatabaseOrTransaction, count: int = 5) -> list[datetime]:
        """The first due times after now, in the time zone of the schedule, at most
        limits.SCHEDULE_TIMES_MAX. A pause does not count.

        Reads: the schedule, its state.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable, InvalidArgument; ModuleNotFoundError for an expression
        without the extra.
        """
        most = checked_count("count", count)
        rule = run(tr, lambda tr: store.stored(tr, self._keys, self.name)).record.rule
        zone, now_us = zone_named(rule.timezone), self._of(tr).runtime.now_us()
        return [shown(due_us, zone) for due_us in next_times(rule.times(), now_us, most)]

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
        self._write(tr, lambda tr, now_us: store.change(tr, self._registry, self.name, wanted, now_us))

    def pause(self, tr: DatabaseOrTransaction) -> None:
        """Let it put no task until `resume`. Due times of the pause are never made up for.

        Reads: the schedule, its state.
        Writes: the same; clears the key of its next due time.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable.
        """
        self._write(tr, lambda tr, _: store.pause(tr, self._keys, self.name))

    def resume(self, tr: DatabaseOrTransaction) -> None:
        """Let it go on with the first due time after now.

        Reads: the schedule, its state.
        Writes: the same; the key of its next due time.
        Conflicts: a firing, a change of the schedule.
        Raises: ScheduleNotFound, ScheduleUnreadable; InvalidArgument for a time zone that this machine does
        not know; ModuleNotFoundError for an expression without the extra.
        """
        self._write(tr, lambda tr, now_us: store.resume(tr, self._keys, self.name, now_us))

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
        self._write(tr, lambda tr, _: store.delete(tr, self._keys, self.name))

    # How it is done.

    @property
    def _keys(self) -> RootKeys:
        return self._registry.keys

    def _put(self, tr: Transaction, database: Database) -> Task:
        record = store.stored(tr, self._keys, self.name).record
        task = put_for(tr, database, self._registry, self.name, record, [None])[0]
        return replace(task, data=stored_codec(record.codec).decode(record.payload))

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
    return run(db, lambda tr: store.page(writable(tr).snapshot, keys, most, behind))


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
    return passing.fire_due(as_database(db), RootKeys(root))
