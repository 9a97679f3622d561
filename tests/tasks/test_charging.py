"""Fair queues that charge task keys with the time that their tasks run."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, InvalidArgument, Session, TaskQueue, UnsupportedOption
from fdbqueue.core import limits
from fdbqueue.core.rows import Flaw
from fdbqueue.core.task import Why
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.charged import UNIT_US, debt_of, debt_to_bytes, end_us, units_of
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import NEVER_US, Record, new_id
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, StillClock
from tests.tasks.test_micro import meets
from tests.tasks.trips import Trips, reads_of

DAY_US = 86_400_000_000
RUNS_S = {"heavy": 10.0, "light": 1.0}


def charged(make: Callable[..., Bench], **options: Any) -> Any:
    return make("fair", charge="time", **options)


def debt(b: Any, key: str = "a") -> tuple[int, float]:
    """The number of running tasks of the key, and the seconds that it owes now."""
    value = b.db[b.queue._shape.discipline.debt_key(key_bytes(key))]
    running, time_us = debt_of(value)
    return running, (running * round(b.clock.now() * 1_000_000) + time_us) / 1_000_000


def left(b: Any) -> int:
    """The number of stored debts and states of task keys."""
    discipline = b.queue._shape.discipline
    under = discipline.states
    debts = discipline.debt_key(b"")[:-2]
    return len(list(b.db.get_range(under.start, under.stop))) + len(list(b.db.get_range_startswith(debts)))


# Shares of the time of workers.


def test_a_key_with_long_tasks_has_few_starts(parted: MakeParted) -> None:
    """Its tasks run ten times as long, so it has a tenth of the starts."""
    b = charged(parted)
    for key in RUNS_S:
        b.queue.put_many(b.db, range(200), key=key)
    starts = Counter[str]()
    for _ in range(110):
        task = b.take()
        b.clock.advance(RUNS_S[task.key])
        b.queue.ack(b.db, task)
        starts[task.key] += 1
    assert abs(starts["heavy"] - 10) <= 1
    assert fdbqueue.verify(b.db, root=b.root).findings == ()


def test_without_the_option_both_have_as_many_starts(bench: MakeBench) -> None:
    b = bench("fair", charge="cost")
    for key in RUNS_S:
        b.queue.put_many(b.db, range(9), key=key)
    assert Counter(b.take().key for _ in range(10)) == {"heavy": 5, "light": 5}
    assert type(b.queue._shape.discipline) is Fair
    assert "charge" not in str(b.stored())


class Workers:
    """Workers that always run tasks, on one clock. `served` has the run time of each key so far."""

    def __init__(self, b: Bench, runs_s: dict[str, float], workers: int) -> None:
        self.b, self.runs_s = b, runs_s
        self.running: list[tuple[float, int, Any]] = []
        self.begun: dict[int, tuple[str, float]] = {}
        self.ended_s = dict.fromkeys(runs_s, 0.0)
        for number in range(workers):
            self._start(number)

    def step(self) -> None:
        """The first worker that is done takes another task."""
        ends, number, task = heappop(self.running)
        self.b.clock.advance(max(0.0, ends - self.b.clock.now()))
        self.b.queue.ack(self.b.db, task)
        key, began = self.begun.pop(number)
        self.ended_s[key] += self.b.clock.now() - began
        self._start(number)

    def served(self) -> dict[str, float]:
        now = self.b.clock.now()
        return {
            key: self.ended_s[key] + sum(now - began for of, began in self.begun.values() if of == key)
            for key in self.runs_s
        }

    def _start(self, number: int) -> None:
        task, now = self.b.take(), self.b.clock.now()
        self.begun[number] = task.key, now
        heappush(self.running, (now + self.runs_s[task.key], number, task))


@settings(max_examples=15, deadline=None)
@given(
    runs_s=st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.1, 0.5, 1, 3, 10]), min_size=2),
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4)),
    workers=st.integers(1, 5),
)
def test_keys_that_wait_share_the_time_by_their_weights(
    runs_s: dict[str, float], weights: dict[str, int], workers: int
) -> None:
    """At all times, the shares of two keys differ by at most the tasks that the workers run, and one each."""
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        b = Bench(db, clock, "fair", charge="time", weights=weights)
        for key in runs_s:
            b.queue.put_many(db, range(130), key=key)
        fleet = Workers(b, runs_s, workers)
        for _ in range(120):
            fleet.step()
            shares = {key: time_s / weights.get(key, 1) for key, time_s in fleet.served().items()}
            most = {key: (workers + 1) * run_s / weights.get(key, 1) for key, run_s in runs_s.items()}
            for one in shares:
                for other in shares:
                    assert shares[one] - shares[other] <= most[one] + most[other] + 0.001 * workers


def test_a_key_with_tasks_of_hours_leaves_workers_to_others(bench: MakeBench) -> None:
    """A running task costs before its end, so short tasks go on beside it."""
    b = charged(bench)
    for key in RUNS_S:
        b.queue.put_many(b.db, range(200), key=key)
    fleet = Workers(b, {"heavy": 36_000.0, "light": 1.0}, 10)
    for _ in range(150):
        fleet.step()
    assert Counter(key for key, _ in fleet.begun.values())["light"] >= 4


def test_a_key_that_comes_back_goes_on_from_its_round(bench: MakeBench) -> None:
    """It has one task at a time, put when the one before has ended."""
    b = charged(bench)
    b.queue.put_many(b.db, range(200), key="light")
    starts = Counter[str]()
    b.put(key="heavy")
    for _ in range(110):
        task = b.take()
        b.clock.advance(RUNS_S[task.key])
        b.queue.ack(b.db, task)
        starts[task.key] += 1
        if task.key == "heavy":
            b.put(key="heavy")
    assert abs(starts["heavy"] - 10) <= 2


def test_new_keys_do_not_starve_a_key_that_is_ahead(bench: MakeBench) -> None:
    """Each start of a key that comes once moves the current round by one."""
    b = charged(bench)
    b.queue.put_many(b.db, range(3), key="ahead")
    for _ in range(2):
        task = b.take()
        b.clock.advance(0.05)
        b.queue.ack(b.db, task)
    for number in range(70):
        b.put(key=number)
        if (task := b.take()).key == "ahead":
            break
        b.clock.advance(9)
        b.queue.ack(b.db, task)
    assert (task.key, number <= 51) == ("ahead", True)


# Each way out of running.

ENDS: dict[str, Callable[[Any, Any], object]] = {
    "ack": lambda b, task: b.queue.ack(b.db, task),
    "release": lambda b, task: b.queue.release(b.db, task),
    "put off": lambda b, task: b.queue.release(b.db, task, delay=5),
    "bury": lambda b, task: b.queue.bury(b.db, task),
    "delete": lambda b, task: b.queue.delete(b.db, task),
    "hand off": lambda b, task: b.queue.hand_off(b.db, task, 1_000),
    "end of the session": lambda b, _: b.session.end(),
    "drain": lambda b, _: b.queue.truncate(b.db),
}


@pytest.mark.parametrize("way", ENDS)
def test_each_end_of_a_lease_charges_its_time(parted: MakeParted, way: str) -> None:
    b = charged(parted)
    b.put(key="a")
    task = b.take()
    assert debt(b) == (1, -limits.CHARGE_UNIT_S)
    b.clock.advance(7)
    assert debt(b) == (1, 7 - limits.CHARGE_UNIT_S)
    ENDS[way](b, task)
    b.clock.advance(9)
    assert debt(b) == (0, 0 if way == "drain" else 7 - limits.CHARGE_UNIT_S)


def test_an_end_that_comes_late_costs_the_lease_at_most(parted: MakeParted) -> None:
    b = charged(parted, ttr=10)
    b.put(key="a")
    b.take()
    b.clock.advance(10_000)
    b.queue.statistics(b.db)  # it sweeps
    assert debt(b) == (0, 10 - limits.CHARGE_UNIT_S)


def test_a_renewed_lease_costs_until_its_end(bench: MakeBench) -> None:
    b = charged(bench, ttr=10)
    b.put(key="a")
    task = b.take()
    b.clock.advance(8)
    b.queue.touch(b.db, task, 50)
    b.clock.advance(30)
    b.queue.ack(b.db, task)
    assert debt(b) == (0, 38 - limits.CHARGE_UNIT_S)


def test_a_completed_hand_off_costs_nothing_more(bench: MakeBench) -> None:
    b = charged(bench)
    b.put(key="a")
    task = b.take()
    b.clock.advance(2)
    b.queue.hand_off(b.db, task, 1_000)
    b.clock.advance(500)
    b.queue.complete(b.db, task.id)
    assert debt(b) == (0, 2 - limits.CHARGE_UNIT_S)


def test_the_end_of_a_task_meets_no_take_and_no_other_end(bench: MakeBench) -> None:
    b = charged(bench)
    b.queue.put_many(b.db, range(9), key="a")
    one, two, three = (b.take() for _ in range(3))
    ack: Callable[[Any], Callable[[Any], Any]] = lambda task: lambda tr: b.queue.ack(tr, task)  # noqa: E731
    assert not meets(b, ack(one), ack(two))
    assert not meets(b, lambda tr: b.queue.take(tr, session=b.session), ack(three))


def cost_of(db: Database, engine: Trips, charge: Any, verb: str) -> tuple[int, int]:
    """The round trips and the reads of a verb."""
    queue, session = TaskQueue.create(db, charge, "fair", charge=charge), Session(db, ttr=1e9)
    queue.put_many(db, range(9), key="a")
    task = queue.take(db, 0, session=session)
    assert task is not None
    calls: dict[str, Callable[[Any], object]] = {
        "put": lambda tr: queue.put(tr, 1, key="a"),
        "take": lambda tr: queue.take(tr, session=session),
        "ack": lambda tr: queue.ack(tr, task),
    }
    return reads_of(engine, db, calls[verb])[:2]


@pytest.mark.parametrize(("verb", "more"), [("put", 0), ("take", 1), ("ack", 0)])
def test_a_charge_costs_a_read_of_a_take(trips: tuple[Database, Trips], verb: str, more: int) -> None:
    db, engine = trips
    waits, reads = cost_of(db, engine, "cost", verb)
    assert cost_of(db, engine, "time", verb) == (waits, reads + more)


# Clocks that differ.


@given(st.integers(-(10**6), 10**6), st.integers(-(2**90), 2**90))
def test_a_debt_has_two_numbers(running: int, time_us: int) -> None:
    assert debt_of(debt_to_bytes(running, time_us)) == (running, time_us)
    assert 0 <= units_of(debt_to_bytes(running, time_us), DAY_US) <= limits.PAID_MAX_S / limits.CHARGE_UNIT_S


@given(st.integers(-100 * DAY_US, 100 * DAY_US), st.sampled_from([1, 10_000_000, NEVER_US]))
def test_no_clock_makes_a_lease_cost_more_than_its_time(skew_us: int, lease_us: int) -> None:
    taken_us = 1000 * DAY_US
    until_us = min(NEVER_US, taken_us + lease_us)
    record = Record(new_id(0, bytes(12)), "t", 0, 0, 0, 0, 0, taken_us=taken_us, until_us=until_us)
    cost_us = end_us(record, taken_us + skew_us) - taken_us
    assert UNIT_US <= cost_us <= max(UNIT_US, min(lease_us, round(limits.CHARGED_MAX_S * 1e6)))


def test_a_clock_that_is_a_day_ahead_starves_no_key(bench: MakeBench) -> None:
    """A take by that clock pays an hour. Later takes owe nothing, until that hour has been run."""
    b = charged(bench, ttr=10**6)
    b.queue.put_many(b.db, range(50), key="a")
    b.take()
    b.clock.advance(86_400)
    wrong = b.take()
    b.clock.advance(-86_400)
    b.queue.ack(b.db, wrong)
    for key in "ab":
        b.queue.put_many(b.db, range(50), key=key)
    starts = Counter[str]()
    while starts["a"] < 4:
        task = b.take()
        b.clock.advance(600)
        b.queue.ack(b.db, task)
        starts[task.key] += 1
    assert starts["b"] <= 3_600 / 600 + 24


# Keys that owe nothing any more.


def test_a_sweep_clears_keys_without_a_task(parted: MakeParted) -> None:
    b = charged(parted, partitions=2)
    for key in range(20):
        b.put(key=key)
    for _ in range(20):
        task = b.take()
        b.clock.advance(3)
        b.queue.ack(b.db, task)
    b.settle()
    b.clock.advance(limits.DEBTS_SWEPT_EVERY_S)
    b.settle()
    for part in range(2):
        discipline = b.queue._shape.partition(part).discipline
        assert isinstance(discipline, Fair)
        rows = [*b.db.get_range(discipline.states.start, discipline.states.stop)]
        assert rows == []
    assert fdbqueue.verify(b.db, root=b.root).findings == ()


def test_a_sweep_leaves_keys_that_are_ahead(bench: MakeBench, set_limits: Any) -> None:
    """Keys that others have reached go, in batches."""
    set_limits(VERB_BATCH=2)
    b = charged(bench)
    b.queue.put_many(b.db, range(100), key="light")
    for key in ["x", "y", "z", "heavy"]:
        b.put(key=key)
    for _ in range(5):
        task = b.take()
        b.clock.advance({"heavy": 60, "light": 1}.get(task.key, 0.1))
        b.queue.ack(b.db, task)
    b.clock.advance(60)
    b.sweep()
    assert left(b) == 10  # light owes a second
    for _ in range(3):
        b.queue.ack(b.db, b.take())
    for _ in range(9):
        b.clock.advance(60)
        b.sweep()
    assert left(b) == 4  # light, which waits, and heavy, which is ahead


# Refusals, and looks.


def test_bad_options_are_refused_and_nothing_is_written(bench: MakeBench) -> None:
    b = charged(bench)
    before = b.stored()
    for value in ("money", 1, True, b"time", ["time"]):
        with pytest.raises(InvalidArgument, match="charge must be 'cost' or 'time'"):
            TaskQueue.create(b.db, "other", "fair", charge=value)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOption):
        TaskQueue.create(b.db, "other", "utube", charge="time")
    with pytest.raises(InvalidArgument, match="the queue charges time"):
        b.put(key="a", cost=3)
    with pytest.raises(InvalidArgument, match="the queue charges time"):
        b.queue.put_many(b.db, [1], key="a", cost=1)
    with pytest.raises(UnsupportedOption, match="'charge' of a queue cannot change"):
        b.queue.alter(b.db, charge="cost")
    assert b.stored() == before


def test_the_option_is_told(bench: MakeBench) -> None:
    b = charged(bench)
    assert b.queue.options["charge"] == "time"
    assert "charge" not in TaskQueue.create(b.db, "plain", "fair", charge="cost").options


def test_explain_tells_how_far_a_key_is_ahead(bench: MakeBench) -> None:
    b = charged(bench)
    for key in RUNS_S:
        b.queue.put_many(b.db, range(9), key=key)
    for _ in range(4):
        task = b.take()
        b.clock.advance(RUNS_S[task.key])
        b.queue.ack(b.db, task)
    ready = b.queue.tasks(b.db, "r", 99)
    reasons = {task.key: b.queue.explain(b.db, task).reasons for task in ready}
    assert reasons["heavy"][0].why is Why.BEHIND
    assert reasons["heavy"][0].text == "The tasks of its key have run 9.0 s beyond their share."
    assert "beyond" not in str(reasons["light"])


def test_verify_finds_a_debt_for_more_tasks_than_are_taken(bench: MakeBench) -> None:
    b = charged(bench)
    b.put(key="a")
    b.take()
    at = b.queue._shape.discipline.debt_key(key_bytes("a"))
    for value in (debt_to_bytes(2, 0), debt_to_bytes(-1, 0), b"short"):
        b.db[at] = value
        [finding] = fdbqueue.verify(b.db).findings
        assert (finding.flaw, at.endswith(finding.key)) == (Flaw.KEY_COUNTER, True)
        fdbqueue.verify(b.db, mend=True)
        assert b.db[at] is None
        assert fdbqueue.verify(b.db).findings == ()


def test_verify_finds_a_debt_in_a_queue_that_charges_none(bench: MakeBench) -> None:
    b = bench("fair")
    b.db[b.queue._shape.keys.beside + b"\x08" + bytes(2)] = debt_to_bytes(0, 5)
    assert [one.flaw for one in fdbqueue.verify(b.db).findings] == [Flaw.UNKNOWN]


def test_a_truncate_leaves_no_debt(bench: MakeBench) -> None:
    b = charged(bench)
    b.put(key="a")
    task = b.take()
    b.queue.truncate(b.db)
    assert left(b) == 0
    with Session(b.db, ttr=99), pytest.raises(fdbqueue.FdbQueueError):
        b.queue.ack(b.db, task)
    assert left(b) == 0
