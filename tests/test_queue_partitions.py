"""The recipe queue in partitions: every verb finds the values of all, and a repartition loses none."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, transactional, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, QueueExists, UnsupportedOption
from fdbqueue.core.line.decision import Notice, Ticket
from fdbqueue.core.partitions import PartitionGone, PartitionState, Plan, Repartition, SharedKeys
from fdbqueue.core.registry import Registry
from fdbqueue.queues.recipe.items import QueueKeys, Recipe
from fdbqueue.queues.recipe.queue import CALLS
from tests.support import NOT_COMMITTED, PATIENCE_S, ManualClock, becomes_ready, begin, commit_code

PARTITIONS = 4
VALUES = list(range(20))
LARGE = "x" * (2 * limits.PAYLOAD_PIECE_BYTES_MAX)


@pytest.fixture
def queue(db: Database, space: Subspace) -> Queue:
    return Queue.named(db, "q", partitions=PARTITIONS, root=space)


def sizes(queue: Queue, db: Database) -> list[int]:
    return [one.ready for one in queue.partitions(db)]


def all_of(queue: Queue, db: Database) -> list[Any]:
    """Dequeue every value."""
    found: list[Any] = []
    while values := queue.dequeue_many(db, 3):
        found += values
    return found


def spread(queue: Queue, db: Database) -> None:
    """Enqueue VALUES one by one."""
    for value in VALUES:
        queue.enqueue(db, value)


def stored(db: Database, prefix: bytes) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in db.get_range_startswith(prefix)}


def emptied(queue: Queue, db: Database, keep: int) -> None:
    """Dequeue all but `keep` values."""
    while queue.size(db) > keep:
        queue.dequeue(db)


# The verbs.


@pytest.mark.commits_by_hand
def test_values_spread_over_the_partitions(db: Database, queue: Queue) -> None:
    spread(queue, db)
    assert sizes(queue, db) == [5, 5, 5, 5]
    assert [one.number for one in queue.partitions(db)] == [0, 1, 2, 3]
    assert {one.state for one in queue.partitions(db)} == {PartitionState.OPEN}
    assert all(one.may_be_ready for one in queue.partitions(db))


def test_a_page_behind_an_emptied_partition_is_whole(db: Database, queue: Queue) -> None:
    """The place of a page is one in its own partition only."""
    spread(queue, db)
    page = queue.items(db, 4)
    run(db, lambda tr: queue._recipe_of(db).zero.take(tr, 9, 0))
    assert sizes(queue, db) == [0, 5, 5, 5]
    assert len(queue.items(db, 99, after=page.next)) == 5


def test_a_place_of_no_page_is_refused(db: Database, queue: Queue) -> None:
    spread(queue, db)
    for place in ("", "nonsense", "04", "00", "0000ff"):
        with pytest.raises(InvalidArgument):
            queue.items(db, 5, after=place)


def test_pages_end_where_a_partition_has_gone(db: Database, queue: Queue) -> None:
    spread(queue, db)
    page = queue.items(db, 1)
    places = []
    while page.next is not None:
        places.append(page.next)
        page = queue.items(db, 1, after=page.next)
    emptied(queue, db, keep=0)
    queue.repartition(db, 1)
    assert len(queue.partitions(db)) == 1
    assert [queue.items(db, 5, after=place) for place in places] == [[]] * len(places)


def test_a_page_by_an_old_plan_follows_a_place_of_the_new_one(db: Database, queue: Queue) -> None:
    other = Database(db.engine)
    assert queue.items(other, 5) == []
    queue.repartition(db, 2 * PARTITIONS)
    for value in range(4 * PARTITIONS):
        queue.enqueue(db, value)
    page = queue.items(db, 1)
    while queue.items(db, 99, after=page.next).next is not None:
        page = queue.items(db, 1, after=page.next)
    assert queue.items(other, 99, after=page.next) != []


def test_pages_go_on_once_a_queue_has_partitions(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    queue.enqueue_many(db, VALUES)
    page = queue.items(db, 5)
    queue.repartition(db, PARTITIONS)
    assert list(page) + list(queue.items(db, 99, after=page.next)) == VALUES


def test_a_holder_follows_a_repartition_of_another_process(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "one", root=space)
    holder = queue.holder(db)
    assert holder.hold(9) == []
    other = Database(db.engine)
    there = Queue.named(other, "one", root=space)
    there.repartition(other, PARTITIONS)
    there.enqueue(other, "x")
    while sizes(there, other)[0]:
        there.enqueue(other, there.dequeue(other))
    assert holder.hold(9) == ["x"]
    assert holder.settle(1)


def test_a_damaged_value_of_any_partition_is_set_aside(db: Database, queue: Queue) -> None:
    spread(queue, db)
    for part in queue.partitions(db):
        items = QueueKeys(Subspace((), part.prefix)).items
        db[db.get_range(items.start, items.stop, limit=1)[0].key] = b"\x00{"
    assert sorted(all_of(queue, db)) == VALUES[PARTITIONS:]
    assert queue.unreadable(db) == PARTITIONS
    found = queue.aside(db, 9)
    assert [one.values for one in found] == [[b"\x00{"]] * PARTITIONS
    assert queue.remove_aside(db, [one.id for one in found]) == PARTITIONS
    assert verify(db, queue).findings == ()


def test_a_look_at_partitions_conflicts_with_nothing(db: Database, queue: Queue, space: Subspace) -> None:
    tr = begin(db)
    assert len(queue.partitions(tr)) == PARTITIONS
    tr[space.pack(("looked",))] = b""
    queue.enqueue_many(db, VALUES)
    assert commit_code(tr) == 0


@pytest.mark.parametrize("contended", ["staged", "simple"])
def test_a_named_queue_takes_as_its_handle_says(db: Database, space: Subspace, contended: str) -> None:
    queue = Queue.named(db, "q", root=space, contended=contended)
    assert queue._calls is CALLS[contended]


@pytest.mark.parametrize("contended", ["staged", "simple"])
@pytest.mark.usefixtures("without_looks")
def test_a_waiting_dequeue_is_woken_by_any_partition(db: Database, space: Subspace, contended: str) -> None:
    queue = Queue.named(db, "q", partitions=PARTITIONS, root=space, contended=contended)
    found: list[Any] = []
    for value in range(2 * PARTITIONS):
        waiter = threading.Thread(
            target=lambda: found.append(queue.dequeue(db, timeout=PATIENCE_S)), daemon=True
        )
        waiter.start()
        queue.enqueue(db, value)
        waiter.join(PATIENCE_S)
        assert found == list(range(value + 1))


# Conflicts.


def saw_nothing(queue: Queue, db: Database, space: Subspace, look: Callable[[Queue, Any], Any]) -> Any:
    tr = begin(db)
    assert look(queue, tr) in (None, [], True)
    tr[space.pack(("saw nothing",))] = b""
    return tr


@pytest.mark.parametrize("turn", range(PARTITIONS))
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize(
    "look",
    [Queue.dequeue, lambda queue, tr: queue.dequeue_many(tr, 2), Queue.empty, Queue.peek],
    ids=["dequeue", "dequeue_many", "empty", "peek"],
)
def test_an_answer_of_nothing_conflicts_with_an_enqueue(
    db: Database, queue: Queue, space: Subspace, look: Callable[[Queue, Any], Any], used: bool, turn: int
) -> None:
    if used:  # the flags are there
        spread(queue, db)
        emptied(queue, db, keep=0)
    for _ in range(turn):
        queue.enqueue(db, 0)
        assert queue.dequeue(db) == 0
    tr = saw_nothing(queue, db, space, look)
    queue.enqueue(db, 1)
    assert commit_code(tr) == NOT_COMMITTED


def test_enqueues_do_not_conflict(db: Database, queue: Queue) -> None:
    spread(queue, db)
    transactions = [begin(db) for _ in range(2 * PARTITIONS)]
    for tr in transactions:
        queue.enqueue(tr, 1)
    assert [commit_code(tr) for tr in transactions] == [0] * len(transactions)


# Repartitions.


def test_looks_at_partitions_tell_their_flags_and_states(db: Database, queue: Queue) -> None:
    queue.enqueue_many(db, VALUES)
    [at] = [one.number for one in queue.partitions(db) if one.may_be_ready]
    assert queue.dequeue_many(db, 20) == VALUES
    assert [one.number for one in queue.partitions(db) if one.may_be_ready] == [at]
    assert queue.dequeue(db) is None
    assert not any(one.may_be_ready for one in queue.partitions(db))
    for value in VALUES:
        queue.enqueue(db, value)
    queue.repartition(db, 1)
    states = [one.state for one in queue.partitions(db)]
    assert states == [PartitionState.OPEN] + [PartitionState.CLOSING] * 3
    all_of(queue, db)
    states = [one.state for one in queue.partitions(db)]
    assert states == [PartitionState.OPEN] + [PartitionState.CLOSED] * 3


@pytest.mark.commits_by_hand
def test_closed_partitions_get_nothing_and_go_when_empty(db: Database, queue: Queue) -> None:
    spread(queue, db)
    queue.repartition(db, 2)
    spread(queue, db)
    assert sizes(queue, db) == [15, 15, 5, 5]
    assert [one.state for one in queue.partitions(db)][2:] == [PartitionState.CLOSING] * 2
    emptied(queue, db, keep=0)
    queue.repartition(db, 2)
    assert sizes(queue, db) == [0, 0]
    contents = SharedKeys(Subspace((), queue.partitions(db)[0].prefix))
    assert all(key.startswith(contents.under(1).start) for key in stored(db, contents.partitions.start))


@pytest.mark.parametrize("value", ["x", LARGE], ids=["small", "large"])
def test_a_held_value_survives_the_end_of_its_partition(db: Database, queue: Queue, value: str) -> None:
    """The pieces of a large one stay in place while it is held."""
    for _ in range(PARTITIONS):
        queue.enqueue(db, value)
    holder = queue.holder(db)
    assert holder.hold(PARTITIONS) == [value] * PARTITIONS
    queue.repartition(db, 1)
    queue.repartition(db, 1)
    assert holder.settle(shown=0)
    assert all_of(queue, db) == [value] * PARTITIONS


def test_a_held_value_keeps_its_place_in_a_partition_that_closed(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", partitions=2, root=space)
    queue.enqueue_many(db, [0, 1])
    queue.enqueue_many(db, [2, 3])
    holder = queue.holder(db)
    assert len(holder.hold(4)) == 4
    queue.repartition(db, 1)
    queue.repartition(db, 2)
    for value in (4, 5):
        queue.enqueue(db, value)
    assert holder.settle(shown=0)
    for found in (queue.dequeue_many(db, 3), queue.dequeue_many(db, 3)):
        assert found == sorted(found)


@pytest.mark.parametrize("count", [4, 1], ids=["open", "closing"])
def test_a_value_laid_ready_in_a_partition_comes_back(db: Database, queue: Queue, count: int) -> None:
    """A process that stood in the line of a partition has died with it."""
    spread(queue, db)
    part = queue._recipe_of(db).part(3)

    @transactional
    def lay_ready(tr: Any) -> None:
        deliveries = part.deliver(tr, list(part.available(tr, 9, 0)), b"")
        part.line.results.leave(tr, Ticket(b"", b"dead", 5), deliveries, Notice(deadline_us=0, crowd=1))

    lay_ready(db)
    queue.repartition(db, count)
    assert sorted(all_of(queue, db)) == VALUES


def test_a_request_of_a_dead_process_keeps_no_partition(db: Database, queue: Queue) -> None:
    part = queue._recipe_of(db).part(3)
    transactional(part.line.register)(db, b"dead", 1, b"", now_us=0)
    queue.repartition(db, 1)
    assert len(queue.partitions(db)) == 1


def test_a_request_of_a_live_process_keeps_its_partition(db: Database, queue: Queue) -> None:
    part = queue._recipe_of(db).part(3)
    transactional(part.line.register)(db, b"live", 1, b"", db.runtime.now_us())
    queue.repartition(db, 1)
    assert len(queue.partitions(db)) == 4


@pytest.mark.usefixtures("ordinary")
def test_a_value_never_goes_into_a_partition_that_has_gone(
    db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread learns the newer plan after the partition was chosen."""
    chosen, choose = list[int](), queue._recipe_of(db)._open_one

    def choose_too_early(plan: Plan, random: bytes) -> Recipe:
        part = choose(plan, random)
        if not chosen:
            queue.repartition(db, 1)
            queue.repartition(db, 1)
            queue.size(db)
        chosen.append(part.partition)
        return part

    monkeypatch.setattr(queue._recipe_of(db), "_puts", itertools.count())
    queue.enqueue(db, 0)
    monkeypatch.setattr(queue._recipe_of(db), "_open_one", choose_too_early)
    queue.enqueue(db, 1)
    assert chosen == [1, 0]
    assert queue.items(db, 9) == all_of(queue, db) == [0, 1]


