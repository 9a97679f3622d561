"""A batch has a bound: a leader leaves the requests behind it to the next one."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.embedded import batch, commit, request
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.pool import Pool
from tests.engine import programs
from tests.support import PATIENCE_S, Ageless, commit_code, wait_until

ONE = (1).to_bytes(8, "little")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[fdbqueue.Database]:
    """A database of this process, with a slot in the pool."""
    with fdbqueue.open(f"embedded:{tmp_path}/data", runtime=Ageless()) as database:
        programs.take_a_slot(database.engine)
        yield database


@pytest.fixture
def pool(tmp_path: Path, db: fdbqueue.Database) -> Iterator[Pool]:  # noqa: ARG001  # it makes the directory
    """The pool as another process sees it, which leads and has a slot."""
    pool = Pool(Directory.open(f"{tmp_path}/data"), fdbqueue.RealRuntime())
    programs.lead(pool)
    pool.take_slot()
    yield pool
    pool.close()


def counting(db: fdbqueue.Database, key: bytes) -> fdbqueue.Transaction:
    tr = db.create_transaction()
    tr.add(key, ONE)
    return tr


@pytest.mark.parametrize("epochs_passed", [0, 1])
def test_a_leader_finishes_its_own_requests_in_any_epoch(
    db: fdbqueue.Database, pool: Pool, monkeypatch: pytest.MonkeyPatch, epochs_passed: int
) -> None:
    """With each epoch another slot comes first, but its caller waits for this batch."""
    body = request.encode([counting(db, b"theirs")._request()])
    assert pool.ask(body)
    monkeypatch.setattr(batch, "BATCH_BYTES_MAX", len(body))
    for _ in range(epochs_passed):
        pool.resign()
        programs.lead(pool)
    codes: list[int] = []
    asking = threading.Thread(target=lambda: codes.append(commit_code(counting(db, b"ours.."))), daemon=True)
    asking.start()
    wait_until(lambda: sum(a != b for a, b in zip(pool._asked, pool._answered, strict=True)) == 2)
    pool.resign()
    asking.join(PATIENCE_S)
    assert codes == [0]
    assert (db[b"ours.."], pool.answered(1)) == (ONE, None)
    monkeypatch.undo()
    db[b"later"] = b"1"
    assert db[b"theirs"] == ONE


@pytest.mark.parametrize(("requests_wanted", "batches"), [(0.5, 5), (2, 3)])
def test_requests_beyond_a_full_batch_are_in_the_next(
    db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch, requests_wanted: float, batches: int
) -> None:
    """A request that is larger than a batch has one of its own."""
    requests = [counting(db, b"%d" % number)._request() for number in range(5)]
    monkeypatch.setattr(commit, "BATCH_BYTES_MAX", int(requests_wanted * requests[0].size_bytes))
    committer = db.engine._store.committer
    committing = threading.Thread(target=committer.commit_all, args=(requests,), daemon=True)
    committing.start()
    committing.join(PATIENCE_S)
    assert [one.error for one in requests] == [None] * 5
    assert len({one.version for one in requests}) == batches
    assert [db[b"%d" % number] for number in range(5)] == [ONE] * 5
