"""Slices: the round trips of a scan, its reads, and a database too slow for its transactions."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, Session, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.rows import ask
from fdbqueue.core.seam import FDBError
from fdbqueue.operate.verify.verify import slices, subject_of
from fdbqueue.tasks.stored.records import TaskKeys
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips

TOO_OLD = 1007


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Database, Trips]]:
    monkeypatch.setattr(limits, "SLICE_KEYS_MAX", 10)
    monkeypatch.setattr(limits, "SLICES_TOGETHER", 4)
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        engine = Trips(db.engine)
        yield Database(engine, clock), engine  # type: ignore[arg-type]  # options are never asked for


def counting(db: Database, trips: Trips) -> tuple[int, int]:
    """The keys of a verification, and its round trips."""
    before = trips.count
    found = verify(db, "q")
    assert found.findings == ()
    return found.keys, trips.count - before


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_a_further_slice_costs_one_round_trip(trips: tuple[Database, Trips], kind: str) -> None:
    """And each transaction one more, as it begins with nothing asked for."""
    db, engine = trips
    queue = TaskQueue.create(db, "q", kind)
    queue.put_many(db, range(5), key="one" if kind == "utubettl" else None)
    keys, least = counting(db, engine)
    queue.put_many(db, range(100), key="one" if kind == "utubettl" else None)
    more_keys, more = counting(db, engine)
    slices = (more_keys - keys) / limits.SLICE_KEYS_MAX
    assert slices >= 20
    assert more - least <= slices * (1 + 1 / limits.SLICES_TOGETHER) + 1


def test_named_keys_are_read_as_ranges(
    trips: tuple[Database, Trips], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read for each key would cost a cluster and its client most of their time."""
    monkeypatch.setattr(limits, "SLICE_KEYS_MAX", 1_000)
    db, engine = trips
    TaskQueue.create(db, "q", "fifottl", ttl=900).put_many(db, range(100))
    verify(db, "q")
    reads = engine.reads
    assert verify(db, "q").keys >= 300
    assert engine.reads - reads < 40


def test_keys_behind_many_strangers_are_read(db: Database, space: Subspace) -> None:
    keys = [space.pack((1, n)) for n in range(40)]
    run(db, lambda tr: [tr.set(key, key) for key in keys])
    asked = [keys[0], keys[1], keys[2] + b"\x00", keys[20], keys[39], keys[39] + b"\x00"]
    seen = run(db, lambda tr: ask(tr.snapshot, space.key(), asked)())
    assert [seen.value(key) for key in asked] == [key if key in keys else None for key in asked]


def test_tasks_of_mixed_priorities_are_sound(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records and their places in the order lie far apart."""
    monkeypatch.setattr(limits, "SLICE_KEYS_MAX", 4)
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    for n in range(60):
        queue.put(db, n, pri=n * 7 % 5)
    assert verify(db, "q", root=space).findings == ()
    places = TaskKeys(queue.contents).ready
    some = db.get_range(places.start, places.stop)[30].key
    run(db, lambda tr: tr.clear(some))
    assert len(verify(db, "q", root=space).findings) == 2  # the task, and the counter


def test_doubts_of_one_slice_share_their_reads(trips: tuple[Database, Trips]) -> None:
    """The tasks of a session that is ending name the same keys as their explanation."""
    db, engine = trips
    queue = TaskQueue.create(db, "q", "fifottl")
    queue.put_many(db, range(50))
    with Session(db, ttr=600) as session:
        queue.take_many(db, 50, session=session)
        _, sound = counting(db, engine)
        run(db, lambda tr: tr.clear(queue._shape.root.session(session.id)))
        _, doubtful = counting(db, engine)
    assert 0 < doubtful - sound <= 5 + 1  # one for each slice of taken tasks


def test_a_slice_has_a_bound_of_bytes(db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a thousand large values would need too much memory, and too much time."""
    queue = Queue(space["q"], root=space["root"])
    queue.enqueue_many(db, ["x" * 300] * 6)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 1_000)
    subject = subject_of(queue)
    found = list(slices(db, subject.checks, subject.keys.start, subject.keys))
    assert sum(len(one.rows) for one in found) >= 6
    assert max(sum(len(row.value) for row in one.rows) for one in found) <= 1_000


def test_a_count_of_large_items_looks_at_the_clock(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so before it has read limits.COUNTED_ROWS of them, which would take too long."""
    queue = Queue(space["q"], root=space["root"])
    queue.enqueue_many(db, ["x" * 300] * 6)
    monkeypatch.setattr(limits, "COUNTED_S", 0.0)
    assert verify(db, queue).uncompared == ()
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 1_000)
    (told,) = verify(db, queue).uncompared
    assert "too many to count" in told


class Slow:
    """An engine whose transactions become too old if they read more than some rows at once."""

    def __init__(self, engine: Any, rows: int) -> None:
        self._engine = engine
        self.rows = rows

    def create_transaction(self) -> "SlowReads":
        return SlowReads(self, self._engine.create_transaction())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class SlowReads:
    def __init__(self, slow: Slow, tr: Any) -> None:
        self._slow = slow
        self._tr = tr

    @property
    def snapshot(self) -> "SlowReads":
        return SlowReads(self._slow, self._tr.snapshot)

    def get_range(self, begin: Any, end: Any, limit: int = 0, **options: Any) -> Any:
        if limit > self._slow.rows:
            raise FDBError(TOO_OLD)
        return self._tr.get_range(begin, end, limit=limit, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_slow_database_is_read_in_small_slices(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that needs more time than a transaction has would be read for ever."""
    monkeypatch.setattr(limits, "COUNTED_ROWS", 1)
    with fdbqueue.open("memory:") as db:
        Queue.named(db, "q").enqueue_many(db, range(20))
        found = verify(Database(Slow(db.engine, rows)), "q")  # type: ignore[arg-type]  # as that of Trips
        assert (found.findings, found.keys) == ((), verify(db, "q").keys)
