"""Batches of a worker, and hand-offs.

batch      id and leases   a handler decides about them; its other calls lie within this one
bury       pairs           they are buried
buried     -               answers all buried values
hand off   lease, attempt and ttl in s   nobody has the lease; the outside finishes or releases it
late ack   pairs           an ack by the old token
failures   value           answers the failed attempts, and their errors
"""

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotHandedOff, TaskNotFound
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.transactional import transactional
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Backoff, Retry
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.failures import NOT_COMPLETED
from fdbqueue.testing.history import REFUSED
from tests.system.soak.client import PAGE_ROWS, REFUSALS, Client
from tests.system.soak.rules import LEASED, Evidence, Stored, found, in_turn, in_turn_by_key, one_at_a_time
from tests.system.soak.subjects.tasks import ENDED_ALONE_MAX, Coloured, Leased, stored_in

Lease = list[str]
Plan = Sequence[tuple[HeldTask, str]]
TOLD = ("succeeded", "retried", "snoozed", "buried", "lease_lost", "cancelled")
WANTED = {"finish": "succeeded", "ack": "succeeded", "fail": "retried", "snooze": "snoozed", "bury": "buried"}
"""The outcome of each deed."""
LOST = "lease_lost"
PATIENCE_S, CALM_PATIENCE_S = 0.3, 10.0
"""A worker without a task for this time stops. The calm clients take alone, at any load of the machine."""


def decided_singly(evidence: Evidence) -> Iterator[str]:
    """The outcome of a task in a batch is that of the decision about it, unless its lease was lost."""
    for call, _ in evidence.succeeded("finish", "ack", "release", "bury"):
        if call.result is not None:
            yield f"{call.name} of {call.argument[0][0]} in a batch has ended as {call.result}"


def all_or_none(evidence: Evidence) -> Iterator[str]:
    """A batch in one transaction has acked all that it was told to, and the outcomes agree with the keys."""
    told = {tuple(lease) for call, _ in evidence.succeeded("finish") for lease in call.argument}
    for call in evidence.named("batch"):
        id_, leases = call.argument
        stored = {tuple(lease) for lease in evidence.stored.batches.get(id_, ())}
        done = told & {tuple(lease) for lease in leases}
        if call.is_known and done != stored:
            yield f"batch {id_} tells of {len(done)} acks, its transaction of {len(stored)}"
    for id_, leases in sorted(evidence.stored.batches.items()):
        missing = {value for value, _ in leases} - set(evidence.stored.effects)
        yield from found(f"batch {id_} was committed in part", missing)
    acked = Counter(value for leases in evidence.stored.batches.values() for value, _ in leases)
    yield from found("acked by two batches", {value for value, times in acked.items() if times > 1})


def buried_stay(evidence: Evidence) -> Iterator[str]:
    """At the end exactly those tasks are buried that a handler has buried."""
    there = {value for call, _ in evidence.succeeded("buried") for value in call.result}
    told = {call.argument[0][0] for call, _ in evidence.succeeded("bury") if call.result is None}
    begun = {call.argument[0][0] for call in evidence.named("bury")}
    yield from found("buried, and not there", told - there)
    yield from found("there, and never buried", there - begun)


class Batched(Leased):
    """Each take is that of a worker with a batch of tasks. It stops after one."""

    name = "batched"
    rules = (*LEASED, in_turn, decided_singly, all_or_none, buried_stay)

    def take(self, client: Client, count: int) -> bool:
        work = _OneBatch(self, client, min(count, limits.VERB_BATCH))
        tasks = client.call(
            self.name,
            "take",
            count,
            work.taken,
            shown=lambda tasks: [self._lease_of(task) for task in tasks],
        )
        if tasks:
            work.settle(tasks)
        work.end()
        return bool(tasks)

    def settle(self, client: Client) -> None:
        """Make the buried tasks ready."""
        client.call(self.name, "buried", None, partial(self._buried, client.db), shown=lambda values: values)
        self.queue.kick(client.db, PAGE_ROWS * PAGE_ROWS)

    def _buried(self, db: Database) -> list[str]:
        return [self.value_of(task) for task in stored_in(db, self.queue, TaskState.BURIED)]

    @property
    def batches(self) -> Any:
        """The leases that each transaction of a batch has acked."""
        return self.setup.space["batches"][self.name]

    def stored(self, db: Database, findings: Sequence[str]) -> Stored:
        under, found_ = self.batches.range(), dict[str, Any]()
        begin = under.start
        while rows := list(db.get_range(begin, under.stop, limit=PAGE_ROWS)):
            found_ |= {self.batches.unpack(row.key)[0]: json.loads(bytes(row.value)) for row in rows}
            begin = bytes(rows[-1].key) + b"\x00"
        return replace(super().stored(db, findings), batches=found_)


