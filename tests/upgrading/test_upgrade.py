"""`fdbqueue upgrade` brings what an earlier release has written to the present layout, and loses nothing."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, FairQueue, PersistentQueue, Queue, SimpleElementQueue, TaskQueue
from fdbqueue import limits as bounds
from fdbqueue.cli.commands import cli
from fdbqueue.cli.exits import run as run_program
from fdbqueue.errors import OlderSessions
from fdbqueue.key_layout import LAYOUT, LAYOUT_BEFORE
from fdbqueue.records.keys import TaskKeys, id_in, record_of
from fdbqueue.registry.registry import Registry
from fdbqueue.root_keys import DEFAULT_ROOT, UPGRADE, RootKeys
from fdbqueue.upgrading.upgrade import Upgrade
from fdbqueue.verification import Flaw
from tests.upgrading.write_old import COUNT, KINDS
from tests.upgrading.written import everything, load, old_database

QUEUES = sorted([f"tasks-{kind}" for kind in KINDS] + ["plain", "persistent", "elements", "simple"])


@pytest.fixture
def db() -> Iterator[Database]:
    with old_database() as database:
        yield database


def upgrade_of(db: Database) -> Upgrade:
    return Upgrade(db, Registry())


def upgrade_all(db: Database) -> int:
    """Upgrade all queues; return the number of rewritten tasks."""
    work = upgrade_of(db)
    return sum(step.rewritten for one in work.plan() for step in work.steps(one))


def layouts(db: Database) -> set[int]:
    return {found.layout for found in Registry().names(db)}


def drained(db: Database, name: str) -> list[list[Any]]:
    """The data of all tasks of a queue, those of dead sessions and buried ones too."""
    queue = TaskQueue.open(db, name)
    queue.kick(db, 100)
    found = []
    while len(found) < COUNT and (task := queue.take(db, 20)) is not None:
        queue.ack(db, task)
        found.append(task.data)
    return sorted(found)


def require_complete(db: Database) -> None:
    """Each item, task and element of the file is there, once."""
    for kind in KINDS:
        found = drained(db, f"tasks-{kind}")
        assert [data[:2] for data in found] == [[kind, number] for number in range(COUNT)]
    assert [item["n"] for item in Queue.named(db, "plain").dequeue_many(db, 99)] == list(range(1, COUNT))
    assert Queue(Subspace(("bare", "plain"))).dequeue_many(db, 99) == list(range(COUNT))
    fair = FairQueue(Subspace(("bare", "fair")), key=lambda item: item[0])
    assert [fair.get(db)[1] for _ in range(COUNT)] == list(range(COUNT))
    persistent = PersistentQueue(db, "persistent", owner="me")
    assert [persistent.get(timeout=20) for _ in range(5)] == list(range(5))
    assert ElementQueue.named(db, "elements", {"body": "string", "head": "table?"}).count(db) == 4
    assert SimpleElementQueue.named(db, "simple").count(db) == 4


def test_the_data_are_read_without_an_upgrade(db: Database) -> None:
    """So a deployment stops no fleet: an upgrade has time until all processes have the new release."""
    flaws = {finding.flaw for finding in fdbqueue.verify(db).findings}
    assert flaws <= {Flaw.COPY, Flaw.KEY_STATE}, "entries that lack their task key"
    require_complete(db)
    assert layouts(db) == {LAYOUT_BEFORE}


def test_a_plan_lists_each_queue_and_its_tasks(db: Database) -> None:
    before = everything(db)
    plan = {one.queue: one for one in upgrade_of(db).plan()}
    assert sorted(plan) == QUEUES
    assert {one.layout for one in plan.values()} == {LAYOUT_BEFORE}
    assert plan["plain"].entries == 0
    assert plan["tasks-utubettl"].entries == 2 + 3 + 3
    assert all(one.problem is None for one in plan.values())
    assert everything(db) == before


def test_nothing_is_lost_by_an_upgrade(db: Database) -> None:
    assert upgrade_all(db) > 0
    assert layouts(db) == {LAYOUT}
    assert fdbqueue.verify(db).sound
    require_complete(db)
    assert fdbqueue.verify(db).sound


def test_a_second_upgrade_does_nothing(db: Database) -> None:
    upgrade_all(db)
    before = everything(db)
    assert upgrade_of(db).plan() == []
    assert everything(db) == before


def test_each_entry_has_its_task_key_and_each_burial_its_class(db: Database) -> None:
    upgrade_all(db)
    for kind in KINDS:
        keys = TaskKeys(TaskQueue.open(db, f"tasks-{kind}").contents)
        for row in db.get_range(keys.taken.start, keys.buried.stop):
            record = record_of(db[keys.task(id_in(row.key))])
            assert row.value == record.key
        counts = {keys.class_counted(row.key): row.value[0] for row in counted(db, keys)}
        assert counts == {"ValueError": 1, "KeyError": 1, "": 1}


def counted(db: Database, keys: TaskKeys) -> Any:
    return db.get_range(keys.class_counts.start, keys.class_counts.stop)


def test_a_kill_after_each_transaction_changes_no_result(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves the steps that it has committed; the next one begins anew."""
    monkeypatch.setattr(bounds, "VERB_BATCH", 3)
    steps = 0
    while plan := upgrade_of(db).plan():
        next(upgrade_of(db).steps(plan[0]), None)
        steps += 1
    assert steps >= len(QUEUES) + 10
    assert fdbqueue.verify(db).sound
    with old_database() as other:
        upgrade_all(other)
        assert everything(db) == everything(other)


