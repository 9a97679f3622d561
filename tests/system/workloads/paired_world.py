"""What the workload `paired` calls: queues, with calls that it draws, looks, and a store with a trap.

The trap has another call happen at one moment of a call: at the begin of one of its transactions, just before
the commit, or just after it. Or it lets commits end in errors, done or not.

In a `Table`, the queue is topped up before each pair. Otherwise verbs that remove much would leave nothing
to meet at.

Random parts of ids differ from order to order, so tasks are named by their data, which is unique in a run.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from functools import partial
from itertools import product
from random import Random
from typing import Any, NamedTuple, TypeVar

from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import FDBError, Transaction
from fdbqueue.core.task import Task
from fdbqueue.embedded import layout
from fdbqueue.embedded.store import Store, private_store
from fdbqueue.embedded.surface import Future
from fdbqueue.embedded.transaction import Database as Engine
from fdbqueue.embedded.view import NOTHING, Anchor, Batch, RangeQuery, Snapshot, conflict_range
from fdbqueue.embedded.writes import CommitRequest, KeySet
from fdbqueue.operate.verify.verify import AnyQueue, verify
from fdbqueue.testing.engine import PatientTransaction
from fdbqueue.testing.scheduler import SimulatedRuntime
from fdbqueue.testing.simulation import Client
from fdbqueue.testing.trace import told as findings
from tests.system.workloads.composed_calls import Rollback
from tests.system.workloads.exact_model import caught

Rows = dict[bytes, bytes]

_END = b"\xff"
_NOT_COMMITTED, _UNKNOWN, _VERSION_CHANGED = 1020, 1021, 1039
_RECEIPTS = RootKeys(DEFAULT_ROOT).receipts


class Commit(NamedTuple):
    """The keys that one commit has seen, those that it conflicts with, and those that conflict with it."""

    seen: KeySet
    reads: KeySet
    writes: KeySet


NEVER = ("die", "stall", "slow_reply", "clock_skew_s")
"""The faults of the run would meet no call: each pair has databases of its own."""


class When(Enum):
    """The moment of the other call. BEGIN and AFTER are those of the two serial orders."""

    BEGIN = auto()
    BEFORE_COMMIT = auto()
    AFTER = auto()
    BETWEEN = auto()
    """A part of the other call comes first, and the rest of it last."""


_STEPS_FROM_THE_BEGIN = {When.BEGIN: 1, When.BETWEEN: 2}
"""The number of steps of the other process, if the first one happens at the begin of an attempt."""


class Trouble(Enum):
    """The end of a commit: its error, and true if it is done."""

    CONFLICT = (_NOT_COMMITTED, False)
    LOST = (_UNKNOWN, False)
    DONE = (_UNKNOWN, True)
    CHANGED = (_VERSION_CHANGED, True)
    LATE = (_VERSION_CHANGED, False)
    """It arrives just before the next commit, and is refused if it conflicts by then."""


class Trap:
    """Has another call happen in the transaction of which the number is known, or in the `skip`th commit."""

    def __init__(self) -> None:
        self.others: list[Callable[[], None]] = []
        """The next steps of the other process."""
        self.when = When.BEFORE_COMMIT
        self.skip = 0
        self.attempts = 0
        """Attempts of transactions that have begun."""
        self.sprung: int | None = None
        """The number of the attempt in which `other` happened."""
        self.committing: int | None = None
        """The number of the attempt that makes the `skip`th commit."""
        self.seed: str | None = None
        """The seed of the call, if it makes its random numbers in each attempt."""
        self.conflicted = False
        """True if the commit of that attempt met a conflict."""
        self.commits_made: list[Commit] = []
        self.before_commit: Callable[[], None] | None = None
        """Called before each commit: it may wait, so that other threads come meanwhile."""
        self._clean, self._troubles = 0, list[Trouble]()
        self.late: CommitRequest | None = None

    def doubt(self, clean: int, troubles: Sequence[Trouble]) -> None:
        """Let the commits behind the first `clean` ones end so."""
        self._clean, self._troubles, self.late = clean, [*troubles], None

    def trouble(self) -> Trouble | None:
        """The end of the next commit; None for the usual one."""
        if self._clean:
            self._clean -= 1
            return None
        return self._troubles.pop(0) if self._troubles else None

    def set(self, when: When, other: Callable[[], None], skip: int = 0, at: int | None = None) -> None:
        """`at`: the attempt for serial orders, as `sprung` tells after BEFORE_COMMIT."""
        self.when, self.skip, self.attempts = when, skip, 0
        self.others = [other] * _STEPS_FROM_THE_BEGIN.get(when, 1)
        self.sprung, self.conflicted, self.committing = at, False, None
        self.commits_made = []

    def begins(self) -> int:
        """The number of a new attempt."""
        self.attempts += 1
        return self.attempts

    def reads(self, attempt: int) -> None:
        """The attempt gets its read version."""
        if attempt == self.sprung and len(self.others) == _STEPS_FROM_THE_BEGIN.get(self.when):
            self._spring()

    def commits(self, attempt: int) -> None:
        self.reads(attempt)  # it may have read nothing
        if self.skip == 0:
            self.committing = attempt
            if self.when is When.BEFORE_COMMIT and self.others:
                self.sprung = attempt
                self._spring()
        self.skip -= 1

    def committed(self, attempt: int) -> None:
        if self.when in (When.AFTER, When.BETWEEN) and attempt == self.sprung:
            self._spring()

    def refused(self, attempt: int, code: int) -> None:
        self.conflicted = self.conflicted or (attempt == self.sprung and code == _NOT_COMMITTED)

    def forget(self) -> None:
        """Let nothing happen any more."""
        self.others = []

    def _spring(self) -> None:
        if self.others:
            self.others.pop(0)()


class TrappedEngine(Engine):
    """The store, as the process sees it that makes the first call of a pair."""

    def __init__(self, store: Store, runtime: "QuietRuntime", trap: Trap) -> None:
        super().__init__(store, runtime)
        self.trap, self.quiet = trap, runtime

    def create_transaction(self) -> "TrappedTransaction":
        self.require_open()
        return TrappedTransaction(self)


class TrappedTransaction(PatientTransaction):
    def __init__(self, database: TrappedEngine) -> None:
        self._twins, self._trap, self._twins_runtime = database, database.trap, database.quiet
        super().__init__(database)

    def step_begin(self) -> None:
        super().step_begin()
        self._attempt, self._seen = self._trap.begins(), KeySet(set(), [])

    def step_read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        self._seen.points.add(key)
        return super().step_read(key, is_snapshot)

    def step_find_key(self, anchor: Anchor, is_snapshot: bool) -> bytes:
        found = super().step_find_key(anchor, is_snapshot)
        self._seen.add_range(*sorted((anchor.key, found + b"\x00")))
        return found

    def step_read_range(self, query: RangeQuery, is_snapshot: bool) -> Batch:
        batch = super().step_read_range(query, is_snapshot)
        if batch is not NOTHING:
            self._seen.add_range(*conflict_range(query, batch))
        return batch

    def _open_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._trap.reads(self._attempt)
        return super()._open_snapshot()

    def step_commit(self, request: CommitRequest) -> None:
        if self._trap.before_commit is not None:
            self._trap.before_commit()
        trouble = self._trap.trouble()
        if trouble is None:
            self._commit_well(request)
            return
        error, is_done = trouble.value
        if is_done:
            self._commit_well(request)
        if trouble is Trouble.LATE:
            self._trap.late = request
        raise FDBError(error)

    def commit(self) -> Future:
        late, self._trap.late = self._trap.late, None
        if late is not None:
            self._twins.commit(late)
        return super().commit()

    def _commit_well(self, request: CommitRequest) -> None:
        self._trap.commits(self._attempt)
        try:
            super().step_commit(request)
        except FDBError as error:
            self._trap.refused(self._attempt, error.code)
            if self._trap.seed is not None:
                self._twins_runtime.draw_from(self._trap.seed)
            raise
        self._trap.commits_made.append(Commit(self._seen, request.reads, request.buffer.conflicts))
        self._trap.committed(self._attempt)


class QuietThread:
    """A thread that never begins: all that happens is asked for."""

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return True


class QuietRuntime(SimulatedRuntime):
    """A clock that stands still until it is moved, no threads, and random numbers from the seed of a call."""

    def spawn(self, target: Callable[[], object], name: str) -> Any:  # noqa: ARG002  # as every runtime
        return QuietThread()

    def draw_from(self, seed: str) -> None:
        """Let a call have the same random numbers in each order."""
        random = Random(seed)
        self.random_bytes, self.random = random.randbytes, random.random


class Twins:
    """Two processes with one store: the first has the trap. `own`: a third one, for all else."""

    def __init__(self, client: Client, memory: str | None) -> None:
        self.client, thread = client, client.runtime
        self.runtime = QuietRuntime(thread.scheduler, thread.host, Random(client.random.random()), 7)
        self.now = self.runtime.now_us()
        self.move_to(self.now)
        self._store = private_store(self.runtime, memory)
        self._store.users = 1
        self.trap = Trap()
        self.own = Database(Engine(self._store, self.runtime), self.runtime)
        self.restart()

    def restart(self) -> None:
        """Let both processes remember nothing."""
        self.first = Database(TrappedEngine(self._store, self.runtime, self.trap), self.runtime)
        self.second = Database(Engine(self._store, self.runtime), self.runtime)
        self.sides = (self.first, self.second)

    def move_to(self, now: int) -> None:
        self.now = max(self.now, now)
        self.runtime.hold(self.now)

    def rows(self) -> Rows:
        with self._store.begin() as txn:
            return dict(layout.scan(txn, b"", _END))

    def set_back(self, rows: Rows) -> None:
        """Let the store have these rows again."""
        now = self.rows()
        cleared = now.keys() - rows.keys()
        changed = [(key, value) for key, value in rows.items() if now.get(key) != value]

        def body(tr: Any) -> None:
            for key in cleared:
                tr.clear(key)
            for key, value in changed:
                tr.set(key, value)

        if cleared or changed:
            run(self.own, body)

    def close(self) -> None:
        Engine(self._store, self.runtime).close()


def told(rows: Rows) -> Rows:
    """The rows without receipts, which differ from one attempt to the next."""
    start, stop = _RECEIPTS.start, _RECEIPTS.stop
    return {key: value for key, value in rows.items() if not start <= key < stop}


T = TypeVar("T")
WITHIN, BOTH = 0.4, 0.06
FORGETTING = ("take", "dequeue", "both", "tick", "repartition", "put", "plain put", "enqueue")
CHAINED = 0.15
Verb = Callable[[Any, Any], Any]
"""Of the handles of a process, and its database or a transaction."""


@dataclass(frozen=True)
class Call:
    """A call with fixed arguments. `adds`: its new data, in any order beside the new data of another call.
    `within`: true if it happens in a transaction of its caller. `touches`: the task, or None.
    """

    name: str
    text: str
    verb: Verb
    adds: Sequence[str] = ()
    within: bool = False
    touches: Any = None
    alone: bool = False
    parts: Sequence["Call"] = ()
    """The calls of which it is made, one after the other."""

    def __str__(self) -> str:
        return f"{self.text} in a transaction" if self.within else self.text

    def answer(self, handles: Any, db: Database) -> Any:
        if self.within:
            return caught(lambda target: run(target, partial(self.verb, handles)), db)
        return caught(partial(self.verb, handles), db)


Look = Mapping[str, Sequence[str]]
"""The texts of all looks at a store, by the name of the look. Those under "order ..." are in an order."""


class World(ABC):
    """A queue, and the calls of two processes."""

    forgets = False
    """True if the memory of a process may change the answer of a call."""
    verbs: Sequence[str] = ()
    before: Sequence[int] = (2, 5, 10, 20)
    """The numbers of calls before the first pair."""
    at_once: Sequence[int] = (2, 3, 3, 4)
    """Numbers of calls of threads that meet."""
    space: AnyQueue | None = None
    """The queue, if it has no name."""

    def __init__(self, random: Random, twins: Twins) -> None:
        self.random, self.twins, self._number = random, twins, 0

    # The queue of a run.

    @abstractmethod
    def opened(self, db: Database) -> Any:
        """The handles of a process."""

    def refresh(self) -> None:  # noqa: B027  # queues of items need none
        """Look at the queue, for calls that fit to its state."""

    def settle(self, count: int) -> None:  # noqa: B027  # queues of items need none
        """Sweep before several calls meet: others could follow a sweep of one of them."""

    def learn(self, answer: Any) -> None:  # noqa: B027  # queues of items need none
        """Note the answer of a call that has happened."""

    def next_time(self, now: int) -> int | None:  # noqa: ARG002  # most queues have no times
        """The time of the next change."""
        return None

    def must_forget(self, one: Call, other: Call) -> bool:
        """True if what processes remember may change the answers, which have to be those of the orders."""
        return self.forgets and not {one.name, other.name}.isdisjoint(FORGETTING)

    def is_loose(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # most pairs are strict
        """True if the documentation leaves the outcome of this pair open."""
        return False

    def may_vary(self, one: Call) -> bool:  # noqa: ARG002  # most queues have one order
        """True if a second attempt of this call may do something else than the first one."""
        return False

    def promises(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # most calls promise nothing
        """True if the documentation promises that `one` does not conflict with `other`."""
        return False

    def demands(self, one: Call, other: Call, answer: Any) -> bool:  # noqa: ARG002  # as `promises`
        """True if the documentation promises that `one`, with this answer, conflicts with `other`."""
        return False

    @abstractmethod
    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        """All that a transaction can see; it is rolled back."""

    def names(self) -> Mapping[str, str]:
        """The data of tasks by their ids."""
        return {}

    # Calls.

    def draw(self) -> Call:
        call = self._draw_one()
        if call.alone or self.random.random() > BOTH:
            return call
        other = self._draw_one()
        return call if other.alone else both(call, other)

    def lengthened(self, call: Call, draw: Callable[[], Call]) -> Call:  # noqa: ARG002  # most worlds have pairs
        """The second call of a pair, perhaps with a third one behind it."""
        return call

    def _draw_one(self) -> Call:
        while True:
            call: Call | None = getattr(self, f"_{self.random.choice(self.verbs)}")()
            if call is not None:
                return call

    def forget_focus(self) -> None:  # noqa: B027  # queues of items need none
        """Let the next call be about any task. Other calls are mostly about the task of the call before."""

    def _call(
        self,
        name: str,
        text: str,
        verb: Verb,
        *,
        adds: Sequence[str] = (),
        touches: Any = None,
        alone: bool = False,
    ) -> Call:
        within = not alone and self.random.random() < WITHIN
        return Call(name, text, verb, adds, within, touches, alone)

    def data(self, count: int) -> list[str]:
        """Data that no other task has."""
        self._number += count
        return [f"d{self._number - count + number}." for number in range(count)]

    # Looks.

    def look(self, db: Database) -> tuple[Look, Mapping[str, str]]:
        """All that the store shows, and the names of its tasks."""
        return rolled_back(db, self.seen), self.names()

    def flaws(self, db: Database) -> str:
        """The findings of a verification, as one text."""
        spaces = [] if self.space is None else [verify(db, self.space)]
        return "; ".join(findings(verify(db), *spaces))


def rolled_back(db: Database, body: Callable[[Transaction], Any]) -> Any:
    """The answer of `body`. Its writes are dropped."""
    answers = []

    def roll_back(tr: Transaction) -> None:
        answers.append(body(tr))
        raise Rollback

    caught_rollback(db, roll_back)
    return answers[-1]


def caught_rollback(db: Database, body: Callable[[Transaction], None]) -> None:
    try:
        run(db, body)
    except Rollback:
        return


def text_of(verb: Callable[[Transaction], Any], tr: Transaction) -> str:
    """The answer of a look as a text, or its error."""
    return shown(caught(verb, tr))


class Table(World):
    before: Sequence[int] = (0, 0, 1, 3)
    topped_up = 0.6
    """The chance that the queue is topped up before a pair."""

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._pairs: list[tuple[str, str]] = []
        self._planned: list[str] = []

    def top_up(self) -> None:
        """Bring the queue near a bound: some tasks in each state, a last slot, a last member."""

    def look_around(self) -> None:
        """Look at the queue, for calls that fit to its state."""
        super().refresh()

    def refresh(self) -> None:
        self.look_around()
        if self.random.random() < self.topped_up:
            self.top_up()
            self.look_around()

    def forget_focus(self) -> None:
        super().forget_focus()
        if not self._pairs:
            self._pairs = list(product(self.verbs, self.verbs))
            self.random.shuffle(self._pairs)
        self._planned = [*self._pairs.pop()]

    def is_loose(self, one: Call, other: Call) -> bool:
        """A take of fewer tasks than it may take relies on those that it found, and not on the end of the
        queue. Two calls in a row may tell.
        """
        if not other.parts:
            return super().is_loose(one, other)
        return one.name == "take" or any(self.is_loose(one, part) for part in other.parts)

    def lengthened(self, call: Call, draw: Callable[[], Call]) -> Call:
        return chain(call, draw()) if self.random.random() < CHAINED else call

    def draw(self) -> Call:
        """The next verb of the pair; another one if there is nothing that it could be about."""
        while True:
            verb = self._planned.pop(0) if self._planned else self.random.choice(self.verbs)
            call: Call | None = getattr(self, f"_{verb}")()
            if call is not None:
                return call


NO_CALL = Call("", "", lambda *_: None)
"""In place of the second call where there is none."""


def both(one: Call, other: Call) -> Call:
    """Two calls in one transaction of their caller."""

    def verb(handles: Any, tr: Transaction) -> list[Any]:
        return [caught(partial(call.verb, handles), tr) for call in (one, other)]

    adds = (*one.adds, *other.adds)
    return Call("both", f"({one.text} and {other.text})", verb, adds, within=True, touches=one.touches)


def chain(first: Call, then: Call) -> Call:
    """Two calls of one process, each in transactions of its own."""
    text = f"{first}, and then {then}"
    return Call("chain", text, then.verb, (*first.adds, *then.adds), alone=True, parts=(first, then))


class Outcome(NamedTuple):
    """The answers of both calls, and the rows that they left."""

    answers: tuple[Any, Any]
    rows: Rows


def data_of(answers: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The ids of the tasks in these answers, and their data."""
    for answer in answers:
        if isinstance(answer, Task) and answer.data is not None:
            yield answer.id, str(answer.data)
        elif isinstance(answer, list | tuple):
            yield from data_of(answer)