class _OneBatch:
    """A worker for one batch. The thread of the client decides, and makes notes; the handler waits for it."""

    def __init__(self, subject: Batched, client: Client, size: int) -> None:
        self._subject, self._client = subject, client
        self._within = client.chance(0.5)
        self._raises = client.chance(0.1)
        self._came, self._decided = threading.Event(), threading.Event()
        self._tasks: Sequence[HeldTask] = ()
        self._plan: Plan = ()
        self._told: dict[str, str] = {}
        [self._id] = client.values(1)
        self._worker = Worker(
            client.db,
            subject.queue,
            self._within_one if self._within else self._handle,
            root=subject.setup.queues,
            hooks=Hooks(**dict.fromkeys(TOLD, self._note)),
            threads=1,
            batch=size,
            batch_wait_s=client.random.choice((0.0, 0.0, 0.1)),
            transactional=self._within,
            attempts=math.inf,
            backoff=Backoff(first_s=0.1, cap_s=0.5),
            session_ttr_s=subject.setup.session_ttr_s,
            overtake=0 if client.calm else limits.WORKER_OVERTAKE,
        )

    def taken(self) -> Sequence[HeldTask]:
        self._worker.start()
        self._came.wait(CALM_PATIENCE_S if self._client.calm else PATIENCE_S)
        self._worker.stop()
        while not self._came.wait(0.001) and not self._worker.join(0):
            pass  # it may have taken tasks at the last moment
        return self._tasks

    def settle(self, tasks: Sequence[HeldTask]) -> None:
        """Decide about each task, and note its outcome."""
        self._plan = [(task, self._deed()) for task in tasks]
        step: Callable[[], object] = self._wait
        for task, deed in self._plan:
            step = partial(self._noted, task, deed, step)
        if self._within:
            about = [self._id, [self._subject._lease_of(task) for task in tasks]]
            self._client.call(self._subject.name, "batch", about, step)
        else:
            step()

    def end(self) -> None:
        self._worker.join()
        if self._worker.error is not None:
            raise self._worker.error

    def _deed(self) -> str:
        if self._raises and (self._within or self._client.chance(0.5)):
            return "fail"
        if not self._client.chance(0.2):
            return "finish" if self._within or self._client.random.random() < 0.5 else "ack"
        return self._client.random.choice(("fail", "snooze", "bury"))

    def _noted(self, task: HeldTask, deed: str, step: Callable[[], object]) -> object:
        name = "release" if deed in ("fail", "snooze") else deed
        argument = [self._subject._lease_of(task)]
        shown = partial(self._shown, task, deed)
        return self._client.call(self._subject.name, name, argument, step, shown=shown)

    def _shown(self, task: HeldTask, deed: str, _: object) -> str | None:
        told = self._told[self._subject.value_of(task)]
        return None if told == WANTED[deed] else REFUSED if told == LOST else told

    def _wait(self) -> None:
        self._decided.set()
        self.end()

    # The thread of the worker.

    def _note(self, event: Event) -> None:
        self._told[self._subject.value_of(event.task)] = event.name

    def _come(self, tasks: Sequence[HeldTask]) -> None:
        if not self._came.is_set():  # else it is another try of the transaction
            self._tasks = list(tasks)
            self._came.set()
        self._worker.stop()
        self._decided.wait()

    def _handle(self, tasks: Sequence[HeldTask]) -> None:
        self._come(tasks)
        for task, deed in self._plan:
            if deed == "finish":
                task.done(effect=partial(self._effect, [self._subject.value_of(task)]))
            else:
                self._decide(task, deed)
        if self._raises:
            raise ValueError("after its decisions")

    def _within_one(self, tr: Transaction, tasks: Sequence[HeldTask]) -> None:
        self._come(tasks)
        held, leases = {task.id for task in tasks}, []
        for task, deed in self._plan:
            if deed != "finish":
                self._decide(task, deed)
            elif task.id in held:
                leases.append(self._subject._lease_of(task))
        if leases:
            self._effect([value for value, _ in leases], tr)
            tr[self._subject.batches[self._id].key()] = json.dumps(leases).encode()
        if self._raises:
            raise ValueError("after its writes")

    def _decide(self, task: HeldTask, deed: str) -> None:
        if deed == "fail" and not self._raises:
            task.fail(Retry(0.1))
        elif deed == "snooze":
            task.snooze(0.1)
        elif deed == "bury":
            task.bury("on purpose")
        elif deed == "ack" and self._raises:
            task.done()

    def _effect(self, values: Sequence[str], tr: Transaction) -> None:
        self._client.effect(tr, self._subject.name, values)


TTLS_S = (0.3, 2.0, 30.0)
"""Shorter than a lease, as long as one, and longer than a session."""
FAILED = "FailedOutside"


class Overtaken(Exception):
    """The hand-off is over, and its task was handed off again."""


def kept_for_its_ttl(evidence: Evidence) -> Iterator[str]:
    """A task that was handed off comes again after its ttl or its failure, whatever becomes of its holder."""
    for call, end_us in evidence.succeeded("hand off"):
        value, token, _, ttl_s = call.argument
        until_us = call.begin_us + round(ttl_s * 1e6)
        released_us = evidence.released.get((value, token), until_us)
        for taken in evidence.takes_of.get(value, ()):
            if taken.call.begin_us > end_us and taken.end_us < min(until_us, released_us):
                after_s = (taken.end_us - call.begin_us) / 1e6
                yield f"given {after_s:.3f} s after its hand-off for {ttl_s} s: {value}"


