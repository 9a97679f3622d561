"""Puts with unique keys: a new task, or the one that has the key (entries.py).

Puts of several callers share a transaction. They count as if one came after the other: those with the same
key go in rounds, and each round sees the writes of the last one. The payloads of tasks that exist are read
for the answers, and are bounded in bytes: other puts are postponed to a later transaction.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import NamedTuple

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.errors import UniqueTaskBusy
from fdbqueue.core.seam import Value
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import Answers, Go, Stage
from fdbqueue.tasks.kinds import Draft, later
from fdbqueue.tasks.options import OnConflict
from fdbqueue.tasks.payloads import ask_payload, is_held_by, key_in, task_of
from fdbqueue.tasks.puts import Put
from fdbqueue.tasks.records.keys import Record, Unique, id_bytes, id_text, sound_record
from fdbqueue.tasks.sweep import as_of, catch_up
from fdbqueue.tasks.unique.entries import WAITING, Entry, enter, entry_of, has_key, without_unique
from fdbqueue.tasks.unique.wish import Wish

Answer = Task | UniqueTaskBusy | None
"""None for a put that is postponed: others have read enough bytes in this transaction."""


@dataclass(frozen=True)
class _Holder:
    """The task of an entry."""

    entry: Entry
    change: Change
    """Of its partition."""
    current: Record | None
    """The task as it is now; None if it is gone."""


class _Asked(NamedTuple):
    """The task of an entry, asked for by snapshot."""

    entry: Entry
    change: Change
    record: Value


class _ToRead:
    """The payloads that one transaction reads: limits.BATCH_BYTES_MAX bytes, or one larger payload."""

    def __init__(self) -> None:
        self._size_bytes = 0

    def takes(self, record: Record) -> bool:
        """True if the payload of that task may be read, too."""
        size_bytes = self._size_bytes + (0 if is_held_by(record) else record.size_bytes)
        if self._size_bytes and size_bytes > limits.BATCH_BYTES_MAX:
            return False
        self._size_bytes = size_bytes
        return True


class UniquePuts(Stage):
    def size_bytes(self, drafts: Sequence[Draft]) -> int:
        return limits.UNIQUE_KEY_COPIES * sum(len(_unique(draft).key) for draft in drafts)

    def put(self, put: Put, go: Go, drafts: Sequence[Draft]) -> Answers:
        """Put tasks with unique keys, one after the other. The first put is never postponed.

        Reads: as a put; the entries of the keys; their tasks by snapshot, and serialisably to change them; of
        the payloads of these tasks limits.BATCH_BYTES_MAX bytes, or one larger payload.
        Writes: the tasks that are new, or change, and the entries of new ones.
        Conflicts: another put with such a key; the end of the scope of its task; a change of a task that
        changes.
        """
        rounds, now_us = _Rounds(put, go, _ToRead()), put.parts.now_us()
        stamped = [_stamped(draft, now_us) for draft in drafts]
        answers: dict[int, Answer] = {}
        while len(answers) < len(drafts):
            places = _first_of_each_key(stamped, answers)
            found = rounds.put([stamped[at] for at in places])
            if isinstance(found, NoRoom):
                return found
            answers.update(zip(places, found, strict=True))
        return [answers[at] for at in range(len(drafts))]


class _Rounds(NamedTuple):
    """The rounds of one transaction."""

    of: Put
    go: Go
    to_read: _ToRead

    def put(self, drafts: Sequence[Draft]) -> list[Answer] | NoRoom:
        """Put drafts with different keys."""
        tr, shared = self.of.tr, self.of.parts.shape.shared
        check = self.of.ask_guard()
        asked = [tr.get(shared.unique(_unique(draft).key)) for draft in drafts]
        put = self.go(drafts)  # the reads of the usual case, in one round trip
        check()
        entries = [entry_of(found.value) for found in asked]
        holders = self._holders(drafts, entries)
        new = [at for at, holder in enumerate(holders) if holder is None]
        if new and any(entries):  # otherwise these reads are those of before, and no task has ended since
            put = self.go([drafts[at] for at in new])
        tasks = put() if new else []
        if isinstance(tasks, NoRoom):
            return tasks
        made: dict[int, Task] = dict(zip(new, tasks, strict=True))
        for at, task in made.items():
            unique = _unique(drafts[at])
            if self.of.parts.shape.settings.capacity:
                self._take_over(unique.key, entries[at])
            enter(tr, shared, unique.key, Entry(id_bytes(task.id), unique.until_us), entries[at])
        replies = [
            None if holder is None else _settle(holder, draft, self.to_read)
            for holder, draft in zip(holders, drafts, strict=True)
        ]
        answers = [made[at] if reply is None else reply() for at, reply in enumerate(replies)]
        for change in {id(holder.change): holder.change for holder in holders if holder is not None}.values():
            change.finish()
        return answers

    def _take_over(self, key: bytes, before: Entry | None) -> None:
        """Take the key from a task that has come back to its scope, swept by this put to make room."""
        tr, parts, plan = self.of.tr, self.of.parts, self.of.plan
        entry = entry_of(tr.get(parts.shape.shared.unique(key)).value)
        if entry is None or entry == before:
            return
        change = self.of.change(0 if plan is None else parts.place_of(tr, plan, entry.id, tr))
        [record] = change.read([entry.id])
        if record is not None:
            change.move([record], [without_unique(record)])
            change.finish()

    def _holders(self, drafts: Sequence[Draft], entries: Sequence[Entry | None]) -> list[_Holder | None]:
        """The tasks that have the keys of the drafts; None for a key that no task has. Expired tasks end, and
        damaged ones are mended.
        """
        tr, parts, plan = self.of.tr, self.of.parts, self.of.plan
        changes: dict[int, Change] = {}
        asked: list[_Asked | None] = []
        for entry in entries:
            if entry is None:
                asked.append(None)
                continue
            number = 0 if plan is None else parts.place_of(tr, plan, entry.id, tr.snapshot)
            if number not in changes:
                changes[number] = self.of.change(number)
            task = changes[number].shape.keys.task(entry.id)
            asked.append(_Asked(entry, changes[number], tr.snapshot.get(task)))
        return [
            None if one is None else _found(one, _unique(draft).key)
            for one, draft in zip(asked, drafts, strict=True)
        ]


def _found(asked: _Asked, key: bytes) -> _Holder | None:
    """The task of an entry, if it has the key."""
    change, entry = asked.change, asked.entry
    record = sound_record(asked.record.value, entry.id)
    current = None if record is None else as_of(record, change.now_us)
    if has_key(entry, key, current, change.now_us):
        return _Holder(entry, change, current)
    if entry.until_us:  # its window is over
        return None
    [record] = change.read([entry.id])
    if entry.id in change.damaged:
        change.finish()  # which mends it
        [record] = change.read([entry.id])
        current = None if record is None else as_of(record, change.now_us)
    if has_key(entry, key, current, change.now_us):
        return _Holder(entry, change, current)
    if record is not None and current is None:  # it has expired: it ends before another task has its key
        catch_up(change, record)
        change.finish()
    return None


def _settle(holder: _Holder, draft: Draft, to_read: _ToRead) -> Callable[[], Answer]:
    """Settle a put whose key another task has. The reply is its answer."""
    if _wish(draft).on_conflict is OnConflict.SKIP:
        if holder.current is not None and not to_read.takes(holder.current):
            return lambda: None
        return _ask_existing(holder, draft)
    answer = _overwritten(holder, draft)
    return lambda: answer


def _overwritten(holder: _Holder, draft: Draft) -> Answer:
    current = holder.current
    if current is None or current.state not in WAITING:
        state = TaskState.DONE if current is None else TaskState(current.state)
        key = key_in(_unique(draft).key)
        return UniqueTaskBusy(id=id_text(holder.entry.id), state=state.name.lower(), unique=key)
    change = holder.change
    [record] = change.read([current.id])  # serialisably
    assert record is not None  # as the same version has just shown
    if record.state == TaskState.TAKEN:  # its lease is over
        record = catch_up(change, record)
        assert record is not None
    written = edges.overwrite(change, record, draft, _due_us(change.now_us, record, draft))
    return with_changes(task_of(written, draft.data), existed=True)


def _due_us(now_us: int, record: Record, draft: Draft) -> int:
    """The time at which an existing task is to be ready."""
    wish = _wish(draft)
    if wish.on_conflict is OnConflict.DEBOUNCE:
        return min(later(now_us, draft.delay_us), later(record.created_us, wish.latest_us))
    return record.until_us if record.state == TaskState.DELAYED else now_us


def _ask_existing(holder: _Holder, draft: Draft) -> Callable[[], Task]:
    """Ask for the task that has the key, as it is."""
    change, current = holder.change, holder.current
    if current is None:
        key = key_in(_unique(draft).key)
        return lambda: Task(id_text(holder.entry.id), TaskState.DONE, None, unique=key, existed=True)
    payload = ask_payload(change.tr, change.shape.keys, current)
    return lambda: with_changes(task_of(current, shown(change.shape.codec, payload)), existed=True)


def _first_of_each_key(drafts: Sequence[Draft], answered: Container[int]) -> list[int]:
    """The places of the first drafts of their keys among those without an answer."""
    places: dict[bytes, int] = {}
    for at, draft in enumerate(drafts):
        if at not in answered:
            places.setdefault(_unique(draft).key, at)
    return list(places.values())


def _wish(draft: Draft) -> Wish:
    wish: Wish = draft.wish
    return wish


def _unique(draft: Draft) -> Unique:
    """The unique key of the record that a draft makes."""
    assert draft.extra is not None
    assert draft.extra.unique is not None
    return draft.extra.unique


def _stamped(draft: Draft, now_us: int) -> Draft:
    """The draft, with the end of a scope in seconds that begins now."""
    assert draft.extra is not None
    until_us = now_us + _wish(draft).span_us if _wish(draft).span_us else 0
    unique = replace(_unique(draft), until_us=until_us)
    return replace(draft, extra=replace(draft.extra, unique=unique))