def shown(answer: Any) -> str:
    """The answer as a text, without its random parts."""
    if isinstance(answer, Task):
        return _task_shown(answer)
    if isinstance(answer, list):
        return f"[{', '.join(map(shown, answer))}]"
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else repr(answer)


def _task_shown(task: Task) -> str:
    """The fields that are not those of a new task."""
    told = {item.name: getattr(task, item.name) for item in fields(task) if item.repr}
    usual = {item.name: item.default for item in fields(task)}
    unusual = {name: value for name, value in told.items() if value != usual[name] and value not in ({}, ())}
    unusual |= {name: "some" for name in ("token", "waits_for") if name in unusual}
    if task.groups:
        unusual["groups"] = len(task.groups)
    return f"<{' '.join(f'{name}={value}' for name, value in unusual.items())}>"


def named(text: str, names: Mapping[str, str]) -> str:
    """The text with the data of tasks in place of their ids."""
    if not names:
        return text
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


def in_order(name: str, lines: Sequence[str]) -> Sequence[str]:
    """The lines of a look; sorted, unless they are an order."""
    return lines if name.startswith("order") else sorted(lines)


def unlikeness(found: Look, wanted: Look, one: Call, other: Call) -> str | None:
    """The first difference of two looks; None if they are equal."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        for left, right in _readings(name, found.get(name, ()), wanted.get(name, ()), one, other):
            if left != right:
                return f"{name} is {_unlike(left, right)}, and in that order {_unlike(right, left)}"
    return None


def _readings(
    name: str, found: Sequence[str], wanted: Sequence[str], one: Call, other: Call
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """New data of both calls may come in any order to each other, so it is compared without the one, and
    without the other.
    """
    if not name.startswith("order") or not one.adds or not other.adds:
        yield found, wanted
        return
    for call in (one, other):
        left, right = ([data for data in side if data not in call.adds] for side in (found, wanted))
        yield left, right


def _unlike(some: Sequence[str], others: Sequence[str]) -> str:
    """The parts of a look that differ."""
    unlike = [text for text in some if text not in others]
    return ", ".join(unlike or some) or "nothing"
