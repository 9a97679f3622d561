"""The look at what lies beside the queues under a root: limits, schedules and groups.

The cells of the limits that the last look has found are read with the rest. A second round trip reads those
of limits that were set since then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fdbqueue.core import limits
from fdbqueue.core.errors import ScheduleUnreadable
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, KeyValue, ReadTransaction
from fdbqueue.operate.overview.figures import GroupsFigures, LimitFigures, QueueFigures, ScheduleFigures
from fdbqueue.tasks.firing import ScheduleState as ScheduleState
from fdbqueue.tasks.firing import record_of, state_of
from fdbqueue.tasks.group_settling import counts_of, readable_row
from fdbqueue.tasks.groups import GroupProgress, progress_of
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.limits.state import State, ask_by_snapshot, used_of
from fdbqueue.tasks.schedules import Row, ask_rows

_SECOND_US = 1_000_000


@dataclass(frozen=True)
class Beside:
    """The values that one snapshot shows, without the queues."""

    limits: Sequence[LimitFigures]
    schedules: Sequence[ScheduleFigures]
    groups: GroupsFigures
    is_whole: bool
    """False if there may be more limits or schedules."""


class RootLook:
    """It remembers the names of the limits of its last look."""

    def __init__(self, keys: RootKeys) -> None:
        self._keys = keys
        self._known: Sequence[str] = ()

    def ask(self, tr: ReadTransaction, now_us: int) -> Callable[[], Beside]:
        """Ask by snapshot, for as many limits, schedules and rows of groups as `limits` allows."""
        keys, most = self._keys, limits.FIGURES_LIMITS
        named = tr.get_range(keys.limits.start, keys.limits.stop, limit=most, streaming_mode=EXACT)
        guessed = {name: self._ask(tr, name) for name in self._known}
        schedules = ask_rows(tr, keys, limits.FIGURES_SCHEDULES, "")
        groups = ask_groups(tr, keys)

        def reply() -> Beside:
            names = [name for row in named if (name := keys.limit_of(row.key)) is not None]
            asked = [guessed.get(name) or self._ask(tr, name) for name in names]
            self._known = names
            rows, found = schedules(), groups()
            states = [state() for state in asked]
            is_whole = len(names) < most and rows.next is None
            told = [_limit(state, total, now_us) for state, total in states if state.stored is not None]
            return Beside(told, [_schedule(row, now_us) for row in rows], found, is_whole)

        return reply

    def _ask(self, tr: ReadTransaction, name: str) -> Callable[[], tuple[State, bytes | None]]:
        """Ask for a limit, and for the slots in use of all its keys."""
        keys = LimitKeys(self._keys.prefix, name)
        state, total = ask_by_snapshot(tr, keys), tr.get(keys.total)
        return lambda: (state(), total.value)


def _limit(state: State, total: bytes | None, now_us: int) -> LimitFigures:
    """Without its queues. `state`: of a limit that exists."""
    rule, free, next_us = state.rule, state.free(now_us) or 0, state.next_us(now_us)
    if rule is None:
        return LimitFigures(state.keys.name, None, error=str(state.error))
    if rule.per_key:  # the figures are those of a key that no task uses, and do not name keys
        free, next_us = rule.slots or rule.burst, None
    if rule.is_of_slots:
        used = used_of(state, total)
        return LimitFigures(state.keys.name, free, slots=rule.slots, used=used, per_key=rule.per_key)
    return LimitFigures(
        state.keys.name,
        free,
        rate=rule.rate,
        per_s=rule.per_us / _SECOND_US,
        burst=rule.burst,
        per_key=rule.per_key,
        next=None if next_us is None else next_us / _SECOND_US,
    )


def _schedule(row: Row, now_us: int) -> ScheduleFigures:
    state = state_of(row.state) or ScheduleState()
    try:
        record = record_of(row.name, row.record)
    except ScheduleUnreadable as error:
        return ScheduleFigures(row.name, error=str(error))
    due_us = state.due_us
    return ScheduleFigures(
        row.name,
        record.queue,
        None if due_us is None else due_us / _SECOND_US,
        0.0 if due_us is None else max(0, now_us - due_us) / _SECOND_US,
        record.paused,
        state.error,
        state.fired,
    )


def ask_groups(tr: ReadTransaction, keys: RootKeys) -> Callable[[], GroupsFigures]:
    """Ask for the first groups that have not ended. Their ids are random, so these are any of them."""
    most = limits.FIGURES_GROUP_ROWS
    asked = tr.get_range(keys.groups.start, keys.groups.stop, limit=most, streaming_mode=EXACT)

    def reply() -> GroupsFigures:
        rows = asked.to_list()
        open_ = [found for found in _groups(rows, keys) if found.ended is None]
        held = [found for found in open_ if found.waits_for_buried and found.buried]
        held.sort(key=lambda found: found.created)
        return GroupsFigures(len(open_), len(held), tuple(held[: limits.HELD_GROUPS_TOLD]), len(rows) < most)

    return reply


def _groups(rows: Sequence[KeyValue], keys: RootKeys) -> list[GroupProgress]:
    stored = {bytes(row.key): bytes(row.value) for row in rows}
    ids = dict.fromkeys(group for row in rows if (group := keys.group_in(bytes(row.key))) is not None)
    return [found for group in ids if (found := _progress(stored, keys, group)) is not None]


def _progress(stored: Mapping[bytes, bytes], keys: RootKeys, group: bytes) -> GroupProgress | None:
    row = readable_row(stored.get(keys.group(group)))
    if row is None:
        return None
    counts, cancelled = counts_of(stored.get(keys.group_counts(group))), keys.group_cancelled(group) in stored
    return progress_of(group, row, counts, cancelled=cancelled)


def limits_of(found: Sequence[LimitFigures], queues: Sequence[QueueFigures]) -> list[LimitFigures]:
    """Limits with the queues that name them; also those that do not exist, and are named all the same."""
    naming: dict[str, list[QueueFigures]] = {}
    for queue in queues:
        tasks = queue.tasks
        for name in () if tasks is None else (*tasks.limits, *tasks.task_limits):
            naming.setdefault(name, []).append(queue)
    known = {limit.name for limit in found}
    missing = [LimitFigures(name, None) for name in sorted(naming) if name not in known]
    return [_with_queues(limit, naming.get(limit.name, ())) for limit in (*found, *missing)]


def _with_queues(limit: LimitFigures, queues: Sequence[QueueFigures]) -> LimitFigures:
    of_all = [queue.tasks for queue in queues if queue.tasks is not None and limit.name in queue.tasks.limits]
    ready = sum(tasks.ready for tasks in of_all)
    waiting = ready if limit.free == 0 else 0
    return replace(limit, queues=tuple(queue.name for queue in queues), waiting=waiting)
