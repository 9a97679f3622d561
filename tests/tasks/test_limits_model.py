"""Limits against a plain model: three queues under one of slots and one of starts, in any order of verbs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fdbqueue
from fdbqueue import Limit, Session, Task, TaskQueue, transactional
from fdbqueue.core.errors import LimitInUse, LimitNotFound, QueueBusy
from tests.conftest import SLOW
from tests.tasks.support import LONG_S, StillClock, keeper

SLOTS, RATE = "slots", "rate"
TTR_S, DEATH_S = 4.0, 3.0
QUEUES: dict[str, tuple[str, list[str]]] = {
    "few": ("fifottl", [SLOTS]),
    "both": ("fifottl", [RATE, SLOTS]),
    "slow": ("bag", [RATE]),
}
"""Their kinds and limits."""
names = st.sampled_from([*QUEUES])
picks = st.integers(0, 5)
rates = st.sampled_from([(1, 1.0, 1), (2, 1.0, 4), (5, 10.0, 3), (1, 4.0, 15)])
"""With a burst of one cell, and a token in half seconds, so that the model knows each token."""


@dataclass
class Known:
    """A task as the model knows it."""

    queue: str
    state: str = "ready"
    """"ready", "delayed", "buried", "taken", or "late": its lease is over, and no sweep has seen that."""
    time: float = 0.0
    """The end of its lease, or of its delay."""
    has_slot: bool = False
    is_cancelled: bool = False


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


class Limits(RuleBasedStateMachine):
    @initialize(
        partitions=st.sampled_from([1, 1, 3]), slots=st.integers(1, 4), rate=rates, waiting=st.integers(1, 8)
    )
    def create(self, partitions: int, slots: int, rate: tuple[int, float, int], waiting: int) -> None:
        self.clock, self.partitions = StillClock(), partitions
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.slots: int | None = slots
        self.tokens = Tokens(*rate, self.clock.now())
        Limit.set(self.db, SLOTS, slots=slots)
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.queues = {name: self.queue(name) for name in QUEUES}
        self.session = Session(self.db, ttr=LONG_S)
        self.tasks: dict[str, Known] = {}
        self.leases: dict[str, Task] = {}
        for name in QUEUES:
            self.put(name, waiting, 0)

    def queue(self, name: str) -> TaskQueue:
        kind, limited = QUEUES[name]
        options = {"ttr": TTR_S} if kind == "fifottl" else {}
        return TaskQueue.create(self.db, name, kind, limits=limited, partitions=self.partitions, **options)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.keys_are_sound()
            self.db.close()

    # The model.

    def under(self, name: str, *states: str) -> list[str]:
        return [id_ for id_, task in self.tasks.items() if task.queue == name and task.state in states]

    def used(self, *states: str) -> int:
        return sum(task.has_slot and task.state in states for task in self.tasks.values())

    def free(self, name: str, used: int) -> int:
        """Number of tasks that may start in a queue, beside `used` slots."""
        limited, found = QUEUES[name][1], [len(self.tasks)]
        if SLOTS in limited and self.slots is not None:
            found.append(max(0, self.slots - used))
        if RATE in limited:
            found.append(self.tokens.now(self.clock.now()))
        return min(found)

    def start(self, task: Known) -> None:
        limited = QUEUES[task.queue][1]
        task.state, task.has_slot = "taken", SLOTS in limited and self.slots is not None
        task.time = self.clock.now() + (TTR_S if QUEUES[task.queue][0] == "fifottl" else LONG_S)
        if RATE in limited:
            self.tokens.now(self.clock.now())
            self.tokens.left -= 1

    def ended(self, id_: str, state: str | None) -> None:
        """The lease of a task, if it has one, is over; without a state, the task is gone."""
        task = self.tasks[id_]
        self.leases.pop(id_, None)
        if state is None or (task.is_cancelled and task.state in ("taken", "late")):
            del self.tasks[id_]
        else:
            task.state, task.has_slot = state, False

    def swept(self) -> None:
        keeper(self.db).tick()
        for id_ in [id_ for id_, task in self.tasks.items() if task.state == "late"]:
            self.ended(id_, "ready")

    def pick(self, pick: int, *states: str) -> str | None:
        found = [id_ for id_, task in self.tasks.items() if task.state in states]
        return found[pick % len(found)] if found else None

    # Verbs.

    @rule(name=names, count=st.integers(1, 4), delay=st.sampled_from([0, 0, 1.0]))
    def put(self, name: str, count: int, delay: float) -> None:
        delay = delay if QUEUES[name][0] == "fifottl" else 0
        options = {"delay": delay} if delay else {}
        for number in range(count):
            id_ = self.queues[name].put(self.db, number, **options).id
            self.tasks[id_] = Known(name, "delayed" if delay else "ready", self.clock.now() + delay)

    @rule(name=names, count=st.sampled_from([1, 1, 2, 3, 9]))
    def take(self, name: str, count: int) -> None:
        queue = self.queues[name]
        if count == 1:
            got = queue.take(self.db, 0, session=self.session)
            self.took(name, 1, [] if got is None else [got])
        else:
            self.took(name, count, queue.take_many(self.db, count, session=self.session))

    def took(self, name: str, count: int, got: list[Task]) -> None:
        """A take gives each task that may start. It may see that a lease is over, or not."""
        sure = min(count, len(self.under(name, "ready")), self.free(name, self.used("taken", "late")))
        most = min(count, len(self.under(name, "ready", "late")), self.free(name, self.used("taken")))
        assert (sure if self.partitions == 1 else min(1, sure)) <= len(got) <= most
        for task in got:
            assert task.id in self.under(name, "ready", "late")
        for task in got:
            self.start(self.tasks[task.id])
            self.leases[task.id] = task
        self.swept()

    @rule(name=names, commits=st.booleans())
    def take_and_ack(self, name: str, commits: bool) -> None:
        """In one transaction: it uses a token, and no slot."""
        self.swept()
        tr, queue = self.db.create_transaction(), self.queues[name]
        got = queue.take(tr, session=self.session)
        assert (got is not None) == bool(self.under(name, "ready") and self.free(name, self.used("taken")))
        if got is not None:
            queue.ack(tr, got)
        if not commits:
            tr.reset()
            return
        tr.commit().wait()
        if got is not None:
            self.start(self.tasks[got.id])
            self.ended(got.id, None)

    @rule(
        pick=picks,
        verb=st.sampled_from(["ack", "ack", "release", "give_back", "bury", "renew"]),
        later=st.booleans(),
        inside=st.booleans(),
    )
    def end(self, pick: int, verb: str, later: bool, inside: bool) -> None:
        if not self.leases:  # no precondition: partitions are chosen by chance
            return
        lease = [*self.leases.values()][pick % len(self.leases)]
        queue, options = self.queues[self.tasks[lease.id].queue], dict[str, Any]()
        if verb == "release" and later and QUEUES[self.tasks[lease.id].queue][0] == "fifottl":
            options["delay"] = 1.0
        given = [lease] if verb == "renew" else lease
        body = transactional(lambda tr: getattr(queue, verb)(tr, given, **options), parameter="tr")
        body(self.db) if inside else getattr(queue, verb)(self.db, given, **options)
        if verb == "renew":
            timed = QUEUES[self.tasks[lease.id].queue][0] == "fifottl"
            self.tasks[lease.id].time = self.clock.now() + (TTR_S if timed else LONG_S)
            return
        self.tasks[lease.id].time = self.clock.now() + 1.0
        waits = "delayed" if options else "ready"
        self.ended(lease.id, {"ack": None, "bury": "buried"}.get(verb, waits))

    @rule(pick=picks, verb=st.sampled_from(["delete", "cancel", "bury"]))
    def manage(self, pick: int, verb: str) -> None:
        id_ = self.pick(pick, "ready", "delayed", "taken")
        if id_ is None:
            return
        getattr(self.queues[self.tasks[id_].queue], verb)(self.db, id_)
        if verb == "cancel" and self.tasks[id_].state == "taken":
            self.tasks[id_].is_cancelled = True
        else:
            self.ended(id_, "buried" if verb == "bury" else None)

    @rule(name=names)
    def kick(self, name: str) -> None:
        buried = self.under(name, "buried")
        assert self.queues[name].kick(self.db, 9) == min(9, len(buried))
        if len(buried) <= 9:
            for id_ in buried:
                self.ended(id_, "ready")

    @rule(
        name=names,
        count=st.integers(0, 4),
        verb=st.sampled_from(["release_all", "truncate", "truncate_some", "drop"]),
    )
    def end_all(self, name: str, count: int, verb: str) -> None:
        if count:
            self.take(name, count)
        queue, taken = self.queues[name], self.under(name, "taken", "late")
        if verb == "release_all":
            queue.release_all(self.db)
            for id_ in taken:
                self.ended(id_, "ready")
            return
        if verb == "drop":
            if self.under(name, "taken"):
                with pytest.raises(QueueBusy):
                    queue.drop(self.db)
                return
            if SLOTS in QUEUES[name][1] and self.slots is None:
                return
            queue.drop(self.db)
            self.queues[name] = self.queue(name)
        else:
            getattr(queue, verb)(self.db)
        for id_ in [id_ for id_, task in self.tasks.items() if task.queue == name]:
            self.ended(id_, None)

    # Sessions and time.

    @rule(name=names, count=st.integers(1, 4))
    def end_session(self, name: str, count: int) -> None:
        self.take(name, count)
        self.session.end()
        self.session = Session(self.db, ttr=LONG_S)
        for id_ in [*self.leases]:
            self.ended(id_, "ready")
        self.swept()

    @rule(name=names, count=st.integers(1, 4), is_swept=st.booleans())
    def death(self, name: str, count: int, is_swept: bool) -> None:
        """A process takes tasks, and dies."""
        session = Session(self.db, ttr=DEATH_S)
        got = self.queues[name].take_many(self.db, count, session=session)
        self.took(name, count, got)
        keeper(self.db).forget(session)
        self.advance(DEATH_S, False)
        for task in got:
            self.tasks[task.id].state = "late"
            del self.leases[task.id]
        if is_swept:
            self.swept()

    @rule(name=names, other=names, count=st.integers(1, 9), is_swept=st.booleans())
    def leases_end(self, name: str, other: str, count: int, is_swept: bool) -> None:
        """A take beside leases that are over."""
        self.take(name, count)
        self.advance(TTR_S, is_swept)
        self.take(other, count)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0]), is_swept=st.booleans())
    def advance(self, seconds: float, is_swept: bool) -> None:
        self.clock.advance(seconds)
        for id_, task in self.tasks.items():
            if task.state == "taken" and task.time <= self.clock.now():
                task.state = "late"
                self.leases.pop(id_, None)
            elif task.state == "delayed" and task.time <= self.clock.now():
                task.state = "ready"
        if is_swept:
            self.swept()
            self.keys_are_sound()

    # Changes of the limits.

    @rule(slots=st.sampled_from([None, 1, 2, 3, 5, 17, 20]))
    def change_slots(self, slots: int | None) -> None:
        """None deletes the limit. Tasks that start without it hold no slot of a later one."""
        if slots is not None:
            Limit.set(self.db, SLOTS, slots=slots)
        elif self.slots is None:
            return
        elif self.used("taken", "late"):
            with pytest.raises(LimitInUse):
                Limit.delete(self.db, SLOTS)
            return
        else:
            Limit.delete(self.db, SLOTS)
        self.slots = slots

    @rule(rate=rates)
    def change_rate(self, rate: tuple[int, float, int]) -> None:
        Limit.set(self.db, RATE, rate=rate[0], per=rate[1], burst=rate[2])
        self.tokens.changed(*rate, self.clock.now())

    # Looks.

    @invariant()
    def slots_are_those_of_tasks_that_run(self) -> None:
        if not hasattr(self, "db"):
            return
        if self.slots is None:
            with pytest.raises(LimitNotFound):
                Limit.open(self.db, SLOTS)
            return
        found = Limit.open(self.db, SLOTS)
        running = [id_ for id_, task in self.tasks.items() if task.has_slot]
        assert (found.slots, found.used) == (self.slots, len(running))
        assert found.free == max(0, self.slots - len(running))
        shown = Counter((holder.queue, holder.task) for holder in found.holders)
        assert set(shown) <= {(self.tasks[id_].queue, id_) for id_ in running}
        assert shown.total() == len(shown) == min(len(running), fdbqueue.core.limits.LIMIT_HOLDERS_SHOWN)

    @invariant()
    def tokens_are_those_of_the_bucket(self) -> None:
        if hasattr(self, "db"):
            found = Limit.open(self.db, RATE)
            assert (found.rate, found.per, found.burst) == self.tokens.rule
            assert (found.free, found.used) == (self.tokens.now(self.clock.now()), 0)

    def keys_are_sound(self) -> None:
        assert fdbqueue.verify(self.db).findings == ()


Limits.TestCase.settings = settings(
    max_examples=500 if SLOW else 20, stateful_step_count=30, deadline=None, print_blob=True
)
TestLimits = Limits.TestCase
