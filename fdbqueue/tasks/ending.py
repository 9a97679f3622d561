"""The end of a session in task queues: its leases are over, and its temporary queues are emptied."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, is_away, run
from fdbqueue.core.errors import DefinitionUnreadable, QueueNotFound
from fdbqueue.core.logger import logger
from fdbqueue.core.partitions import plan_of
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.sessions.ending import SESSIONLESS
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks import failures, verbs
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.options import is_kind
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.records import TaskKeys

_log = logger("fdbqueue")


@dataclass(frozen=True)
class _Queue:
    """What may hold something for a session. Without a `shape` this process cannot end anything in it."""

    name: str
    keys: TaskKeys
    shape: Shape | None

    def owner(self) -> bytes | None:
        return None if self.shape is None or self.keys.partition else self.shape.owner


def end_in_all_queues(
    database: Database, keys: RootKeys, sessions: Mapping[bytes, str], died: bool
) -> set[bytes]:
    """End sessions in every queue, in bounded transactions that are safe to repeat.

    Returns the sessions that still hold something: in queues of a kind unknown here, or in a queue that
    fails. If the sessions `died`, their attempts have failed, and the log tells the process of each.
    """
    registry = Registry(keys)
    left, released = set[bytes](), Counter[bytes]()
    after = ""
    while found := registry.names(database, after, limits.QUEUES_PER_TRANSACTION):
        after = found[-1].name
        known = [queue for queue in found if is_kind(queue.kind)]
        if any(not is_kind(queue.kind) and queue.kind not in SESSIONLESS for queue in found):
            left.update(sessions)
        queues = [queue for definition in known for queue in _opened(database, registry, definition)]
        # One transaction can ask for the holdings of each session in that number.
        count = max(1, limits.HOLDINGS_ASKED_MAX // (1 + len(sessions)))
        for begin in range(0, len(queues), count):
            held = run(database, partial(_concerned, queues[begin : begin + count], [*sessions]))
            for queue, session in held:
                count_there = _ended_in(database, queue, session, died, sessions[session])
                left.update(() if count_there is not None else (session,))
                released[session] += count_there or 0
            keeper_of(database, keys).beat()  # some seconds may pass, of queues with many partitions
    for session, tasks in released.items() if died else ():
        process = sessions[session] or f"the session {session.hex()}"
        _log.warning("%s has died, and held %d of the tasks that are released", process, tasks)
    return left


def held_by(database: Database, keys: RootKeys, sessions: Sequence[bytes]) -> dict[bytes, int]:
    """The numbers of tasks that sessions hold, each up to limits.EXPLAINED_MAX in a partition, in the first
    limits.QUEUES_PER_TRANSACTION queues. Reads: their taken tasks, by snapshot. Round trips: 2.
    """
    registry = Registry(keys)
    found = registry.names(database, "", limits.QUEUES_PER_TRANSACTION)
    known = [definition for definition in found if is_kind(definition.kind)]
    queues = [queue.keys for definition in known for queue in _opened(database, registry, definition)]

    def counts(tr: Transaction) -> dict[bytes, int]:
        under = {session: [queue.all_taken_by(session) for queue in queues] for session in sessions}
        asked = {
            session: [tr.snapshot.get_range(own.start, own.stop, limit=limits.EXPLAINED_MAX) for own in each]
            for session, each in under.items()
        }
        return {session: sum(len(rows.to_list()) for rows in each) for session, each in asked.items()}

    return run(database, counts, timeout_s=limits.LOOK_TIMEOUT_S)


def _opened(database: Database, registry: Registry, definition: Definition) -> list[_Queue]:
    """The partitions of a queue that may hold a task."""
    numbers = range(_high(definition))
    try:
        shape = shape_of(registry, definition)
        parts = [shape.partition(number) for number in numbers]
        return [_Queue(definition.name, part.keys, part) for part in parts]
    except Exception as error:
        _tell(database, definition.name, error)
        contents = registry.contents(definition)
        return [_Queue(definition.name, TaskKeys(contents, number), None) for number in numbers]


def _high(definition: Definition) -> int:
    """Partitions from this number on hold nothing, as far as the definition can be read."""
    try:
        plan = plan_of(definition)
    except DefinitionUnreadable:
        return limits.PARTITIONS_MAX
    return 1 if plan is None else plan.high


def _tell(database: Database, name: str, error: Exception) -> None:
    database.troubles.met(_log, f"what dead sessions hold in the queue {name!r} is not released yet", error)


def _concerned(
    queues: Sequence[_Queue], sessions: Sequence[bytes], tr: Transaction
) -> list[tuple[_Queue, bytes]]:
    """The queues that hold something for a session, each with that session. Reads: by snapshot."""
    asked = [
        tr.snapshot.get_range(queue.keys.taken.start, queue.keys.taken.stop, limit=limits.TAKEN_READ_MAX)
        for queue in queues
    ]
    held = [
        _holders(tr, queue.keys, taken.to_list(), sessions)
        for queue, taken in zip(queues, asked, strict=True)
    ]
    return [
        (queue, session)
        for queue, holders in zip(queues, held, strict=True)
        for session in sessions
        if session in holders or session == queue.owner()
    ]


def _holders(
    tr: Transaction, keys: TaskKeys, taken: Sequence[KeyValue], sessions: Sequence[bytes]
) -> set[bytes]:
    """Those of the sessions that hold a task, judged by the first tasks that are `taken`."""
    if len(taken) < limits.TAKEN_READ_MAX:  # these are all
        return {keys.taker_in(entry.key) for entry in taken}
    under = {session: keys.all_taken_by(session) for session in sessions}
    asked = {session: tr.snapshot.get_range(own.start, own.stop, limit=1) for session, own in under.items()}
    return {session for session, own in asked.items() if own.to_list()}


def _ended_in(database: Database, queue: _Queue, session: bytes, died: bool, process: str) -> int | None:
    """The number of its tasks there; None if the queue still holds something for the session."""
    if queue.shape is None:
        return None
    try:
        return end_in(database, queue.shape, session, died, process)
    except QueueNotFound:
        return 0
    except Exception as error:
        if is_away(error):
            raise
        _tell(database, queue.name, error)
        return None


def end_in(database: Database, shape: Shape, session: bytes, died: bool, process: str = "") -> int:
    """End a session of a `process` in one queue, in bounded transactions that are safe to repeat. Return the
    number of its tasks there.
    """
    parts = calls_of(database, shape.partition(0)).parts  # its first use makes the services of the queue
    if shape.owner == session:
        run(database, lambda tr: parts.all_within(tr, verbs.truncate_in_all))
        for _ in shape.limits.walk_out(database) if shape.limits is not None else ():
            keeper_of(database, shape.root).beat()
    number, failure, found = shape.keys.partition, failures.holder_died(process) if died else None, 0

    def release(count: int) -> int:
        def verb(change: Change) -> int:
            return verbs.release_taken(change, shape.keys.all_taken_by(session), count, failure)

        return run(database, lambda tr: parts.part(number).within(tr, verb, parts.plan))

    for tasks in verbs.in_batches(release):
        found += tasks
        keeper_of(database, shape.root).beat()  # hundreds of dead sessions may hold thousands of tasks each
    return found
