"""The ledger finds items lost, delivered twice, or never produced, and processes without a final report."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from loadtest import ledger as books
from loadtest.ledger import Book, Ledger, judge, merged
from loadtest.run import Run, complete, erase, settle
from loadtest.threads import Threads
from tests.conftest import DURABLE, url_of

ITEMS = [("a", number) for number in range(3)]


@pytest.fixture
def ledger(space):
    return Ledger(space)


@pytest.fixture
def book(db, ledger):
    return Book(db, ledger, "a")


def closed(book, produced, consumed, doubtful=()):
    for item in produced:
        book.produced(item)
    for item in consumed:
        book.consumed(item)
    for item in doubtful:
        book.doubtful(item)
    book.close()


def test_every_item_delivered_once_holds(db, ledger, book):
    """In whatever order."""
    closed(book, ITEMS, reversed(ITEMS))
    verdict = judge(db, ledger)
    assert verdict.holds
    assert (verdict.produced, verdict.consumed) == (3, 3)


def test_an_item_that_was_not_delivered_is_lost(db, ledger, book):
    """And named."""
    closed(book, ITEMS, ITEMS[:2])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert verdict.lost == 1
    assert "lost: ('a', 2)" in str(verdict)


def test_two_deliveries_are_two_although_the_item_is_one(db, ledger, book):
    """A delivery has an id of its own."""
    closed(book, ITEMS, [*ITEMS, ITEMS[0]])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert (verdict.twice, verdict.lost, verdict.consumed) == (1, 0, 4)


def test_a_delivery_of_an_item_never_produced_is_a_fault(db, ledger, book):
    """Where should it come from?"""
    closed(book, ITEMS, [*ITEMS, ("b", 0)])
    assert judge(db, ledger).unknown == 1


def test_a_ledger_without_items_holds_nothing(db, ledger, book):
    """A run in which every call failed proves nothing: there was nothing to lose."""
    closed(book, [], [], doubtful=[("a", 7)])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert "this run proves nothing" in str(verdict)


def test_an_item_of_a_failed_call_may_be_there_or_not(db, ledger, book):
    """Once at most."""
    closed(book, ITEMS, [*ITEMS, ("a", 7)], doubtful=[("a", 7), ("a", 8)])
    verdict = judge(db, ledger)
    assert verdict.holds
    assert verdict.doubtful == 2


def test_a_process_with_an_open_book_spoils_the_verdict(db, ledger, book):
    """Some of its work is unknown."""
    book.produced(ITEMS[0])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert verdict.open_books == ["a"]


def test_a_write_of_the_ledger_that_is_repeated_is_one(db, ledger):
    """As after a commit with an unknown result."""
    with_ledger = fdbqueue.transactional(lambda tr: ledger.consumed(tr, ITEMS[0], b"delivery"))
    assert [with_ledger(db), with_ledger(db)] == [True, False]


def test_threads_share_a_book(db, ledger, book, rounds):
    """Each row is written once, by any thread."""
    count = rounds(1_200, 20_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(book.produced, [("a", number) for number in range(count)]))
        list(pool.map(book.consumed, [("a", number) for number in range(count)]))
    book.close()
    verdict = judge(db, ledger)
    assert verdict.holds
    assert verdict.produced == verdict.consumed == count


def test_a_write_that_fails_is_not_forgotten(db, ledger, book, monkeypatch):
    """Rows that could not be written are written with the final report."""
    book.produced(ITEMS[0])
    with monkeypatch.context() as patch:
        patch.setattr(books, "write_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            book.write()
    book.close()
    verdict = judge(db, ledger)
    assert (verdict.produced, verdict.lost) == (1, 1)


NAMES = st.tuples(st.sampled_from(["a", "aa", "b"]), st.integers(0, 300))


@given(st.sets(NAMES), st.lists(NAMES))
def test_merging_is_counting(produced, consumed):
    """Both sides in the order of their keys: by process, then by number."""
    deliveries = Counter(consumed)
    expected = {item: (item in produced, deliveries[item]) for item in produced | set(consumed)}
    found = merged(iter(sorted(produced)), iter(sorted(consumed)))
    assert {item: (made, times) for item, made, times in found} == expected


@pytest.fixture
def run(engine, tmp_path):
    """A run of its own; in memory nothing of it can be opened again, so it is not erased."""
    url = url_of(engine, tmp_path / "data")
    made = Run(url, os.urandom(8).hex(), Threads())
    yield made
    made.db.close()
    erase(url, made.space)


def test_the_end_of_a_run_drains_every_queue(run):
    """It drains tasks that a worker holds, too."""
    db = run.db
    queues = run.queues
    for queue in (queues.plain, *queues.of_tasks):
        for _ in range(3):
            item = run.new_item()
            options = {} if queue in (queues.plain, queues.mixed) else {"key": 1}
            (queue.enqueue if queue is queues.plain else queue.put)(db, {"item": list(item)}, **options)
            run.book.produced(item)
    queues.mixed.take(db, 0)
    verdict = settle(run)
    assert verdict.holds
    assert verdict.consumed == 12


def test_a_task_is_done_and_noted_or_neither(run):
    """A lease that is over can note nothing."""
    db = run.db
    queue = run.queues.mixed
    queue.put(db, {"item": list(run.new_item())})
    task = queue.take(db, 0)
    queue.release(db, task)
    with pytest.raises(fdbqueue.FdbQueueError):
        complete(run, queue, [task])
    assert not list(run.ledger.consumed_items(db))


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_a_run_leaves_nothing_behind(engine, tmp_path):
    """The final reports, the sessions and the receipts of its workers are removed."""
    url = url_of(engine, tmp_path / "data")
    run_id = os.urandom(8).hex()
    worker, master = (Run(url, run_id, Threads()) for _ in range(2))
    worker.queues.mixed.put(worker.db, {"item": list(worker.new_item())})
    worker.queues.mixed.ack(worker.db, worker.queues.mixed.take(worker.db, 0))
    worker.leave()
    assert master.ledger.open_books(master.db) == [master.process]
    master.db.close()
    erase(url, master.space)
    with fdbqueue.open(url) as db:
        assert not list(db.get_range_startswith(master.space.key()))


def test_a_finding_of_the_verification_fails_the_verdict() -> None:
    """Lost or not, a queue with contradictory keys is broken."""
    sound = books.Verdict(produced=1, consumed=1)
    assert sound.holds
    broken = books.Verdict(produced=1, consumed=1, findings=["a timer names no task"])
    assert not broken.holds
    assert "a timer names no task" in str(broken)