def test_two_upgrades_at_once_do_the_work_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "VERB_BATCH", 3)
    one, other = upgrade_of(db), upgrade_of(db)
    for work in one.plan():
        mine, theirs = one.steps(work), other.steps(work)
        while next(mine, None) or next(theirs, None):
            pass
    with old_database() as apart:
        assert upgrade_all(apart) > 0
        assert everything(db) == everything(apart)


def test_a_handle_that_is_open_goes_on(db: Database) -> None:
    queue = TaskQueue.open(db, "tasks-utube")
    upgrade_all(db)
    queue.put(db, ["utube", COUNT, ""], key="k0")
    assert queue.take(db, 20) is not None


def test_a_dropped_queue_leaves_no_progress(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "VERB_BATCH", 1)
    work = next(one for one in upgrade_of(db).plan() if one.queue == "tasks-utubettl")
    steps = upgrade_of(db).steps(work)
    next(steps)
    Registry().drop(db, "tasks-utubettl")
    assert list(steps) == []
    assert [key for key in everything(db) if RootKeys(DEFAULT_ROOT).shape_of(key)[0] == UPGRADE] == []


def store(db: Database, name: str, change: Callable[[int, str, bytes], tuple[Any, ...]]) -> None:
    """Store a definition made from its id, kind and options."""
    key = RootKeys(DEFAULT_ROOT).definition(name)
    db[key] = layer.pack(change(*layer.unpack(db[key])))


def newer(*parts: Any) -> tuple[Any, ...]:
    return (*parts, LAYOUT + 1)


def test_a_plan_tells_why_a_queue_cannot_be_read(db: Database) -> None:
    store(db, "simple", newer)
    store(db, "tasks-fifo", lambda id_, kind, _: (id_, kind, b'{"partitions":"none"}'))
    plan = {one.queue: one for one in upgrade_of(db).plan()}
    assert sorted(plan) == QUEUES
    simple, fifo = plan["simple"], plan["tasks-fifo"]
    assert (simple.layout, fifo.layout) == (LAYOUT + 1, None)
    assert "use a newer release" in (simple.problem or "")
    assert "cannot be read" in (fifo.problem or "")


def test_live_sessions_of_an_earlier_release_refuse_it() -> None:
    with old_database(later=False) as db:
        before = everything(db)
        with pytest.raises(OlderSessions, match=r"'worker'.*Stop them") as raised:
            upgrade_of(db).require_no_older_sessions()
        assert len(raised.value.sessions) == 3
        assert everything(db) == before


def test_sessions_of_this_release_do_not_refuse_it(db: Database) -> None:
    with fdbqueue.Session(db), fdbqueue.Session(db, "worker-2"):
        upgrade_of(db).require_no_older_sessions()


def test_an_opener_that_tells_no_layout_is_of_an_earlier_release(db: Database) -> None:
    """Its row has a host and a process id."""
    with fdbqueue.Session(db, "worker-2") as session:
        openers = RootKeys(DEFAULT_ROOT).openers(session.id)
        for row in db.get_range(openers.start, openers.stop):
            db[row.key] = layer.pack(layer.unpack(row.value)[:3])
        with pytest.raises(OlderSessions, match="worker-2"):
            upgrade_of(db).require_no_older_sessions()


def test_a_dead_opener_of_an_earlier_release_refuses_nothing(db: Database) -> None:
    """Its row stays until the next heartbeat of another opener."""
    with fdbqueue.Session(db, "worker-2") as session:
        db[RootKeys(DEFAULT_ROOT).opener(session.id, b"dead")] = layer.pack((1, "host", 7))
        upgrade_of(db).require_no_older_sessions()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def program(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        load(db, DEFAULT_ROOT)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_program(cli, ["--url", url, *arguments])
        return status, *capfd.readouterr()

    return run


def test_the_command_lists_its_work_and_names_older_processes(program: Run) -> None:
    status, out, err = program("upgrade", "--dry-run", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert sorted(row["queue"] for row in rows) == QUEUES
    assert {(row["layout"], row["rewritten"]) for row in rows} == {(LAYOUT_BEFORE, 0)}
    assert "session 'worker'" in err
    assert f"{len(QUEUES)} queues would be upgraded to layout 1" in err
    status, _, err = program("upgrade")
    assert status == 1
    assert "Nothing was changed" in err


def test_the_command_goes_on_behind_a_queue_of_a_newer_layout(
    program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer_meanwhile(work: Upgrade) -> None:
        store(work._database, "plain", newer)

    monkeypatch.setattr(Upgrade, "require_no_older_sessions", newer_meanwhile)
    status, out, err = program("upgrade", "--json")
    problems = {row["queue"]: row["problem"] for row in map(json.loads, out.splitlines())}
    assert sorted(problems) == QUEUES
    assert [queue for queue, problem in problems.items() if problem] == ["plain"]
    assert status == 1
    assert f"{len(QUEUES) - 1} queues upgraded" in err
