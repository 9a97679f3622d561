"""The figures of queues become families of metrics."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import fdbqueue
from fdbqueue import Database, Group, Limit, Queue, Schedule, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.integrations.prometheus import QueueCollector, measure
from fdbqueue.integrations.prometheus.collector import KEY_LABEL_LENGTH_MAX, families
from fdbqueue.operate.figures import Figures, KeyFigures, QueueFigures
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.times import Durations, Times
from tests.metrics.support import checked_by_promtool
from tests.tasks.support import LONG_S, Bench, StillClock
from tests.tasks.trips import Trips


@pytest.fixture
def memory() -> Iterator[tuple[Database, StillClock]]:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database, clock


class Scraped:
    """A registry with the queues of a database."""

    def __init__(self, db: Database, *names: str, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(QueueCollector(db, *names, **options))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fdbqueue_{name}", labels)

    def page(self) -> bytes:
        return generate_latest(self.registry)


def test_tasks_and_calls_are_counted(memory: tuple[Database, StillClock]) -> None:
    db, clock = memory
    b = Bench(db, clock, "fifottl", capacity=None)
    for number in range(5):
        b.put(number)
    b.queue.bury(db, b.take())
    b.take()
    clock.advance(3)
    scraped = Scraped(db)
    states = {
        state: scraped.value("tasks", queue="bench", state=state) for state in ("ready", "taken", "buried")
    }
    assert states == {"ready": 3, "taken": 1, "buried": 1}
    calls = {call: scraped.value("calls_total", queue="bench", call=call) for call in ("put", "take", "ack")}
    assert calls == {"put": 5, "take": 2, "ack": 0}
    assert scraped.value("next_task_age_seconds", queue="bench") == 3
    assert scraped.value("up") == 1


@pytest.mark.parametrize(
    ("kind", "bound"), [("fifo", "exact"), ("fifottl", "at_most"), ("fair", "at_most"), ("bag", "at_most")]
)
def test_the_oldest_ready_task_says_if_it_is_a_bound(
    memory: tuple[Database, StillClock], kind: str, bound: str
) -> None:
    db, clock = memory
    b = Bench(db, clock, kind)
    b.put("x")
    clock.advance(4)
    other = {"exact": "at_most", "at_most": "exact"}[bound]
    scraped = Scraped(db)
    assert scraped.value("oldest_ready_task_age_seconds", queue="bench", bound=bound) == 4
    assert scraped.value("oldest_ready_task_age_seconds", queue="bench", bound=other) is None


def test_an_empty_queue_has_no_age(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    TaskQueue.create(db, "q")
    scraped = Scraped(db)
    assert scraped.value("next_task_age_seconds", queue="q") == 0
    assert scraped.value("oldest_ready_task_age_seconds", queue="q", bound="exact") == 0


def test_a_plain_queue_has_items_and_no_tasks(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    Queue.named(db, "notes").enqueue_many(db, range(3))
    scraped = Scraped(db)
    assert scraped.value("items", queue="notes") == 3
    assert scraped.value("queue_info", queue="notes", kind="queue") == 1
    assert scraped.value("tasks", queue="notes", state="ready") is None


def test_keys_with_one_text_share_a_series(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    queue = TaskQueue.create(db, "q", "fair")
    for key in (1, "1", "x" * 900, "\x1b[2J"):
        queue.put(db, "x", key=key)
    scraped = Scraped(db)
    assert scraped.value("key_ready_tasks", queue="q", key="1") == 2
    [family] = [one for one in scraped.registry.collect() if one.name == "fdbqueue_key_ready_tasks"]
    labels = [sample.labels["key"] for sample in family.samples]
    assert (len(labels), max(map(len, labels))) == (3, KEY_LABEL_LENGTH_MAX)
    assert all(label.isprintable() for label in labels)


def test_names_of_queues_reach_a_terminal_without_escapes(memory: tuple[Database, StillClock]) -> None:
    """Two names with one text have one series: a page with a sample twice is lost as a whole."""
    db, _ = memory
    for name in ("\x1b[2Jodd", "\\x1b[2Jodd", "two\nlines"):
        TaskQueue.create(db, name).put(db, 1)
    scraped = Scraped(db)
    with measure(scraped.registry):
        TaskQueue.open(db, "\x1b[2Jodd").put(db, 2)
    samples = [one for family in scraped.registry.collect() for one in family.samples]
    names = [one.labels["queue"] for one in samples if one.name == "fdbqueue_items"]
    assert sorted(names) == [r"\x1b[2Jodd", r"two\nlines"]
    assert all(label.isprintable() for one in samples for label in one.labels.values())


def test_the_number_of_keys_is_bounded(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    queue = TaskQueue.create(db, "q", "fair")
    for key in range(20):
        queue.put(db, "x", key=key)
    for keys in (0, 3, 10):
        page = Scraped(db, keys=keys).page()
        assert page.count(b"fdbqueue_key_ready_tasks{") == keys


def test_a_named_collector_has_its_queues_only(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    for name in ("a", "b"):
        TaskQueue.create(db, name)
    scraped = Scraped(db, "a")
    assert (scraped.value("items", queue="a"), scraped.value("items", queue="b")) == (0, None)


@pytest.mark.parametrize("kind", ["tasks", "items"])
def test_a_queue_tells_its_partitions_and_the_fullest(memory: tuple[Database, StillClock], kind: str) -> None:
    db, _ = memory
    if kind == "tasks":
        TaskQueue.create(db, "q", partitions=2).put_many(db, list("abc"))
        TaskQueue.create(db, "alone").put(db, 1)
    else:
        Queue.named(db, "q", partitions=2).enqueue_many(db, list("abc"))
        Queue.named(db, "alone").enqueue(db, 1)
    scraped, fullest = Scraped(db), {"tasks": "ready_tasks", "items": "items"}[kind]
    for name, wanted in (("q", (2, 3)), ("alone", (None, None))):
        found = [scraped.value(one, queue=name) for one in ("partitions", f"fullest_partition_{fullest}")]
        assert tuple(found) == wanted


def test_an_unreadable_queue_is_told_as_such() -> None:
    broken = QueueFigures("broken", "unreadable", items=0, unreadable=0, error="damaged")
    found = {family.name: family for family in families(Figures(0.0, (broken,), 0), 0.1)}
    assert [sample.value for sample in found["fdbqueue_unreadable_queue"].samples] == [1]
    assert found["fdbqueue_tasks"].samples == []


def test_a_closed_database_is_down_and_has_no_figures(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    TaskQueue.create(db, "q")
    scraped = Scraped(db)
    db.close()
    assert scraped.value("up") == 0
    assert b"queue=" not in scraped.page()


def test_the_time_of_a_look_is_in_seconds() -> None:
    """Here it is the steps of the clock between its begin and its end."""
    clock = Ticking()
    with fdbqueue.open("memory:", runtime=clock) as db:
        scraped = Scraped(db)
        began = clock.ticks
        took_s = scraped.value("look_duration_seconds")
        assert took_s is not None
        assert 0 < took_s <= (clock.ticks - began) * TICK_S


TICK_S = 0.001


class Ticking(StillClock):
    """A clock that goes on by TICK_S at each look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    def monotonic(self) -> float:
        self.ticks += 1
        return self.ticks * TICK_S