def ends_once(evidence: Evidence) -> Iterator[str]:
    """A hand-off is completed or failed once, and the token of before it ends nothing."""
    handed = {(call.argument[0], call.argument[1]) for call, _ in evidence.succeeded("hand off")}
    ends = Counter(
        (value, token)
        for call, _ in evidence.succeeded("finish", "ack", "release")
        for value, token in call.argument
    )
    for value, token in sorted(handed):
        if ends[value, token] > 1:
            yield f"{ends[value, token]} ends of one hand-off: {value}"
    for call, _ in evidence.succeeded("late ack"):
        yield f"acked by the token of before its hand-off: {call.argument[0][0]}"


def each_failed_once(evidence: Evidence) -> Iterator[str]:
    """A hand-off without a `complete` is one failed attempt, with the error of its end."""
    calls = [call.argument for call, _ in evidence.succeeded("hand off")]
    handed = {(value, attempt): token for value, token, attempt, _ in calls}
    for call, _ in evidence.succeeded("failures"):
        value, attempt = call.argument
        first = min((number for number, _ in call.result), default=0)
        if len(call.result) < limits.FAILURES_KEPT:
            first = 0
        for (of_value, handed_at), token in handed.items():
            if of_value != value or not first <= handed_at < attempt:
                continue
            errors = [error for number, error in call.result if number == handed_at]
            wanted = (NOT_COMPLETED, FAILED) if (value, token) in evidence.released else (NOT_COMPLETED,)
            if len(errors) != 1 or errors[0] not in wanted:
                yield f"attempt {handed_at} of {value} was handed off, and has the failures {errors}"


class Handed(Coloured):
    """As keyed, and some holders hand their tasks off. Any process ends those."""

    name = "handed"
    kind = "utubettl"
    rules = (*LEASED, in_turn_by_key, one_at_a_time, kept_for_its_ttl, ends_once, each_failed_once)

    def options(self) -> Mapping[str, Any]:
        return {"attempts": math.inf}

    @property
    def _pending(self) -> Any:
        """The value and the token of each handed-off task."""
        return self.setup.space["pending"][self.name]

    def step(self, client: Client) -> None:
        if client.chance(0.5):
            self._end_pending(client, 2)
        super().step(client)

    def settle(self, client: Client) -> None:
        self._end_pending(client, PAGE_ROWS)

    def _end(self, client: Client, tasks: Sequence[Task]) -> None:
        for task in tasks[:ENDED_ALONE_MAX]:
            self._look_back(client, task)
        few = tasks[:ENDED_ALONE_MAX] if client.chance(0.5) else ()
        for task in few:
            self._hand_off(client, task)
        if rest := tasks[len(few) :]:
            super()._end(client, rest)

    def _look_back(self, client: Client, task: Task) -> None:
        if task.attempts > 1:
            about = [self.value_of(task), task.attempts]
            look = partial(self.queue.failures, client.db, task)
            client.call(
                self.name,
                "failures",
                about,
                look,
                shown=lambda told: [[one.attempt, one.error] for one in told],
                refusals=(TaskNotFound,),
            )

    def _hand_off(self, client: Client, task: Task) -> None:
        ttl_s, lease = client.random.choice(TTLS_S), self._lease_of(task)

        @transactional
        def hand_off(tr: Transaction) -> None:
            self.queue.hand_off(tr, task, ttl_s)
            tr[self._pending[task.id].key()] = json.dumps(lease).encode()

        client.call(self.name, "hand off", [*lease, task.attempts, ttl_s], partial(hand_off, client.db))
        if client.chance(0.1):
            client.call(self.name, "late ack", [lease], partial(self.queue.ack, client.db, task))

    def _end_pending(self, client: Client, count: int) -> None:
        under = self._pending.range()
        rows = list(client.db.get_range(under.start, under.stop, limit=PAGE_ROWS))
        for row in client.random.sample(rows, min(count, len(rows))):
            id_, stored = self._pending.unpack(row.key)[0], bytes(row.value)
            self._end_one(client, id_, stored, "release" if client.chance(0.2) else "finish")

    def _end_one(self, client: Client, id_: str, stored: bytes, verb: str) -> None:
        value, token = json.loads(stored)
        key = self._pending[id_].key()

        @transactional
        def end(tr: Transaction) -> None:
            if tr[key] != stored:
                raise Overtaken
            if verb == "finish":
                self.queue.complete(tr, id_)
                client.effect(tr, self.name, [value])
            else:
                self.queue.fail(tr, id_, "no", delay=0)
            del tr[key]

        refusals = (*REFUSALS, NotHandedOff, TaskNotFound, Overtaken)
        client.call(self.name, verb, [[value, token]], partial(end, client.db), refusals=refusals)
