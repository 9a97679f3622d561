"""The layout of a queue lies in its definition: each call reads it, and a newer one is refused."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    Database,
    ElementQueue,
    PersistentQueue,
    Queue,
    Session,
    SimpleElementQueue,
    TaskQueue,
    Worker,
)
from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from tests.support import PATIENCE_S

MAKERS: dict[str, Callable[[Database, Subspace], Any]] = {
    "tasks": lambda db, root: TaskQueue.create(db, "q", "utube", root=root),
    "plain": lambda db, root: Queue.named(db, "q", root=root),
    "persistent": lambda db, root: PersistentQueue(db, "q", root=root),
    "elements": lambda db, root: ElementQueue.named(db, "q", {"body": "string"}, root=root),
    "simple elements": lambda db, root: SimpleElementQueue.named(db, "q", root=root),
}


def parts_of(db: Database, space: Subspace, name: str = "q") -> tuple[Any, ...]:
    value = db[RootKeys(space).definition(name)]
    assert value is not None
    return tuple(layer.unpack(value))


def store(db: Database, space: Subspace, *parts: Any) -> None:
    """Store the first three parts of the definition of queue `q`, and then `parts`."""
    db[RootKeys(space).definition("q")] = layer.pack((*parts_of(db, space)[:3], *parts))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_new_queue_has_the_present_layout(
    db: Database, space: Subspace, make: Callable[[Database, Subspace], Any]
) -> None:
    make(db, space)
    assert parts_of(db, space)[3:] == (LAYOUT,)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("version", [(), (LAYOUT, "appended", 7)], ids=["no layout", "appended parts"])
def test_such_a_queue_opens_and_is_left_as_it_is(
    db: Database, space: Subspace, make: Callable[[Database, Subspace], Any], version: tuple[Any, ...]
) -> None:
    make(db, space)
    store(db, space, *version)
    if make is MAKERS["tasks"]:
        TaskQueue.open(db, "q", root=space)
    else:
        make(db, space)
    assert parts_of(db, space)[3:] == version


def test_open_handles_go_on_when_the_layout_changes(db: Database, space: Subspace) -> None:
    tasks = TaskQueue.create(db, "q", "utube", root=space)
    for version in ((), (LAYOUT,), (LAYOUT, "appended"), (LAYOUT,)):
        store(db, space, *version)
        tasks.put(db, len(version), key="k")
        task = tasks.take(db, 0)
        assert task is not None
        tasks.ack(db, task)
    assert tasks.statistics(db)["tasks"]["done"] == 4


def test_handles_of_elements_go_on_when_the_layout_changes(db: Database, space: Subspace) -> None:
    queue = SimpleElementQueue.named(db, "q", root=space)
    for version in ((), (LAYOUT,), (LAYOUT, "appended")):
        store(db, space, *version)
        queue.add(db, b"x")
    assert queue.count(db) == 3


def test_a_repartition_keeps_appended_parts(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    store(db, space, LAYOUT, "appended", b"\x00")
    queue.repartition(db, 4)
    queue.put(db, 1)
    _, _, options, *version = parts_of(db, space)
    assert b"partitions" in options
    assert version == [LAYOUT, "appended", b"\x00"]


def test_a_newer_layout_is_refused_with_its_cure(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    TaskQueue.create(db, "other", root=space)
    store(db, space, LAYOUT + 1, "whatever")
    calls = [
        lambda: queue.put(db, 1),
        lambda: queue.take(db, 0),
        lambda: TaskQueue.open(db, "q", root=space),
        lambda: Queue.named(db, "q", root=space),
        lambda: Registry(space).drop(db, "q"),
    ]
    for call in calls:
        with pytest.raises(LayoutNewer, match=r"layout 2.*use a newer release") as raised:
            call()
        assert (raised.value.name, raised.value.layout, raised.value.known) == ("q", LAYOUT + 1, LAYOUT)
    assert parts_of(db, space)[3:] == (LAYOUT + 1, "whatever")
    assert fdbqueue.list_queues(db, root=space) == ["other", "q"]
    assert set(fdbqueue.statistics(db, root=space)) == {"other"}
    (finding,) = fdbqueue.verify(db, root=space).findings
    assert finding.cure == "Use a newer release.", "a drop is refused"


@pytest.mark.parametrize("kind", ["fifo", 5])
def test_a_newer_layout_is_refused_before_all_else(db: Database, space: Subspace, kind: Any) -> None:
    """Its options may have another form: they are no damage, and a drop would lose keys elsewhere."""
    TaskQueue.create(db, "q", root=space).put(db, 1)
    key = RootKeys(space).definition("q")
    stored = layer.pack((layer.unpack(db[key])[0], kind, b"\x81\xa1a\x01", LAYOUT + 1))
    db[key] = stored
    for call in (lambda: TaskQueue.open(db, "q", root=space), lambda: Registry(space).drop(db, "q")):
        with pytest.raises(LayoutNewer):
            call()
    assert db[key] == stored


def test_sweeps_tell_a_newer_layout_in_one_line(
    db: Database, space: Subspace, caplog: pytest.LogCaptureFixture
) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.put(db, 1, ttl=1e-6)
    store(db, space, LAYOUT + 1)
    keeper = keeper_of(db, RootKeys(space))
    for _ in range(3):
        keeper.tick()
    [record] = [record for record in caplog.records if "'q'" in record.getMessage()]
    assert "has key layout 2" in record.getMessage()
    assert not record.exc_text


@pytest.mark.parametrize("layout", ["1", -1, 0, 1.0, None, b"1"])
def test_a_layout_that_never_was_is_damage(db: Database, space: Subspace, layout: Any) -> None:
    TaskQueue.create(db, "q", root=space)
    store(db, space, layout)
    with pytest.raises(DefinitionUnreadable, match="layout"):
        TaskQueue.open(db, "q", root=space)


def test_each_process_of_a_session_tells_its_layout(db: Database, space: Subspace) -> None:
    keys = RootKeys(space)
    with Session(db, root=space) as unnamed, Session(db, "worker", root=space) as named:
        record = layer.unpack(db[keys.session(unnamed.id)])
        rows = [layer.unpack(row.value) for row in db.get_range(*bounds(keys.openers(named.id)))]
    assert record[3:] == (db.runtime.host_name(), db.runtime.process_id(), LAYOUT)
    assert [row[1:4] for row in rows] == [record[3:]]


def test_an_opener_keeps_the_parts_that_a_newer_one_appended(db: Database, space: Subspace) -> None:
    keys = RootKeys(space)
    with Session(db, "worker", ttr=5, root=space) as first:
        record = layer.unpack(db[keys.session(first.id)])
        db[keys.session(first.id)] = layer.pack((*record, "appended", 1))
        with Session(db, "worker", ttr=50, root=space):
            rewritten = layer.unpack(db[keys.session(first.id)])
            assert rewritten == (*record[:2], 50_000_000, "appended", 1)


def bounds(under: slice) -> tuple[bytes, bytes]:
    return under.start, under.stop


def test_a_worker_ends_when_only_newer_layouts_are_left(db: Database, space: Subspace) -> None:
    """No process of this release can take from the queue any more."""
    queue = TaskQueue.create(db, "q", root=space)
    worker = Worker(db, queue, print, root=space)
    store(db, space, LAYOUT + 1)
    with pytest.raises(LayoutNewer):
        worker.run()


def test_a_worker_goes_on_without_a_queue_of_a_newer_layout(
    db: Database, space: Subspace, caplog: pytest.LogCaptureFixture
) -> None:
    handled = threading.Event()
    queues = [TaskQueue.create(db, name, root=space) for name in ("q", "other")]
    worker = Worker(db, queues, lambda _: handled.set(), root=space)
    store(db, space, LAYOUT + 1)
    worker.start()
    queues[1].put(db, 1)
    assert handled.wait(PATIENCE_S)
    worker.stop()
    assert worker.join(PATIENCE_S)
    assert caplog.text.count("going on without the queue 'q': The queue 'q' has key layout 2") == 1
