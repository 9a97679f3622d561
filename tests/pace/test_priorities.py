"""Work that no caller waits for has batch priority; while that starves, it goes on at default priority."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.once import run_once
from fdbqueue.core.pace import Wishes
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.embedded import FDBError
from fdbqueue.integrations.prometheus.collector import QueueCollector, measure
from fdbqueue.operate.checks import Severity, check_batch, see_batch
from fdbqueue.operate.dashboard.guard import Room
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import FinishedFile
from fdbqueue.operate.exports.importing import Import
from fdbqueue.operate.overview import Overview
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.firing import Pass
from tests.pace.support import opened
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED
from tests.tasks.support import IdleThread

KEYS = RootKeys(DEFAULT_ROOT)


def priorities(seen) -> list[str]:
    """Each priority that follows another one."""
    found = [one.priority for one in seen]
    return [name for at, name in enumerate(found) if not at or found[at - 1] != name]


@pytest.fixture
def queue(pdb):
    return fdbqueue.TaskQueue.create(pdb, "jobs", kind="fifottl")


@pytest.fixture
def few_at_once(monkeypatch):
    monkeypatch.setattr(limits, "VERB_BATCH", 2)


def buried(queue, db, count: int) -> None:
    for number in range(count):
        queue.put(db, number)
        queue.bury(db, queue.take(db, timeout=0))


# Which call has which priority.


def test_calls_that_a_caller_waits_for_have_default_priority(pdb, cluster, queue):
    with cluster.watched() as seen:
        queue.put(pdb, "x")
        queue.ack(pdb, queue.take(pdb, timeout=0))
        queue.kick(pdb, 10)
    assert priorities(seen) == ["default"]


def test_a_verification_has_batch_priority(pdb, cluster, queue):
    queue.put(pdb, "x")
    with cluster.watched() as seen:
        assert not verify(pdb).findings
    assert priorities(seen) == ["batch"]


def test_an_export_and_an_import_have_batch_priority(pdb, cluster, queue, tmp_path: Path):
    queue.put(pdb, "x")
    queue.pause(pdb)
    file = tmp_path / "jobs.export"
    with cluster.watched() as seen:
        list(Export(pdb, Registry(DEFAULT_ROOT), ["jobs"]).run(file))
    assert priorities(seen) == ["batch"]
    queue.drop(pdb)
    with FinishedFile(file) as finished, cluster.watched() as seen:
        list(Import(pdb, Registry(DEFAULT_ROOT), finished).run())
    assert priorities(seen) == ["batch"]


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda db: Overview().figures(db), id="overview"),
        pytest.param(lambda db: QueueCollector(db).collect(), id="metrics"),
    ],
)
def test_a_look_at_all_queues_has_batch_priority(look, pdb, cluster):
    with cluster.watched() as seen:
        look(pdb)
    assert priorities(seen) == ["batch"]


def test_sweeps_and_looks_for_dead_sessions_have_batch_priority(pdb, cluster, queue):
    queue.put(pdb, "x", delay=1000)
    with fdbqueue.Session(pdb):
        keeper = keeper_of(pdb, KEYS)
        keeper.tick()  # the first one imports the chores
        with cluster.watched() as seen:
            keeper.tick()
        assert priorities(seen) == ["batch"]


def purge_elements(db):
    elements = fdbqueue.SimpleElementQueue.named(db, "elements")
    elements.lock(db, elements.add(db, "x"))
    return lambda: elements.purge(db, maxlock=1e-6)


PURGES = {
    "truncate": lambda db: partial(fdbqueue.TaskQueue.open(db, "jobs").truncate, db),
    "truncate_some": lambda db: partial(fdbqueue.TaskQueue.open(db, "jobs").truncate_some, db),
    "drop": lambda db: partial(fdbqueue.TaskQueue.open(db, "jobs").drop, db),
    "registry": lambda db: partial(Registry(DEFAULT_ROOT).drop, db, "jobs"),
    "clear": lambda db: partial(fdbqueue.Queue.named(db, "items").clear, db),
    "purge": purge_elements,
}


@pytest.mark.parametrize("name", PURGES)
def test_a_purge_has_batch_priority(name, pdb, cluster, queue):
    queue.put(pdb, "x")
    purge = PURGES[name](pdb)
    with cluster.watched() as seen:
        purge()
    assert priorities(seen) == ["batch"]


def test_a_starved_purge_goes_on_after_its_patience(pdb, cluster, runtime, queue):
    queue.put(pdb, "x")
    cluster.is_squeezed = True
    with cluster.watched() as seen:
        queue.drop(pdb)
    assert priorities(seen) == ["default"]
    assert runtime.waited_s == pytest.approx(limits.BACKGROUND_PATIENCE_S, abs=0.1)


@pytest.mark.usefixtures("queue")
def test_the_keeper_fires_schedules_at_default_priority(pdb, cluster, runtime, monkeypatch):
    fdbqueue.Schedule.create(pdb, "often", every=1, queue="jobs")
    later_us = runtime.now_us() + 2_000_000
    monkeypatch.setattr(runtime, "now_us", lambda: later_us)
    cluster.is_squeezed = True
    with cluster.watched() as seen:
        assert Pass(pdb, KEYS).fire_all(keeper_of(pdb, KEYS)) > 0
    assert (priorities(seen), runtime.waited_s) == (["default"], 0)


def test_only_the_look_for_a_dead_session_waits(pdb, cluster, runtime, queue, monkeypatch):
    """Its end takes some transactions for each queue."""
    monkeypatch.setattr(runtime, "spawn", lambda *_: IdleThread())
    session, keeper = fdbqueue.Session(pdb, ttr=1), keeper_of(pdb, KEYS)
    queue.put(pdb, "x")
    queue.take(pdb, timeout=0, session=session)
    keeper.forget(session)
    later_us = runtime.now_us() + 2_000_000
    monkeypatch.setattr(runtime, "now_us", lambda: later_us)
    runtime.waited_s, cluster.is_squeezed = 2, True
    keeper._end_the_dead()
    assert runtime.waited_s - 2 == pytest.approx(limits.BATCH_PATIENCE_S, abs=0.1)
    assert queue.statistics(pdb)["tasks"]["ready"] == 1


def test_a_heartbeat_has_default_priority(pdb, cluster):
    with fdbqueue.Session(pdb) as session, cluster.watched() as seen:
        session.beat()
    assert priorities(seen) == ["default"]


def test_a_bulk_change_has_batch_priority_behind_its_first_step(pdb, cluster, queue, monkeypatch):
    monkeypatch.setattr(limits, "LOOKED_THROUGH", 2)
    queue.put_many(pdb, list(range(5)))
    with cluster.watched() as seen:
        queue.change(pdb, {"state": "ready"}, {"pri": 3})
    assert priorities(seen) == ["default", "batch"]


@pytest.mark.usefixtures("few_at_once")
def test_a_kick_of_many_has_batch_priority_behind_its_first_step(pdb, cluster, queue):
    buried(queue, pdb, 3)
    with cluster.watched() as seen:
        assert queue.kick(pdb, 3) == 3
    assert priorities(seen) == ["default", "batch"]


@pytest.mark.usefixtures("few_at_once")
def test_a_kick_by_class_goes_on_at_batch_priority(pdb, cluster, queue):
    buried(queue, pdb, 3)
    with cluster.watched() as seen:
        assert fdbqueue.DeadLetters.open(pdb, "jobs").kick_matching(pdb) == 3
    assert priorities(seen) == ["default", "batch"]


def test_a_redrive_has_batch_priority(pdb, cluster, queue):
    buried(queue, pdb, 3)
    dead = fdbqueue.DeadLetters.open(pdb, "jobs")
    dead.begin_redrive(pdb)
    with cluster.watched() as seen:
        assert dead.run_redrive(pdb).moved == 3
    assert priorities(seen) == ["batch"]


def test_partitions_move_at_batch_priority(pdb, cluster, queue):
    queue.put_many(pdb, list(range(5)))
    with cluster.watched() as seen:
        queue.repartition(pdb, 2)
    assert priorities(seen) == ["default", "batch"]


def test_a_transaction_of_the_caller_gets_no_option(pdb, queue):
    tr = pdb.create_transaction()
    Overview().figures(tr)
    queue.renew(tr, [])
    assert tr._given == []


# A cluster that starves batch priority.


def test_work_goes_on_at_default_priority_after_its_patience(pdb, cluster, runtime):
    cluster.is_squeezed = True
    with cluster.watched() as seen:
        Overview().figures(pdb)
    assert [one.priority for one in seen] == ["default"]
    assert runtime.waited_s == pytest.approx(limits.BATCH_PATIENCE_S, abs=0.1)
    assert (pdb.counters.batch, pdb.counters.fallbacks) == (1, 1)


def test_the_body_of_a_starved_attempt_runs_once(pdb, cluster):
    cluster.is_squeezed, runs = True, []
    run_once(pdb.at("upkeep"), KEYS, lambda tr: runs.append(tr.add(b"count", b"\x01")))
    assert (len(runs), pdb[b"count"]) == (1, b"\x01")


def test_refused_requests_end_at_default_priority(pdb, cluster, runtime):
    """The cluster may also refuse each request at once (1051)."""
    cluster.refusals = 3
    with cluster.watched() as seen:
        run(pdb.at("background"), lambda tr: tr.get(b"x").wait())
    assert ([one.priority for one in seen], pdb.counters.fallbacks) == (["batch"], 0)
    cluster.refusals, runtime.aging_s = 1000, limits.BACKGROUND_PATIENCE_S / 3
    with cluster.watched() as seen:
        run(pdb.at("background"), lambda tr: tr.get(b"x").wait())
    assert ([one.priority for one in seen], pdb.counters.fallbacks) == (["default"], 1)


def test_a_refused_request_is_no_retry(pdb, cluster, runtime):
    cluster.refusals, runtime.aging_s = 1000, limits.BATCH_PATIENCE_S / 3
    run(pdb.at("upkeep"), lambda tr: tr.set(b"x", b""), retry_limit=0)
    assert (pdb[b"x"], pdb.counters.fallbacks) == (b"", 1)


def test_a_fallback_leaves_the_rest_of_the_limits(pdb, cluster):
    cluster.failures = [NOT_COMMITTED] * 10

    def body(tr):
        tr.set(b"x", b"")
        cluster.is_squeezed = len(cluster.failures) == 9

    with cluster.watched() as seen, pytest.raises(FDBError):
        run(pdb.at("upkeep"), body, retry_limit=3, timeout_s=60)
    assert [one.priority for one in seen] == ["batch"] * 2 + ["default"] * 2
    assert seen[-1].timeout_ms <= 60_000 - 1000 * limits.BATCH_PATIENCE_S


def test_a_timeout_leaves_time_for_default_priority(pdb, cluster, runtime):
    """Also one that is shorter than the patience."""
    cluster.is_squeezed = True
    run(pdb.at("background"), lambda tr: tr.set(b"x", b""), timeout_s=2)
    assert runtime.waited_s <= 1


def test_the_looks_of_a_dashboard_keep_their_timeout(pdb, cluster):
    cluster.is_squeezed = True
    with cluster.watched() as seen:
        Overview().figures(Room(pdb).database)
    assert [(one.priority, one.timeout_ms > 0) for one in seen] == [("default", True)]


def test_a_round_that_waits_for_batch_priority_beats_meanwhile(pdb, cluster, runtime, monkeypatch):
    monkeypatch.setattr(runtime, "spawn", lambda *_: IdleThread())  # only this thread sweeps, and waits
    queues = [fdbqueue.TaskQueue.create(pdb, f"q{number}", kind="fifottl") for number in range(6)]
    beats = []
    monkeypatch.setattr(fdbqueue.Session, "beat_if_due", lambda _: beats.append(runtime.waited_s))
    with fdbqueue.Session(pdb):
        keeper = keeper_of(pdb, KEYS)
        keeper.tick()
        for queue in queues:
            queue.put(pdb, "x", delay=0.001)
        keeper._tidy_at = keeper._sweep_at = 0
        cluster.is_squeezed = True
        beats.clear()
        keeper.tick()
    beats.append(runtime.waited_s)
    assert runtime.waited_s > 3
    assert max(later - one for one, later in pairwise(beats)) <= 2 * limits.BATCH_PATIENCE_S


def test_conflicts_use_up_no_patience(pdb, cluster, runtime):
    cluster.failures, runtime.aging_s = [NOT_COMMITTED] * 5, limits.BACKGROUND_PATIENCE_S / 3
    with cluster.watched() as seen:
        run(pdb.at("background"), lambda tr: tr.set(b"x", b""))
    assert ([one.priority for one in seen], pdb.counters.fallbacks) == (["batch"] * 6, 0)


def test_a_retry_after_an_unknown_result_keeps_the_effect_to_one(pdb, cluster):
    """Also if the cluster starves the retry, which is a fresh attempt of the same transaction."""
    cluster.unknown_done = 1

    def body(tr):
        tr.add(b"count", b"\x01")
        cluster.is_squeezed = True

    run_once(pdb.at("upkeep"), KEYS, body)
    assert (pdb[b"count"], pdb.counters.unknown, pdb.counters.fallbacks) == (b"\x01", 1, 1)


def test_each_retry_has_its_options_again(pdb, cluster):
    cluster.failures = [COMMIT_UNKNOWN, NOT_COMMITTED]
    with cluster.watched() as seen:
        run(pdb.at("upkeep"), lambda tr: tr.set(b"x", b""))
    assert [one.priority for one in seen] == ["batch"] * 3


def test_a_service_of_background_work_serves_calls_too(pdb, cluster):
    """A service is made once for all: it must not keep the priority of its first user."""
    queue = fdbqueue.Queue.named(pdb, "items")
    queue.enqueue(pdb.at("background"), 1)
    with cluster.watched() as seen:
        queue.enqueue(pdb, 2)
    assert priorities(seen) == ["default"]


def test_an_engine_that_starves_nothing_does_without():
    with fdbqueue.open("memory:") as db:
        assert db.at("background") is db
    assert opened()[0].at("background").manner is not None


# What an operator sees of it.


def test_an_observer_hears_of_each_fallback(pdb, cluster):
    registry = CollectorRegistry()
    cluster.is_squeezed = True
    with measure(registry):
        Overview().figures(pdb)
    assert registry.get_sample_value("fdbqueue_process_fallbacks_total") == 1


@pytest.mark.parametrize("priority", ["default", "batch"])
def test_doctor_asks_at_batch_priority_whatever_the_user_gave(priority):
    db, cluster, _ = opened(Wishes(priority=priority))
    with db:
        cluster.is_squeezed = True
        assert see_batch(db) is None


def test_doctor_warns_while_batch_priority_starves(pdb, cluster):
    assert [check.severity for check in check_batch(see_batch(pdb))] == [Severity.FINE]
    cluster.is_squeezed = True
    assert [check.severity for check in check_batch(see_batch(pdb))] == [Severity.WARNING]
