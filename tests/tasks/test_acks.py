"""Acks of one process combine: one transaction for those that come together, to each its own answer."""

import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Session, Task, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueDropped
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.records import id_bytes
from tests.queue_support import FaultyEngine, faulty
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED, PATIENCE_S
from tests.tasks.support import SetLimits
from tests.test_combine import wait_for_pending

Outcome = Task | Exception


class Bench:
    """A queue on which an ack is alone or joins a batch, with chosen results for the commits of acks.

    Other calls use another database, so that background work is not counted.
    """

    def __init__(self, db: Database, space: Subspace, fdb_module: ModuleType) -> None:
        self.other = db
        self.db: Database
        self.engine: FaultyEngine
        self.db, self.engine = faulty(db, fdb_module.FDBError)
        self.space = space
        self.session = Session(db, root=space)
        self.queue: TaskQueue

    def fill(self, count: int, kind: str = "fifo", keys: Sequence[Any] = (), **options: Any) -> list[Task]:
        """Put and take `count` tasks."""
        self.queue = TaskQueue.create(self.other, "acks", kind, root=self.space, **options)
        for number in range(count):
            self.queue.put(self.other, number, **({"key": keys[number % len(keys)]} if keys else {}))
        tasks = self.take(count)
        assert len(tasks) == count
        return tasks

    def take(self, count: int) -> list[Task]:
        return self.queue.take_many(self.other, count, session=self.session)

    def done(self) -> int:
        return self.queue.statistics(self.other)["tasks"]["done"]

    def behind(self, first: Task, *others: Task, lead: Callable[[], None] = lambda: None) -> "Behind":
        return Behind(self, first, others, lead)


class Behind:
    """The first ack is under way for long; the others wait until it is over, and go together."""

    def __init__(self, bench: Bench, first: Task, others: Sequence[Task], lead: Callable[[], None]) -> None:
        self.outcomes: dict[int, Outcome | BaseException] = {}
        self.begun = 0
        self._bench = bench
        self._create = bench.db.create_transaction
        self._go_on, self._leads, self._lead = threading.Event(), threading.Event(), lead
        bench.db.create_transaction = self._create_transaction  # type: ignore[method-assign]
        self._threads = [threading.Thread(target=self._ack, args=(0, first))]
        self._threads[0].start()
        assert self._leads.wait(PATIENCE_S)
        for number, task in enumerate(others, 1):
            self._threads.append(threading.Thread(target=self._ack, args=(number, task)))
            self._threads[-1].start()
            wait_for_pending(calls_of(bench.db, bench.queue._shape).acks._crew, number)

    def finish(self) -> list[Any]:
        """The results of the other acks."""
        self._go_on.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return [self.outcomes[number] for number in range(1, len(self._threads))]

    def _create_transaction(self) -> Any:
        self.begun += 1
        if self.begun == 1:
            self._leads.set()
            assert self._go_on.wait(PATIENCE_S)
            self._lead()
        return self._create()

    def _ack(self, number: int, task: Task) -> None:
        try:
            self.outcomes[number] = self._bench.queue.ack(self._bench.db, task)
        except BaseException as error:
            self.outcomes[number] = error


@pytest.fixture
def bench(db: Database, space: Subspace, fdb_module: ModuleType) -> Iterator[Bench]:
    made = Bench(db, space, fdb_module)
    yield made
    made.session.end()


def states(outcomes: Sequence[Any]) -> str:
    """A letter for each: "-" a task that is gone, "N" NotTaken."""
    return "".join(one.state.value if isinstance(one, Task) else type(one).__name__[0] for one in outcomes)


def test_acks_during_another_ack_share_a_transaction(bench: Bench) -> None:
    tasks = bench.fill(9)
    behind = bench.behind(*tasks)
    assert [task.id for task in behind.finish()] == [task.id for task in tasks[1:]]
    assert (behind.begun, bench.done()) == (2, 9)


def test_an_ack_that_always_conflicts_holds_up_no_other(bench: Bench) -> None:
    tasks = bench.fill(2)
    goes_on, conflicts = threading.Event(), threading.Event()
    culprit: list[int] = []

    def fate(_: int) -> tuple[int, bool]:
        if culprit != [threading.get_ident()] or goes_on.is_set():
            return 0, True
        conflicts.set()
        return NOT_COMMITTED, False

    def conflict() -> None:
        culprit.append(threading.get_ident())
        bench.queue.ack(bench.db, tasks[0])

    bench.engine.fate = fate
    thread = threading.Thread(target=conflict)
    thread.start()
    assert conflicts.wait(PATIENCE_S)
    bench.queue.ack(bench.db, tasks[1])
    assert bench.done() == 1
    goes_on.set()
    thread.join(PATIENCE_S)
    assert bench.done() == 2


