"""The checks of the keys under a root that belong to no queue: definitions, receipts, sessions, runs.

Those of schedules are in schedules.py.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.calls.once import ATTEMPT
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import LAST_ID_BYTES, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.openers import deadline_if_readable
from fdbqueue.operate.verify.asking import Ask, Row, Seen, under
from fdbqueue.operate.verify.cures import FOREIGN, Cures, command
from fdbqueue.operate.verify.groups import GroupChecks
from fdbqueue.operate.verify.limits import LimitChecks
from fdbqueue.operate.verify.schedules import ScheduleChecks
from fdbqueue.operate.verify.slices import Excuse, Mend, Suspect
from fdbqueue.operate.verify.values import Flaw

_NEXT_BEAT = "The next heartbeat writes it anew; if there is none, a sweep ends the session."
_PARTS_MIN = 3
"""Parts of the record of a session: the opener, the name, the ttr."""


class RootChecks:
    def __init__(self, registry: Registry) -> None:
        self._keys: RootKeys = registry.keys
        self._mending = Cures(None).mending
        self._schedules = ScheduleChecks(self._keys)
        self._groups = GroupChecks(self._keys, self._mending)
        self.groups: set[bytes] = set()
        """The groups, in the slices so far; at most limits.VERIFIED_TASK_KEYS_MAX."""
        self.limits = LimitChecks(registry.keys, self._mending)
        self.names: defaultdict[int, set[str]] = defaultdict(set)
        """The names of the queues with each id, in the slices so far; 0 if the id cannot be read."""
        self.imported: set[int] = set()
        """The ids of queues that have the progress of an import."""
        self._judges: dict[Any, Callable[[Row, list[Any], Seen], Iterable[Suspect]]] = {
            columns.DEFINITION: self._judge_definition,
            columns.LAST_ID: self._judge_last_id,
            columns.RECEIPT: self._judge_receipt,
            columns.SESSION: self._judge_session,
            columns.SESSION_NAME: self._judge_name,
            columns.HEARTBEAT: self._judge_heartbeat,
            columns.PRESENCE: partial(self._judge_of_session, "A presence"),
            columns.RUN: self._judge_run,
            columns.MEMBERSHIP: self._judge_membership,
            columns.SCHEDULE: self._schedules.judge,
            columns.SCHEDULE_DUE: self._schedules.judge_due,
            columns.GROUP: self._groups.judge,
            columns.GROUP_SWEEP: self._groups.judge_over,
        }

    def weight(self, row: Row) -> int:  # noqa: ARG002  # the interface of Checks
        return 0

    def asks(self, row: Row) -> Iterator[Ask]:
        keys, (column, rest) = self._keys, self._keys.shape_of(row.key)
        if column in (columns.LIMIT, columns.LIMITED):
            yield from self.limits.asks(column, row, rest)
        elif column == columns.DEFINITION:
            yield keys.last_id
        elif column == columns.SESSION:
            yield keys.heartbeat(rest[0])
            name = _name_in(row.value)
            if name is not None:
                yield keys.session_named(name)
        elif column == columns.GROUP:
            yield from self._groups.asks(rest)
        elif column == columns.GROUP_SWEEP:
            yield from self._groups.ask_over(rest)
        elif column == columns.SESSION_NAME:
            yield keys.session(row.value)
        elif column in (columns.SCHEDULE, columns.SCHEDULE_DUE):
            yield from self._schedules.asks(row, column, rest)
        elif column in (columns.HEARTBEAT, columns.PRESENCE, columns.RUN, columns.MEMBERSHIP):
            yield keys.session(rest[0])
            deadline_us = deadline_if_readable(row.value) if column == columns.HEARTBEAT else None
            if deadline_us is not None and len(rest) == 1:
                yield keys.beat_due(deadline_us, rest[0])

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, rest = self._keys.shape_of(row.key)
        if column is None:
            return [Suspect(Flaw.UNKNOWN, row.key, "No key under a root has this shape.", FOREIGN)]
        if column in (columns.LIMIT, columns.LIMITED):
            return self.limits.judge(column, row, rest, seen)
        judge = self._judges.get(column)
        return () if judge is None else judge(row, rest, seen)

    def note(self, row: Row) -> None:
        column, rest = self._keys.shape_of(row.key)
        self.limits.note(column, rest)
        if column == columns.DEFINITION:
            self.names[Definition.listed(rest[0], row.value).id].add(rest[0])
        elif column == columns.GROUP and len(self.groups) < limits.VERIFIED_TASK_KEYS_MAX:
            self.groups.add(rest[0])
        elif column == columns.PROGRESS and rest and isinstance(rest[0], int):
            self.imported.add(rest[0])

    def _judge_definition(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        name = rest[0]
        try:
            found = Definition.from_bytes(name, row.value)
        except DefinitionUnreadable as error:
            yield unreadable(row.key, name, error)
            return
        last = seen.value(self._keys.last_id)
        if last is None or int.from_bytes(last, "little") < found.id:
            text = f"The id of the queue {name!r} is beyond the last one: a new queue may get the same."
            yield Suspect(Flaw.DEFINITION, row.key, text, self._mending, self._raise_last_id(found.id))

    def _raise_last_id(self, id_: int) -> Mend:
        return lambda tr: tr.max(self._keys.last_id, id_.to_bytes(LAST_ID_BYTES, "little"))

    def _judge_last_id(self, row: Row, _: list[Any], __: Seen) -> Iterator[Suspect]:
        if len(row.value) != LAST_ID_BYTES:
            text = f"The last id of a queue is damaged, so that no queue can be made: {row.value.hex()}."
            yield Suspect(Flaw.DEFINITION, row.key, text, self._mending, self._renew_last_id)

    def _renew_last_id(self, tr: Transaction) -> None:
        """Set it to the largest id of a definition, and of contents. Conflicts: a create, a drop."""
        under, contents = self._keys.definitions, self._keys.all_contents
        named = ((self._keys.name_of(row.key), row.value) for row in tr.get_range(under.start, under.stop))
        ids = [Definition.listed(name, value).id for name, value in named if name is not None]
        last = tr.get_range(contents.start, contents.stop, limit=1, reverse=True)
        ids += [self._keys.id_in(row.key) or 0 for row in last]
        tr.set(self._keys.last_id, max(ids, default=0).to_bytes(LAST_ID_BYTES, "little"))

    def _judge_receipt(self, row: Row, _: list[Any], __: Seen) -> Iterator[Suspect]:
        if len(row.value) != ATTEMPT.size:
            text = "A receipt is damaged: no sweep removes it."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, _clear(row.key))

    # Sessions.

    def _judge_session(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        session, name, ttr_us = rest[0], _name_in(row.value), _ttr_us_in(row.value)
        if ttr_us is None:
            text = f"The record of the session {session.hex()} is damaged."
            yield Suspect(Flaw.SESSION, row.key, text, _NEXT_BEAT)
        if seen.value(self._keys.heartbeat(session)) is None:
            text = f"The session {session.hex()} has no heartbeat: no sweep finds it when it is dead."
            mend = partial(_write_heartbeat, self._keys, session, ttr_us or 0)
            yield Suspect(Flaw.SESSION, row.key, text, self._mending, mend)
        if name is not None and seen.value(self._keys.session_named(name)) != session:
            text = f"The name {name!r} of the session {session.hex()} leads to another session, or none."
            yield Suspect(Flaw.SESSION, row.key, text, "The end of that session, or its ttr.")

    def _judge_name(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._keys.session(row.value)) is None:
            text = f"The name {rest[0]!r} leads to a session that does not exist."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))

    def _judge_heartbeat(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        deadline_us = deadline_if_readable(row.value)
        if seen.value(self._keys.session(rest[0])) is None:
            yield from self._judge_of_session("A heartbeat", row, rest, seen)
        elif deadline_us is None:
            text = f"A heartbeat of the session {rest[0].hex()} is damaged."
            yield Suspect(Flaw.SESSION, row.key, text, _NEXT_BEAT)
        elif len(rest) == 1 and seen.value(self._keys.beat_due(deadline_us, rest[0])) is None:
            text = f"No sweep finds the session {rest[0].hex()} when it is dead: its heartbeat has no entry."
            mend = _set(self._keys.beat_due(deadline_us, rest[0]), b"")
            yield Suspect(Flaw.SESSION, row.key, text, self._mending, mend)

    def _judge_of_session(self, told: str, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._keys.session(rest[0])) is None:
            text = f"{told} belongs to the session {rest[0].hex()}, which does not exist."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))

    # Runs of fleets.

    def _judge_run(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        """The last session of the run's workers clears the row after the supervisor has ended."""
        run = rest[0]
        if seen.value(self._keys.session(run)) is None:
            text = f"The counts of the run {run.hex()} have outlived its last worker."
            excuse = Excuse(under(self._keys.memberships), lambda rows: any(row.value == run for row in rows))
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key), [excuse])

    def _judge_membership(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        session = rest[0]
        if seen.value(self._keys.session(session)) is None:
            text = f"The session {session.hex()} has ended, and is still a member of a run."
            excuse = unless_ending(self._keys, session)
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key), [excuse])


