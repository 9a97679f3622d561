"""Passes: each process with a keeper looks for schedules that are due, and fires them.

There is no process for it alone. A look reads one key by snapshot. The processes under one root share the
looks, as they share sweeping.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database, is_away
from fdbqueue.core.logger import logger
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.chores import Round
from fdbqueue.core.visible import text_of
from fdbqueue.tasks import schedules as late

if TYPE_CHECKING:
    from fdbqueue.tasks.schedules.firing import Due

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
            page = round_.ask(partial(late.firing.due_until, keys=self._keys, now_us=now_us, after=after))
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
            body = partial(late.firing.fire, database=self._database, registry=self._registry, due=due)
            return len(round_.ask(body))
        except late.firing.NOT_HERE as error:
            self._leave_to_others(due, error)
        except Exception as error:
            if is_away(error) or isinstance(error, ReferenceError):  # the engine below is gone
                raise
            self._met(due, error)
            note = partial(
                late.firing.fail,
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
