"""Jobs and tubes, each verb in a transaction: the effect of a command on the tasks of a queue.

A tube is a task queue named `beanstalkd/` and the name of the tube, of the kind fifottl, with bytes as data.
It is made by its first put or reserve. A connection holds a job by the lease of its task, which belongs to
the session of this process. So the jobs of a dead server come back as the tasks of any dead worker.

Verbs take a transaction, and change nothing if they answer NOT_FOUND.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace
from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, at_pace, run
from fdbqueue.core.errors import InvalidArgument, NotTaken, TaskNotFound
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session, own_session_of
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN, Task
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.keys import JobKeys, Row
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.calls import TaskCalls
from fdbqueue.tasks.change import Change, ask_payload, task_of
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import NUMBER, Record, id_bytes, id_in
from fdbqueue.tasks.verbs import Target

QUEUE_PREFIX = "beanstalkd/"
URGENT = 1024
"""Jobs of a smaller priority are urgent."""
BLOCK = 1_000
"""Numbers that a server reserves at a time."""
NUMBERS_KNOWN_MAX = 50_000
TUBES_OPEN_MAX = 10_000
URGENT_COUNTED_MAX = 1_000
TIMERS_LOOKED_AT_MAX = 2_000
SECOND_US = 1_000_000

Numbers = Iterator[int]
"""New numbers, the same ones in each attempt at a transaction."""


class New(NamedTuple):
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


class Taken(Struct, frozen=True):
    """A job that was reserved just now."""

    held: Held
    body: bytes


class Jobs:
    """The jobs of one database and root, for one server."""

    def __init__(self, database: Database, root: Any) -> None:
        self.database = database
        self.root = Subspace((), RootKeys(root).prefix)
        self.root_keys = RootKeys(root)
        self.keys = JobKeys(self.root_keys)
        self._next = self._stop = 0
        self._queues: OrderedDict[str, TaskQueue] = OrderedDict()
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._noted: dict[bytes, int] = {}

    # Outside of the transaction of a verb.

    def queue(self, tube: str) -> TaskQueue:
        """The queue of a tube, made if there is none. Raises: InvalidArgument for a queue that is no tube."""
        found = self._queues.get(tube)
        if found is None:
            name, root = QUEUE_PREFIX + tube, self.root
            found = TaskQueue.create(
                self.database, name, "fifottl", codec="bytes", if_not_exists="any", root=root
            )
            if found.kind not in ("fifottl", "limfifottl") or found.options.get("codec") != "bytes":
                raise InvalidArgument(name="tube", wanted="a queue of kind fifottl with bytes", got=name)
            self._queues[tube] = found
            while len(self._queues) > TUBES_OPEN_MAX:
                self._queues.popitem(last=False)
        return found

    def forget(self, tube: str) -> None:
        """Open the queue of a tube anew: it was dropped."""
        self._queues.pop(tube, None)

    def calls(self, tube: str) -> TaskCalls:
        return self.queue(tube)._calls(self.database)

    def session(self) -> Session:
        return own_session_of(self.database, self.root_keys).get()

    def require_numbers(self, count: int) -> int:
        """Have at least `count` new numbers. Return the first."""
        if self._stop - self._next < count:
            more = max(BLOCK, count)
            first = run_once(self.database, self.root_keys, lambda tr: self.keys.reserve_numbers(tr, more))
            if first != self._stop:
                self._next = first
            self._stop = first + more
        return self._next

    def use_numbers(self, count: int) -> None:
        """They are used, or lost: as those of a put without the end of its body."""
        self._next += count

    def begin(self) -> None:
        """Begin an attempt at a transaction: the notes of an earlier one may not be stored."""
        self._noted.clear()

    def keep_noted(self) -> None:
        """The attempt has committed: remember the numbers of its tasks, which saves reads at reserves."""
        self._known.update(self._noted)
        while len(self._known) > NUMBERS_KNOWN_MAX:
            self._known.popitem(last=False)

    # Put, and the ways to get a job.

    def put(self, tr: Transaction, tube: str, jobs: Sequence[New], numbers: Numbers) -> list[int]:
        drafts = [self._draft(tube, *job) for job in jobs]
        tasks = self.calls(tube).put_within(tr, drafts)
        found = list(islice(numbers, len(tasks)))
        for task, draft, number in zip(tasks, drafts, found, strict=True):
            id_ = id_bytes(task.id)
            self.keys.add(tr, number, Row(tube, id_, draft.delay_us // SECOND_US))
            self._noted[id_] = number
        return found

    def _draft(self, tube: str, body: bytes, pri: int, delay_s: int, ttr_s: int) -> Draft:
        spans = {"delay": min(delay_s, limits.SPAN_MAX_S), "ttr": min(max(ttr_s, 1), limits.SPAN_MAX_S)}
        return self.queue(tube)._draft(body, {"pri": pri, **spans})

    def take(self, tr: Transaction, tube: str, count: int, session: Session, numbers: Numbers) -> list[Taken]:
        return self.numbered(tr, tube, self.calls(tube).take_within(tr, count, session), numbers)

    def take_best(
        self, tr: Transaction, tubes: Sequence[str], session: Session, numbers: Numbers
    ) -> list[Taken]:
        """Take the first job of several tubes; none if they have none."""
        heads = {tube: self._head(tr, tube) for tube in tubes}
        for tube in sorted(tubes, key=lambda tube: heads[tube]):
            found = self.take(tr, tube, 1, session, numbers)
            if found:
                return found
        return []

    def _head(self, tr: Transaction, tube: str) -> tuple[float, float]:
        """Priority and time of the first ready job: the smallest is the next one."""

        def first(changes: Sequence[Change]) -> tuple[float, float]:
            heads = [record for change in changes for record in change.shape.discipline.first(tr, 1)]
            return min(((record.pri, record.created_us) for record in heads), default=(float("inf"), 0))

        return self.calls(tube).parts.look_at_all(tr, first)

    def numbered(self, tr: Transaction, tube: str, tasks: Sequence[Task], numbers: Numbers) -> list[Taken]:
        """The jobs of tasks that were taken. A task that a program has put gets a number."""
        ids = [id_bytes(task.id) for task in tasks]
        unknown = [id_ for id_ in ids if id_ not in self._known]
        stored = dict(zip(unknown, self.keys.numbers(tr, unknown), strict=True))
        return [
            self._taken(tube, task, self._number_of(tr, tube, id_, stored, numbers))
            for id_, task in zip(ids, tasks, strict=True)
        ]

    def _number_of(
        self, tr: Transaction, tube: str, id_: bytes, stored: dict[bytes, int | None], numbers: Numbers
    ) -> int:
        number = self._known.get(id_) or stored.get(id_)
        if number is None:
            number = next(numbers)
            self.keys.add(tr, number, Row(tube, id_, 0))
        self._noted[id_] = number
        return number

    def _taken(self, tube: str, task: Task, number: int) -> Taken:
        until = float("inf") if task.until is None else task.until
        target = Target(id_bytes(task.id), task.token, data=b"")
        return Taken(Held(number, tube, target, until), task.data)

    def known_jobs(self, tube: str, tasks: Sequence[Task]) -> list[Taken] | None:
        """The jobs of tasks that were taken, if this server knows all their numbers."""
        found = [self._known.get(id_bytes(task.id)) for task in tasks]
        known = [number for number in found if number is not None]
        if len(known) < len(tasks):
            return None
        return [self._taken(tube, task, number) for task, number in zip(tasks, known, strict=True)]

    def reserve_job(self, tr: Transaction, number: int, session: Session, token: bytes) -> Taken | None:
        """Take one job, in whatever state but reserved. `token`: random bytes that no other lease has."""

        def take(change: Change, record: Record) -> Taken | None:
            if record.state == TAKEN or change.shape.starting or record.cancelled_us:
                return None
            check, ready = session.ask(tr), self._made_ready(change, record)
            body = ask_payload(tr, change.shape.keys, record)
            check()
            [taken] = edges.take(change, [ready], Lease(session.id, token))
            return self._taken(tube, task_of(taken, body()), number)

        row = self.keys.row(tr, number)
        if row is None:
            return None
        tube = row.tube
        found = self._about(tr, row, take)
        if not isinstance(found, Taken):
            return None
        if row.buried_us:
            self.keys.set(tr, number, _counted(row, None), row)
        return found

    def _made_ready(self, change: Change, record: Record) -> Record:
        if record.state == READY:
            return record
        if record.state == BURIED:
            return edges.kick(change, [record])[0]
        return edges.due(change, [record], stays=True)[0]

    # Verbs of the connection that holds the job.

    def delete_held(self, tr: Transaction, tube: str, helds: Sequence[Held]) -> list[bytes]:
        acked = self.calls(tube).parts.each(tr, [held.target for held in helds], verbs.ack_each)
        for held, answer in zip(helds, acked, strict=True):
            if not isinstance(answer, NotTaken):
                self.keys.clear(tr, held.number, held.target.id)
        return [protocol.NOT_FOUND if isinstance(answer, NotTaken) else protocol.DELETED for answer in acked]

    def release(self, tr: Transaction, held: Held, pri: int, delay_s: int) -> bytes:
        delay_s = min(delay_s, int(limits.SPAN_MAX_S))

        def release(change: Change, record: Record) -> None:
            edges.release(change, [replace(record, pri=pri)], delay_s * SECOND_US, snoozed=True)

        return self._end(tr, held, release, protocol.RELEASED, delay_s=delay_s, releases=1)

    def bury(self, tr: Transaction, held: Held, pri: int) -> bytes:
        def bury(change: Change, record: Record) -> None:
            edges.bury(change, [replace(record, pri=pri)])

        now_us = self.database.runtime.now_us()
        return self._end(tr, held, bury, protocol.BURIED, buries=1, buried_us=now_us)

    def touch(self, tr: Transaction, held: Held) -> float | None:
        """The new end of the lease; None if it is over."""
        [lease] = self.calls(held.tube).parts.each(tr, [held.target], verbs.renew)
        if lease is None:
            return None
        return float("inf") if lease.until is None else lease.until

    def give_back(self, tr: Transaction, tube: str, targets: Sequence[Target]) -> None:
        """Release the jobs of a connection that has gone. No attempt has failed."""

        def release(change: Change, few: Sequence[Target]) -> Sequence[None]:
            found = zip(few, change.read([target.id for target in few]), strict=True)
            held = [record for target, record in found if record and target.holds(record, change.now_us)]
            edges.release(change, held)
            return [None] * len(few)

        self.calls(tube).parts.each(tr, targets, release)

    def _end(
        self,
        tr: Transaction,
        held: Held,
        edge: Callable[[Change, Record], None],
        reply: bytes,
        delay_s: int | None = None,
        **more: int,
    ) -> bytes:
        def verb(change: Change) -> None:
            edge(change, verbs.held(change, held.target))

        try:
            self.calls(held.tube).parts.within(tr, verb, held.target.id)
        except NotTaken:
            return protocol.NOT_FOUND
        row = self.keys.row(tr, held.number) or Row(held.tube, held.target.id, 0)
        self.keys.set(tr, held.number, _counted(row, delay_s, **more))
        return reply

    # Verbs about any job.

    def delete(self, tr: Transaction, number: int) -> str | None:
        """Delete a job that is not reserved. Return its tube; None if there is no such job."""

        def delete(change: Change, record: Record) -> bool:
            if record.state == TAKEN:
                return False
            edges.delete(change, [record])
            return True

        row = self.keys.row(tr, number)
        if row is None or not self._about(tr, row, delete):
            return None
        self.keys.clear(tr, number, row.task, row)
        return row.tube

    def kick_job(self, tr: Transaction, number: int) -> bytes:
        def kick(change: Change, record: Record) -> bool:
            if record.state not in (BURIED, DELAYED) or _waits(record):
                return False
            (edges.kick if record.state == BURIED else edges.due)(change, [record])
            return True

        row = self.keys.row(tr, number)
        if row is None or not self._about(tr, row, kick):
            return protocol.NOT_FOUND
        self.keys.set(tr, number, _counted(row, None, kicks=1), row)
        return b"KICKED\r\n"

    def kick(self, tr: Transaction, tube: str, count: int) -> int:
        """Kick the first buried jobs; without one, the first delayed jobs. At most limits.VERB_BATCH."""

        def kick(changes: Sequence[Change]) -> list[Record]:
            kicked: list[Record] = []
            for change in changes:
                kicked += edges.kick(change, self._first_buried(change, tube, count - len(kicked)))
            for change in () if kicked else changes:
                kicked += edges.due(change, _first_delayed(change, count - len(kicked)))
            return kicked

        count = min(count, limits.VERB_BATCH)
        kicked = self.calls(tube).parts.all_within(tr, kick) if count else []
        numbers = [n for n in self.keys.numbers(tr, [record.id for record in kicked]) if n is not None]
        for number, row in zip(numbers, self.keys.rows(tr, numbers), strict=True):
            if row is not None:
                self.keys.set(tr, number, _counted(row, None, kicks=1), row)
        return len(kicked)

    def _about(self, tr: Transaction, row: Row, verb: Callable[[Change, Record], Any]) -> Any:
        """Run the verb about the task of a job, swept; None if there is none."""

        def about(change: Change) -> Any:
            return verb(change, verbs.present(change, Target(row.task)))

        try:
            return self.calls(row.tube).parts.within(tr, about, row.task)
        except TaskNotFound:
            return None

    # Looks.

    def sweep(self, tube: str) -> None:
        """Sweep a batch of the jobs that are due."""
        run(self.database, self.calls(tube).parts.tidy)

    def clear_stale(self, after: int, count: int) -> int:
        """Clear the rows of jobs without a task, among `count` of them. Return the number from which the next
        call goes on, 0 for the first.
        """

        def clear(tr: Transaction) -> int:
            looked_at = self.keys.stale(tr, after, count, lambda row: self._has_task(tr, row))
            return looked_at[-1] if len(looked_at) == count else 0

        return run(at_pace(self.database, "upkeep"), clear)

    def _has_task(self, tr: Transaction, row: Row) -> bool:
        def has(change: Change) -> bool:
            return change.read([row.task]) != [None] or row.task in change.damaged

        return self.calls(row.tube).parts.look(tr, has, row.task)

    def look(self, tr: Transaction, number: int) -> tuple[Row, Record, bytes] | None:
        """A job, with its record as it is now, and its body."""
        row = self.keys.row(tr, number)
        if row is None:
            return None

        def look(change: Change) -> tuple[Row, Record, bytes] | None:
            [found] = change.read([row.task])
            record = None if found is None else edges.as_of(found, change.now_us)
            if record is None:
                return None
            return row, record, ask_payload(tr, change.shape.keys, record)()

        return self.calls(row.tube).parts.look(tr, look, row.task)

    def first(self, tr: Transaction, tube: str, state: str, numbers: Numbers) -> tuple[int, bytes] | None:
        """Number and body of the first job of a tube in a state; a task of a program gets its number."""

        first = _FIRST.get(state) or (lambda change, count: self._first_buried(change, tube, count))

        def look(changes: Sequence[Change]) -> tuple[Record, bytes] | None:
            found = [(change, record) for change in changes for record in first(change, 1)]
            if not found:
                return None
            change, record = min(found, key=lambda pair: (pair[1].pri, pair[1].created_us))
            return record, ask_payload(tr, change.shape.keys, record)()

        found = self.calls(tube).parts.look_at_all(tr, look)
        if found is None:
            return None
        [stored] = self.keys.numbers(tr, [found[0].id])
        return self._number_of(tr, tube, found[0].id, {found[0].id: stored}, numbers), found[1]

    def _first_buried(self, change: Change, tube: str, count: int) -> list[Record]:
        """The tasks that were buried first; behind them, those that a program has buried, by priority."""
        if not count:
            return []
        tr, under, beside = change.tr, self.keys.burials(tube), change.shape.keys.buried
        rows = tr.snapshot.get_range(under.start, under.stop, limit=count).to_list()
        ids = [self.keys.buried_in(row.key) for row in rows]
        found = _in_state(change, ids, BURIED)
        if len(found) < count:
            others = tr.snapshot.get_range(beside.start, beside.stop, limit=count).to_list()
            known = {record.id for record in found}
            more = [id_ for id_ in map(id_in, map(_key, others)) if id_ not in known]
            found += _in_state(change, more, BURIED)
        for row, id_ in zip(rows, ids, strict=True):
            if change.plan is None and id_ not in {record.id for record in found}:
                tr.clear(row.key)  # a program has kicked or ended it
        return found[:count]

    def urgent(self, tr: Transaction, tube: str) -> int:
        """Ready jobs that are urgent; URGENT_COUNTED_MAX stands for more, too."""

        def count(changes: Sequence[Change]) -> int:
            ready = [change.shape.keys.ready.start for change in changes]
            asked = [
                tr.snapshot.get_range(start, start + NUMBER.pack(URGENT), limit=URGENT_COUNTED_MAX)
                for start in ready
            ]
            return min(sum(len(rows.to_list()) for rows in asked), URGENT_COUNTED_MAX)

        return self.calls(tube).parts.look_at_all(tr, count)


def _counted(
    row: Row, delay_s: int | None, releases: int = 0, buries: int = 0, kicks: int = 0, buried_us: int = 0
) -> Row:
    delay_s = row.delay_s if delay_s is None else delay_s
    counts = (row.releases + releases, row.buries + buries, row.kicks + kicks)
    return Row(row.tube, row.task, delay_s, *counts, buried_us)


def _waits(record: Record) -> bool:
    """True for a task that waits for a group of a program, without a time."""
    return record.extra is not None and bool(record.extra.waits)


def _first_ready(change: Change, count: int) -> list[Record]:
    return list(change.shape.discipline.first(change.tr, count))


def _first_delayed(change: Change, count: int) -> list[Record]:
    """The delayed tasks that are due first, among the first TIMERS_LOOKED_AT_MAX timers."""
    found: list[Record] = []
    begin, end = change.shape.keys.timers.start, change.shape.keys.timers.stop
    for _ in range(TIMERS_LOOKED_AT_MAX // limits.VERB_BATCH):
        rows = change.tr.snapshot.get_range(begin, end, limit=limits.VERB_BATCH).to_list()
        found += _in_state(change, [id_in(row.key) for row in rows], DELAYED)
        if len(found) >= count or len(rows) < limits.VERB_BATCH:
            break
        begin = rows[-1].key + b"\0"
    return found[:count]


def _in_state(change: Change, ids: Sequence[bytes], state: str) -> list[Record]:
    """Those of the tasks that are in the state, and have not expired."""
    found = [record for record in change.read(ids) if record is not None]
    return [record for record in found if record.state == state and edges.as_of(record, change.now_us)]


_key = attrgetter("key")
_FIRST: Mapping[str, Callable[[Change, int], list[Record]]] = {READY: _first_ready, DELAYED: _first_delayed}