def test_a_scrape_sweeps_and_writes_nothing(memory: tuple[Database, StillClock]) -> None:
    db, clock = memory
    b = Bench(db, clock, "fifottl")
    b.put("x", delay=1)
    clock.advance(10)
    before, scraped = b.stored(), Scraped(db)
    assert scraped.value("sweep_lag_seconds", queue="bench") == 9
    assert b.stored() == before


def test_a_first_scrape_takes_two_round_trips_then_one() -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        engine = Trips(db.engine)
        tripping = Database(engine, db.runtime)  # type: ignore[arg-type]
        for kind in ("fifo", "fifottl", "utube", "fair"):
            TaskQueue.create(db, kind, kind).put(db, "x", **({"key": 1} if kind in ("utube", "fair") else {}))
        scraped, waits = Scraped(tripping), []
        for _ in range(3):
            before = engine.count
            assert scraped.page().count(b'state="ready"} 1.0') == 4
            waits.append(engine.count - before)
    assert waits == [2, 1, 1]


def test_metrics_of_queues_and_of_the_process_fit_one_registry(
    memory: tuple[Database, StillClock],
) -> None:
    db, _ = memory
    scraped = Scraped(db)
    with measure(scraped.registry):
        TaskQueue.create(db, "q").put(db, "x")
    assert scraped.value("process_calls_total", queue="q", call="put", outcome="ok") == 1
    assert scraped.value("tasks", queue="q", state="ready") == 1


