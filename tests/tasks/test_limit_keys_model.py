"""Limits that tasks name, whole or by key, against a plain model: two queues share them, in any order."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fdbqueue
from fdbqueue import Limit, Session, Task, TaskQueue, transactional
from fdbqueue.core import limits as bounds
from fdbqueue.core.errors import LimitInUse
from tests.conftest import SLOW
from tests.tasks.support import LONG_S, StillClock, keeper

TENANT, CALLS = "tenant", "calls"
"""Limits that count each key apart."""
ALL, RATE, QUEUE = "all", "rate", "queue"
"""Whole limits; the last one is that of each task of a queue."""
QUEUES = ("one", "two")
TTR_S = 4.0
keys = st.sampled_from(["a", "b", 3])
named = st.one_of(
    st.just({}),
    st.builds(lambda key: {TENANT: key}, keys),
    st.builds(lambda key: {TENANT: key}, keys),
    st.builds(lambda key: {TENANT: key, ALL: None}, keys),
    st.builds(lambda key: {CALLS: key}, keys),
    st.builds(lambda key: {CALLS: key, TENANT: None}, keys),
    st.just({ALL: None}),
    st.just({RATE: None}),
    st.builds(lambda key: {TENANT: key, RATE: None}, keys),
)
picks = st.integers(0, 9)
rates = st.sampled_from([(1, 1.0, 1), (2, 1.0, 4), (5, 10.0, 3), (1, 4.0, 15)])
"""With a burst of one cell, and a token in half seconds, so that the model knows each token."""
Counted = tuple[str, Any]
"""A limit with a key, or a whole limit."""


class Tokens:
    """A bucket: tokens come one by one, and a full one gets none."""

    def __init__(self, rate: int, per: float, burst: int, now: float) -> None:
        self.rule, self.left, self.seen = (rate, per, burst), float(burst), now

    def now(self, now: float) -> int:
        rate, per, burst = self.rule
        self.left, self.seen = min(float(burst), self.left + (now - self.seen) * rate / per), now
        return int(self.left)

    def changed(self, rate: int, per: float, burst: int, now: float) -> None:
        self.left = float(min(self.now(now), burst))
        self.rule = (rate, per, burst)


@dataclass
class Known:
    """A task as the model knows it."""

    queue: str
    pri: int
    limits: Mapping[str, Any]
    state: str = "ready"
    until: float = 0.0
    """The end of its lease, or of its delay."""
    held: tuple[Counted, ...] = ()
    """The slots that it holds."""


class Keys(RuleBasedStateMachine):
    @initialize(
        slots=st.tuples(st.integers(1, 2), st.integers(1, 6), st.integers(1, 8)),
        rate=rates,
        is_limited=st.booleans(),
        few=st.sampled_from([(16, 8, 50), (1, 1, 2)]),
        first=st.lists(named, max_size=12),
    )
    def create(
        self,
        slots: tuple[int, int, int],
        rate: tuple[int, float, int],
        is_limited: bool,
        few: tuple[int, int, int],
        first: list[Mapping[str, Any]],
    ) -> None:
        self.usual = bounds.LANES_TURNED, bounds.KEYS_SETTLED, bounds.KEY_ROWS_WALKED
        bounds.LANES_TURNED, bounds.KEYS_SETTLED, bounds.KEY_ROWS_WALKED = few
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.slots: dict[str, int | None] = {TENANT: slots[0], ALL: slots[1], QUEUE: slots[2]}
        self.of_all: list[Counted] = [(QUEUE, None)] if is_limited else []
        self.rate, self.tokens = rate, dict[Any, Tokens]()
        Limit.set(self.db, TENANT, slots=slots[0], per_key=True)
        for name in (ALL, QUEUE):
            Limit.set(self.db, name, slots=self.slots[name])
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.whole = Tokens(*rate, self.clock.now())
        Limit.set(self.db, CALLS, rate=rate[0], per=rate[1], burst=rate[2], per_key=True)
        of_queue = [QUEUE] if is_limited else None
        options: Any = {"task_limits": [TENANT, CALLS, ALL, RATE], "limits": of_queue, "ttr": TTR_S}
        self.queues = {name: TaskQueue.create(self.db, name, "fifottl", **options) for name in QUEUES}
        self.session = Session(self.db, ttr=LONG_S)
        self.tasks: dict[str, Known] = {}
        self.leases: dict[str, Task] = {}
        for at, limits in enumerate(first):
            self.put(QUEUES[at % 2], limits, 0, 0)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.swept()
            findings = fdbqueue.verify(self.db).findings
            assert findings == (), [one.text for one in findings]
            self.db.close()
            bounds.LANES_TURNED, bounds.KEYS_SETTLED, bounds.KEY_ROWS_WALKED = self.usual

    # The model.

    def bucket(self, key: Any) -> Tokens:
        return self.tokens.setdefault(key, Tokens(*self.rate, self.clock.now()))

    def under(self, task: Known) -> list[Counted]:
        """The limits of a task."""
        return [*task.limits.items(), *self.of_all]

    def used(self) -> Counter[Counted]:
        return Counter(one for task in self.tasks.values() for one in task.held)

    def free(self, taken: Counter[Counted], one: Counted) -> bool:
        if one[0] in (CALLS, RATE):
            tokens = self.whole if one[0] == RATE else self.bucket(one[1])
            return taken[one] < tokens.now(self.clock.now())
        slots = self.slots[one[0]]
        return slots is None or taken[one] < slots

    def expected(self, queue: str, count: int) -> list[str]:
        """The first tasks by priority and arrival of which each limit lets one start."""
        taken, found = self.used(), list[str]()
        mine = [(id_, task) for id_, task in self.tasks.items() if task.queue == queue]
        for id_, task in sorted(mine, key=lambda entry: (entry[1].pri, entry[0])):
            counted = self.under(task)
            if task.state == "ready" and len(found) < count and all(self.free(taken, one) for one in counted):
                taken.update(counted)
                found.append(id_)
        return found

    def swept(self) -> None:
        for _ in range(8 if bounds.KEYS_SETTLED == 1 else 2):
            keeper(self.db).tick()
        for id_, task in self.tasks.items():
            if task.state in ("taken", "delayed") and task.until <= self.clock.now():
                self.back(id_, "ready")

    def back(self, id_: str, state: str) -> None:
        self.tasks[id_].state, self.tasks[id_].held = state, ()
        self.leases.pop(id_, None)

    def pick(self, pick: int, *states: str) -> str | None:
        found = [id_ for id_, task in self.tasks.items() if task.state in states]
        return found[pick % len(found)] if found else None

    # Verbs.

    @rule(
        queue=st.sampled_from(QUEUES),
        limits=named,
        pri=st.sampled_from([0, 0, 1]),
        delay=st.sampled_from([0, 0, 1.0]),
    )
    def put(self, queue: str, limits: Mapping[str, Any], pri: int, delay: float) -> None:
        task = self.queues[queue].put(self.db, "x", pri=pri, delay=delay, limits=limits or None)
        assert task.limits == limits
        state = "delayed" if delay else "ready"
        self.tasks[task.id] = Known(queue, pri, limits, state, self.clock.now() + delay)

    @rule(
        queue=st.sampled_from(QUEUES),
        count=st.sampled_from([1, 1, 2, 3, 9]),
        commits=st.booleans(),
        inside=st.booleans(),
    )
    def take(self, queue: str, count: int, commits: bool, inside: bool) -> None:
        expected, q = self.expected(queue, count), self.queues[queue]
        if not inside:
            got = q.take_many(self.db, count, session=self.session)
        else:
            tr = self.db.create_transaction()
            got = q.take_many(tr, count, session=self.session)
            assert [task.id for task in got] == expected
            if not commits:
                return
            tr.commit().wait()
        assert [task.id for task in got] == expected
        for task in got:
            known = self.tasks[task.id]
            assert task.limits == known.limits
            known.state, known.until = "taken", self.clock.now() + TTR_S
            known.held = tuple(
                one for one in self.under(known) if one[0] in self.slots and self.slots[one[0]] is not None
            )
            self.leases[task.id] = task
            if CALLS in known.limits:
                self.bucket(known.limits[CALLS]).left -= 1
            self.whole.left -= RATE in known.limits

    @rule(
        pick=picks,
        verb=st.sampled_from(["ack", "ack", "release", "bury", "touch"]),
        later=st.booleans(),
        inside=st.booleans(),
    )
    def end(self, pick: int, verb: str, later: bool, inside: bool) -> None:
        if not self.leases:
            return
        lease = [*self.leases.values()][pick % len(self.leases)]
        queue = self.queues[self.tasks[lease.id].queue]
        given: dict[str, Any] = {"delay": 1.0} if verb == "release" and later else {}
        arguments = (1.0,) if verb == "touch" else ()
        body = transactional(lambda tr: getattr(queue, verb)(tr, lease, *arguments, **given), parameter="tr")
        body(self.db) if inside else getattr(queue, verb)(self.db, lease, *arguments, **given)
        if verb == "touch":
            self.tasks[lease.id].until += 1.0
            return
        self.back(lease.id, {"bury": "buried"}.get(verb, "delayed" if given else "ready"))
        self.tasks[lease.id].until = self.clock.now() + 1.0
        if verb == "ack":
            del self.tasks[lease.id]

    @rule(pick=picks, verb=st.sampled_from(["delete", "cancel", "bury"]))
    def manage(self, pick: int, verb: str) -> None:
        id_ = self.pick(pick, "ready", "delayed")
        if id_ is None:
            return
        getattr(self.queues[self.tasks[id_].queue], verb)(self.db, id_)
        if verb == "bury":
            self.tasks[id_].state = "buried"
        else:
            del self.tasks[id_]

    @rule(queue=st.sampled_from(QUEUES))
    def kick(self, queue: str) -> None:
        self.queues[queue].kick(self.db, 99)
        for task in self.tasks.values():
            if task.state == "buried" and task.queue == queue:
                task.state = "ready"

    @rule(verb=st.sampled_from(["release_all", "truncate", "truncate_some"]), queue=st.sampled_from(QUEUES))
    def end_all(self, verb: str, queue: str) -> None:
        getattr(self.queues[queue], verb)(self.db)
        for id_, task in [*self.tasks.items()]:
            if task.queue == queue and task.state == "taken":
                self.back(id_, "ready")
            if task.queue == queue and verb != "release_all":
                del self.tasks[id_]

    @rule(name=st.sampled_from([TENANT, TENANT, ALL, QUEUE]), slots=st.sampled_from([1, 2, 3, 17]))
    def change(self, name: str, slots: int) -> None:
        Limit.set(self.db, name, slots=slots, per_key=name == TENANT)
        self.slots[name] = slots

    @rule(rate=rates)
    def change_rate(self, rate: tuple[int, float, int]) -> None:
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.whole.changed(*rate, self.clock.now())

    @rule()
    def delete(self) -> None:
        used = sum(count for one, count in self.used().items() if one[0] == TENANT)
        if self.slots[TENANT] is None:
            return
        if used:
            with pytest.raises(LimitInUse, match=f"{used}"):
                Limit.delete(self.db, TENANT)
            return
        Limit.delete(self.db, TENANT)
        self.slots[TENANT] = None

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # Looks.

    @rule(pick=picks)
    def explain(self, pick: int) -> None:
        id_ = self.pick(pick, "ready")
        if id_ is None:
            return
        task, used = self.tasks[id_], self.used()
        reached = self.queues[task.queue].explain(self.db, id_).reached
        full = {one for one in self.under(task) if not self.free(used, one)}
        assert {(one.name, one.key) for one in reached} == full
        for one in reached:
            assert one.name in (CALLS, RATE) or len(one.holders) == used[one.name, one.key]

    @invariant()
    def keys_are_those_of_tasks_that_run(self) -> None:
        if not hasattr(self, "db"):
            return
        self.swept()
        used = self.used()
        if self.slots[TENANT] is not None:
            found = {one.key: one.used for one in Limit.keys(self.db, TENANT)}
            assert found == {key: count for (name, key), count in used.items() if name == TENANT and key}
            whole = sum(count for (name, _), count in used.items() if name == TENANT)
            assert Limit.open(self.db, TENANT).used == whole
        for name in (ALL, QUEUE):
            assert Limit.open(self.db, name).used == used[name, None]
        full = [key for key, bucket in self.tokens.items() if bucket.now(self.clock.now()) < self.rate[2]]
        assert {one.key for one in Limit.keys(self.db, CALLS)} == set(full)


Keys.TestCase.settings = settings(
    max_examples=300 if SLOW else 30, stateful_step_count=30, deadline=None, print_blob=True
)
TestKeys = Keys.TestCase
