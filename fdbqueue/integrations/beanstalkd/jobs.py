"""Jobs and tubes: the effects of commands on the tasks of queues, in an attempt at a transaction.

A tube is a task queue named `beanstalkd/` and the name of the tube, of the kind fifottl, with bytes as data.
It is made by its first put or reserve. A connection holds a job by the lease of its task, which belongs to
the session of this process. So the jobs of a dead server come back as the tasks of any dead worker.

A verb changes nothing if there is no such job, or if the connection does not hold it any more: then its
answer is None or false.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace
from msgspec import Struct, field
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, NotTaken, QueueDropped, QueueNotFound, TaskNotFound
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session, own_session_of
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN, Task
from fdbqueue.integrations.beanstalkd import finding
from fdbqueue.integrations.beanstalkd.keys import JobKeys, Row
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.calls import TaskCalls
from fdbqueue.tasks.change import Change, ask_payload, task_of
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import Record, id_bytes
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")

QUEUE_PREFIX = "beanstalkd/"
NUMBERS_KNOWN_MAX = 50_000
TUBES_OPEN_MAX = 10_000
SECOND_US = 1_000_000

_First = Callable[[Change, int], list[Record]]
_FIRST: Mapping[str, _First] = {READY: finding.first_ready, DELAYED: finding.first_delayed}


class New(Struct, frozen=True):
    """A job of a put. Times are whole seconds."""

    body: bytes
    pri: int
    delay_s: int
    ttr_s: int


class Held(Struct, eq=False):
    """A job that a connection holds."""

    number: int
    tube: str
    target: Target
    until: float
    """The end of its lease, in seconds since the epoch."""
    again: bool
    """True if it was reserved before: a burial of it may have a row still."""


class Taken(Struct, frozen=True):
    """A job that was reserved just now."""

    held: Held
    body: bytes


class Attempt(Struct, eq=False):
    """One attempt at a transaction of commands."""

    tr: Transaction
    session: Session
    numbers: Iterator[int]
    """New numbers, the same ones in each attempt."""
    noted: dict[bytes, int] = field(default_factory=dict)
    """The numbers of the tasks that it has met, which may be remembered if it commits."""


class Jobs:
    """The jobs of one database and root."""

    def __init__(self, database: Database, root: Any) -> None:
        self.database = database
        self.root_keys = RootKeys(root)
        self.root = Subspace((), self.root_keys.prefix)
        self.keys = JobKeys(self.root_keys)
        self._queues: OrderedDict[str, TaskQueue] = OrderedDict()
        self._known: OrderedDict[bytes, int] = OrderedDict()

    # Outside of a transaction.

    def queue(self, tube: str, make: bool = True) -> TaskQueue:
        """The queue of a tube. Raises: InvalidArgument for a queue that is no tube; QueueNotFound if there is
        none, and it is not to be made.
        """
        found = self._queues.get(tube)
        if found is None:
            database, name, root = self.database, QUEUE_PREFIX + tube, self.root
            if make:
                found = TaskQueue.create(
                    database, name, "fifottl", codec="bytes", if_not_exists="any", root=root
                )
            else:
                found = TaskQueue.open(database, name, root=root)
            if found.kind not in ("fifottl", "limfifottl") or found.options.get("codec") != "bytes":
                raise InvalidArgument(name="tube", wanted="a queue of kind fifottl with bytes", got=name)
            self._queues[tube] = found
            if len(self._queues) > TUBES_OPEN_MAX:
                self._queues.popitem(last=False)
        return found

    def forget(self, tube: str) -> None:
        """Open the queue of a tube anew: it was dropped."""
        self._queues.pop(tube, None)

    def calls(self, tube: str, make: bool = True) -> TaskCalls:
        return self.queue(tube, make)._calls(self.database)

    def parts(self, tube: str) -> Parts:
        return self.calls(tube).parts

    def session(self) -> Session:
        return own_session_of(self.database, self.root_keys).get()

    def remember(self, noted: Mapping[bytes, int]) -> None:
        """Remember the numbers of tasks, which saves reads at reserves."""
        self._known.update(noted)
        while len(self._known) > NUMBERS_KNOWN_MAX:
            self._known.popitem(last=False)

    # Verbs about many jobs of one tube, or of several.

    def put(self, attempt: Attempt, tubes: Sequence[str], jobs: Sequence[New]) -> list[int]:
        """Put jobs into a tube. Return their numbers."""
        [tube] = tubes
        spans = [min(job.delay_s, int(limits.SPAN_MAX_S)) for job in jobs]
        draft, found = self.queue(tube)._draft, list[int]()
        drafts = [
            draft(job.body, {"pri": job.pri, "delay": delay_s, "ttr": _ttr_of(job)})
            for job, delay_s in zip(jobs, spans, strict=True)
        ]
        tasks = self.calls(tube).put_within(attempt.tr, drafts)
        for task, delay_s in zip(tasks, spans, strict=True):
            found.append(self._new_number(attempt, Row(tube, id_bytes(task.id), delay_s)))
        return found

    def take(self, attempt: Attempt, tubes: Sequence[str], asking: Sequence[Any]) -> list[Taken | None]:
        """Take the first jobs of these tubes, as many as reserves ask; None for each that finds none."""
        found: list[Taken] = []
        if len(tubes) == 1:
            found = self._take(attempt, tubes[0], len(asking))
        else:
            parts, now_us = {tube: self.parts(tube) for tube in tubes}, self.database.runtime.now_us()
            while len(found) < len(asking):
                taken = self._take_best(attempt, finding.best_first(attempt.tr, parts, now_us))
                if not taken:
                    break
                found += taken
        return [*found, *[None] * (len(asking) - len(found))]

    def _take_best(self, attempt: Attempt, tubes: Sequence[str]) -> list[Taken]:
        return next(filter(None, (self._take(attempt, tube, 1) for tube in tubes)), [])

    def _take(self, attempt: Attempt, tube: str, count: int) -> list[Taken]:
        tasks = self.calls(tube).take_within(attempt.tr, count, attempt.session)
        return self.numbered(attempt, (tube,), tasks)

    def numbered(self, attempt: Attempt, tubes: Sequence[str], tasks: Sequence[Task]) -> list[Taken]:
        """The jobs of tasks that were taken. A task that a program has put gets a number."""
        [tube] = tubes
        numbers = self._numbers(attempt, tube, [id_bytes(task.id) for task in tasks])
        return [taken_of(tube, task, number) for task, number in zip(tasks, numbers, strict=True)]

    def known(self, tube: str, task: Task) -> Taken | None:
        """The job of a task that was taken, if its number is known."""
        number = self._known.get(id_bytes(task.id))
        return None if number is None else taken_of(tube, task, number)

    def _numbers(self, attempt: Attempt, tube: str, ids: Sequence[bytes]) -> list[int]:
        unknown = [id_ for id_ in ids if id_ not in self._known]
        stored = dict(zip(unknown, self.keys.numbers(attempt.tr, unknown), strict=True))
        for id_ in ids:
            number = self._known.get(id_) or stored[id_]
            attempt.noted[id_] = number or self._new_number(attempt, Row(tube, id_, 0))
        return [attempt.noted[id_] for id_ in ids]

    def _new_number(self, attempt: Attempt, row: Row) -> int:
        number = attempt.noted[row.task] = next(attempt.numbers)
        self.keys.add(attempt.tr, number, row)
        return number

    def delete_held(self, attempt: Attempt, tubes: Sequence[str], helds: Sequence[Held]) -> list[bool]:
        """Delete jobs of one tube that connections hold. True for each that is gone."""
        targets = [held.target for held in helds]
        acked = self.parts(tubes[0]).each(attempt.tr, targets, verbs.ack_each)
        done = [not isinstance(answer, NotTaken) for answer in acked]
        gone = [held for held, is_done in zip(helds, done, strict=True) if is_done]
        again = [held.number for held in gone if held.again]
        rows = dict(zip(again, self.keys.rows(attempt.tr, again), strict=True))
        for held in gone:
            row = rows.get(held.number) or Row(held.tube, held.target.id, 0)
            self.keys.clear_any(attempt.tr, held.number, row)
        return done

    # Verbs of the connection that holds the job.

    def release(self, attempt: Attempt, held: Held, pri: int, delay_s: int) -> bool:
        delay_s = min(delay_s, int(limits.SPAN_MAX_S))

        def release(change: Change, record: Record) -> None:
            edges.release(change, [replace(record, pri=pri)], delay_s * SECOND_US, snoozed=True)

        return self._end(
            attempt.tr, held, release, lambda row: {"delay_s": delay_s, "releases": row.releases + 1}
        )

    def bury(self, attempt: Attempt, held: Held, pri: int) -> bool:
        now_us = self.database.runtime.now_us()

        def bury(change: Change, record: Record) -> None:
            edges.bury(change, [replace(record, pri=pri)])

        return self._end(attempt.tr, held, bury, lambda row: {"buries": row.buries + 1, "buried_us": now_us})

    def _end(
        self,
        tr: Transaction,
        held: Held,
        edge: Callable[[Change, Record], None],
        changes: Callable[[Row], dict[str, int]],
    ) -> bool:
        def verb(change: Change) -> None:
            edge(change, verbs.held(change, held.target))

        try:
            self.parts(held.tube).within(tr, verb, held.target.id)
        except NotTaken:
            return False
        [stored] = self.keys.rows(tr, [held.number])
        row = stored or Row(held.tube, held.target.id, 0)
        self.keys.change(tr, held.number, row, **changes(row))
        return True

    def touch(self, attempt: Attempt, held: Held) -> float | None:
        """The new end of the lease."""
        [lease] = self.parts(held.tube).each(attempt.tr, [held.target], verbs.renew)
        return None if lease is None else _end_of(lease.until)

    def give_back(self, attempt: Attempt, tube: str, targets: Sequence[Target], seen: bool) -> None:
        """Release the jobs of a connection that has gone. If it has `seen` them, their reserves count."""
        self.parts(tube).each(attempt.tr, targets, _release if seen else verbs.undo_take)

    # Verbs about any job.

    def reserve_job(self, attempt: Attempt, number: int, token: bytes) -> Taken | None:
        """Take a job in whatever state but reserved. `token`: random bytes that no other lease has."""

        def take(change: Change, record: Record, row: Row) -> Taken | None:
            if record.state == TAKEN or change.shape.starting or record.cancelled_us:
                return None
            check, ready = attempt.session.ask(attempt.tr), _made_ready(change, record)
            body = ask_payload(attempt.tr, change.shape.keys, record)
            check()
            [taken] = edges.take(change, [ready], Lease(attempt.session.id, token))
            if row.buried_us:
                self.keys.change(attempt.tr, number, row)
            return taken_of(row.tube, task_of(taken, body()), number)

        return self._about(attempt.tr, number, take)

    def delete(self, attempt: Attempt, number: int) -> str | None:
        """Delete a job that is not reserved. Return its tube."""

        def delete(change: Change, record: Record, row: Row) -> str | None:
            if record.state == TAKEN:
                return None
            edges.delete(change, [record])
            self.keys.clear_any(attempt.tr, number, row)
            return row.tube

        return self._about(attempt.tr, number, delete)

    def kick_job(self, attempt: Attempt, number: int) -> bool | None:
        def kick(change: Change, record: Record, row: Row) -> bool:
            waits = record.extra is not None and record.extra.waits  # for a group of a program
            if record.state not in (BURIED, DELAYED) or waits:
                return False
            (edges.kick if record.state == BURIED else edges.due)(change, [record])
            self.keys.change(attempt.tr, number, row, kicks=row.kicks + 1)
            return True

        return self._about(attempt.tr, number, kick)

    def look(self, attempt: Attempt, number: int) -> tuple[int, Row, Record, bytes] | None:
        """A job: its number, its row, its record as it is now, and its body."""

        def look(change: Change, record: Record, row: Row) -> tuple[int, Row, Record, bytes]:
            return number, row, record, ask_payload(attempt.tr, change.shape.keys, record)()

        return self._about(attempt.tr, number, look)

    def _about(
        self, tr: Transaction, number: int, verb: Callable[[Change, Record, Row], T | None]
    ) -> T | None:
        """Run the verb about the task of a job, swept; None if there is none."""
        [row] = self.keys.rows(tr, [number])
        return None if row is None else self._with_task(tr, row, partial(_run, verb, row))

    def _with_task(self, tr: Transaction, row: Row, verb: Callable[[Change], T]) -> T | None:
        try:
            return self.calls(row.tube, make=False).parts.within(tr, verb, row.task)
        except TaskNotFound:
            return None
        except (QueueDropped, QueueNotFound):
            self.forget(row.tube)
            return None

    # Verbs about the first jobs of a tube.

    def kick(self, attempt: Attempt, tube: str, count: int, state: str = "") -> tuple[int, str]:
        """Kick the first buried jobs; without one, the first delayed jobs. At most limits.VERB_BATCH. Return
        their number, and the state that they had. `state`: that of the jobs to kick.
        """
        count = min(count, limits.VERB_BATCH)

        def kick(changes: Sequence[Change]) -> tuple[list[Record], str]:
            kicked: list[Record] = []
            for change in changes if state != DELAYED else ():
                kicked += edges.kick(change, self._first(tube, BURIED)(change, count - len(kicked)))
            if kicked or state == BURIED:
                return kicked, BURIED
            for change in changes:
                kicked += edges.due(change, finding.first_delayed(change, count - len(kicked)))
            return kicked, DELAYED

        if not count:
            return 0, DELAYED
        kicked, had = self.parts(tube).all_within(attempt.tr, kick)
        found = self.keys.numbers(attempt.tr, [record.id for record in kicked])
        numbers = [number for number in found if number is not None]
        for number, row in zip(numbers, self.keys.rows(attempt.tr, numbers), strict=True):
            if row is not None:
                self.keys.change(attempt.tr, number, row, kicks=row.kicks + 1)
        return len(kicked), had

    def first(self, attempt: Attempt, tube: str, state: str) -> tuple[int, bytes] | None:
        """Number and body of the first job of a tube in a state."""

        def look(changes: Sequence[Change]) -> tuple[Record, bytes] | None:
            found = [(change, record) for change in changes for record in self._first(tube, state)(change, 1)]
            if not found:
                return None
            change, record = min(found, key=lambda pair: finding.order(pair[1]))
            return record, ask_payload(attempt.tr, change.shape.keys, record)()

        found = self.parts(tube).look_at_all(attempt.tr, look)
        if found is None:
            return None
        record, body = found
        return self._numbers(attempt, tube, [record.id])[0], body

    def _first(self, tube: str, state: str) -> _First:
        return _FIRST.get(state) or partial(finding.first_buried, self.keys, tube)

    def urgent(self, attempt: Attempt, tube: str) -> int:
        return self.parts(tube).look_at_all(attempt.tr, finding.urgent)

    def clear_stale(self, tr: Transaction, after: int, count: int) -> int:
        """Clear the rows of jobs without a task, among `count` of them. Return the number from which the next
        call goes on, 0 for the first.
        """
        looked_at = self.keys.clear_stale(tr, after, count, partial(self._has_task, tr))
        return looked_at[-1] if len(looked_at) == count else 0

    def _has_task(self, tr: Transaction, row: Row) -> bool:
        def has(change: Change) -> bool:
            return change.read([row.task]) != [None] or row.task in change.damaged

        return bool(self._with_task(tr, row, has))


def _run(verb: Callable[[Change, Record, Row], T], row: Row, change: Change) -> T:
    return verb(change, verbs.present(change, Target(row.task)), row)


def _ttr_of(job: New) -> float:
    return min(max(job.ttr_s, 1), limits.SPAN_MAX_S)


def _end_of(until: float | None) -> float:
    return inf if until is None else until


def taken_of(tube: str, task: Task, number: int) -> Taken:
    target = Target(id_bytes(task.id), task.token, data=b"")
    return Taken(Held(number, tube, target, _end_of(task.until), task.attempts > 1), task.data)


def _made_ready(change: Change, record: Record) -> Record:
    if record.state == READY:
        return record
    return (
        edges.kick(change, [record]) if record.state == BURIED else edges.due(change, [record], stays=True)
    )[0]


def _release(change: Change, targets: Sequence[Target]) -> Sequence[None]:
    edges.release(change, verbs.still_held(change, targets))
    return [None] * len(targets)
