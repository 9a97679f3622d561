"""The directory that each release has left is sound, and this release goes on with its tasks and items."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import (
    Database,
    ElementQueue,
    FairQueue,
    Group,
    Limit,
    PersistentQueue,
    Queue,
    Schedule,
    Subspace,
    TaskQueue,
)
from fdbqueue.core.root_keys import DEFAULT_ROOT
from tests.releases.frozen import ITEMS, KEYED, KINDS, READY, key_of
from tests.support import PATIENCE_S

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    # A run with a cluster moves the default root, also that of a directory.
    monkeypatch.setattr(DEFAULT_ROOT, "rawPrefix", Subspace(("fdbqueue",)).key())
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        yield db


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_an_older_release_are_run(old: Database, kind: str) -> None:
    assert fdbqueue.verify(old).sound
    queue = TaskQueue.open(old, kind)
    assert queue.kind == kind
    found = []
    wanted = len(READY) + (kind == "limfifottl")  # and a member of a group
    while len(found) < wanted:
        task = queue.take(old, PATIENCE_S)
        assert task is not None, found
        found.append(task)
        queue.ack(old, task)
    assert sorted(task.data for task in found) == sorted([*READY, *["member"] * (kind == "limfifottl")])
    assert [task.data for task in found if task.orphaned] == ["held"]
    assert all((task.key is not None) == (kind in KEYED) for task in found)
    [buried] = queue.tasks(old, fdbqueue.TaskState.BURIED, 10)
    assert buried.headers == {"why": "to see"}
    assert [failure.error for failure in queue.failures(old, buried)] == ["Odd"]
    assert fdbqueue.verify(old).sound


def test_items_of_an_older_release_come_in_their_order(old: Database) -> None:
    items = Queue.named(old, "items")
    assert [items.dequeue(old) for _ in ITEMS] == ITEMS
    parted = Queue.named(old, "partitions", partitions=2)
    fair = FairQueue(Subspace(("frozen", "fair")), key=key_of)
    with PersistentQueue(old, "persistent") as persistent:
        for queue in (lambda: parted.dequeue(old), lambda: fair.get(old), persistent.get_nowait):
            found = [queue() for _ in ITEMS]
            assert sorted(map(str, found)) == sorted(map(str, ITEMS))
    elements = ElementQueue.named(old, "elements", {"body": "string", "header": "table?"})
    [name] = elements.names(old)
    assert elements.lock(old, name)
    assert elements.get(old, name) == {"body": "hello", "header": {"to": "ada"}}


def test_schedules_limits_and_groups_of_an_older_release_go_on(old: Database) -> None:
    assert {limit.name for limit in Limit.list(old)} == {"slots", "rate"}
    assert Schedule.open(old, "never").status(old).queue == "fifo"
    [listed] = fdbqueue.list_groups(old)
    group, members = Group.open(old, listed.id), TaskQueue.open(old, "limfifottl")
    group.close(old)
    while (task := members.take(old, PATIENCE_S)) is not None and task.data != "member":
        members.ack(old, task)
    assert task is not None
    members.ack(old, task)
    group.wait(old, PATIENCE_S)
    then = TaskQueue.open(old, "fifo").take_many(old, len(READY) + 1)
    assert then[-1].data == "then"
