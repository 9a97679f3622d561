"""Searching: the tasks that filters choose, in any state. It changes nothing.

The filters are those of a change (selected.py). One of a task's id, unique key, group, class of failure or
task key has an index: the search then reads the tasks that this has, and those that match are a handful of
reads away in a queue of any size. A class lies in an index of buried tasks, and the ready tasks of a key in
its FIFO. If the key has tasks in other states, the search reads through the tasks of those states. With other
filters, it walks through all tasks by their ids.

A place is the id of a task; in the index of a class or a key, the partition and the state come before the
key that was read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count
from fdbqueue.core.database import at_pace, is_transaction
from fdbqueue.core.page import checked_limit, no_place, place_bytes, place_text
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN, Task
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks.change import Change, ask_payload, task_of
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.redrive import Chosen
from fdbqueue.tasks.selected import (
    ChangedTasks,
    Edit,
    Seen,
    Selection,
    Step,
    Where,
    begin,
    candidates,
    seen_at,
    where_of,
)
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import ID_BYTES, LIVE_NAMES, LIVE_OF, Record, id_in, unpacked
from fdbqueue.tasks.verbs import occupied

_STATES = (READY, TAKEN, DELAYED, BURIED)
"""In the order of a search by task key."""


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """What a search has found. Append fields with a default."""

    tasks: tuple[Task, ...] = ()
    looked_at: int = 0
    """Tasks that it has looked at."""
    after: str | None = None
    """The `after` of the call that goes on behind the last of them; None at the end."""


def search(
    queue: TaskHandle, target: DatabaseOrTransaction, where: Any, after: Any, look: Any, most: Any
) -> FoundTasks:
    """Run steps up to the end, or until `look` tasks have been looked at, `most` found, or as many as their
    bytes allow; in one transaction, for limits.COUNTED_S.
    """
    shape = queue._shape
    filters, room = where_of(shape, where, taken=True), checked_limit(most)
    left = limits.SEARCHED_TASKS if look is None else checked_count("look", look)
    found = FoundTasks(after=_checked_after(filters, after))
    shape.codec.require()
    now = queue._of(target).runtime.monotonic
    until = now() + limits.COUNTED_S if is_transaction(target) else inf
    while True:
        most = min(left - found.looked_at, limits.LOOKED_THROUGH)
        step = Step(
            Selection(filters, Edit()), queue._of(target), ChangedTasks(), most, True, False, shows=True
        )
        found, is_full = queue._see_all(target, partial(_found, step=step, so_far=found, room=room))
        if found.after is None or found.looked_at == left or is_full or now() >= until:
            return found
        target = at_pace(target, "background")


def _checked_after(where: Where, after: Any) -> str | None:
    """Raises: InvalidArgument for the place of another search."""
    place, in_index = place_bytes(begin(after).after), _has_index(where)
    if place is not None and (len(place) <= ID_BYTES if in_index else len(place) != ID_BYTES):
        raise no_place(after)
    return after if place else None


def _has_index(where: Where) -> bool:
    """True if the search goes by an index that is not in the order of the ids."""
    return not where.names_tasks and (where.error, where.key) != (None, None)


def _found(changes: Sequence[Change], step: Step, so_far: FoundTasks, room: int) -> tuple[FoundTasks, bool]:
    """What one step finds, behind `so_far`. True if the answer has no room for more, or their bytes.

    Reads: by snapshot the index, the tasks, and as many payloads as a page has.
    """
    where, after = step.selection.where, place_bytes(so_far.after) or b""
    few = room - len(so_far.tasks)
    # All that an index has match, so one more tells if they are the last.
    most = step.most if where.headers or where.data else min(step.most, few + 1)
    if _has_index(where):
        rows, is_last = _indexed(changes, where, after, step.most, most)
    else:
        rows, is_last = candidates(changes, where, after, most if where.names_tasks else step.most)
    looked_at, chosen = step.choose(changes, rows, few, None)
    is_end = is_last and looked_at == len(rows)
    found = FoundTasks(
        (*so_far.tasks, *_shown(changes, chosen)),
        so_far.looked_at + looked_at,
        None if is_end else place_text(rows[looked_at - 1].place),
    )
    return found, len(chosen) == few or (bool(chosen) and looked_at < len(rows))


def _shown(changes: Sequence[Change], chosen: Sequence[Chosen]) -> list[Task]:
    """The tasks as they are now; those that are taken, until a sweep ends their leases."""
    asked = list[tuple[Record, Callable[[], Any]]]()
    for one in chosen:
        change, record = changes[one.partition], one.record
        now = record if record.state == TAKEN else as_of(record, change.now_us)
        payload = ask_payload(change.tr, change.shape.keys, record)
        asked.append((now or record, partial(shown, change.shape.codec, payload)))
    return [task_of(record, data()) for record, data in asked]


class _Part(NamedTuple):
    """A range of an index, in one partition."""

    partition: int
    state: str
    under: slice
    key: bytes | None = None
    """The task key that its values tell, if others lie among them."""

    @property
    def place(self) -> bytes:
        """The begin of the places of its keys."""
        return bytes((self.partition, _STATES.index(self.state)))


def _indexed(
    changes: Sequence[Change], where: Where, after: bytes, most: int, few: int
) -> tuple[list[Seen], bool]:
    """The next `few` of an index in which all may match, or `most` of one in which some may."""
    rows = list[tuple[bytes, int, bytes]]()
    start, behind = after[:2], after[2:] and after[2:] + b"\x00"
    for part in _parts_of(changes, where):
        if part.place < start:
            continue
        left = (few if part.key is None else most) - len(rows)
        if left <= 0:
            return seen_at(changes, rows), False
        first, length = part.under.start + (behind if part.place == start else b""), len(part.under.start)
        found = changes[part.partition].tr.snapshot.get_range(first, part.under.stop, limit=left).to_list()
        for row in found:
            id_ = id_in(row.key) if part.key in (None, row.value) else b""
            rows.append((part.place + bytes(row.key)[length:], part.partition, id_))
        if len(found) == left:
            return seen_at(changes, rows), False
    return seen_at(changes, rows), True


def _parts_of(changes: Sequence[Change], where: Where) -> Iterator[_Part]:
    """The ranges that may have matching tasks, in order: those of a class of failure, or of a task key."""
    key, error = where.key or b"", where.error
    if error is not None:
        for change in occupied(changes, lambda change: change.shape.keys.classed_under(error)):
            keys = change.shape.keys
            yield _Part(keys.partition, BURIED, keys.classed_under(error))
        return
    asked = [_keyed(change).counts.ask(change.tr, slug_of(key)).counts for change in changes]
    changes[0].require_queue()  # asked with the counts: no round trip of its own
    for change, counts in zip(changes, asked, strict=True):
        keys, there = change.shape.keys, unpacked(LIVE_NAMES, counts.value)
        if READY in where.states and there["ready"]:
            yield _Part(keys.partition, READY, _keyed(change).fifo(key))
        # A delayed task may be due, and so be ready.
        due = {DELAYED} if READY in where.states else set()
        for state, under in ((TAKEN, keys.taken), (DELAYED, keys.delayed), (BURIED, keys.buried)):
            if state in where.states | due and there[LIVE_OF[state]]:
                yield _Part(keys.partition, state, under, key)


def _keyed(change: Change) -> Keyed:
    assert isinstance(change.shape.discipline, Keyed)
    return change.shape.discipline