def unreadable(key: bytes, name: str, error: DefinitionUnreadable) -> Suspect:
    """The finding for a definition that cannot be read, or has options that cannot."""
    cure = "Use a newer release."
    if not isinstance(error, LayoutNewer):
        drop = command("drop", name, "--yes")
        cure = f"Use the release that made it. If it is damaged, this removes the queue: {drop}"
    return Suspect(Flaw.DEFINITION, key, str(error), cure)


def unless_ending(keys: RootKeys, session: bytes) -> Excuse:
    """Until the end of a session is finished, an entry of its heartbeat tells sweeps to go on with it."""

    def explains(rows: Sequence[Row]) -> bool:
        beats = (keys.beat_of(row.key) for row in rows)
        return any(beat is not None and beat[1] == session for beat in beats)

    return Excuse(under(keys.beats_due), explains)


def _parts_of(record: bytes) -> list[Any]:
    """The first parts of a session's record; empty if it is damaged."""
    try:
        parts = list(layer.unpack(record))[:_PARTS_MIN]
    except (ValueError, IndexError, struct.error):
        return []
    return parts if len(parts) == _PARTS_MIN else []


def _name_in(record: bytes) -> str | None:
    parts = _parts_of(record)
    return parts[1] if parts and isinstance(parts[1], str) else None


def _ttr_us_in(record: bytes) -> int | None:
    parts = _parts_of(record)
    return parts[2] if parts and isinstance(parts[2], int) and parts[2] > 0 else None


def _write_heartbeat(keys: RootKeys, session: bytes, ttr_us: int, tr: Transaction) -> None:
    deadline_us = runtime_of(tr).now_us() + ttr_us
    tr.set(keys.heartbeat(session), layer.pack((deadline_us,)))
    tr.set(keys.beat_due(deadline_us, session), b"")


def _set(key: bytes, value: bytes) -> Mend:
    return lambda tr: tr.set(key, value)


def _clear(key: bytes) -> Mend:
    return lambda tr: tr.clear(key)
