"""Unique keys: at most one task in its scope has a unique key, in the whole queue.

An entry names the task that has the key. A put reads the entry serialisably, and writes it (stage.py):
of two puts at once, one sees the other. The change with which a task leaves its scope clears the entry
blindly, if it still names that task. That costs no read, and conflicts only with puts of that key. A task
that comes back takes its key again, unless another task has it.

An entry counts only if its task exists, has the key in its record, and is in scope. A put replaces any other
entry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.partitions.keys import TIME_BYTES, SharedKeys, time_bytes
from fdbqueue.core.seam import Transaction, Value
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.feature import End, Feature, Site
from fdbqueue.tasks.records.keys import ID_BYTES, Record, Unique

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


class UniqueKeys(Feature):
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


def arrive(tr: Transaction, keys: SharedKeys, records: Sequence[Record], now_us: int) -> Sequence[Record]:
    """Let tasks that come from an export have their unique keys, where no other task has them. Return the
    tasks as they are to be stored.

    Reads: the entries of their keys, together.
    """
    back = [
        (at, unique.key, tr.get(keys.unique(unique.key)))
        for at, record in enumerate(records)
        if (unique := unique_of(record)) is not None
        and not unique.until_us
        and is_in_scope(unique, record.state)
    ]
    return _returned(tr, keys, records, back, now_us)


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
