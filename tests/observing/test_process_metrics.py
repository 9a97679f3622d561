"""Process metrics: counters and histograms of the calls, transactions and attempts of this process."""

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import CollectorRegistry, generate_latest, values

from fdbqueue import Queue, Task, TaskQueue, TaskState, Worker, transactional
from fdbqueue.core import limits, observing
from fdbqueue.core.errors import NotTaken
from fdbqueue.integrations.prometheus import measure
from fdbqueue.integrations.prometheus.collector import NO_NAME, OTHER_QUEUES
from fdbqueue.integrations.prometheus.serving import page_of, registry_of
from tests.conftest import TEST_ROOT
from tests.fleet.conftest import SOON
from tests.metrics.support import checked_by_promtool
from tests.tasks.support import StillClock


@pytest.fixture
def registry():
    made = CollectorRegistry()
    with measure(made):
        yield made


def number(registry, name, **labels):
    return registry.get_sample_value(f"fdbqueue_process_{name}", labels)


def test_calls_are_counted_by_queue_call_and_outcome(db, queue, registry):
    task = queue.put(db, "a")
    queue.take(db, 0)
    queue.take(db, 0)
    queue.ack(db, task.id)
    with pytest.raises(NotTaken):
        queue.ack(db, task.id)
    counted = {
        (call, outcome): number(registry, "calls_total", queue="jobs", call=call, outcome=outcome)
        for call, outcome in [("put", "ok"), ("take", "ok"), ("take", "nothing"), ("ack", "ok")]
    }
    assert counted == dict.fromkeys(counted, 1)
    assert number(registry, "calls_total", queue="jobs", call="ack", outcome="NotTaken") == 1


def test_a_call_with_a_transaction_of_its_own_has_a_duration(db, queue, registry):
    """A wait is no duration of a call, and a part of a transaction ends without its commit."""
    queue.put(db, "a")
    transactional(lambda tr: queue.put(tr, "b"))(db)
    queue.take(db, 0)
    queue.take(db, 1)
    transactional(lambda tr: queue.kick(tr))(db)
    assert number(registry, "call_seconds_count", queue="jobs", call="kick") is None
    for call in ("put", "take"):
        assert number(registry, "call_seconds_count", queue="jobs", call=call) == 1
    assert number(registry, "calls_total", queue="jobs", call="put", outcome="ok") == 2


def test_transactions_are_counted_by_their_ends(db, space, registry):
    tries = []

    @transactional
    def conflicting(tr):
        tr.get(space.pack(("a",))).wait()
        tr.set(space.pack(("b",)), b"")
        if not tries:
            tries.append(1)
            db.set(space.pack(("a",)), b"")

    conflicting(db)
    names = ("commits_total", "retries_total", "conflicts_total", "unknown_results_total")
    assert [number(registry, name) for name in names] == [1, 1, 1, 0]


def test_attempts_have_a_wait_and_a_run_time(db, space, queue, registry):
    queue.put_many(db, ["good", "bad"])

    def handler(task):
        if task.data == "bad":
            raise ValueError

    Worker(db, queue, handler, threads=1, backoff=SOON, attempts=2, root=space).run(until_empty=True)
    runs = {
        outcome: number(registry, "task_run_seconds_count", queue="jobs", outcome=outcome)
        for outcome in ("succeeded", "retried", "buried")
    }
    assert runs == {"succeeded": 1, "retried": 1, "buried": 1}
    assert number(registry, "task_wait_seconds_count", queue="jobs") == 2


def test_an_error_is_a_conflict_or_an_unknown_result_by_its_code(registry):
    for code in (1020, 1021, 1039, 1007):
        observing.tell_failed(code)
    names = ("retries_total", "conflicts_total", "unknown_results_total")
    assert [number(registry, name) for name in names] == [4, 1, 2]


def test_times_are_in_seconds(registry):
    clock = StillClock()
    with observing.Call(clock, "put", "jobs"):
        clock.advance(0.25)
    task = Task("id", TaskState.TAKEN, "a", attempts=1, created=1_000.0, taken=1_003.0)
    observing.Watch(observing.Attempt("jobs", task)).end("succeeded", 2.0, None)
    assert number(registry, "call_seconds_sum", queue="jobs", call="put") == 0.25
    assert number(registry, "task_wait_seconds_sum", queue="jobs") == 3
    assert number(registry, "task_run_seconds_sum", queue="jobs", outcome="succeeded") == 2


@pytest.mark.parametrize("engine", ["memory"])
def test_the_number_of_queue_labels_is_bounded(db, registry, monkeypatch):
    monkeypatch.setattr(limits, "QUEUES_LABELLED_MAX", 2)
    Queue(TEST_ROOT["metrics"]).enqueue(db, 1)
    for name in "abc":
        TaskQueue.create(db, name).put(db, 1)
    told = [
        number(registry, "calls_total", queue=queue, call=call, outcome="ok")
        for queue, call in [(NO_NAME, "enqueue"), ("a", "put"), (OTHER_QUEUES, "put")]
    ]
    assert told == [1, 1, 2]


def test_a_registry_is_measured_once(db, queue, registry):
    with measure(registry):
        queue.put(db, 1)
    queue.put(db, 2)  # both are over: one observer for one registry
    with measure(registry):
        queue.put(db, 3)
    assert number(registry, "calls_total", queue="jobs", call="put", outcome="ok") == 2


@pytest.mark.parametrize("engine", ["memory"])
def test_promtool_accepts_the_metrics(db, space, queue, registry):
    queue.put(db, 1)
    Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    assert checked_by_promtool(["check", "metrics"], generate_latest(registry)) == ""


@pytest.mark.parametrize("engine", ["memory"])
def test_one_page_has_the_metrics_of_all_processes(db, space, queue, tmp_path, monkeypatch, caplog):
    """Those of processes that have ended too, beside the figures of the queues."""
    process = [1]
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))  # prometheus-client looks at its import
    monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue(lambda: process[0]))
    with measure(CollectorRegistry()):
        queue.put(db, 1)
        process[0] = 2
        queue.put(db, 1)
    registry = registry_of(db, (), 10, space, tmp_path)
    page = page_of(registry).decode()
    assert 'fdbqueue_process_calls_total{call="put",outcome="ok",queue="jobs"} 2.0' in page
    assert 'fdbqueue_tasks{queue="jobs",state="ready"} 2.0' in page
    (tmp_path / "counter_1.db").write_bytes(b"damaged")
    page = page_of(registry).decode()
    assert ("fdbqueue_up 1.0" in page, "fdbqueue_process" in page) == (True, False)
    assert "could not be read" in caplog.text
