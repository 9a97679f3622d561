"""Verification of plain, fair and element queues, and the rules of the call itself."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import (
    Database,
    ElementQueue,
    Failure,
    FairQueue,
    Finding,
    Flaw,
    Queue,
    Session,
    SimpleElementQueue,
    TaskQueue,
    verify,
)
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotADatabase, QueueNotFound, WrongType
from fdbqueue.core.line.decision import Notice, Offer, Ticket
from fdbqueue.core.registry import Registry
from fdbqueue.operate.verify import verify as verifying
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.key_counts import KeyCounts, slug_of
from fdbqueue.tasks.stored.records import COUNTER_NAMES, TaskKeys, id_in, packed
from tests.verifying.places import LARGE, missing_id


def first_item(db: Database, keys: QueueKeys) -> Any:
    return db.get_range(keys.items.start, keys.items.stop, limit=1)[0].key


PLAIN: dict[str, tuple[Callable[[Database, QueueKeys, Any], object], Flaw]] = {
    "a counter": (lambda _, keys, tr: tr.add(keys.size, b"\x01" + bytes(7)), Flaw.COUNTER),
    "a lost piece": (
        lambda db, keys, tr: tr.clear(keys.piece(keys.suffix_of(first_item(db, keys)), 0)),
        Flaw.PAYLOAD,
    ),
    "a stray piece": (
        lambda _, keys, tr: tr.set(keys.piece(b"\x14\x01random\x00", 0), b"x"),
        Flaw.PAYLOAD,
    ),
    "a damaged item": (lambda db, keys, tr: tr.set(first_item(db, keys), b"\xff"), Flaw.RECORD),
    "a damaged floor": (lambda _, keys, tr: tr.set(keys.floor, b"\xff" * 8), Flaw.VALUE),
    "an unknown key": (lambda _, keys, tr: tr.set(keys.prefix + b"\x15\x63", b""), Flaw.UNKNOWN),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_corrupt_plain_queue_is_told(db: Database, space: Subspace, name: str) -> None:
    queue, keys = Queue(space["q"], root=space["root"]), QueueKeys(space["q"])
    queue.enqueue_many(db, [LARGE, 2])
    assert verify(db, queue).findings == ()
    plant, flaw = PLAIN[name]
    run(db, lambda tr: plant(db, keys, tr))
    assert flaw in [finding.flaw for finding in verify(db, queue).findings]


@pytest.mark.parametrize("kind", ["utubettl", "fair"])
def test_the_longest_keys_of_a_task_are_counted(db: Database, space: Subspace, kind: str) -> None:
    """Mending would set the counters to numbers without them."""
    queue = TaskQueue.create(db, "q", kind, retain_s=60, root=space)
    key = "k" * (limits.TASK_KEY_BYTES_MAX - 2)  # the packed form has two bytes more
    for _ in range(4):
        queue.put(db, "x", key=key)
    task = queue.take(db, 0)
    assert task is not None
    queue.ack(db, task)
    task = queue.take(db, 0)
    assert task is not None
    queue.bury(db, task, failure=Failure("E" * limits.FAILURE_CLASS_BYTES_MAX))
    assert queue.take(db, 0) is not None
    assert verify(db, "q", root=space).findings == ()
    queue.truncate_some(db, 1)
    assert verify(db, "q", root=space).findings == ()


def test_a_corrupt_fair_queue_is_told_and_mended(db: Database, space: Subspace) -> None:
    queue, keys = FairQueue(space["q"], key=lambda item: item[:1], root=space["root"]), TaskKeys(space["q"])
    for item in ("a", LARGE, "b"):
        queue.put(db, item)
    assert verify(db, queue).findings == ()
    run(db, lambda tr: tr.add(keys.counters, packed(COUNTER_NAMES, {"ready": 2})))
    run(db, lambda tr: tr.set(keys.payload(missing_id(), 0), b"x"))
    found = verify(db, queue, mend=True)
    assert {finding.flaw for finding in found.findings} == {Flaw.COUNTER, Flaw.PAYLOAD}
    assert found.sound
    assert verify(db, queue).findings == ()
    assert queue.size(db) == 3


def test_an_item_that_lost_bytes_is_set_aside_by_a_take(db: Database, space: Subspace) -> None:
    """A queue over a subspace has no command."""
    queue, keys = FairQueue(space["q"], key=lambda item: item[:1], root=space["root"]), TaskKeys(space["q"])
    queue.put(db, LARGE)
    record = db.get_range(keys.tasks.start, keys.tasks.stop)[0].key
    run(db, lambda tr: tr.clear(keys.payload(id_in(record), 1)))
    (finding,) = verify(db, queue).findings
    assert (finding.flaw, finding.cure) == (Flaw.PAYLOAD, "The take that meets it sets it aside.")
    assert queue.get(db, timeout=0) is None
    assert verify(db, queue).findings == ()


def test_a_corrupt_element_is_told_and_set_aside(db: Database, space: Subspace) -> None:
    queue = SimpleElementQueue(space["q"], root=space["root"])
    name, keys = queue.add(db, b"data"), ElementKeys(space["q"])
    assert verify(db, queue).findings == ()
    run(db, lambda tr: tr.set(keys.payload(name, 0), b"no element"))
    (finding,) = verify(db, queue, mend=True).findings
    assert finding.flaw is Flaw.RECORD
    assert name in finding.text
    assert (queue.unreadable(db), queue.count(db)) == (1, 0)
    assert verify(db, queue).findings == ()


def test_items_in_the_hands_of_the_line_are_no_findings(db: Database, space: Subspace) -> None:
    """A served request has its item in a notice, and the pieces of the item stay where they were."""
    queue, keys = Queue(space["q"], root=space["root"]), QueueKeys(space["q"])
    queue.enqueue(db, LARGE)
    recipe = queue._recipe.zero
    item = first_item(db, keys)

    def serve(tr: Any) -> None:
        offer = Offer(keys.suffix_of(item), tr.get(item).value, 1)
        deliveries = recipe.deliver(tr, [offer], b"")
        recipe.line.results.leave(tr, Ticket(b"s" * 10, b"r" * 12, 1), deliveries, Notice(2**60, 0))

    run(db, serve)
    assert verify(db, queue).findings == ()


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_KEYS_MAX", 2)
    monkeypatch.setattr(limits, "SLICES_TOGETHER", 1)
    monkeypatch.setattr(limits, "COUNTED_ROWS", 2)
    monkeypatch.setattr(limits, "COUNTED_S", 0.0)


class Disturbed(Database):
    """A database in which something moves before each transaction of its user."""

    def __init__(self, database: Database, moves: list[Callable[[], object]]) -> None:
        super().__init__(database.engine, database.runtime)
        self.moves = moves

    def create_transaction(self) -> Any:
        if self.moves:
            self.moves.pop()()
        return super().create_transaction()


@pytest.mark.usefixtures("small_slices")
def test_a_change_between_two_slices_is_not_told(db: Database, space: Subspace) -> None:
    """Tasks move from behind the scan to before it, and back."""
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.put_many(db, range(12))
    with Session(db, ttr=600, root=space) as session:
        take = partial(queue.take, db, 0, session=session)
        moves = [partial(queue.put, db, "new"), take, partial(queue.kick, db)] * 50
        found = verify(Disturbed(db, moves), "q", root=space)
    assert len(moves) < 130
    assert found.findings == ()
    assert any("too many to count" in sentence for sentence in found.uncompared)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.commits_by_hand
def test_a_still_counter_is_compared_over_transactions(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    queue.put_many(db, range(9))
    assert verify(db, "q", root=space).uncompared == ()
    run(db, lambda tr: tr.add(TaskKeys(queue.contents).counters, packed(COUNTER_NAMES, {"ready": 1})))
    (finding,) = verify(db, "q", root=space).findings
    assert "says 10, and there are 9" in finding.text


def test_a_verification_stops_at_its_bound(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FINDINGS_MAX", 3)
    TaskQueue.create(db, "q", "fifo", root=space)
    for n in range(9):
        db[space.pack((99, n))] = b""
    found = verify(db, root=space)
    assert (len(found.findings), found.whole, found.sound) == (3, False, False)


def test_a_queue_of_an_unknown_kind_is_told(db: Database, space: Subspace) -> None:
    """It belongs to a newer release, or to a program that registers it."""
    Registry(space).create(db, "q", "no such kind", {})
    found = verify(db, root=space)
    assert found.findings == ()
    assert found.uncompared == ("The queue 'q': its kind 'no such kind' is unknown.",)


CREATED: dict[str, Callable[[Database, Any], object]] = {
    "tasks": lambda db, root: TaskQueue.create(db, "q", "fifo", partitions=2, root=root),
    "items": lambda db, root: Queue.named(db, "q", partitions=2, root=root),
    "elements": lambda db, root: ElementQueue.named(db, "q", root=root),
    "simple elements": lambda db, root: SimpleElementQueue.named(db, "q", root=root),
}


def findings_with(db: Database, root: Any, kind: str, **options: Any) -> list[Finding]:
    """The findings of a queue whose definition has these options, too: of all queues, and by its name."""
    CREATED[kind](db, root)
    registry = Registry(root)
    found = registry.find(db, "q")
    db[registry.keys.definition("q")] = replace(found, options={**found.options, **options}).to_bytes()
    return [one for queue in (None, "q") for one in verify(db, queue, root=root).findings]


@pytest.mark.parametrize("plan", ["x", 7, {}, [], [0, "2"], [0, 0], [0, 999, 0, 999], [1, 4, 0, 2]], ids=repr)
@pytest.mark.parametrize("kind", ["tasks", "items"])
def test_a_damaged_plan_is_told(db: Database, space: Subspace, kind: str, plan: Any) -> None:
    found = findings_with(db, space, kind, partitions=plan)
    assert [(one.flaw, "fdbqueue drop q" in one.cure) for one in found] == [(Flaw.DEFINITION, True)] * 2


@pytest.mark.parametrize("kind", CREATED)
def test_an_option_that_is_unknown_here_is_told(db: Database, space: Subspace, kind: str) -> None:
    found = findings_with(db, space, kind, option_of_a_newer_release=1)
    assert [(one.flaw, "newer_release" in one.text) for one in found] == [(Flaw.DEFINITION, True)] * 2


def test_a_queue_that_is_dropped_meanwhile_has_no_findings(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    queue.put_many(db, range(5))
    queue.drop(db)
    assert verify(db, queue, root=space).findings == ()


def test_a_wrong_argument_is_refused(db: Database, space: Subspace) -> None:
    with pytest.raises(QueueNotFound):
        verify(db, "nothing", root=space)
    with pytest.raises(WrongType):
        verify(db, 7, root=space)  # type: ignore[arg-type]
    with pytest.raises(NotADatabase):
        verify(None, root=space)  # type: ignore[arg-type]


def test_it_conflicts_with_nothing(db: Database, space: Subspace) -> None:
    """A scan reads by snapshot, and writes nothing."""
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    queue.put_many(db, range(5))
    before = db.counters.conflicts
    keys = verify(db, root=space).keys
    assert keys > 10
    assert db.counters.conflicts == before


def test_contents_stay_beside_an_id_that_cannot_be_read(db: Database, space: Subspace) -> None:
    """They would seem to be those of a dropped queue, and a mending removes these."""
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    task, key = queue.put(db, "kept"), Registry(space).keys.definition("q")
    stored = bytes(db[key])
    db[key] = b"no definition"
    found = verify(db, root=space, mend=True)
    assert found.uncompared == ("Dropped queues: the id in a definition cannot be read.",)
    assert Flaw.ORPHAN not in {one.flaw for one in found.findings}
    db[key] = stored
    assert [one.id for one in queue.tasks(db, "r", 10)] == [task.id]


def test_two_queues_of_one_id_are_told_and_left(db: Database, space: Subspace) -> None:
    for name in ("a", "b"):
        TaskQueue.create(db, name, "fifo", root=space)
    registry = Registry(space)
    twin = replace(registry.find(db, "b"), id=registry.find(db, "a").id)
    db[registry.keys.definition("b")] = twin.to_bytes()
    [found] = verify(db, root=space, mend=True).findings
    assert (found.flaw, "'a', 'b' have the same id" in found.text, found.mended) == (
        Flaw.DEFINITION,
        True,
        False,
    )


def test_the_counts_of_a_run_stay_while_a_worker_lives(db: Database, space: Subspace) -> None:
    """Its supervisor has ended."""
    keys, run_id = Registry(space).keys, b"r" * 16
    with Session(db, ttr=600, root=space) as session:
        db[keys.membership(session.id)] = run_id
        db[keys.run(run_id)] = bytes(40)
        assert verify(db, root=space, mend=True).findings == ()
        assert db[keys.run(run_id)] is not None


def test_each_wrong_counter_of_many_task_keys_is_mended(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one transaction compares, and of delayed tasks, which no range of the key has."""
    monkeypatch.setattr(verifying, "_KEYS_TOGETHER", 1)
    queue = TaskQueue.create(db, "q", "utubettl", root=space)
    for key in "abc":
        queue.put(db, "now", key=key)
        queue.put(db, "later", key=key, delay=500)
        db.clear(KeyCounts(TaskKeys(queue.contents).beside).counts_key(slug_of(key_bytes(key))))
    assert len(verify(db, queue, mend=True).findings) == 3 * 2
    assert {one.key: one.delayed for one in queue.key_statistics(db, 9)} == dict.fromkeys("abc", 1)
