"""Named queues: allocated once, found by name, and noticed when they are gone."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    InvalidArgument,
    QueueDropped,
    QueueExists,
    QueueKindMismatch,
    QueueNotFound,
    SubspaceInUse,
    UnknownCodec,
)
from fdbqueue.core.registry import ID_MAX, Definition, Registry
from fdbqueue.core.root_keys import LAYOUT
from fdbqueue.core.unreadable import ID_BYTES, aside_text
from tests.queue_support import QUEUE_CALLS, faulty
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED, begin, commit_code


@pytest.fixture
def registry(space: Subspace) -> Registry:
    return Registry(space)


def test_a_name_leads_to_the_same_queue_every_time(db: Database, space: Subspace) -> None:
    Queue.named(db, "emails", root=space).enqueue(db, "a")
    Queue.named(db, "other", root=space).enqueue(db, "b")
    assert Queue.named(db, "emails", root=space).dequeue_many(db, 9) == ["a"]


def test_the_codec_is_decided_at_creation(db: Database, space: Subspace) -> None:
    Queue.named(db, "raw", codec="bytes", root=space).enqueue(db, b"x")
    assert Queue.named(db, "raw", root=space).dequeue(db) == b"x"
    with pytest.raises(QueueExists) as raised:
        Queue.named(db, "raw", codec="json", root=space)
    assert raised.value.options == {"codec": "bytes"}
    with pytest.raises(UnknownCodec):
        Queue.named(db, "new", codec="pickle", root=space)


def test_without_create_a_queue_must_be_there(db: Database, space: Subspace) -> None:
    with pytest.raises(QueueNotFound):
        Queue.named(db, "emails", create=False, root=space)
    Queue.named(db, "emails", root=space)
    assert Queue.named(db, "emails", create=False, root=space).empty(db)


def test_a_name_of_another_kind_is_refused(db: Database, registry: Registry, space: Subspace) -> None:
    registry.create(db, "jobs", "fifo", {"ttr": 60})
    with pytest.raises(QueueKindMismatch) as raised:
        Queue.named(db, "jobs", root=space)
    assert (raised.value.found, raised.value.wanted) == ("fifo", "queue")


def test_create_refuses_a_name_in_use(db: Database, registry: Registry) -> None:
    first = registry.create(db, "jobs", "fifo", {})
    with pytest.raises(QueueExists):
        registry.create(db, "jobs", "fifo", {})
    assert registry.find(db, "jobs") == first


@pytest.mark.parametrize("name", ["", "x" * 501, None, 3, b"bytes"], ids=str)
def test_a_bad_name(db: Database, space: Subspace, name: Any) -> None:
    with pytest.raises(InvalidArgument):
        Queue.named(db, name, root=space)


@pytest.mark.parametrize("damage", [b"\xff", layer.pack((1, 5, b"")), layer.pack((1, "queue", b"{"))])
def test_a_queue_with_a_damaged_definition_can_be_dropped(
    db: Database, registry: Registry, space: Subspace, damage: bytes
) -> None:
    """Its contents go, too, if its id can be read."""
    queue = Queue.named(db, "emails", root=space)
    queue.enqueue(db, 1)
    db[registry.keys.definition("emails")] = damage
    registry.drop(db, "emails")
    assert registry.names(db) == []
    assert (list(db.get_range_startswith(registry.keys.contents(1).key())) == []) == (damage != b"\xff")


@pytest.mark.parametrize("last", [ID_MAX - 1, 2**64 - 1])
def test_a_damaged_last_id_creates_no_queue(db: Database, registry: Registry, last: int) -> None:
    """The definition could not be read again."""
    db[registry.keys.last_id] = last.to_bytes(8, "little")
    with pytest.raises(SubspaceInUse):
        registry.create(db, "jobs", "fifo", {})
    assert registry.look(db, "jobs") is None


def test_an_id_is_never_used_again(db: Database, registry: Registry) -> None:
    first = registry.create(db, "jobs", "fifo", {})
    registry.drop(db, "jobs")
    with pytest.raises(QueueNotFound):
        registry.drop(db, "jobs")
    assert registry.create(db, "jobs", "fifo", {}).id > first.id


CALLS: dict[str, Callable[[Queue, Database], Any]] = {
    **QUEUE_CALLS,
    "wait": lambda queue, db: queue.dequeue(db, timeout=5),
    "aside": lambda queue, db: queue.aside(db, 2),
    "remove_aside": lambda queue, db: queue.remove_aside(db, [aside_text(bytes(ID_BYTES))]),
    "unreadable": lambda queue, db: queue.unreadable(db),
}


@pytest.mark.parametrize("created_again", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_handle_to_a_dropped_queue_notices(
    db: Database,
    registry: Registry,
    space: Subspace,
    call: Callable[[Queue, Database], Any],
    created_again: bool,
) -> None:
    queue = Queue.named(db, "emails", root=space)
    registry.drop(db, "emails")
    if created_again:
        Queue.named(db, "emails", root=space)
    with pytest.raises(QueueDropped):
        call(queue, db)
    if created_again:
        assert Queue.named(db, "emails", root=space).empty(db)


def test_a_guard_refuses_a_later_queue_of_the_same_name(db: Database, registry: Registry) -> None:
    guard = registry.guard(registry.create(db, "jobs", "fifo", {}))
    registry.drop(db, "jobs")
    registry.create(db, "jobs", "fifo", {})
    with pytest.raises(QueueDropped):
        run(db, lambda tr: guard(tr)())


def test_a_handle_refuses_a_queue_of_its_id_with_other_options(
    db: Database, registry: Registry, space: Subspace
) -> None:
    """As after a restore: a backup may have the id of a later queue."""
    queue = Queue.named(db, "raw", codec="bytes", root=space)
    other = replace(registry.find(db, "raw"), options={"codec": "json"})
    db.set(registry.keys.definition("raw"), other.to_bytes())
    with pytest.raises(QueueDropped):
        queue.enqueue(db, b"x")


def test_a_waiter_notices_that_its_queue_was_dropped(
    db: Database, registry: Registry, space: Subspace
) -> None:
    queue = Queue.named(db, "emails", root=space)
    dropper = db.runtime.spawn(lambda: (db.runtime.sleep(0.2), registry.drop(db, "emails")), "dropper")
    with pytest.raises(QueueDropped):
        queue.dequeue(db, timeout=30)
    dropper.join()


def test_creating_happens_once_even_when_the_commit_is_unknown(
    db: Database, fdb_module: ModuleType, registry: Registry
) -> None:
    flaky, engine = faulty(db, fdb_module.FDBError)
    fates = iter([(COMMIT_UNKNOWN, True), (0, True)])
    engine.fate = lambda _: next(fates)
    assert registry.create(flaky, "jobs", "fifo", {}).id == 1


def test_a_drop_that_its_retry_finds_done_is_no_error(
    db: Database, fdb_module: ModuleType, registry: Registry
) -> None:
    """The attempt with an unknown result has committed. Its answer, None, is an answer."""
    registry.create(db, "jobs", "fifo", {})
    flaky, engine = faulty(db, fdb_module.FDBError)
    fates = iter([(COMMIT_UNKNOWN, True), (0, True)])
    engine.fate = lambda _: next(fates)
    registry.drop(flaky, "jobs")
    assert registry.look(db, "jobs") is None


def test_a_drop_conflicts_with_a_change_of_the_definition(db: Database, registry: Registry) -> None:
    """By an upgrade to a layout with keys elsewhere: these would stay."""
    registry.create(db, "jobs", "fifo", {})
    tr, key = begin(db), registry.keys.definition("jobs")
    registry.drop(tr, "jobs")
    db.set(key, db[key])
    assert commit_code(tr) == NOT_COMMITTED


def test_a_drop_conflicts_with_the_first_member_of_a_group(db: Database, registry: Registry) -> None:
    """The sweeps of groups count off the members of a queue that is gone."""
    jobs = registry.create(db, "jobs", "fifo", {})
    tr = begin(db)
    registry.drop(tr, "jobs")
    db[registry.keys.members_in(jobs.id).start] = b""
    assert commit_code(tr) == NOT_COMMITTED


def test_a_drop_leaves_nothing_of_an_import(db: Database, registry: Registry) -> None:
    jobs = registry.create(db, "jobs", "fifo", {})
    under = registry.keys.imports_into(jobs.id)
    db[under.start] = b""
    registry.drop(db, "jobs")
    assert list(db.get_range(under.start, under.stop)) == []


def test_a_definition_is_written_again_with_appended_parts() -> None:
    """A newer release of the same layout relies on them."""
    value = layer.pack((7, "fifo", b'{"ttr":60}', LAYOUT, "appended", 1))
    assert Definition.from_bytes("jobs", value).to_bytes() == value


def test_queues_that_are_created_at_once_share_no_id(db: Database, registry: Registry) -> None:
    transactions = [begin(db) for _ in range(2)]
    for name, tr in zip("ab", transactions, strict=True):
        registry.create(tr, name, "fifo", {})
    assert [commit_code(tr) for tr in transactions] == [0, NOT_COMMITTED]


def test_finding_a_queue_conflicts_with_its_drop_and_creation(
    db: Database, registry: Registry, space: Subspace
) -> None:
    Queue.named(db, "emails", root=space)
    found, missed = begin(db), begin(db)
    Queue.named(found, "emails", create=False, root=space)
    with pytest.raises(QueueNotFound):
        Queue.named(missed, "letters", create=False, root=space)
    for tr in (found, missed):
        tr[space.pack(("noted",))] = b""
    registry.drop(db, "emails")
    Queue.named(db, "letters", root=space)
    assert [commit_code(found), commit_code(missed)] == [NOT_COMMITTED, NOT_COMMITTED]


def test_the_loser_of_a_race_to_create_gets_the_same_queue(
    db: Database, fdb_module: ModuleType, registry: Registry
) -> None:
    loser, engine = faulty(db, fdb_module.FDBError)
    created = []

    def fate(commit: int) -> tuple[int, bool]:
        if commit == 2:  # that of the loser, which has found no queue before
            created.append(registry.create(db, "jobs", "fifo", {}))
        return 0, True

    engine.fate = fate
    assert [registry.find_or_create(loser, "jobs", "fifo", {})] == created


def test_names_are_listed_in_order_and_in_pages(db: Database, registry: Registry) -> None:
    for name in ("b", "a", "c", "ä"):
        registry.create(db, name, "fifo", {})
    assert [found.name for found in registry.names(db)] == ["a", "b", "c", "ä"]
    assert [found.name for found in registry.names(db, after="a", limit=2)] == ["b", "c"]


def test_a_page_of_names_is_bounded_behind_a_key_without_one(db: Database, registry: Registry) -> None:
    for name in "abc":
        registry.create(db, name, "queue", {"codec": "json"})
    db.set(registry.keys.definition("a") + b"\x00", b"")
    assert [found.name for found in registry.names(db, limit=2)] == ["a", "b"]


def test_a_queue_can_be_created_and_used_in_one_transaction(db: Database, space: Subspace) -> None:
    tr = db.create_transaction()
    Queue.named(tr, "emails", root=space).enqueue(tr, "a")
    assert Queue.named(tr, "emails", root=space).peek(tr) == "a"
    tr.commit().wait()
    assert Queue.named(db, "emails", root=space).dequeue(db) == "a"
