"""Results and counters: they end by their ttl, and waits for them do not poll."""

import threading
from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.rate_limits import Barrier
from dramatiq.results import ResultMissing, ResultTimeout

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.dramatiq import FdbQueueBroker, FdbQueueRateLimits, FdbQueueResults
from fdbqueue.testing.pytest_plugin import ShiftedRuntime

MESSAGE = dramatiq.Message("default", "any", (), {}, {})
HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ShiftedRuntime:
    return ShiftedRuntime()


@pytest.fixture
def db(clock: ShiftedRuntime) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as db:
        yield db


def stored(db: fdbqueue.Database) -> int:
    under = DEFAULT_ROOT.range(("results",))
    return sum(1 for _ in db.get_range(under.start, under.stop))


def test_a_result_is_there_until_its_ttl_is_over(db: fdbqueue.Database, clock: ShiftedRuntime) -> None:
    results = FdbQueueResults(db)
    results.store_result(MESSAGE, {"a": [1]}, HOUR_MS)
    assert results.get_result(MESSAGE) == {"a": [1]}

    clock.skip_to(clock.now() + 3_601)

    with pytest.raises(ResultMissing):
        results.get_result(MESSAGE)


def test_results_that_are_over_are_removed_by_later_ones(
    db: fdbqueue.Database, clock: ShiftedRuntime
) -> None:
    results = FdbQueueResults(db)
    for number in range(4):
        results.store_result(dramatiq.Message("default", f"a{number}", (), {}, {}), number, HOUR_MS)
    clock.skip_to(clock.now() + 3_601)

    results.store_result(MESSAGE, 1, HOUR_MS)

    assert stored(db) == 2


def test_a_result_stored_again_has_the_later_end(db: fdbqueue.Database, clock: ShiftedRuntime) -> None:
    results = FdbQueueResults(db)
    results.store_result(MESSAGE, "first", HOUR_MS)
    results.store_result(MESSAGE, "last", 3 * HOUR_MS)
    clock.skip_to(clock.now() + 3_601)

    results.store_result(dramatiq.Message("default", "other", (), {}, {}), 1, HOUR_MS)

    assert results.get_result(MESSAGE) == "last"


def test_a_large_result_is_stored_whole(db: fdbqueue.Database) -> None:
    results = FdbQueueResults(db)
    results.store_result(MESSAGE, "x" * 500_000, HOUR_MS)
    assert results.get_result(MESSAGE) == "x" * 500_000

    results.store_result(MESSAGE, "y", HOUR_MS)

    assert results.get_result(MESSAGE) == "y"


def test_a_wait_ends_with_the_result(db: fdbqueue.Database) -> None:
    results, found = FdbQueueResults(db), []
    waits = threading.Thread(
        target=lambda: found.append(results.get_result(MESSAGE, block=True, timeout=60_000))
    )
    waits.start()

    results.store_result(MESSAGE, "done", HOUR_MS)
    waits.join(60)

    assert found == ["done"]


def test_a_wait_without_a_result_times_out(db: fdbqueue.Database) -> None:
    with pytest.raises(ResultTimeout):
        FdbQueueResults(db).get_result(MESSAGE, block=True, timeout=10)


def test_a_backend_uses_the_database_of_its_broker(db: fdbqueue.Database) -> None:
    broker = FdbQueueBroker(db)
    FdbQueueResults(broker).store_result(MESSAGE, 1, HOUR_MS)

    assert FdbQueueResults(db).get_result(MESSAGE) == 1


def test_counters_are_exact_among_threads(db: fdbqueue.Database) -> None:
    limits = FdbQueueRateLimits(db)
    taken: list[bool] = []
    threads = [
        threading.Thread(target=lambda: taken.append(limits.incr("key", 1, 5, HOUR_MS))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(taken) == [False] * 7 + [True] * 5


def test_a_sum_of_counters_is_bounded(db: fdbqueue.Database) -> None:
    limits = FdbQueueRateLimits(db)
    limits.add("a", 2, HOUR_MS)

    assert limits.incr_and_sum("b", lambda: ["a", "b"], 1, 3, HOUR_MS)
    assert not limits.incr_and_sum("b", lambda: ["a", "b"], 1, 3, HOUR_MS)


def test_a_counter_that_is_over_counts_as_none(db: fdbqueue.Database, clock: ShiftedRuntime) -> None:
    limits = FdbQueueRateLimits(db)
    assert limits.add("key", 5, HOUR_MS)
    assert not limits.add("key", 5, HOUR_MS)

    clock.skip_to(clock.now() + 3_601)

    assert limits.add("key", 5, HOUR_MS)


def test_a_barrier_wakes_the_parties_that_wait(db: fdbqueue.Database) -> None:
    barrier, passed = Barrier(FdbQueueRateLimits(db), "barrier"), []
    barrier.create(3)
    threads = [threading.Thread(target=lambda: passed.append(barrier.wait(timeout=60_000))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert passed == [True, True, True]


def test_a_wait_for_an_event_times_out(db: fdbqueue.Database) -> None:
    assert FdbQueueRateLimits(db).wait("never", 10) is False