def test_no_request_joins_the_line_of_a_partition_that_has_gone(db: Database, queue: Queue) -> None:
    part = queue._recipe_of(db).part(3)
    queue.repartition(db, 1)
    with pytest.raises(PartitionGone):
        transactional(part.line.register)(db, b"late", 1, b"", db.runtime.now_us())
    assert stored(db, part.keys.prefix) == {}


def test_a_dequeue_whose_home_has_gone_looks_elsewhere(
    db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(db, 0)
    queue.repartition(db, 1)
    monkeypatch.setattr("fdbqueue.core.line.wide.Homes.next", lambda *_: 3)
    assert queue.dequeue(db) == 0


@pytest.mark.commits_by_hand
def test_a_second_handle_follows_a_repartition(db: Database, queue: Queue, space: Subspace) -> None:
    other = Queue.named(db, "q", root=space)
    spread(other, db)
    queue.repartition(db, 8)
    for value in range(8):
        other.enqueue(db, value)
    assert min(sizes(other, db)) > 0
    queue.repartition(db, 1)
    assert sorted(all_of(other, db)) == sorted([*VALUES, *range(8)])
    other.enqueue(db, "last")
    assert sizes(queue, db)[0] == 1


@pytest.mark.commits_by_hand
def test_an_answer_of_nothing_is_true_of_partitions_that_are_new(db: Database, space: Subspace) -> None:
    """Another process has given the queue its partitions since the last call of this one."""
    queue = Queue.named(db, "q", root=space)
    with Database(db.engine, db.runtime) as elsewhere:
        other = Queue.named(elsewhere, "q", root=space)
        other.repartition(elsewhere, 2)
        other.enqueue_many(elsewhere, [0])
        other.enqueue_many(elsewhere, [1])
        part = other._recipe_of(elsewhere).zero
        (taken,) = transactional(part.take)(elsewhere, 1, 0).values
    assert queue.dequeue(db) == 1 - taken


def test_a_transaction_of_the_old_plan_conflicts(db: Database, queue: Queue) -> None:
    tr = begin(db)
    queue.enqueue(tr, 1)
    queue.repartition(db, 2)
    assert commit_code(tr) == NOT_COMMITTED


@pytest.mark.parametrize("first", [None, 3])
def test_a_dequeue_that_waits_follows_a_repartition(db: Database, space: Subspace, first: int | None) -> None:
    queue = Queue.named(db, "q", partitions=first, root=space)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(queue.dequeue(db, timeout=PATIENCE_S)), daemon=True)
    waiter.start()
    queue.repartition(db, 5)
    for _ in range(4):  # so that the value goes to another partition than 0
        other = Queue.named(db, "q", root=space)
        other.enqueue(db, "value")
    waiter.join(PATIENCE_S)
    assert found == ["value"]


