"""A schedule against a plain model, over any order of passes, pauses, changes, runs and deletions."""

from datetime import datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fdbqueue
from fdbqueue import Schedule, TaskQueue, fire_due, list_schedules, verify
from fdbqueue.core import limits
from tests.tasks.support import StillClock

EVERY_S = st.sampled_from([1, 7, 60, 400, 3_600])
MISSED = st.sampled_from(["once", "all", "skip"])


class Model:
    """The due times of one schedule, one by one."""

    def __init__(self, now: float, every: int, missed: str) -> None:
        self.missed = missed
        self.paused = False
        self.put: list[float] = []
        self.begin(now, every)

    def begin(self, now: float, every: int) -> None:
        self.every = every
        self.due = now + every

    def pass_at(self, now: float) -> None:
        come = [] if self.paused else [*range(int(self.due), int(now) + 1, self.every)]
        if not come:
            return
        self.due = come[-1] + self.every
        if now - come[0] > limits.SCHEDULE_MISSED_AFTER_S:
            if self.missed == "once":
                come = come[-1:]
            elif self.missed == "skip":
                come = [due for due in come if now - due <= limits.SCHEDULE_MISSED_AFTER_S]
        self.put += come

    def resume(self, now: float) -> None:
        if self.paused:
            self.paused = False
            while self.due <= now:
                self.due += self.every


class Schedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = StillClock(1_780_000_000.0)
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.queue = TaskQueue.create(self.db, "q", "fifottl")
        self.runs = 0

    def teardown(self) -> None:
        self.db.close()

    @initialize(every=EVERY_S, missed=MISSED)
    def create(self, every: int, missed: str) -> None:
        self.schedule = Schedule.create(self.db, "s", every=every, queue="q", missed=missed, data=0)
        self.model = Model(self.clock.now(), every, missed)
        self.data: Any = 0

    @rule(seconds=st.one_of(st.integers(0, 70), st.integers(0, 900)))
    def wait_and_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)
        while fire_due(self.db) == limits.SCHEDULES_FIRED_PER_PASS * limits.SCHEDULE_FIRED_MAX:
            pass
        self.model.pass_at(self.clock.now())

    @rule(seconds=st.integers(0, 900))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def pause(self) -> None:
        self.schedule.pause(self.db)
        self.model.paused = True

    @rule()
    def resume(self) -> None:
        self.schedule.resume(self.db)
        self.model.resume(self.clock.now())

    @rule(every=EVERY_S)
    def change_times(self, every: int) -> None:
        self.schedule.change(self.db, every=every)
        if every != self.model.every:
            self.model.begin(self.clock.now(), every)

    @rule(data=st.integers(0, 9))
    def change_data(self, data: int) -> None:
        self.schedule.change(self.db, data=data)
        self.data = data

    @rule(missed=MISSED)
    def change_rule(self, missed: str) -> None:
        self.schedule.change(self.db, missed=missed)
        self.model.missed = missed

    @rule()
    def run_by_hand(self) -> None:
        assert self.schedule.run(self.db).data == self.data
        self.runs += 1

    @precondition(lambda self: hasattr(self, "schedule"))
    @rule(every=EVERY_S, missed=MISSED)
    def delete_and_create(self, every: int, missed: str) -> None:
        self.schedule.delete(self.db)
        assert list_schedules(self.db) == []
        put = self.model.put
        self.create(every, missed)
        self.model.put = put

    @invariant()
    def the_tasks_are_those_of_the_model(self) -> None:
        if not hasattr(self, "schedule"):
            return
        due, after = [], None
        while True:
            page = self.queue.tasks(self.db, "r", 1_000, after=after)
            due += [task.headers.get("scheduled-for") for task in page]
            if (after := page.next) is None:
                break
        times = [datetime.fromisoformat(text).timestamp() for text in due if text]
        assert sorted(times) == sorted(self.model.put)
        assert due.count(None) == self.runs

    @invariant()
    def the_next_due_time_is_that_of_the_model(self) -> None:
        if hasattr(self, "schedule"):
            found = self.schedule.status(self.db)
            assert found.due == (None if self.model.paused else self.model.due)
            assert verify(self.db).findings == ()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
