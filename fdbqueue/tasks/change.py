"""Change: the work of one transaction on one task queue, and how a task goes from one state to another.

Every edge of the life cycle (edges.py) is a `move`: the keys of the old state go, the keys of the new state
come, and the statistics follow. The counters are added once, at the end.

The place of a task's payload: a small one is in its record, a larger one beside it, in pieces. A small
payload costs no key and no round trip: a take reads it with the index. A larger payload is written once, and
not again with every change of the record.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar

from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.codec import PayloadCodec, pieces_of
from fdbqueue.core.errors import FdbQueueError, PayloadUnreadable, RecordUnreadable
from fdbqueue.core.partitions import Plan
from fdbqueue.core.registry import UNPACKING
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions.ending import run_of
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN, Failure, OpenTask, Task, TaskState
from fdbqueue.core.unreadable import DAMAGED, shown
from fdbqueue.tasks.failures import clear_failures, note
from fdbqueue.tasks.feature import End, Site, met_by
from fdbqueue.tasks.shape import NO_RECORD, Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import (
    HANDED_OFF,
    NEVER_US,
    NUMBER,
    ONE_CALL,
    ONE_LIVE,
    TIMED,
    Extra,
    Record,
    TaskKeys,
    id_text,
    packed,
    record_of,
    record_to_bytes,
    unpacked_trace,
)


def for_record(payload: bytes) -> bytes:
    return payload if len(payload) <= limits.RECORD_PAYLOAD_BYTES_MAX else b""


def set_payload(tr: Transaction, keys: TaskKeys, record: Record, payload: bytes) -> None:
    """Write the payload beside its record, if the record does not hold it."""
    if len(payload) != len(record.payload):
        for number, piece in enumerate(pieces_of(payload)):
            tr.set(keys.payload(record.id, number), piece)


def ask_payload(tr: Any, keys: TaskKeys, record: Record) -> Callable[[], bytes]:
    """Ask for the payload, by snapshot: it changes, or is cleared, only together with its record."""
    if len(record.payload) == record.size_bytes:  # as `is_held_by`
        return record.payload.__bytes__  # a call of C: itself
    if _is_whole(record):
        whole = tr.snapshot.get(keys.payload(record.id, 0))
        return lambda: _complete(record, whole.value or b"")
    under = keys.payloads_of(record.id)
    pieces = tr.snapshot.get_range(under.start, under.stop)
    return lambda: _complete(record, b"".join(piece.value for piece in pieces))


def ask_stored(tr: Any, keys: TaskKeys, record: Record) -> Callable[[TaskKeys], None]:
    """Ask for the pieces beside the record. The reply stores them in another partition, all there or not."""
    under = keys.payloads_of(record.id)
    rows = () if is_held_by(record) else tr.snapshot.get_range(under.start, under.stop)

    def store(there: TaskKeys) -> None:
        for row in list(rows):
            tr.set(there.payloads_of(record.id).start + row.key[len(under.start) :], row.value)

    return store


def clear_payload(tr: Any, keys: TaskKeys, record: Record) -> None:
    if len(record.payload) == record.size_bytes:
        return
    if _is_whole(record):
        tr.clear(keys.payload(record.id, 0))
    else:
        under = keys.payloads_of(record.id)
        tr.clear_range(under.start, under.stop)


def _complete(record: Record, payload: bytes) -> bytes:
    if len(payload) != record.size_bytes:
        reason = f"{len(payload)} of its {record.size_bytes} bytes are there"
        raise PayloadUnreadable(codec="any", reason=reason)
    return bytes(payload)


def is_held_by(record: Record) -> bool:
    return len(record.payload) == record.size_bytes


def _is_whole(record: Record) -> bool:
    return record.size_bytes <= limits.PAYLOAD_PIECE_BYTES_MAX


_NO_EXTRA = Extra()
_STATES = {state.value: state for state in TaskState}


def shown_tasks(tr: Any, keys: TaskKeys, codec: PayloadCodec, records: Sequence[Record]) -> list[Task]:
    """The tasks for a listing, payloads read together. An Unreadable stands for data that cannot be read."""
    asked = ask_payloads(tr, keys, records)
    return [task_of(record, shown(codec, payload)) for record, payload in zip(records, asked, strict=True)]


def ask_payloads(tr: Any, keys: TaskKeys, records: Sequence[Record]) -> list[Callable[[], bytes]]:
    return list(map(partial(ask_payload, tr, keys), records))


def task_of(record: Record, data: Any) -> Task:
    extra = record.extra or _NO_EXTRA
    task: Any = OpenTask()
    task.id = id_text(record.id)
    task.state = _STATES[record.state]
    task.data = data
    task.pri = record.pri
    task.key = key_in(record.key) if record.key else None
    task.attempts = record.attempts
    task.failures = record.failures - record.forgiven - record.excused
    task.orphaned = record.orphaned
    task.created = record.created_us / 1_000_000
    task.expires = None if record.expires_us == NEVER_US else record.expires_us / 1_000_000
    task.until = None if record.until_us == NEVER_US else record.until_us / 1_000_000
    task.token = record.token or None
    task.taken = record.taken_us / 1_000_000 if record.taken_us else None
    task.session = record.session.hex() or None
    task.trace = unpacked_trace(record.trace) if record.trace else None
    task.cancel_asked = record.cancelled_us / 1_000_000 if record.cancelled_us else None
    task.fraction = record.fraction
    task.fraction_told = record.told_us / 1_000_000 if record.told_us else None
    task.headers = record.extra.headers if record.extra else {}
    task.limits = _limits_of(extra) if extra.limits else {}
    task.result_ttl = extra.result_ttl_us / 1_000_000 if extra.result_ttl_us else None
    task.steps = extra.steps
    task.unique = key_in(extra.unique.key) if extra.unique else None
    task.groups = tuple(member.group.hex() for member in extra.groups) if extra.groups else ()
    task.waits_for = extra.waits.hex() or None
    task.attempts_max = late.attempts.of_extra(extra).attempts if extra.more else None
    task.existed = False
    task.handed_to = None
    if record.session == HANDED_OFF:
        handed = extra.handed
        task.session, task.handed_to = None, "" if handed is None else handed.waits_for
    task.__class__ = Task
    return task  # type: ignore[no-any-return]  # it is one now


def _limits_of(extra: Extra) -> dict[str, Any]:
    if not extra.limit_keys:
        return dict.fromkeys(extra.limits)
    return {name: key_in(extra.limit_keys.get(name, b"")) for name in extra.limits}


def key_in(stored: bytes) -> Any:
    """The task key; the stored bytes themselves, if they are damaged."""
    try:
        return layer.unpack(stored)[0] if stored else None
    except UNPACKING:
        return stored


def seconds_or_never(time_us: int) -> float | None:
    return None if time_us == NEVER_US else time_us / 1_000_000


def delivered_value(record: Record) -> bytes:
    """The value of the delivery of a taken task: its lease, and the number of the attempt."""
    return record.session + record.token + NUMBER.pack(record.attempts)


T = TypeVar("T")

_extra = attrgetter("extra")

TaskEvent = tuple[Record, str, Callable[[], bytes]]
Told = tuple[Record, str, bytes]
"""A task, its event, and its payload."""
Deliver = Callable[[Transaction, Sequence[Told]], None]
"""Delivers the events of a transaction once it has committed."""


class Change:
    """The work in a queue without partitions. In one with partitions, it is a `Parted` (parted.py)."""

    plan: Plan | None = None
    moved_bytes = 0
    """The most bytes of the tasks that have joined other partitions."""

    def __init__(
        self,
        tr: Transaction,
        shape: Shape,
        now_us: int,
        deliver: Deliver | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`check` is the reply of the guard, which has been asked; None if the queue has been checked."""
        self.tr = tr
        self.shape = shape
        self.now_us = now_us
        self._check = check
        self._deliver = deliver
        self.tells = deliver is not None
        """True if there is a callback."""
        self._events: list[TaskEvent] = []
        self._payloads: dict[bytes, Callable[[], bytes]] = {}
        """Those that events wait for, by the ids of their tasks."""
        self._file: Callable[[Sequence[Record]], None] | None = None
        self._shift = shape.discipline.shift
        self.puts_read = shape.puts_read
        """True if `ask_create` asks for reads."""
        self.damaged: dict[bytes, bytes] = {}
        """Records that cannot be read, by the ids of their tasks."""
        self._counts = 0
        """The number that the counters grow by."""
        self._more_tasks = 0
        self._runs: dict[bytes, Counter[str]] = {}

    def run(self, verb: Callable[["Change"], T]) -> T:
        """Run a verb, and check that the queue still exists, whatever the verb itself checks.

        Raises: QueueDropped, in place of the verb's error too: a dropped queue has no tasks.
        """
        try:
            answer = verb(self)
        except FdbQueueError:
            self.require_queue()
            raise
        if self._check is not None:
            self.require_queue()
        return answer

    def require_queue(self) -> None:
        """Check once that the queue still exists. Raises: QueueDropped."""
        if self._check is not None:
            check, self._check = self._check, None
            check()

    def read(self, ids: Iterable[bytes]) -> list[Record | None]:
        """The tasks of these ids, read together and serialisably: they conflict with every change of them.

        None stands for a missing task, and for an unreadable record: `finish` mends that record, or sets its
        task aside.
        """
        ids, task_key = list(ids), self.shape.keys.task
        asked = list(map(self.tr.get, map(task_key, ids)))
        self.require_queue()  # after the reads are sent: no round trip of its own
        found: list[Record | None] = []
        for id_, value in zip(ids, asked, strict=True):
            record = None
            if value.present():
                try:
                    record = record_of(value.value)
                except DAMAGED:
                    self.damaged[id_] = value.value
                if record is not None and record.id != id_:
                    self.damaged[id_], record = value.value, None
            found.append(record)
        return found

    def require_sound(self, id_: bytes) -> None:
        """Raises RecordUnreadable if the record of that task has been read, and is none."""
        if id_ in self.damaged:
            raise RecordUnreadable(name=self.shape.name, key=id_text(id_), reason=NO_RECORD)

    def lost(self, key: bytes, value: bytes) -> None:
        """Mend the key of a state that names a missing or unreadable task."""
        self.shape.mender.lost(self.tr, key, value)
        self.expect_ready()  # its task key may be free now

    def count(self, call: str, times: int = 1) -> None:
        self._counts += times * ONE_CALL[call]

    def count_ends(self, call: str, tasks: int) -> None:
        """Count tasks that a call has ended."""
        self._counts += tasks * (ONE_CALL["done"] + ONE_CALL[call])

    def counted(self, records: Sequence[Record], call: str) -> list[Record]:
        """Count the call, and keep its event. Return the tasks."""
        self._counts += len(records) * ONE_CALL[call]
        if self.tells:
            self.tell(records, call)
        return [*records]

    def end(self, records: Iterable[Record], how: str) -> None:
        """Count how the leases of these tasks ended, each for its run. Does nothing without a run."""
        for record in records:
            if len(record.token) > limits.RANDOM_SUFFIX_BYTES:
                self.end_for(run_of(record.token), how)

    def end_for(self, run: bytes, how: str, times: int = 1) -> None:
        if run:
            self._runs.setdefault(run, Counter())[how] += times

    def tell(self, records: Iterable[Record], event: str) -> None:
        """Keep an event of these tasks for the callback, if there is one. Asks for their payloads, for each
        once: a large one would come again with each event.
        """
        if self._deliver is not None:
            self._events += [(record, event, self._ask_payload(record)) for record in records]

    def _ask_payload(self, record: Record) -> Callable[[], bytes]:
        """Ask for the payload of a task."""
        asked = self._payloads.get(record.id)
        if asked is None:
            asked = self._payloads[record.id] = ask_payload(self.tr, self._keys_of(record), record)
        return asked

    def ask_create(self, keys: Collection[bytes]) -> None:
        """Ask early for the reads that creating tasks of these task keys needs."""
        self._file = self.shape.discipline.ask_put(self.tr, keys)

    def restore(self, records: Sequence[Record]) -> None:
        """Make tasks of records that have their payloads stored already."""
        if self._file is None and self.puts_read:
            self.ask_create({record.key for record in records})
        file, self._file = self._file, None  # the next tasks may have other task keys
        self._arrive(records)
        if file is None:
            self.shape.discipline.shift(self.tr, (), records)
        else:
            file(records)

    def move(self, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        """Turn each of `olds` into its counterpart in `news`. Return `news` as they are stored: a task may
        have lost its unique key to another one.
        """
        if not olds:
            return news
        if self.shape.moving or any(map(_extra, olds)) or any(map(_extra, news)):
            for feature in met_by((*olds, *news), self.shape.moving):
                news = feature.moved(self.site, olds, news)
        self._depart(olds)
        self._arrive(news)
        self._shift(self.tr, olds, news)
        self._file = None  # an answer from before the change is stale
        return news

    @cached_property
    def site(self) -> Site:
        """The view of this change that features have."""
        shape = self.shape
        keys = shape.root, shape.shared, shape.keys
        parts = 1 if self.plan is None else self.plan.high
        return Site(self.tr, self.now_us, *keys, shape.definition.id, shape.name, parts)

    def let_go(self, key: bytes) -> bool:
        """Let the first task of a held key be taken: the key has left its old partition. False if it was not
        held.
        """
        discipline = self.shape.discipline
        if not (isinstance(discipline, late.stored.keyed.Keyed) and discipline.let_go(self.tr, key)):
            return False
        self.expect_ready()
        return True

    def join(self, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        """`move` for tasks that were delayed or buried, and become ready: each joins the partition that its
        task key has now, and keeps its id.
        """
        return self.move(olds, news)

    def joinable(self, records: Sequence[Record], besides: int = 0) -> Sequence[Record]:  # noqa: ARG002  # Parted's
        """The first of these tasks that may `join` in one transaction.

        `besides`: the bytes that other partitions have moved in this transaction.
        """
        return records

    def ring(self) -> None:
        """Wake the takes that wait for all partitions."""

    def expect_ready(self) -> None:
        """A task may be ready, by a change that this object has not made."""

    def _keys_of(self, record: Record) -> TaskKeys:  # noqa: ARG002  # Parted's
        """The keys of the partition of a task, which may have joined it in this change."""
        return self.shape.keys

    def consume(self, records: Sequence[Record]) -> None:
        """Remove ready tasks, but not their payloads: for the discipline they are taken, and then gone."""
        taken = [replace(record, state=TAKEN) for record in records]
        self._depart(records)
        self.shape.discipline.shift(self.tr, records, taken)
        self.shape.discipline.shift(self.tr, taken, ())
        for record in records:
            self.tr.clear(self.shape.keys.task(record.id))

    def discard(self, records: Sequence[Record], end: End) -> None:
        """Remove tasks, without counting them as done."""
        if self.shape.ending or any(map(_extra, records)):
            for feature in met_by(records, self.shape.ending):
                feature.gone(self.site, records, end)
        self.forget(records)

    def forget(self, records: Sequence[Record]) -> None:
        """Clear the keys of tasks, but not those of features."""
        if not records:
            return
        self._depart(records)
        self._shift(self.tr, records, ())
        self._file = None  # as in `move`
        keys = self.shape.keys
        for record in records:
            self.tr.clear(keys.task(record.id))
            if len(record.payload) != record.size_bytes:
                clear_payload(self.tr, keys, record)
            if record.id[1] != keys.partition:
                self.tr.clear(self.shape.shared.moved(record.id))
            if record.failures:
                clear_failures(self.tr, keys, record)

    def rewrite(self, old: Record, new: Record, payload: bytes, joins: bool = False) -> None:
        """Store another payload of a buried task. Its place and its state stay. `joins`: a `join` of the task
        follows, so the payload is stored where the task goes; twice it may not fit into the transaction.
        """
        self.replace_payload(old, new, payload, joins)
        self.tr.set(self.shape.keys.task(new.id), record_to_bytes(new))

    def replace_payload(self, old: Record, new: Record, payload: bytes, joins: bool = False) -> None:
        """Store the payload of `new` in place of that of `old`. `joins`: as in `rewrite`."""
        self._payloads.pop(old.id, None)  # a later event tells the new one
        clear_payload(self.tr, self.shape.keys, old)
        set_payload(self.tr, self._keys_joined(new) if joins else self.shape.keys, new, payload)

    def _keys_joined(self, record: Record) -> TaskKeys:  # noqa: ARG002  # Parted's
        """The keys of the partition that a task joins now."""
        return self.shape.keys

    def note(self, records: Sequence[Record], failure: Failure, outcome: str) -> list[Record]:
        """Store the failures of these attempts. Return the records that count them."""
        return [note(self.tr, self.shape.keys, record, failure, outcome, self.now_us) for record in records]

    def finish(self) -> None:
        """Write the counters, and have the events delivered after the commit. The change may go on
        afterwards.
        """
        keys = self.shape.keys
        if self.damaged:
            self._mend()
        if self._counts:
            more = (self._counts & records.COUNTERS_MASK).to_bytes(records.COUNTERS_BYTES, "little")
            self.tr.add(keys.counters, more)
        self._counts = self._more_tasks = 0
        for run, ends in self._runs.items():
            self.tr.add(self.shape.root.run(run), packed(ending.RUN_ENDS, ends))
        self._runs.clear()
        if self._deliver is not None and self._events:
            self._deliver(
                self.tr, [(record, event, _known(payload)) for record, event, payload in self._events]
            )
            self._events = []
            self._payloads = {}

    def _mend(self) -> None:
        damaged, self.damaged = self.damaged, {}
        for id_, value in damaged.items():
            self.shape.mender.record(self.tr, id_, value)
        self.expect_ready()

    def _depart(self, records: Sequence[Record]) -> None:
        tr, keys = self.tr, self.shape.keys
        for record in records:
            if record.state == TAKEN:
                tr.clear(keys.taken_by(record.session, record.id))
            elif record.state != READY:
                tr.clear(self._index_key(record))
            if record.state == BURIED:
                late.failures.leave(tr, keys, record, self.shape.discipline.place(record))
            timer_us = record.until_us if record.state in TIMED else record.expires_us
            if timer_us != NEVER_US:
                tr.clear(keys.timer(timer_us, record.id))
            self._counts -= ONE_LIVE[record.state]
        self._more_tasks -= len(records)

    def _arrive(self, records: Sequence[Record]) -> None:
        tr, keys = self.tr, self.shape.keys
        for record in records:
            tr.set(keys.task(record.id), record_to_bytes(record))
            if record.state == TAKEN:
                tr.set(keys.taken_by(record.session, record.id), record.key)
            elif record.state != READY:
                tr.set(self._index_key(record), record.key)
            if record.state == BURIED:
                late.failures.enter(tr, keys, record, self.shape.discipline.place(record))
            timer_us = record.until_us if record.state in TIMED else record.expires_us
            if timer_us != NEVER_US:
                tr.set(keys.timer(timer_us, record.id), b"")
            self._counts += ONE_LIVE[record.state]
        self._more_tasks += len(records)

    def state_key(self, record: Record) -> bytes | None:
        """The key of the state of a task; None for a ready one, whose keys its discipline has."""
        if record.state == TAKEN:
            return self.shape.keys.taken_by(record.session, record.id)
        return None if record.state == READY else self._index_key(record)

    def _index_key(self, record: Record) -> bytes:
        """The key of the state of a delayed or buried task. The discipline has those of ready tasks."""
        keys = self.shape.keys
        if record.state == DELAYED:
            return keys.delayed_at(record.id)
        return keys.buried_at(self.shape.discipline.place(record))


def _known(payload: Callable[[], bytes]) -> bytes:
    try:
        return payload()
    except PayloadUnreadable:  # parts of it are missing: the callback is told of an empty payload
        return b""