def test_promtool_finds_nothing_to_say(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    for kind in ("fifo", "limfifottl", "utube", "fair"):
        keyed = {"key": "a"} if kind in ("utube", "fair") else {}
        queue = TaskQueue.create(db, kind, kind, **({"capacity": 9} if kind == "limfifottl" else {}))
        queue.put(db, "x", **keyed)
        queue.take(db, session=fdbqueue.Session(db, ttr=LONG_S))
        queue.put(db, 'odd "key"', **({"key": 'a"\\b\n'} if keyed else {}))
    scraped = Scraped(db)
    with measure(scraped.registry):
        queue.put(db, "x", key="b")
    assert checked_by_promtool(["check", "metrics"], scraped.page()) == ""


def test_a_backlog_and_the_first_of_each_key_have_times(memory: tuple[Database, StillClock]) -> None:
    """From the second scrape on, unless nothing waits."""
    db, clock = memory
    queue, scraped = TaskQueue.create(db, "q", "fair"), Scraped(db)
    assert scraped.value("backlog_seconds", queue="q") == 0
    tasks = queue.put_many(db, range(12), key="a")
    clock.advance(100)
    assert scraped.value("backlog_seconds", queue="q") == 12 * limits.PACE_S  # none has ended
    assert scraped.value("key_first_task_age_seconds", queue="q", key="a") == pytest.approx(100)
    for task in tasks[:2]:
        queue.delete(db, task)
    clock.advance(100)
    assert scraped.value("backlog_seconds", queue="q") == pytest.approx(10 / (2 / 200))


def test_a_chronicle_tells_quantiles(memory: tuple[Database, StillClock]) -> None:
    """Those of the whole queue have an empty key."""
    db, _ = memory
    times = Times(Durations(3, 1.5, 20.0), None)
    TaskQueue.create(db, "q", "fair")
    figures = fdbqueue.Overview().figures(db)
    [queue] = figures.queues
    assert queue.tasks is not None
    lasting = replace(queue.tasks, times=times, busiest=(KeyFigures("a", 1, times=times),))
    found = {one.name: one for one in families(replace(figures, queues=(replace(queue, tasks=lasting),)), 0)}
    samples = found["fdbqueue_waiting_seconds"].samples
    told = {(one.labels["key"], one.labels["quantile"]): one.value for one in samples}
    assert told == {("a", "0.5"): 1.5, ("a", "0.99"): 20.0, ("", "0.5"): 1.5, ("", "0.99"): 20.0}
    assert not found["fdbqueue_running_seconds"].samples


def test_a_bound_of_a_key_is_told_as_its_number() -> None:
    with fdbqueue.open("memory:") as db:
        TaskQueue.create(db, "q", "fair")
        figures = fdbqueue.Overview().figures(db)
    [queue] = figures.queues
    assert queue.tasks is not None
    busy = replace(queue.tasks, busiest=(KeyFigures("a", 64, is_exact=False),))
    found = families(replace(figures, queues=(replace(queue, tasks=busy),)), 0.0)
    [family] = [one for one in found if one.name == "fdbqueue_key_ready_tasks"]
    assert [(sample.labels["key"], sample.value) for sample in family.samples] == [("a", 64)]


def test_limits_are_told_by_name(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    Limit.set(db, "api", slots=2)
    Limit.set(db, "mails", rate=120, per=60, burst=4)
    Limit.set(db, "gone", slots=1)
    queue = TaskQueue.create(db, "q", limits=["api", "mails", "gone"])
    Limit.delete(db, "gone")
    queue.put_many(db, range(5))
    queue.take_many(db, 2)
    scraped = Scraped(db)
    numbers = {
        name: [scraped.value(f"limit_{name}", limit=limit) for limit in ("api", "mails", "gone")]
        for name in ("slots", "used_slots", "tokens", "burst_tokens", "starts_per_second", "reached")
    }
    assert numbers == {
        "slots": [2, None, None],
        "used_slots": [2, None, None],
        "tokens": [None, 2, None],
        "burst_tokens": [None, 4, None],
        "starts_per_second": [None, 2, None],
        "reached": [1, 0, None],
    }
    waiting = [scraped.value("limit_waiting_tasks", limit=limit) for limit in ("api", "mails", "gone")]
    missing = [scraped.value("limit_missing", limit=limit) for limit in ("api", "mails", "gone")]
    assert (waiting, missing) == ([3, 0, None], [0, 0, 1])


def test_a_limit_of_slots_and_a_rate_has_the_numbers_of_both(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    Limit.set(db, "host", slots=1, rate=60, per=60, burst=4)
    queue = TaskQueue.create(db, "q", limits=["host"])
    queue.put_many(db, range(5))
    queue.take(db, 0)
    scraped, names = Scraped(db), ("slots", "used_slots", "starts_per_second", "tokens", "reached")
    assert [scraped.value(f"limit_{name}", limit="host") for name in names] == [1, 1, 1, 3, 1]


def test_an_unreadable_limit_is_told_as_missing(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    Limit.set(db, "api", slots=2)
    db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, "api").row] = b"damaged"
    scraped = Scraped(db)
    told = [scraped.value(f"limit_{name}", limit="api") for name in ("missing", "slots", "reached")]
    assert told == [1, None, None]


def test_a_limit_of_each_key_has_no_number_for_all(memory: tuple[Database, StillClock]) -> None:
    """A key may have no token although another one has some."""
    db, _ = memory
    Limit.set(db, "api", slots=2, per_key=True)
    Limit.set(db, "mails", rate=120, per=60, burst=4, per_key=True)
    scraped = Scraped(db)
    for name, told in (
        ("slots", [2, None]),
        ("burst_tokens", [None, 4]),
        ("tokens", [None, None]),
        ("reached", [None, None]),
    ):
        assert [scraped.value(f"limit_{name}", limit=limit) for limit in ("api", "mails")] == told


def test_schedules_are_told_by_name(memory: tuple[Database, StillClock]) -> None:
    db, clock = memory
    TaskQueue.create(db, "q")
    began = clock.now()
    for name in ("tick", "still"):
        Schedule.create(db, name, every=10, queue="q", paused=name == "still")
    clock.advance(12)
    scraped = Scraped(db)
    due, late, paused, failing, tasks = (
        [scraped.value(f"schedule_{number}", schedule=name) for name in ("tick", "still")]
        for number in ("next_due_timestamp_seconds", "late_seconds", "paused", "failing", "tasks_total")
    )
    assert (due, late, paused) == ([began + 10, None], [2, 0], [0, 1])
    assert (failing, tasks) == ([0, 0], [0, 0])


def test_groups_are_counted(memory: tuple[Database, StillClock]) -> None:
    db, _ = memory
    queue, group = TaskQueue.create(db, "q"), Group.create(db)
    Group.create(db)
    group.put(db, queue, 1)
    task = queue.take(db, 0)
    assert task is not None
    queue.bury(db, task)
    scraped = Scraped(db)
    assert [scraped.value(name) for name in ("unfinished_groups", "held_groups", "groups_left_out")] == [
        2,
        1,
        0,
    ]
