"""Lanes against a plain model: which tasks a take gives, and in which order, whatever limits they name."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fdbqueue
from fdbqueue import Limit, Session, Task, TaskQueue, transactional
from tests.conftest import SLOW
from tests.tasks.support import LONG_S, StillClock, keeper
from tests.tasks.test_limits_model import Tokens, rates

FEW, MANY, RATE, ALL = "few", "many", "rate", "of all"
SLOTS = (FEW, MANY, ALL)
TTR_S = 4.0
sets_of_names = st.sets(st.sampled_from([FEW, MANY, RATE])).map(sorted)
picks = st.integers(0, 9)


@dataclass
class Known:
    """A task as the model knows it."""

    pri: int
    names: list[str]
    state: str = "ready"
    until: float = 0.0
    """The end of its lease, or of its delay."""


class Lanes(RuleBasedStateMachine):
    @initialize(
        slots=st.tuples(st.integers(1, 2), st.integers(2, 5), st.integers(1, 8)),
        rate=rates,
        is_limited=st.booleans(),
        first=st.lists(sets_of_names, max_size=12),
    )
    def create(
        self,
        slots: tuple[int, int, int],
        rate: tuple[int, float, int],
        is_limited: bool,
        first: list[list[str]],
    ) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.slots = dict(zip(SLOTS, slots, strict=True))
        for name, count in self.slots.items():
            Limit.set(self.db, name, slots=count)
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.tokens = Tokens(*rate, self.clock.now())
        self.of_all = [ALL] if is_limited else []
        options: Any = {"limits": self.of_all, "task_limits": [FEW, MANY, RATE], "ttr": TTR_S}
        self.queue = TaskQueue.create(self.db, "q", "fifottl", **options)
        self.session = Session(self.db, ttr=LONG_S)
        self.tasks: dict[str, Known] = {}
        self.leases: dict[str, Task] = {}
        for names in first:
            self.put(names, 0, 0)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            assert fdbqueue.verify(self.db).findings == ()
            self.db.close()

    # The model.

    def under(self, task: Known) -> list[str]:
        return [*task.names, *self.of_all]

    def used(self) -> Counter[str]:
        taken = [task for task in self.tasks.values() if task.state == "taken"]
        return Counter(name for task in taken for name in self.under(task) if name in SLOTS)

    def expected(self, count: int) -> list[str]:
        """The first tasks by priority and arrival of which each limit lets one start."""
        free = Counter({name: max(0, slots - self.used()[name]) for name, slots in self.slots.items()})
        free[RATE] = self.tokens.now(self.clock.now())
        found: list[str] = []
        for id_, task in sorted(self.tasks.items(), key=lambda entry: (entry[1].pri, entry[0])):
            if task.state == "ready" and len(found) < count and all(free[one] for one in self.under(task)):
                free.subtract(self.under(task))
                found.append(id_)
        return found

    def swept(self) -> None:
        keeper(self.db).tick()
        for id_, task in self.tasks.items():
            if task.state in ("taken", "delayed") and task.until <= self.clock.now():
                task.state = "ready"
                self.leases.pop(id_, None)

    def pick(self, pick: int, *states: str) -> str | None:
        found = [id_ for id_, task in self.tasks.items() if task.state in states]
        return found[pick % len(found)] if found else None

    # Verbs.

    @rule(names=sets_of_names, pri=st.sampled_from([0, 0, 1]), delay=st.sampled_from([0, 0, 1.0]))
    def put(self, names: list[str], pri: int, delay: float) -> None:
        task = self.queue.put(self.db, "x", pri=pri, delay=delay, limits=names or None)
        state = "delayed" if delay else "ready"
        self.tasks[task.id] = Known(pri, names, state, self.clock.now() + delay)

    @rule(count=st.sampled_from([1, 1, 2, 3, 9]), commits=st.booleans(), inside=st.booleans())
    def take(self, count: int, commits: bool, inside: bool) -> None:
        self.swept()
        expected = self.expected(count)
        if not inside:
            got = self.queue.take_many(self.db, count, session=self.session)
        else:
            tr = self.db.create_transaction()
            got = self.queue.take_many(tr, count, session=self.session)
            assert [task.id for task in got] == expected
            if not commits:
                return
            tr.commit().wait()
        assert [task.id for task in got] == expected
        for task in got:
            known = self.tasks[task.id]
            assert sorted(task.limits) == known.names
            known.state, known.until = "taken", self.clock.now() + TTR_S
            self.leases[task.id] = task
            self.tokens.left -= RATE in known.names

    @rule(
        pick=picks,
        verb=st.sampled_from(["ack", "ack", "release", "bury", "touch"]),
        later=st.booleans(),
        inside=st.booleans(),
    )
    def end(self, pick: int, verb: str, later: bool, inside: bool) -> None:
        self.swept()
        if not self.leases:
            return
        lease = [*self.leases.values()][pick % len(self.leases)]
        given: dict[str, Any] = {"delay": 1.0} if verb == "release" and later else {}
        arguments = (1.0,) if verb == "touch" else ()
        body = transactional(
            lambda tr: getattr(self.queue, verb)(tr, lease, *arguments, **given), parameter="tr"
        )
        body(self.db) if inside else getattr(self.queue, verb)(self.db, lease, *arguments, **given)
        known = self.tasks[lease.id]
        if verb == "touch":
            known.until += 1.0
            return
        del self.leases[lease.id]
        if verb == "ack":
            del self.tasks[lease.id]
            return
        known.state = {"bury": "buried"}.get(verb, "delayed" if given else "ready")
        known.until = self.clock.now() + 1.0

    @rule(pick=picks, verb=st.sampled_from(["delete", "cancel", "bury"]))
    def manage(self, pick: int, verb: str) -> None:
        self.swept()
        id_ = self.pick(pick, "ready", "delayed")
        if id_ is None:
            return
        getattr(self.queue, verb)(self.db, id_)
        if verb == "bury":
            self.tasks[id_].state = "buried"
        else:
            del self.tasks[id_]

    @rule()
    def kick(self) -> None:
        self.queue.kick(self.db, 99)
        for task in self.tasks.values():
            task.state = "ready" if task.state == "buried" else task.state

    @rule(verb=st.sampled_from(["release_all", "truncate", "truncate_some"]))
    def end_all(self, verb: str) -> None:
        self.swept()
        getattr(self.queue, verb)(self.db)
        self.leases.clear()
        if verb != "release_all":
            self.tasks.clear()
        for task in self.tasks.values():
            task.state = "ready" if task.state == "taken" else task.state

    @rule(name=st.sampled_from(SLOTS), slots=st.sampled_from([1, 2, 3, 17]))
    def change(self, name: str, slots: int) -> None:
        Limit.set(self.db, name, slots=slots)
        self.slots[name] = slots

    @rule(rate=rates)
    def change_rate(self, rate: tuple[int, float, int]) -> None:
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.tokens.changed(*rate, self.clock.now())

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.swept()

    # Looks.

    @rule(pick=picks)
    def explain(self, pick: int) -> None:
        self.swept()
        id_ = self.pick(pick, "ready")
        if id_ is None:
            return
        reached, used = self.queue.explain(self.db, id_).reached, self.used()
        full = {
            name for name in self.under(self.tasks[id_]) if name in SLOTS and used[name] >= self.slots[name]
        }
        if RATE in self.tasks[id_].names and not self.tokens.now(self.clock.now()):
            full.add(RATE)
        assert {one.name for one in reached} == full

    @invariant()
    def slots_are_those_of_tasks_that_run(self) -> None:
        if hasattr(self, "db"):
            self.swept()
            used = {name: Limit.open(self.db, name).used for name in SLOTS}
            assert used == {name: self.used()[name] for name in SLOTS}


Lanes.TestCase.settings = settings(
    max_examples=300 if SLOW else 15, stateful_step_count=30, deadline=None, print_blob=True
)
TestLanes = Lanes.TestCase
