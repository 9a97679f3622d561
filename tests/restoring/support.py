"""A backup, restored: all keys below a prefix, copied as they are into a database with lower versions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Limit, Schedule, Session, TaskQueue, WaitStopped
from fdbqueue.core.database import run
from fdbqueue.core.line.staging import Line
from fdbqueue.core.runtime import RealRuntime
from tests.queue_support import registered_by
from tests.support import PATIENCE_S, wait_until

BATCH = 1_000
LONG_AGO_S = 3_600.0


class LongAgo(RealRuntime):
    """A clock that is an hour behind: the leases of its backup are over at the restore."""

    def now(self) -> float:
        return super().now() - LONG_AGO_S


def rows_below(db: Database, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    begin, end = prefix, prefix + b"\xff"
    while rows := run(db, lambda tr, at=begin: tr.snapshot.get_range(at, end, limit=BATCH).to_list()):
        yield from ((bytes(row.key), bytes(row.value)) for row in rows)
        begin = bytes(rows[-1].key) + b"\x00"


def restore(source: Database, target: Database, prefix: bytes) -> None:
    """Copy the keys, as fdbrestore does: the database of `target` has had fewer commits, if it is new."""
    rows = list(rows_below(source, prefix))
    for at in range(0, len(rows), BATCH):
        run(target, lambda tr, few=rows[at : at + BATCH]: [tr.set(key, value) for key, value in few])


def make_newer(db: Database, prefix: bytes, commits: int = 20) -> None:
    """Let the versions of a young database grow beyond those that its copy will meet soon."""
    for number in range(commits):
        run(db, lambda tr, n=number: tr.set(prefix + b"\x00newer", b"%d" % n))
    run(db, lambda tr: tr.clear(prefix + b"\x00newer"))


def left_requests(db: Database, line: Line, count: int, now_us: int) -> list[Any]:
    """Requests of callers that are gone when the backup is restored, in the order of their registration."""
    return [registered_by(db.create_transaction(), line, b"r%011d" % n, now_us) for n in range(count)]


def is_waiting(db: Database, line: Line) -> bool:
    """True if a call of this database has registered behind its first version."""
    rows = line.keys.requests
    version = run(db, lambda tr: tr.get_read_version().wait())
    own = line.keys.requests_at(version)
    return bool(run(db, lambda tr: tr.get_range(rows.start, own.stop, limit=1).to_list()))


def requests_of(db: Database, line: Line) -> int:
    rows = line.keys.requests
    return len(run(db, lambda tr: tr.get_range(rows.start, rows.stop).to_list()))


# A root with something of everything that depends on time, on processes or on versions.


def make_a_root(db: Database, root: Subspace) -> None:
    """Tasks that are held under a limit, in the order of their keys; tasks with times; a named session; a
    schedule.
    """
    Limit.set(db, "slot", slots=1, root=root)
    orders = TaskQueue.create(db, "orders", "utube", limits=["slot"], root=root)
    TaskQueue.create(db, "waited", "fifo", root=root)
    timed = TaskQueue.create(db, "timed", "fifottl", root=root)
    timed.put(db, "delayed", delay=LONG_AGO_S / 2)
    timed.put(db, "short-lived", ttl=LONG_AGO_S / 2)
    timed.put(db, "still delayed", delay=2 * LONG_AGO_S)
    Schedule.create(db, "ticks", every=600, queue="waited", data="tick", root=root)
    Session(db, name="named", root=root)
    for data in ("first", "second"):
        orders.put(db, data, key="customer")
    assert orders.take(db, 0) is not None
    orders.put(db, "unique", key="other", unique="one")


@contextmanager
def waiting_for(name: str, db: Database, root: Subspace) -> Iterator[None]:
    """Let a call wait in the line of a queue, which is empty."""
    queue, stop = TaskQueue.open(db, name, root=root), threading.Event()

    def wait() -> None:
        with suppress(WaitStopped):
            queue.take(db, 100 * PATIENCE_S, stop=stop)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(list(rows_below(db, queue._shape.keys.line))))
    yield
    stop.set()
    thread.join(PATIENCE_S)


def require_working(db: Database, root: Subspace) -> None:
    """Each promise holds in the restored root: nothing of it is lost, held for ever, or in another order."""
    waited = TaskQueue.open(db, "waited", root=root)
    fired = waited.take(db, PATIENCE_S)
    assert fired is not None
    assert fired.data == "tick"
    found: list[Any] = []
    taker = threading.Thread(target=lambda: found.append(waited.take(db, PATIENCE_S)))
    taker.start()
    waited.put(db, "new")
    taker.join(PATIENCE_S)
    assert [task.data for task in found] == ["new"]
    orders = TaskQueue.open(db, "orders", root=root)
    assert orders.put(db, "again", key="other", unique="one").existed
    for data, attempts in (("first", 2), ("second", 1), ("unique", 1)):
        task = orders.take(db, PATIENCE_S)
        assert task is not None
        assert (task.data, task.attempts) == (data, attempts)
        assert orders.take(db, 0) is None
        orders.ack(db, task)
    timed = TaskQueue.open(db, "timed", root=root)
    due = timed.take(db, PATIENCE_S)
    assert due is not None
    assert due.data == "delayed"
    timed.ack(db, due)
    assert timed.take(db, 0) is None
    assert timed.statistics(db)["tasks"]["delayed"] == 1
    with Session(db, name="named", root=root) as named:
        assert not named.lost
    assert fdbqueue.verify(db, root=root).sound
