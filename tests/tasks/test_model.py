"""The whole life cycle against a plain model: any verb at any time, statistics compared after every step."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fdbqueue
from fdbqueue import Session, Task, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, QueueFull, TaskNotFound
from fdbqueue.core.transactional import transactional
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from tests.conftest import SLOW
from tests.tasks.model import NEVER, Model, ModelTask, Refused
from tests.tasks.support import LONG_S, StillClock, keeper

# Quarters of a second are exact in binary: the model and the queue agree to the microsecond.
spans = st.sampled_from([0.25, 0.5, 1.0, 3.0, None])
delays = st.sampled_from([0, 0, 0, 0.5, 2.0])
waits = st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.25, 1.0, 5.0])
lives = st.sampled_from([None, None, 5.0, 1.0, 0.25])
LISTED = 1_000
"""More than the tasks that the steps of an example put."""
picks = st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 21])  # counted from the last
in_transaction = st.booleans()


class LifeCycle(RuleBasedStateMachine):
    in_order = True

    @initialize(kind=st.sampled_from(["fifo", "fifottl", "limfifottl", "bag"]))
    def create(self, kind: str) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        capacity = 8 if kind == "limfifottl" else None
        self.timed = kind != "fifo"
        self.in_order = kind != "bag"
        options = {} if capacity is None else {"capacity": capacity}
        self.queue = TaskQueue.create(self.db, "model", kind, **options)
        self.model = Model(timed=self.timed, capacity=capacity)
        self.sessions = {name: self._open() for name in "ab"}
        self.leases: list[tuple[Task, int]] = []
        self.ids: list[str] = []

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()

    def _open(self) -> Session:
        return Session(self.db, ttr=LONG_S)

    def _wait(self, seconds: float) -> None:
        """Time passes without a sweep: the next verb has to judge deadlines itself."""
        self.clock.advance(seconds)
        self.model.advance(seconds)

    def _run(self, inside: bool, verb: Callable[[Any], Any]) -> Any:
        return transactional(verb, parameter="tr")(self.db) if inside else verb(self.db)

    @rule(
        inside=in_transaction,
        wait=waits,
        count=st.integers(1, 3),
        pri=st.integers(0, 2),
        ttl=lives,
        ttr=spans,
        delay=delays,
    )
    def put(
        self,
        inside: bool,
        wait: float,
        count: int,
        pri: int,
        ttl: float | None,
        ttr: float | None,
        delay: float,
    ) -> None:
        self._wait(wait)
        data = range(len(self.ids), len(self.ids) + count)
        pri = pri if self.in_order else 0
        options = {"pri": pri, "ttl": ttl, "ttr": ttr, "delay": delay} if self.timed else {}
        full = self.model.full(count)
        try:
            tasks = self._run(inside, lambda tr: self.queue.put_many(tr, data, **options))
        except QueueFull:
            assert full
            return
        assert not full
        if not self.timed:
            pri, ttl, ttr, delay = 0, None, None, 0
        for task in tasks:
            self.ids.append(task.id)
            self.model.put(task.id, task.data, pri, _span(ttl), _span(ttr), delay)

    @rule(inside=in_transaction, wait=waits, name=st.sampled_from("ab"), count=st.integers(1, 3))
    def take(self, inside: bool, wait: float, name: str, count: int) -> None:
        self._wait(wait)
        session = self.sessions[name]
        if inside:
            found = self._run(True, lambda tr: self.queue.take_many(tr, count, session=session))
        else:
            found = self.queue.take_many(self.db, count, 0, session=session)
        if self.in_order:
            expected = self.model.take(name, count)
        else:
            expected = self.model.take_from_bag(name, count, [task.id for task in found])
        assert [(task.id, task.attempts) for task in found] == [(task.id, task.attempts) for task in expected]
        self.leases += [(task, mine.lease) for task, mine in zip(found, expected, strict=True)]

    @precondition(lambda self: self.leases)
    @rule(
        inside=in_transaction,
        wait=waits,
        pick=picks,
        verb=st.sampled_from(["ack", "release", "touch", "bury", "delete"]),
        amount=st.sampled_from([0.25, 2.0]),
    )
    def use_a_lease(self, inside: bool, wait: float, pick: int, verb: str, amount: float) -> None:
        self._wait(wait)
        if verb == "touch" and not self.timed:
            return
        task, lease = self.leases[-1 - pick % len(self.leases)]
        options: dict[str, Any] = {"increment": amount} if verb == "touch" else {}
        if verb == "release" and self.timed and pick % 2:
            options = {"delay": amount}

        def expected() -> None:
            held = self.model.held(task.id, lease)
            if verb == "release":
                self.model.release(held, options.get("delay", 0))
            elif verb == "touch":
                self.model.touch(held, amount)
            else:
                getattr(self.model, verb)(held)

        refused = _refuses(expected)
        if refused:
            with pytest.raises(NotTaken):
                self._run(inside, lambda tr: getattr(self.queue, verb)(tr, task, **options))
        else:
            self._run(inside, lambda tr: getattr(self.queue, verb)(tr, task, **options))

    @precondition(lambda self: self.leases)
    @rule(wait=waits, some=st.lists(picks, min_size=2, max_size=5))
    def ack_together(self, wait: float, some: list[int]) -> None:
        """Of several threads, in one transaction: some may hold the same task, or one no longer."""
        self._wait(wait)
        leases = [self.leases[-1 - pick % len(self.leases)] for pick in some]
        wanted = [
            _refuses(lambda task=task, lease=lease: self.model.ack(self.model.held(task.id, lease)))  # type: ignore[misc]
            for task, lease in leases
        ]
        targets = [self.queue._target(self.db, task, None) for task, _ in leases]
        source = calls_of(self.db, self.queue._shape).source
        found = run(self.db, lambda tr: source.within(tr, lambda change: verbs.ack_each(change, targets)))
        assert [isinstance(one, NotTaken) for one in found] == wanted
        for (task, _), one in zip(leases, found, strict=True):
            assert isinstance(one, NotTaken) or (one.id, one.data) == (task.id, task.data)

    @precondition(lambda self: self.ids)
    @rule(
        inside=in_transaction,
        wait=waits,
        pick=picks,
        verb=st.sampled_from(["bury", "delete", "cancel", "peek"]),
    )
    def anybody(self, inside: bool, wait: float, pick: int, verb: str) -> None:
        self._wait(wait)
        id_ = self.ids[-1 - pick % len(self.ids)]
        expected = self.model.tasks.get(id_)
        if expected is None:
            with pytest.raises(TaskNotFound):
                self._run(inside, lambda tr: getattr(self.queue, verb)(tr, id_))
            return
        done = self._run(inside, lambda tr: getattr(self.queue, verb)(tr, id_))
        if verb != "peek":
            getattr(self.model, verb)(expected)
        assert done.state == (expected.state if id_ in self.model.tasks else "-")

    @rule(inside=in_transaction, wait=waits, count=st.integers(1, 3))
    def kick(self, inside: bool, wait: float, count: int) -> None:
        self._wait(wait)
        assert self._run(inside, lambda tr: self.queue.kick(tr, count)) == self.model.kick(count)

    @rule(inside=in_transaction, wait=waits)
    def release_all(self, inside: bool, wait: float) -> None:
        self._wait(wait)
        self._run(inside, self.queue.release_all)
        self.model.release_of(None)

    @rule(wait=waits, name=st.sampled_from("ab"))
    def end_a_session(self, wait: float, name: str) -> None:
        self._wait(wait)
        self.sessions[name].end()
        self.model.release_of(name)
        self.sessions[name] = self._open()

    @rule(inside=in_transaction, wait=waits)
    def truncate(self, inside: bool, wait: float) -> None:
        # Swept first: expired tasks count as expired, not as truncated.
        self._wait(wait)
        keeper(self.db).tick()
        self._run(inside, self.queue.truncate)
        self.model.tasks.clear()

    @invariant()
    def statistics_and_contents_are_those_of_the_model(self) -> None:
        if not hasattr(self, "db"):
            return
        keeper(self.db).tick()
        assert self.queue.statistics(self.db) == self.model.statistics()
        for state in "rt!~":
            found = {task.id: task for task in self.queue.tasks(self.db, state, LISTED)}
            expected = {task.id: task for task in self.model.tasks.values() if task.state == state}
            assert found.keys() == expected.keys()
            assert all(_agree(found[id_], expected[id_]) for id_ in found)
        listed = [task.id for task in self.queue.tasks(self.db, "r", LISTED)]
        assert (listed if self.in_order else sorted(listed)) == [task.id for task in self.model.ready()]


def _span(seconds: float | None) -> float:
    return NEVER if seconds is None else seconds


def _refuses(expected: Callable[[], None]) -> bool:
    try:
        expected()
    except Refused:
        return True
    return False


def _agree(found: Task, expected: ModelTask) -> bool:
    return (found.data, found.pri, found.attempts) == (expected.data, expected.pri, expected.attempts)


LifeCycle.TestCase.settings = settings(
    max_examples=5_000 if SLOW else 60, stateful_step_count=60 if SLOW else 40, deadline=None
)
TestLifeCycle = LifeCycle.TestCase
