"""Unique keys: at most one task in its scope has a unique key, in the whole queue.

An entry names the task that has the key. A put reads the entry serialisably, and writes it (stage.py):
of two puts at once, one sees the other. The change with which a task leaves its scope clears the entry
blindly, if it still names that task. That costs no read, and conflicts only with puts of that key. A task
that comes back takes its key again, unless another task has it.

An entry counts only if its task exists, has the key in its record, and is in scope. A put replaces any other
entry.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.partitions import TIME_BYTES, UNIQUE, WINDOW, SharedKeys, time_bytes
from fdbqueue.core.rows import Batch, Check, ContentLine, Flaw, OfColumn, Row, Section, Suspect, told_key
from fdbqueue.core.seam import KeyValue, Transaction, Value
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.feature import End, Feature, Site
from fdbqueue.tasks.records.keys import ID_BYTES, Extra, Record, Unique, id_text, sound_record
from fdbqueue.tasks.rows import FeatureRows, task_in, unless_elsewhere

WAITING = (TaskState.READY, TaskState.DELAYED)


@dataclass(frozen=True)
class Entry:
    """The task that has a unique key, or had it. `until_us`: as in `Unique`."""

    id: bytes
    until_us: int = 0


def entry_bytes(id_: bytes, until_us: int) -> bytes:
    return id_ + time_bytes(until_us) if until_us else id_


def entry_of(value: bytes | None) -> Entry | None:
    if value is None or len(value) not in (ID_BYTES, ID_BYTES + TIME_BYTES):
        return None
    return Entry(bytes(value[:ID_BYTES]), int.from_bytes(value[ID_BYTES:], "big"))


def unique_of(record: Record) -> Unique | None:
    return None if record.extra is None else record.extra.unique


def is_in_scope(unique: Unique, state: str) -> bool:
    """True if a stored task in this state has its key. Not for a scope in seconds."""
    return not unique.is_queued_only or state in WAITING


def has_key(entry: Entry, key: bytes, current: Record | None, now_us: int) -> bool:
    """True if the task of an entry has the unique key. `current`: as it is now; None if it is gone."""
    if entry.until_us:
        return now_us < entry.until_us
    unique = None if current is None else unique_of(current)
    if current is None or unique is None:
        return False
    return unique.key == key and is_in_scope(unique, current.state)


def enter(tr: Transaction, keys: SharedKeys, key: bytes, entry: Entry, before: Entry | None) -> None:
    """Let the task of `entry` have the key. `before`: the entry that it replaces."""
    if before is not None and before.until_us:
        tr.clear(keys.window(before.until_us, key))
    tr.set(keys.unique(key), entry_bytes(entry.id, entry.until_us))
    if entry.until_us:
        tr.set(keys.window(entry.until_us, key), entry.id)


def _key_in_scope(record: Record) -> bytes | None:
    """The unique key that a task has in its state, without a scope in seconds."""
    unique = unique_of(record)
    is_in = unique is not None and not unique.until_us and is_in_scope(unique, record.state)
    return unique.key if unique is not None and is_in else None


class WindowLine(ContentLine, tag="window"):
    """A unique key with a scope in seconds, in an export."""

    until_us: int
    key: bytes
    id: bytes


class UniqueRows(FeatureRows):
    """An entry names a task with its key, or its window; each task in scope has its entry."""

    lines = (WindowLine,)

    def shared_sections(self) -> Iterator[Section]:
        yield Section(self._shared.windows, self._read)

    def _read(self, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
        parts = [(*self._shared.window_parts(bytes(row.key)), bytes(row.value)) for row in rows]
        return Batch([WindowLine(*part) for part in parts], len(rows))

    def place(self, tr: Transaction, lines: Sequence[ContentLine]) -> None:
        # An export beside other calls may have two windows of one key: the later one replaces the other.
        windows = {line.key: line for line in lines if isinstance(line, WindowLine)}
        asked = [(line, tr.get(self._shared.unique(key))) for key, line in windows.items()]
        for line, found in asked:
            enter(tr, self._shared, line.key, Entry(line.id, line.until_us), entry_of(found.value))

    def arriving(self, tr: Transaction, records: Sequence[Record], now_us: int) -> Sequence[Record]:
        """Let tasks have their unique keys, where no other task has them. Reads: the entries, together."""
        keys = self._shared
        back = [
            (at, key, tr.get(keys.unique(key)))
            for at, record in enumerate(records)
            if (key := _key_in_scope(record)) is not None
        ]
        return _returned(tr, keys, records, back, now_us)

    def shared(self) -> dict[int, OfColumn]:
        return {UNIQUE: self._entry, WINDOW: self._window}

    def _entry(self, row: Row, key: bytes) -> Check:
        entry, told = entry_of(row.value), told_key(key)
        if entry is None:
            text = f"The entry of the unique key {told} is damaged: {row.value.hex()}."
            yield self.found(Flaw.VALUE, row, text)
        elif entry.until_us:
            window = self._shared.window(entry.until_us, key)
            if (yield [window]).value(window) != entry.id:
                text = f"The scope of the unique key {told} has an end at which no sweep removes its entry."
                yield self.found(Flaw.TIMER, row, text, {window: entry.id})
        else:
            yield from self._entry_of_task(row, key, entry)

    def _entry_of_task(self, row: Row, key: bytes, entry: Entry) -> Check:
        task = task_in(self._shape, entry.id)
        if not _has((yield [task]).value(task), entry.id, key):
            text = (
                f"The unique key {told_key(key)} names the task {id_text(entry.id)}, which does not have it."
            )
            elsewhere = unless_elsewhere(self._shape, entry.id, lambda value: _has(value, entry.id, key))
            yield self.found(Flaw.STRAY, row, text, excuses=elsewhere)

    def _window(self, row: Row, _: bytes) -> Check:
        until_us, key = self._shared.window_parts(row.key)
        entry, is_sound = self._shared.unique(key), len(row.value) == ID_BYTES
        stored = (yield [entry]).value(entry)
        if not is_sound or stored != entry_bytes(row.value, until_us):
            text = f"The end of a scope of the unique key {told_key(key)} is that of no entry."
            yield self.found(Flaw.STRAY, row, text)

    def task(self, row: Row, record: Record) -> Check:
        key = _key_in_scope(record)
        if key is None:
            return
        entry, name = self._shared.unique(key), id_text(record.id)
        value = (yield [entry]).value(entry)
        if value is None:
            text = (
                f"The task {name} has the unique key {told_key(key)} and no entry: a put makes another task."
            )
            yield self.found(Flaw.STATE, row, text, {entry: record.id})
        elif value != record.id:
            text = f"The task {name} has the unique key {told_key(key)}, and so has another task."
            yield Suspect(Flaw.COPY, row.key, text, "Delete one of the two, and look at their data before.")


class UniqueKeys(Feature):
    rows = UniqueRows

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        """Let entries follow tasks. A task has no unique key any more that comes back while another task has
        its key.

        Conflicts: a put with one of these keys; a task that comes back: any other change of its entry.
        """
        tr, keys = site.tr, site.shared
        back: list[tuple[int, bytes, Value]] = []
        for at, (old, new) in enumerate(zip(olds, news, strict=True)):
            unique = unique_of(old)
            if unique is None or unique.until_us:
                continue
            was, is_ = is_in_scope(unique, old.state), is_in_scope(unique, new.state)
            if was and not is_:
                tr.compare_and_clear(keys.unique(unique.key), old.id)
            elif is_ and not was:
                back.append((at, unique.key, tr.get(keys.unique(unique.key))))
        return _returned(tr, keys, news, back, site.now_us)

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:  # noqa: ARG002
        """Conflicts: a put with one of these keys."""
        for record in records:
            unique = unique_of(record)
            if unique is not None and not unique.until_us and is_in_scope(unique, record.state):
                site.tr.compare_and_clear(site.shared.unique(unique.key), record.id)

    def fitted(self, extra: Extra, settings: Any) -> Extra:  # noqa: ARG002
        return replace(extra, unique=None)

    def cleared(self, site: Site) -> None:
        for under in (site.shared.uniques, site.shared.windows):
            site.tr.clear_range(under.start, under.stop)

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        """Reads: the end of the first window, which is that of a scope in seconds."""
        windows = site.shared.windows
        first = site.tr.snapshot.get_range(windows.start, windows.stop, limit=1)
        return lambda: next((site.shared.window_parts(row.key)[0] for row in first), None)

    def sweep(self, site: Site) -> bool:
        """Remove one batch of the windows that are over, with their entries.

        Reads: the windows, by snapshot.
        Conflicts: a put with one of these keys.
        """
        tr, keys = site.tr, site.shared
        until = keys.windows_until(site.now_us)
        rows = tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_BATCH).to_list()
        for row in rows:
            until_us, key = keys.window_parts(row.key)
            # Blindly: a later put may have replaced the entry.
            tr.compare_and_clear(keys.unique(key), entry_bytes(row.value, until_us))
            tr.clear(row.key)
        return bool(rows)


def _returned(
    tr: Transaction,
    keys: SharedKeys,
    news: Sequence[Record],
    back: Sequence[tuple[int, bytes, Value]],
    now_us: int,
) -> Sequence[Record]:
    """`news`, of which those in `back` come into their scope. `back` has their entries."""
    kept, seen = list(news), set[bytes]()
    for at, key, found in back:
        if _is_in_use(found, now_us) or key in seen:
            kept[at] = without_unique(kept[at])
        else:
            enter(tr, keys, key, Entry(kept[at].id), entry_of(found.value))
            seen.add(key)
    return kept if back else news


def _is_in_use(found: Value, now_us: int) -> bool:
    """True if a task may have the key of an entry: its window is not over."""
    entry = entry_of(found.value)
    return bool(found.present()) and (entry is None or not entry.until_us or now_us < entry.until_us)


def without_unique(record: Record) -> Record:
    return replace(record, extra=None if record.extra is None else replace(record.extra, unique=None))


def _has(value: bytes | None, id_: bytes, key: bytes) -> bool:
    record = sound_record(value, id_)
    return record is not None and _key_in_scope(record) == key