@pytest.mark.parametrize("used", [False, True])
def test_the_first_partitions_wake_takes_that_wait(db: Database, space: Subspace, used: bool) -> None:
    """Takes of other processes wait for items of partition 0 alone."""
    queue = Queue.named(db, "q", root=space)
    if used:
        queue.enqueue(db, 0)
        queue.dequeue(db)
    tr = begin(db)
    watch = tr.watch(queue._recipe_of(db).doorbell)
    tr.commit().wait()
    queue.repartition(db, 2)
    assert becomes_ready(watch)


# Refusals.


@pytest.mark.parametrize(("stored", "asked"), [(4, 3), (None, 2), (4, 1)])
def test_another_number_at_named_is_refused(
    db: Database, space: Subspace, stored: int | None, asked: int
) -> None:
    Queue.named(db, "q", partitions=stored, root=space)
    with pytest.raises(QueueExists):
        Queue.named(db, "q", partitions=asked, root=space)
    assert Queue.named(db, "q", partitions=stored, root=space).partitions(db)


def test_a_queue_without_a_name_has_no_partitions(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    queue.enqueue(db, 1)
    with pytest.raises(UnsupportedOption):
        queue.repartition(db, 2)
    [only] = queue.partitions(db)
    assert (only.number, only.ready, only.may_be_ready) == (0, 1, True)
    assert queue.dequeue(db) == 1


@pytest.mark.parametrize("number", [0, -1, limits.PARTITIONS_MAX + 1, True, 1.5, "3", None], ids=repr)
def test_a_bad_number_changes_nothing(db: Database, queue: Queue, space: Subspace, number: Any) -> None:
    before = stored(db, space.key())
    with pytest.raises(InvalidArgument):
        queue.repartition(db, number)
    if number is not None:
        with pytest.raises(InvalidArgument):
            Queue.named(db, "other", partitions=number, root=space)
    assert stored(db, space.key()) == before


def test_a_queue_without_partitions_keeps_its_keys(db: Database, space: Subspace) -> None:
    """It has none of the keys that partitions share."""
    queue = Queue.named(db, "q", partitions=1, root=space)
    assert "partitions" not in Registry(space).find(db, "q").options
    spread(queue, db)
    queue.dequeue_many(db, 3)
    queue.give_back(db, [1])
    assert queue.repartition(db, 1) == Repartition(1, 1, is_finished=True)
    contents = queue.partitions(db)[0].prefix
    assert all(QueueKeys(Subspace((), contents)).is_key(key) for key in stored(db, contents))


@pytest.mark.parametrize("given", ["database", "transaction"])
@pytest.mark.parametrize("before", [4, 9])
@pytest.mark.commits_by_hand
def test_values_of_closed_partitions_do_not_starve(
    db: Database, space: Subspace, before: int, given: str
) -> None:
    """The open partition never becomes empty."""
    queue = Queue.named(db, "q", partitions=before, root=space)
    dequeue = queue.dequeue if given == "database" else transactional(queue.dequeue)
    spread(queue, db)
    queue.repartition(db, 1)
    most = (len(VALUES) + before) * limits.TAKES_PER_VISIT
    queue.enqueue_many(db, ["new"] * most)
    found = [dequeue(db) for _ in range(most)]
    assert set(VALUES) <= set(found)


@pytest.mark.parametrize("given", ["database", "transaction"])
def test_values_of_a_dead_holder_come_back_beside_a_backlog(
    tmp_path: Path, space: Subspace, given: str
) -> None:
    """They lie ready in the line of all partitions, where no take at a home passes."""
    clock = ManualClock()
    with fdbqueue.open(f"embedded:{tmp_path}", runtime=clock) as db:
        queue = Queue.named(db, "q", partitions=PARTITIONS, root=space)
        dequeue = queue.dequeue if given == "database" else transactional(queue.dequeue)
        queue.enqueue(db, "lost")
        assert queue.holder(db).hold(1) == ["lost"]
        clock.advance(2 * limits.REQUEST_DEADLINE_S)
        most = 3 * (PARTITIONS + 1) * limits.TAKES_PER_VISIT
        for value in range(most):
            queue.enqueue(db, value)
        assert "lost" in [dequeue(db) for _ in range(most - PARTITIONS)]


def test_verify_of_a_handle_goes_by_the_present_plan(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    queue.repartition(db, PARTITIONS)
    spread(queue, db)
    db.clear_range_startswith(queue._recipe_of(db).shared.flags.start)
    assert len(verify(db, queue, root=space).findings) == PARTITIONS
