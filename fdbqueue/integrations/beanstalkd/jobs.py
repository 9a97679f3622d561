"""Jobs and tubes: the effects of commands on the tasks of queues, in an attempt at a transaction.

A tube is a task queue named `beanstalkd/` and the name of the tube, of the kind fifottl, with bytes as data.
It is made by its first put or reserve. A connection holds a job by the lease of its task, which belongs to
the session of this process. So the jobs of a dead server come back as the tasks of any dead worker.

A verb changes nothing if there is no such job, or if the connection does not hold it any more: then its
answer is None or false.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple, TypeVar

from fdb.subspace_impl import Subspace
from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, NotTaken, QueueDropped, QueueNotFound, TaskNotFound
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Event
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
TUBES_OPEN_MAX = 10_000
SECOND_US = 1_000_000


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


class Attempt(NamedTuple):
    """One attempt at a transaction of commands."""

    tr: Transaction
    session: Session
    numbers: Iterator[int]
    """New numbers, the same ones in each attempt."""


class Jobs:
    """The jobs of one database and root."""

    def __init__(self, database: Database, root: Any) -> None:
        self.database = database
        self.root_keys = RootKeys(root)
        self.root = Subspace((), self.root_keys.prefix)
        self.keys = JobKeys(self.root_keys)
        self._queues: dict[str, TaskQueue] = {}

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
                del self._queues[next(iter(self._queues))]
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

    def wait(self, tube: str, count: int, stop: Event) -> Sequence[Task]:
        """Take at most `count` tasks, as soon as there is one. Raises: WaitStopped."""
        return self.queue(tube).take_many(self.database, count, None, stop=stop)

    # Verbs about many jobs of one tube, or of several.

    def put(self, attempt: Attempt, tubes: Sequence[str], jobs: Sequence[New]) -> list[int]:
        """Put jobs into a tube. Return their numbers."""
        [tube] = tubes
        tasks = self.calls(tube).put_within(attempt.tr, [self._draft(tube, job) for job in jobs])
        return [
            self._new_number(attempt, Row(tube, id_bytes(task.id), _delay_of(job.delay_s)))
            for task, job in zip(tasks, jobs, strict=True)
        ]

    def _draft(self, tube: str, job: New) -> Any:
        ttr_s = min(max(job.ttr_s, 1), limits.SPAN_MAX_S)
        options = {"pri": job.pri, "delay": _delay_of(job.delay_s), "ttr": ttr_s}
        return self.queue(tube)._draft(job.body, options)

    def take(self, attempt: Attempt, tubes: Sequence[str], asking: Sequence[Any]) -> list[Taken | None]:
        """Take the first jobs of these tubes, as many as reserves ask; None for each that finds none."""
        if len(tubes) == 1:
            found = self._take(attempt, tubes[0], len(asking))
        else:
            found = list(islice(self._take_best(attempt, tubes), len(asking)))
        return [*found, *[None] * (len(asking) - len(found))]

    def _take_best(self, attempt: Attempt, tubes: Sequence[str]) -> Iterator[Taken]:
        """Take the first jobs of several tubes, one at a time."""
        parts, now_us = {tube: self.parts(tube) for tube in tubes}, self.database.runtime.now_us()
        while True:
            places = finding.best_first(attempt.tr, parts, now_us)
            taken = next(filter(None, (self._take(attempt, tube, 1) for tube in places)), None)
            if taken is None:
                return
            yield from taken

    def _take(self, attempt: Attempt, tube: str, count: int) -> list[Taken]:
        tasks = self.calls(tube).take_within(attempt.tr, count, attempt.session)
        return self.numbered(attempt, (tube,), tasks)

    def numbered(self, attempt: Attempt, tubes: Sequence[str], tasks: Sequence[Task]) -> list[Taken]:
        """The jobs of tasks that were taken."""
        [tube] = tubes
        numbers = self._numbers(attempt, tube, [id_bytes(task.id) for task in tasks])
        return [taken_of(tube, task, number) for task, number in zip(tasks, numbers, strict=True)]

    def _numbers(self, attempt: Attempt, tube: str, ids: Sequence[bytes]) -> list[int]:
        """The numbers of tasks. A task that a program has put gets one."""
        stored = zip(ids, self.keys.numbers(attempt.tr, ids), strict=True)
        return [number or self._new_number(attempt, Row(tube, id_, 0)) for id_, number in stored]

    def _new_number(self, attempt: Attempt, row: Row) -> int:
        number = next(attempt.numbers)
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
            self.keys.clear(attempt.tr, held.number, row)
        return done

    # Verbs of the connection that holds the job.

    def release(self, attempt: Attempt, held: Held, pri: int, delay_s: int) -> bool:
        delay_s = _delay_of(delay_s)
        release = partial(edges.release, delay_us=delay_s * SECOND_US, snoozed=True)
        return self._end(
            attempt.tr, held, pri, release, lambda row: {"delay_s": delay_s, "releases": row.releases + 1}
        )

    def bury(self, attempt: Attempt, held: Held, pri: int) -> bool:
        now_us = self.database.runtime.now_us()
        return self._end(
            attempt.tr, held, pri, edges.bury, lambda row: {"buries": row.buries + 1, "buried_us": now_us}
        )

    def _end(
        self,
        tr: Transaction,
        held: Held,
        pri: int,
        edge: Callable[[Change, list[Record]], Any],
        noted: Callable[[Row], dict[str, int]],
    ) -> bool:
        """Change a job by `edge`, with another priority. `noted` has the changes of its row."""

        def verb(change: Change) -> None:
            edge(change, [replace(verbs.held(change, held.target), pri=pri)])

        try:
            self.parts(held.tube).within(tr, verb, held.target.id)
        except NotTaken:
            return False
        row = self.keys.rows(tr, [held.number])[0] or Row(held.tube, held.target.id, 0)
        self.keys.change(tr, held.number, row, **noted(row))
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
            self.keys.clear(attempt.tr, number, row)
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
        if row is None:
            return None
        return self._with_task(
            tr, row, lambda change: verb(change, verbs.present(change, Target(row.task)), row)
        )

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
            for one, edge in ((BURIED, edges.kick), (DELAYED, edges.due)):
                for change in changes if state in ("", one) else ():
                    kicked += edge(change, self._first(change, tube, one, count - len(kicked)))
                if kicked or state == one:
                    return kicked, one
            return kicked, DELAYED

        kicked, had = self.parts(tube).all_within(attempt.tr, kick) if count else ([], DELAYED)
        found = self.keys.numbers(attempt.tr, [record.id for record in kicked])
        numbers = [number for number in found if number is not None]
        for number, row in zip(numbers, self.keys.rows(attempt.tr, numbers), strict=True):
            if row is not None:
                self.keys.change(attempt.tr, number, row, kicks=row.kicks + 1)
        return len(kicked), had

    def first(self, attempt: Attempt, tube: str, state: str) -> tuple[int, bytes] | None:
        """Number and body of the first job of a tube in a state."""

        def look(changes: Sequence[Change]) -> tuple[Record, bytes] | None:
            found = [(change, record) for change in changes for record in self._first(change, tube, state, 1)]
            if not found:
                return None
            change, record = min(found, key=lambda pair: finding.order(pair[1]))
            return record, ask_payload(attempt.tr, change.shape.keys, record)()

        found = self.parts(tube).look_at_all(attempt.tr, look)
        if found is None:
            return None
        record, body = found
        return self._numbers(attempt, tube, [record.id])[0], body

    def _first(self, change: Change, tube: str, state: str, count: int) -> list[Record]:
        if state == BURIED:
            return finding.first_buried(self.keys, tube, change, count)
        return (finding.first_ready if state == READY else finding.first_delayed)(change, count)

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


def _delay_of(seconds: int) -> int:
    return min(seconds, int(limits.SPAN_MAX_S))


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
