"""The checks of schedules: each has a state, and one that waits for a time has a key that passes find."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import ScheduleUnreadable
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.cures import FOREIGN, Cures, command
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.schedules.records import record_of, state_of
from fdbqueue.tasks.schedules.store import renew

SCHEDULE_PARTS = 1
"""Number of parts behind the column of a schedule; its state has one more."""


class ScheduleChecks:
    def __init__(self, keys: RootKeys) -> None:
        self._keys = keys
        self._mending = Cures(None).mending

    def asks(self, row: Row, column: Any, rest: list[Any]) -> Iterator[Ask]:
        if column == columns.SCHEDULE_DUE:
            yield self._keys.schedule_state(rest[1])
        elif len(rest) == SCHEDULE_PARTS:
            yield self._keys.schedule_state(rest[0])
        else:
            yield self._keys.schedule(rest[0])
            state = state_of(row.value)
            if state is not None and state.at_us is not None:
                yield self._keys.schedule_due(state.at_us, rest[0])

    def judge(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        if self._keys.schedule_in(row.key) is None:
            text = "No key of a schedule has this shape."
            return iter([Suspect(Flaw.UNKNOWN, row.key, text, FOREIGN)])
        judge = self._judge_record if len(rest) == SCHEDULE_PARTS else self._judge_state
        return judge(row, rest[0], seen)

    def _judge_record(self, row: Row, name: str, seen: Seen) -> Iterator[Suspect]:
        try:
            record_of(name, row.value)
        except ScheduleUnreadable as error:
            cure = f"Use the release that made it. If it is damaged: {command('schedule', 'delete', name)}"
            yield Suspect(Flaw.DEFINITION, row.key, str(error), cure)
            return
        if state_of(seen.value(self._keys.schedule_state(name))) is None:
            text = f"The state of the schedule {name!r} is missing, or damaged: its due time is lost."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, partial(self._renew, name))

    def _renew(self, name: str, tr: Transaction) -> None:
        renew(tr, self._keys, name, runtime_of(tr).now_us())

    def _judge_state(self, row: Row, name: str, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._keys.schedule(name)) is None:
            text = f"The state of a schedule belongs to {name!r}, which does not exist."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
            return
        state = state_of(row.value)
        if state is None or state.at_us is None:
            return
        due = self._keys.schedule_due(state.at_us, name)
        if seen.value(due) is None:
            text = f"No pass finds the schedule {name!r}: it has no key at the time of its next try."
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, lambda tr: tr.set(due, b""))

    def judge_due(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        time_us, name = rest
        value = seen.value(self._keys.schedule_state(name))
        state = state_of(value)
        if value is None or (state is not None and state.at_us != time_us):
            text = f"A key leads passes to the schedule {name!r}, which is not due then."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
