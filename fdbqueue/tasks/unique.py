"""Unique keys: at most one task in its scope has a unique key, in the whole queue (docs/unique.md).

An entry names the task that has the key. A put reads the entry serialisably, and writes it:
of two puts at once, one sees the other. The change with which a task leaves its scope clears the entry
blindly, if it still names that task. That costs no read, and conflicts only with puts of that key. A task
that comes back takes its key again, unless another task has it.

An entry counts only if its task exists, has the key in its record, and is in scope. A put replaces any other
entry.

A put with a unique key makes a new task, or finds the one that has the key. Puts of several callers share a
transaction. They count as if one came after the other: those with the same key go in rounds, and each round
sees the writes of the last one. The payloads of tasks that exist are read for the answers, and are bounded in
bytes: other puts are postponed to a later transaction.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_positive, key_bytes
from fdbqueue.core.errors import InvalidArgument, UniqueTaskBusy
from fdbqueue.core.partitions import TIME_BYTES, UNIQUE, WINDOW, SharedKeys, time_bytes
from fdbqueue.core.rows import Batch, Check, ContentLine, Flaw, OfColumn, Row, Section, Suspect, told_key
from fdbqueue.core.seam import KeyValue, Transaction, Value
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import Put
from fdbqueue.tasks.change import Change, ask_payload, is_held_by, key_in, task_of
from fdbqueue.tasks.edges import as_of, catch_up
from fdbqueue.tasks.feature import Answers, End, Feature, Filter, Go, NoRoom, Site, Stage
from fdbqueue.tasks.options import QUEUED, UNFINISHED, Draft, Kind, OnConflict, delay_us, later
from fdbqueue.tasks.rows import FeatureRows, task_in, unless_elsewhere
from fdbqueue.tasks.stored.records import ID_BYTES, Extra, Record, Unique, id_bytes, id_text, sound_record

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


class ByUnique(Filter):
    """The task that has a unique key."""

    def __init__(self, value: Any) -> None:
        self._key = key_bytes(value, "the filter unique")

    def ids(self, change: Change, after: bytes, most: int) -> list[bytes]:  # noqa: ARG002  # one task at most
        entry = entry_of(change.tr.snapshot.get(change.shape.shared.unique(self._key)).value)
        return [] if entry is None else [entry.id]

    def matches(self, record: Record, state: str, now_us: int) -> bool:
        unique = unique_of(record)
        if unique is None or unique.key != self._key:
            return False
        return now_us < unique.until_us if unique.until_us else is_in_scope(unique, state)


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

    def ask_welcome(self, tr: Transaction, record: Record, now_us: int) -> Callable[[], bool]:
        key = _key_in_scope(record)
        found = None if key is None else tr.get(self._shared.unique(key))
        return lambda: found is None or not _is_in_use(found, now_us)

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


class Wish(NamedTuple):
    """The wish of a put for a unique key, beside the key."""

    span_us: int
    """A scope in seconds, as microseconds; 0 for another scope."""
    on_conflict: OnConflict
    latest_us: int = 0
    """Of `debounce`: the longest time from the first put to the due time."""


def asked(options: Mapping[str, Any], kind: Kind, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED. Raises: InvalidArgument, UnsupportedOption."""
    key, wait_us = key_bytes(options["unique"], "unique"), delay_us(options.get("delay", 0))
    scope, on_conflict = options.get("scope", UNFINISHED), options.get("on_conflict", OnConflict.SKIP)
    if on_conflict not in list(OnConflict):
        wanted = '"skip", "replace" or "debounce"'
        raise InvalidArgument(name="on_conflict", wanted=wanted, got=on_conflict)
    debounces = on_conflict == OnConflict.DEBOUNCE
    latest_us = _checked_latest_us(options.get("debounce_max"), debounces, wait_us)
    span_us = 0 if isinstance(scope, str) and scope in (QUEUED, UNFINISHED) else _checked_span_us(scope)
    if debounces:
        kind.require("delay")
    wish = Wish(span_us, OnConflict(on_conflict), latest_us)
    return {"unique": Unique(key, scope == QUEUED), "wish": wish}


def _checked_span_us(scope: Any) -> int:
    wanted = '"queued", "unfinished", or a positive number of seconds below a hundred years'
    if isinstance(scope, str):
        raise InvalidArgument(name="scope", wanted=wanted, got=scope)
    if (seconds := checked_positive("scope", scope, "seconds")) >= limits.SPAN_MAX_S:
        raise InvalidArgument(name="scope", wanted=wanted, got=scope)
    return max(1, round(seconds * 1_000_000))


def _checked_latest_us(debounce_max: Any, debounces: bool, wait_us: int) -> int:
    if not debounces:
        if debounce_max is not None:
            wanted = 'None without on_conflict="debounce"'
            raise InvalidArgument(name="debounce_max", wanted=wanted, got=debounce_max)
        return 0
    if debounce_max is None:
        wanted = "the longest time in seconds from the first put to the due time"
        raise InvalidArgument(name="debounce_max", wanted=wanted, got=None)
    latest_us = round(min(checked_positive("debounce_max", debounce_max, "seconds"), limits.SPAN_MAX_S) * 1e6)
    if latest_us < wait_us:
        wanted = "at least the delay of the put"
        raise InvalidArgument(name="debounce_max", wanted=wanted, got=debounce_max)
    return latest_us


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
