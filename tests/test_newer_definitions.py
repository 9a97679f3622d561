"""A definition that this release cannot read is reported and passed over; a rolling upgrade ends no lease."""

import logging
from typing import Any

import msgspec
import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, PersistentQueue, Queue, Session, SimpleElementQueue, TaskQueue
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError
from fdbqueue.core.registry import UNREADABLE, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.tasks.options import Settings


def options_of(**more: Any) -> bytes:
    return msgspec.json.encode(Settings().to_options() | more)


NEWER = {
    "an option more": layer.pack((7, "fifo", options_of(deduplicate=True))),
    "an option of another type": layer.pack((7, "fifo", options_of(ttl={"from": 1}))),
    "a part more": layer.pack((7, "fifo", options_of(), "shards")),
    "no options": layer.pack((7, "fifo", b"[]")),
    "another kind": layer.pack((7, "sharded", b"{}")),
    "a plain queue with an option more": layer.pack((7, "queue", b'{"codec":"json","x":1}')),
    "elements with an option more": layer.pack((7, "elements", b'{"schema":{},"x":1}')),
    "nothing": b"",
    "no tuple": b"\xff\xfe",
    "half a tuple": layer.pack((7, "fifo", options_of()))[:9],
    "tuples in tuples": b"\x05" * 5_000,
    "lists in lists": layer.pack((7, "fifo", b"[" * 5_000)),
}


@pytest.fixture(params=NEWER.values(), ids=NEWER)
def newer(request: pytest.FixtureRequest, db: Database, space: Subspace) -> bytes:
    """The key of a definition that this release cannot read, among sound ones."""
    for name in ("a", "z"):
        TaskQueue.create(db, name, root=space).put(db, name)
    key = RootKeys(space).definition("newer")
    db[key] = request.param
    return key


def test_each_call_on_the_queue_names_it(db: Database, space: Subspace, newer: bytes) -> None:
    value = db[newer]
    calls = [
        lambda: TaskQueue.open(db, "newer", root=space),
        lambda: TaskQueue.create(db, "newer", root=space),
        lambda: Queue.named(db, "newer", root=space),
        lambda: ElementQueue.named(db, "newer", root=space),
        lambda: SimpleElementQueue.named(db, "newer", root=space),
        lambda: PersistentQueue(db, "newer", root=space),
    ]
    for call in calls:
        with pytest.raises(FdbQueueError, match=r"newer|sharded|no kind"):
            call()
    assert db[newer] == value


def test_listings_and_statistics_go_on(db: Database, space: Subspace, newer: bytes) -> None:  # noqa: ARG001
    assert fdbqueue.list_queues(db, root=space) == ["a", "newer", "z"]
    assert set(fdbqueue.statistics(db, root=space)) == {"a", "z"}
    kinds = [found.kind for found in Registry(space).names(db)]
    assert kinds[1] in (UNREADABLE, "sharded", "fifo", "queue", "elements")


@pytest.mark.commits_by_hand
def test_sessions_end_and_leases_go_on(
    db: Database, space: Subspace, newer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    queue = TaskQueue.open(db, "a", root=space)
    with Session(db, ttr=30, root=space) as mine, Session(db, ttr=30, root=space) as dead:
        task = queue.take(db, 0, session=mine)
        other = TaskQueue.open(db, "z", root=space)
        other.take(db, 0, session=dead)
        end_session(db, dead._keys, dead.id, lambda *_: True, died=True)
        assert other.statistics(db)["tasks"]["ready"] == 1
        mine.beat()
        assert not mine.lost
        queue.ack(db, task)
    assert db[newer] is not None


def test_the_queue_can_be_dropped(db: Database, space: Subspace, newer: bytes) -> None:
    registry = Registry(space)
    db[registry.keys.contents(7).pack((1,))] = b"contents"
    registry.drop(db, "newer")
    assert db[newer] is None
    assert fdbqueue.list_queues(db, root=space) == ["a", "z"]


def test_damaged_keys_of_definitions_are_passed_over(db: Database, space: Subspace) -> None:
    TaskQueue.create(db, "q", root=space)
    start = RootKeys(space).definitions.start
    for junk in (b"", b"\x01", b"\x15\x07", b"\x02a", b"\x02q\x00\x01x\x00", b"\x02\xff\x00", b"\xfe"):
        db[start + junk] = b"junk"
    assert fdbqueue.list_queues(db, root=space) == ["q"]
    assert [found.name for found in Registry(space).names(db, limit=1)] == ["q"]


@pytest.mark.parametrize("last", [b"", b"\xff" * 8, b"\xff" * 20, b"1"])
def test_a_damaged_last_id_makes_no_queue(db: Database, space: Subspace, last: bytes) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    db[RootKeys(space).last_id] = last
    with pytest.raises(FdbQueueError):
        TaskQueue.create(db, "r", root=space)
    queue.put(db, 1)
    assert queue.take(db, 0) is not None


def test_an_option_of_a_newer_release_is_named(db: Database, space: Subspace) -> None:
    db[RootKeys(space).definition("q")] = NEWER["an option more"]
    with pytest.raises(DefinitionUnreadable, match=r"'q'.*deduplicate") as raised:
        TaskQueue.open(db, "q", root=space)
    assert raised.value.name == "q"


def test_a_damaged_definition_keeps_no_database_open(url: str, space: Subspace) -> None:
    database = fdbqueue.open(url)
    queue = TaskQueue.create(database, "q", root=space)
    queue.put(database, 1)
    queue.take(database, 0)
    keys = RootKeys(space)
    database[keys.definition("q")] = b"\xff"
    database[keys.receipt(b"p" * 12, 1)] = b"damaged"
    database[keys.receipts.start + b"\x01"] = b""
    database.close()
    assert database.closed
    with pytest.raises(fdbqueue.FdbQueueError):
        database.create_transaction()
