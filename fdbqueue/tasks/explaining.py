"""Why a task is not running: a look at everything that may keep it. `reasons_of` decides.

    round trip 1   the task, its failures, the flags of pauses, the counters, the line, the workers
    round trip 2   its payload, its holder, its run and its limits; its key in the line and the tasks
                   before it; its task key; the tasks that are taken, with their keys; the heartbeats of
                   the workers
    round trip 3   the task keys with an earlier turn; the holders of its own

All reads are by snapshot, at one version: a look never makes another call conflict.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fdbqueue.core import limits
from fdbqueue.core.errors import RecordUnreadable, TaskNotFound
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.line.staging import ask_waiting
from fdbqueue.core.seam import EXACT
from fdbqueue.core.sessions.ending import ask_holder
from fdbqueue.core.sessions.workers import ask_pause_end, ask_run, ask_workers
from fdbqueue.core.task import Explanation, Holder, KeyHolder, LongRun, TaskPlace, TaskState
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks.attempts import of_record
from fdbqueue.tasks.change import Change, ask_payload, task_of
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.failures import ask_failures
from fdbqueue.tasks.limits.lanes import Lanes
from fdbqueue.tasks.looking import ask_held
from fdbqueue.tasks.noisy import ask_overtaker
from fdbqueue.tasks.rows import not_in_line, reasons_of, rows_in_use
from fdbqueue.tasks.shape import NO_RECORD
from fdbqueue.tasks.stored.discipline import Bag, Fifo
from fdbqueue.tasks.stored.keyed import Keyed, ask_place
from fdbqueue.tasks.stored.records import HANDED_OFF, Record, count_of, id_in, id_text, sound_record

T = TypeVar("T")
Later = Callable[[], Callable[[], T]]
"""Asked in two round trips: the reply to the first asks for the second."""


def explain(change: Change, id_: bytes) -> Explanation:
    """Raises: TaskNotFound, RecordUnreadable. Round trips: 3."""
    tr, shape, now_us = change.tr, change.shape, change.now_us
    snapshot, keys = tr.snapshot, shape.keys
    stored, paused = snapshot.get(keys.task(id_)), snapshot.get(keys.paused)
    fleet_pause = ask_pause_end(snapshot, shape.root)
    tasks, failures = _ask_tasks(change), ask_failures(tr, keys, id_)
    waiting = _ask_waiting(change)
    workers = ask_workers(snapshot, shape.root, shape.name, now_us)
    was, record = _records(change, stored.value, id_)
    payload, holder = ask_payload(tr, keys, record), _ask_holder(change, was)
    run = _ask_run(change, record)
    asked = [rows.ask_told(snapshot, record, now_us) for rows in rows_in_use(shape)]
    overtaker = ask_overtaker(change, record)
    is_held, in_line = ask_held(change, was), _ask_in_line(change, was)
    place, key_holders, alive = _ask_place(change, was), _ask_key_holders(change, was), workers()
    placed, held, crew = place(), key_holders(), alive()
    bound = of_record(record, shape.settings)
    found = Explanation(
        queue=shape.name,
        task=task_of(record, shown(shape.codec, payload)),
        now=now_us / 1_000_000,
        swept=record.state == was.state,
        paused=bool(paused.present()),
        holder=holder(),
        place=placed(),
        key_holders=held(),
        waiting=waiting(),
        workers=crew.count,
        tasks=tasks(),
        capacity=shape.settings.capacity,
        last_failure=next(reversed(failures()), None),
        held=is_held(),
        attempts_max=bound.attempts,
        attempts_from=bound.attempts_from,
        run=run(),
        runs=crew.runs if record.state == TaskState.READY else (),
        full_s=crew.full_s if record.state == TaskState.READY else 0.0,
        fleet_paused=fleet_pause() is not None,
    )
    told, overtaken = [reply() for reply in asked], overtaker()
    lost = () if in_line() else (not_in_line(shape.name),)
    for one in told:
        found = replace(found, **one.fields)
    reasons = [*lost, *(reason for one in told for reason in one.reasons)]
    if overtaken is None:
        return replace(found, reasons=reasons_of(found, reasons))
    found = replace(found, overtaken_by=overtaken.key)
    return replace(found, reasons=reasons_of(found, reasons, overtaken.reason))


def _ask_tasks(change: Change) -> Callable[[], int]:
    plan, shape = change.plan, change.shape
    parts = [shape] if plan is None else map(shape.partition, range(plan.high))
    asked = [change.tr.snapshot.get(part.keys.counters) for part in parts]
    return lambda: sum(count_of(counters.value) for counters in asked)


def _ask_waiting(change: Change) -> Callable[[], int]:
    """Ask for the number of live calls that wait: for the partition of the task, and for all."""
    shape = change.shape
    lines = [shape.keys.line] if change.plan is None else [shape.keys.line, shape.shared.line]
    asked = [
        ask_waiting(change.tr.snapshot, LineKeys(line), change.now_us, limits.EXPLAINED_MAX) for line in lines
    ]
    return lambda: min(limits.EXPLAINED_MAX, sum(reply() for reply in asked))


def holder_of(change: Change, id_: bytes) -> Holder | None:
    """The session that holds a task, and its processes; None for a task that is not taken now."""
    _, record = stored_and_current(change, id_)
    return _ask_holder(change, record)()


def stored_and_current(change: Change, id_: bytes) -> tuple[Record, Record]:
    """The task as stored, and as it is now, by snapshot. Raises: TaskNotFound, RecordUnreadable."""
    return _records(change, change.tr.snapshot.get(change.shape.keys.task(id_)).value, id_)


def _records(change: Change, stored: bytes | None, id_: bytes) -> tuple[Record, Record]:
    """The task as stored, and as it is now. Raises: TaskNotFound, RecordUnreadable."""
    was = sound_record(stored, id_)
    if stored is not None and was is None:
        raise RecordUnreadable(name=change.shape.name, key=id_text(id_), reason=NO_RECORD)
    current = None if was is None else as_of(was, change.now_us)
    if was is None or current is None:
        raise TaskNotFound(id=id_text(id_), name=change.shape.name)
    return was, current


def _ask_holder(change: Change, record: Record) -> Callable[[], Holder | None]:
    if record.state != TaskState.TAKEN or record.session == HANDED_OFF:
        return lambda: None
    return ask_holder(change.tr.snapshot, change.shape.root, record.session)


def _ask_run(change: Change, record: Record) -> Callable[[], LongRun | None]:
    if record.state != TaskState.TAKEN or record.session == HANDED_OFF:
        return lambda: None
    snapshot, root = change.tr.snapshot, change.shape.root
    return ask_run(snapshot, root, record.session, id_text(record.id), change.now_us)


def _ask_in_line(change: Change, was: Record) -> Callable[[], bool]:
    """Ask whether the key of a ready task in the line is there."""
    discipline = change.shape.discipline
    if was.state != TaskState.READY or not isinstance(discipline, (Fifo, Keyed)):
        return lambda: True
    found = change.tr.snapshot.get(discipline.filed(was))
    return lambda: bool(found.present())


def _ask_place(change: Change, was: Record) -> Later[TaskPlace | None]:
    discipline, most = change.shape.discipline, limits.EXPLAINED_MAX
    if was.state == TaskState.READY and isinstance(discipline, Keyed):
        return ask_place(discipline, change.shape.keys, change.tr, was, most)
    if was.state == TaskState.READY and isinstance(discipline, Bag):
        return _ask_others(change, discipline, most)
    under = _before(change, was)
    if under is None:
        return lambda: lambda: None
    found = change.tr.snapshot.get_range(under.start, under.stop, limit=most, streaming_mode=EXACT)
    return lambda: lambda: TaskPlace(ahead=len(found.to_list()))


def _ask_others(change: Change, bag: Bag, limit: int) -> Later[TaskPlace | None]:
    """Ask for all other ready tasks of a bag, counted up to `limit`."""
    ready, more = bag.index, limit + 1
    found = change.tr.snapshot.get_range(ready.start, ready.stop, limit=more, streaming_mode=EXACT)
    return lambda: lambda: TaskPlace(ahead=len(found.to_list()) - 1, in_any_order=True)


def _before(change: Change, was: Record) -> slice | None:
    """The entries before a buried task, or before a ready task in a queue without task keys."""
    discipline, keys = change.shape.discipline, change.shape.keys
    if was.state == TaskState.BURIED:
        return slice(keys.buried.start, keys.buried_at(discipline.place(was)))
    if was.state == TaskState.READY and isinstance(discipline, Lanes):
        return discipline.before(was)
    if was.state == TaskState.READY and isinstance(discipline, Fifo):
        return slice(keys.ready.start, discipline.filed(was))
    return None


def _ask_key_holders(change: Change, was: Record) -> Later[tuple[KeyHolder, ...]]:
    """Ask for the taken tasks of the task's key, among the first limits.EXPLAINED_MAX that are taken."""
    discipline, keys = change.shape.discipline, change.shape.keys
    if was.state != TaskState.READY or not (isinstance(discipline, Keyed) and discipline.counts_taken):
        return lambda: lambda: ()
    taken = change.tr.snapshot.get_range(
        keys.taken.start, keys.taken.stop, limit=limits.EXPLAINED_MAX, streaming_mode=EXACT
    )

    def ask() -> Callable[[], tuple[KeyHolder, ...]]:
        of_key = [bytes(row.key) for row in taken.to_list() if row.value == was.key]
        return _ask_each(change, of_key[: limits.EXPLAINED_HOLDERS])

    return ask


def _ask_each(change: Change, taken: Sequence[bytes]) -> Callable[[], tuple[KeyHolder, ...]]:
    snapshot, keys, root = change.tr.snapshot, change.shape.keys, change.shape.root
    asked = [
        (id_in(key), snapshot.get(keys.task(id_in(key))), ask_holder(snapshot, root, keys.taker_in(key)))
        for key in taken
    ]
    return lambda: tuple(_key_holder(id_, stored.value, holder()) for id_, stored, holder in asked)


def _key_holder(id_: bytes, stored: bytes | None, holder: Holder) -> KeyHolder:
    record = sound_record(stored, id_)
    if record is None:
        return KeyHolder(id_text(id_), None, None, holder)
    task = task_of(record, None)
    if task.handed_to is not None:
        holder = replace(holder, name=f"the hand-off to {task.handed_to or 'the outside'}", dies=task.until)
    return KeyHolder(task.id, task.taken, task.until, holder)
