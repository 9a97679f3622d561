"""The checks of unique keys: each entry names a task with its key, and each task in scope has its entry."""

from collections.abc import Iterable, Iterator, Sequence

from fdbqueue.core.partitions.keys import UNIQUE, WINDOW
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under
from fdbqueue.operate.verify.cures import told_key
from fdbqueue.operate.verify.slices import Excuse, Mend, Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.records.keys import ID_BYTES, Record, id_text, partition_of, sound_record
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.unique import Entry, entry_bytes, entry_of, is_in_scope, unique_of

COLUMNS = (UNIQUE, WINDOW)


class UniqueChecks:
    def __init__(self, shape: Shape, mending: str) -> None:
        self._shape = shape
        self._shared = shape.shared
        self._mending = mending

    # Entries and windows.

    def asks(self, column: int, row: Row, rest: bytes) -> Iterator[Ask]:
        if column == WINDOW:
            yield self._shared.unique(self._shared.window_parts(row.key)[1])
        elif (entry := entry_of(row.value)) is not None:
            yield self._named(rest, entry)

    def judge(self, column: int, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if column == WINDOW:
            yield from self._judge_window(row, seen)
        else:
            yield from self._judge_entry(row, rest, seen)

    def _named(self, key: bytes, entry: Entry) -> bytes:
        """The key that an entry names: its window, or its task where it was put."""
        return self._shared.window(entry.until_us, key) if entry.until_us else self._task(entry.id)

    def _task(self, id_: bytes, partition: int | None = None) -> bytes:
        number = partition_of(id_) if partition is None else partition
        return self._shape.partition(number).keys.task(id_)

    def _judge_entry(self, row: Row, key: bytes, seen: Seen) -> Iterator[Suspect]:
        entry = entry_of(row.value)
        if entry is None:
            text = f"The entry of the unique key {told_key(key)} is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, _clear(row.key))
        elif entry.until_us:
            yield from self._judge_end(row, key, entry, seen)
        elif not _has(seen.value(self._task(entry.id)), entry.id, key):
            text = (
                f"The unique key {told_key(key)} names the task {id_text(entry.id)}, which does not have it."
            )
            excuses = self._elsewhere(entry.id, key)
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key), excuses)

    def _judge_end(self, row: Row, key: bytes, entry: Entry, seen: Seen) -> Iterator[Suspect]:
        window = self._shared.window(entry.until_us, key)
        if seen.value(window) != entry.id:
            text = (
                f"The scope of the unique key {told_key(key)} has an end at which no sweep removes its entry."
            )
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, _set(window, entry.id))

    def _elsewhere(self, id_: bytes, key: bytes) -> list[Excuse]:
        """It is no contradiction if the task has moved, and has its key in another partition."""
        plan = self._shape.plan
        if plan is None or not plan.may_have_moved:
            return []

        def is_there(rows: Sequence[Row]) -> bool:
            return any(_has(row.value, id_, key) for row in rows)

        tasks = [self._task(id_, number) for number in range(plan.high)]
        return [Excuse(Under(task, task + b"\x00"), is_there) for task in tasks]

    def _judge_window(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        until_us, key = self._shared.window_parts(row.key)
        is_sound = len(row.value) == ID_BYTES
        if not is_sound or seen.value(self._shared.unique(key)) != entry_bytes(row.value, until_us):
            text = f"The end of a scope of the unique key {told_key(key)} is that of no entry."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))

    # Tasks.

    def ask_task(self, record: Record) -> Iterable[Ask]:
        key = _key_in_scope(record)
        return () if key is None else (self._shared.unique(key),)

    def judge_task(self, row: Row, record: Record, seen: Seen) -> Iterator[Suspect]:
        key = _key_in_scope(record)
        if key is None or (value := seen.value(self._shared.unique(key))) == record.id:
            return
        name = id_text(record.id)
        if value is None:
            text = (
                f"The task {name} has the unique key {told_key(key)} and no entry: a put makes another task."
            )
            mend = _set(self._shared.unique(key), record.id)
            yield Suspect(Flaw.STATE, row.key, text, self._mending, mend)
        else:
            text = f"The task {name} has the unique key {told_key(key)}, and so has another task."
            yield Suspect(Flaw.COPY, row.key, text, "Delete one of the two, and look at their data before.")


def _key_in_scope(record: Record) -> bytes | None:
    """The unique key that a task has in its state, without a scope in seconds."""
    unique = unique_of(record)
    is_in = unique is not None and not unique.until_us and is_in_scope(unique, record.state)
    return unique.key if unique is not None and is_in else None


def _has(value: bytes | None, id_: bytes, key: bytes) -> bool:
    record = sound_record(value, id_)
    return record is not None and _key_in_scope(record) == key


def _clear(key: bytes) -> Mend:
    return lambda tr: tr.clear(key)


def _set(key: bytes, value: bytes) -> Mend:
    return lambda tr: tr.set(key, value)