def test_when_none_of_them_holds_its_task_nothing_is_written(bench: Bench) -> None:
    first, *tasks = bench.fill(3)
    bench.queue.release_all(bench.other)
    behind = bench.behind(first, *tasks)
    bench.engine.written_most = bench.engine.written = 0
    assert states(behind.finish()) == "NN"
    assert (bench.engine.written_most, bench.done()) == (0, 0)


LOST, MAYBE = (NOT_COMMITTED, False), (COMMIT_UNKNOWN, False)
FATES: dict[str, tuple[dict[int, tuple[int, bool]], str, int, int]] = {
    "unknown, committed": (dict.fromkeys((1, 2), (COMMIT_UNKNOWN, True)), "---", 2, 4),
    "unknown, not committed": (dict.fromkeys((1, 2), MAYBE), "---", 2, 4),
    # The commit may be done, so no ack is tried again apart.
    "an error of the database": ({2: (4100, True)}, "FFF", 2, 4),
    "a conflict": ({2: LOST}, "---", 3, 4),
    # An ack that conflicts every time must not delay the others.
    "two conflicts": ({2: LOST, 3: LOST}, "---", 1 + limits.ATTEMPTS_TOGETHER_MAX + 3, 4),
    # The attempt before it may have happened: a second ack would be told that its task is gone.
    "conflicts after an unknown result": ({2: MAYBE, 3: LOST, 4: LOST}, "---", 2, 4),
}
"""The fates of commits, the answers, and the numbers of transactions and of tasks that are done."""


@pytest.mark.parametrize("fate", FATES)
def test_each_ack_happens_once_with_any_result_of_commits(bench: Bench, fate: str) -> None:
    fates, answers, begun, done = FATES[fate]
    behind = bench.behind(*bench.fill(4))
    bench.engine.commits = 0
    bench.engine.fate = lambda n: fates.get(n, (0, True))
    assert states(behind.finish()) == answers
    assert (behind.begun, bench.done()) == (begun, done)


def test_an_error_that_one_has_brought_along_is_its_own(bench: Bench) -> None:
    first, broken, task = bench.fill(3)
    stored = bench.queue._shape.keys.task(id_bytes(broken.id))
    run(bench.other, lambda tr: tr.set(stored, b"\xc1 no record"))
    alone: type[Exception] | None = None
    try:
        bench.queue.ack(bench.other, broken.id, session=bench.session)
    except Exception as error:
        alone = type(error)
    outcomes = bench.behind(first, broken, task).finish()
    run(bench.other, lambda tr: tr.clear(stored))
    assert (type(outcomes[0]), states(outcomes[1:])) == (alone, "-")


def test_of_a_dropped_queue_each_is_told(bench: Bench) -> None:
    tasks = bench.fill(3)
    behind = bench.behind(*tasks)
    run(bench.other, lambda tr: bench.queue._shape.registry.drop(tr, "acks"))
    outcomes = behind.finish()
    assert [type(one) for one in outcomes] == [QueueDropped, QueueDropped]
    assert outcomes[0] is not outcomes[1]


def test_no_transaction_has_more_acks_than_the_limit(bench: Bench, set_limits: SetLimits) -> None:
    tasks = bench.fill(8)
    set_limits(VERB_BATCH=3)
    behind = bench.behind(*tasks)
    assert states(behind.finish()) == "-" * 7
    assert (behind.begun, bench.done()) == (4, 8)


def test_an_interrupted_leader_leaves_the_others_to_the_next(bench: Bench) -> None:
    tasks = bench.fill(4)

    def interrupt() -> None:
        raise KeyboardInterrupt

    behind = bench.behind(*tasks, lead=interrupt)
    assert states(behind.finish()) == "---"
    assert isinstance(behind.outcomes[0], KeyboardInterrupt)
    assert (bench.done(), bench.queue.peek(bench.other, tasks[0]).state) == (3, "t")


@pytest.mark.parametrize("how", ["in a transaction", "by its id", "with a callback"])
def test_an_ack_that_does_not_join_does_not_wait(bench: Bench, how: str) -> None:
    first, task = bench.fill(2)
    behind = bench.behind(first)
    if how == "in a transaction":
        run(bench.db, lambda tr: bench.queue.ack(tr, task))
    elif how == "by its id":
        bench.queue.ack(bench.db, task.id, session=bench.session)
    else:
        queue = TaskQueue.open(bench.db, "acks", root=bench.space)
        queue.on_task_change(lambda task, event: None)  # noqa: ARG005  # whatever it does
        bench.queue.ack(bench.db, task)
    assert 0 not in behind.outcomes
    behind.finish()
    assert bench.done() == 2
