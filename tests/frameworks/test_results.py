"""Stored results of frameworks: their ends, their pieces, and the sweep of each store."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import FDBError
from fdbqueue.integrations.common import Results
from tests.queue_support import FATES, faulty
from tests.support import ManualClock

SPACE = "tests"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(clock: ManualClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def rows(db: fdbqueue.Database) -> int:
    under = DEFAULT_ROOT.range(("results",))
    return len(db.create_transaction().get_range(under.start, under.stop).to_list())


@pytest.mark.parametrize("size", [0, 1, 90_000, 90_001, 300_000])
def test_a_result_is_there_until_its_end(db: fdbqueue.Database, clock: ManualClock, size: int) -> None:
    results, value = Results(db, SPACE), bytes(size)
    results.store(b"a", value, 10)
    assert results.get([b"a", b"b"]) == [value, None]
    clock.advance(10)
    assert results.get([b"a"]) == [None]


def test_a_store_removes_results_whose_end_is_over(db: fdbqueue.Database, clock: ManualClock) -> None:
    results = Results(db, SPACE)
    for number in range(4):
        results.store(b"%d" % number, bytes(100_000), 10)
    clock.advance(10)
    results.store(b"new", b"", None)
    assert rows(db) == 1


def test_a_later_end_of_a_result_counts(db: fdbqueue.Database, clock: ManualClock) -> None:
    results = Results(db, SPACE)
    results.store(b"a", b"1", 10)
    results.expire(b"a", 30)
    clock.advance(20)
    results.store(b"b", b"2", 10)
    assert results.get([b"a"]) == [b"1"]
    results.delete(b"a")
    results.delete(b"b")
    assert rows(db) == 0


@pytest.mark.parametrize("fate", FATES)
def test_a_value_is_taken_once_after_any_result(fate: str) -> None:
    with fdbqueue.open("memory:") as db:
        Results(db, SPACE).store(b"a", bytes(100_000), 10)
        unsure, engine = faulty(db, FDBError)
        engine.fate = FATES[fate]
        assert Results(unsure, SPACE).take(b"a") == bytes(100_000)
        assert Results(unsure, SPACE).take(b"a") is None
        assert rows(db) == 0


def test_a_value_that_is_kept_is_not_overwritten(db: fdbqueue.Database) -> None:
    results = Results(db, SPACE)
    for value in (b"1", b"2"):
        results.store(b"a", value, None, keeps=lambda old: old == b"1")
    assert results.get([b"a"]) == [b"1"]


def test_a_result_that_is_too_large_is_refused(db: fdbqueue.Database) -> None:
    with pytest.raises(fdbqueue.PayloadTooLarge):
        Results(db, SPACE).store(b"a", bytes(8_000_001), None)


def test_spaces_share_no_name(db: fdbqueue.Database) -> None:
    Results(db, "one").store(b"a", b"1", None)
    assert Results(db, "two").get([b"a"]) == [None]


def test_a_new_end_keeps_a_value_that_comes_at_the_same_time(db: fdbqueue.Database) -> None:
    """The end and the value are written together: the later value is not undone."""
    results = Results(db, SPACE)
    results.store(b"a", b"old", 10)
    tr = db.create_transaction()
    assert results._store.ask(tr, b"a", 0)() == b"old"
    results.store(b"a", b"new", 10)
    results._store.write(tr, b"a", b"old", 0)
    with pytest.raises(fdbqueue.embedded.FDBError, match="1020"):
        tr.commit().wait()


def test_keys_of_results_are_known_to_verify(db: fdbqueue.Database) -> None:
    Results(db, SPACE).store(b"a", bytes(100_000), 10)
    assert fdbqueue.verify(db).findings == ()
