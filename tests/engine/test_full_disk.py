"""A full disk: consumers empty it, puts are refused, and each acknowledged change is stored.

Each test has a file system of its own in memory, if the system allows to mount one. The tests at the end play
a full disk in the process, and always run.
"""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.errors import QueueExists, StorageFull
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import commit
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.environment import BYTES_MAX, Reserve
from fdbqueue.embedded.processes import Pool
from tests.engine import programs
from tests.support import NOT_COMMITTED, PATIENCE_S, Ageless, run_program, wait_until


def mounted(place: Path, size: str) -> bool:
    options = ["-o", f"size={size},mode=700"]
    command = ["mount", "-t", "tmpfs", *options, "fdbqueue-test", str(place)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small disk of a given size."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: str) -> Path:
        if not mounted(place, size):
            pytest.skip("needs the right to mount a small file system")
        return place

    yield mount
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


class Plain:
    def __init__(self, db: fdbqueue.Database) -> None:
        self.db, self.queue = db, fdbqueue.Queue.named(db, "q")

    def put(self, data: str) -> None:
        self.queue.enqueue(self.db, data)

    def get(self) -> Any:
        return self.queue.dequeue(self.db)


class Tasks(Plain):
    def __init__(self, db: fdbqueue.Database) -> None:
        self.db = db
        try:
            self.tasks = fdbqueue.TaskQueue.create(db, "q", "fifottl")
        except QueueExists:
            self.tasks = fdbqueue.TaskQueue.open(db, "q")

    def put(self, data: str) -> None:
        self.tasks.put(self.db, data)

    def get(self) -> Any:
        task = self.tasks.take(self.db, 0)
        if task is None:
            return None
        self.tasks.ack(self.db, task)
        return task.data


class Elements(Plain):
    def __init__(self, db: fdbqueue.Database) -> None:
        self.db, self.elements = db, fdbqueue.SimpleElementQueue.named(db, "q")

    def put(self, data: str) -> None:
        self.elements.add(self.db, data)

    def get(self) -> Any:
        name = self.elements.first(self.db)
        if not name:
            return None
        token = self.elements.acquire(self.db, name)
        data = self.elements.get(self.db, name, token=token)
        self.elements.remove(self.db, name, token=token)
        return data.decode()


def fill(side: Plain, payload: str, first: int = 0) -> list[str]:
    """Put until there is no room; return the payloads."""
    put: list[str] = []
    while True:
        data = f"{first + len(put)} {payload}"
        try:
            side.put(data)
        except StorageFull:
            return put
        put.append(data)


def drain(side: Plain) -> list[str]:
    return list(iter(side.get, None))


@pytest.mark.parametrize("side_of", [Plain, Tasks, Elements])
def test_a_full_disk_is_emptied_and_filled_ten_times(
    disk: Callable[[str], Path], side_of: type[Plain]
) -> None:
    """The disk stays full to the last block: the room is in the data file, which never shrinks."""
    url = f"embedded:{disk('5m')}/data"
    counts = []
    for _ in range(10):
        with fdbqueue.open(url) as db:
            side = side_of(db)
            put = fill(side, "x" * 5_000)
        with fdbqueue.open(url) as db:  # also by a process that begins after it filled up
            side = side_of(db)
            put += fill(side, "y" * 5_000, len(put))
            assert drain(side) == put
        counts.append(len(put))
    assert min(counts) > 50, counts


def test_a_queue_is_dropped_on_a_full_disk(disk: Callable[[str], Path]) -> None:
    with fdbqueue.open(f"embedded:{disk('5m')}/data") as db:
        side = Tasks(db)
        put = fill(side, "x" * 1_000)
        side.tasks.drop(db)
        again = fill(Tasks(db), "x" * 1_000)
    assert 2 * len(again) > len(put) > 100


def test_the_reserve_is_made_again_when_space_returns(disk: Callable[[str], Path]) -> None:
    place = disk("5m")
    ballast = place / "ballast"
    ballast.write_bytes(bytes(2_000_000))
    with fdbqueue.open(f"embedded:{place}/data") as db:
        reserve = db.engine._store.reserve
        assert reserve.is_whole
        side = Plain(db)
        put = fill(side, "x" * 1_000)
        got = [side.get() for _ in range(20)]
        reserve.give_up()
        db.engine._store.committer._pool.note_short(True)
        assert got == put[:20]
        ballast.unlink()
        side.put("more")
        assert reserve.is_whole
        assert not db.engine._store.committer._pool.is_short
        more = fill(side, "x" * 1_000)
        assert len(more) > 500
        assert drain(side) == [*put[20:], "more", *more]


def test_a_disk_that_is_full_at_the_first_opening_is_an_error(disk: Callable[[str], Path]) -> None:
    """LMDB's lock file was mapped without room, which killed the process."""
    for left_bytes in (0, 4_096, 100_000, 300_000):
        place = disk("2m")
        room = os.statvfs(place)
        (place / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - left_bytes))
        said = run_program(
            place.parent,
            f"""
            import fdbqueue
            try:
                fdbqueue.open("embedded:{place}/data")
            except fdbqueue.FdbQueueError as error:
                print(type(error).__name__)
            """,
        )
        assert said in ("StorageFull\n", *(("",) if left_bytes == 300_000 else ()))
        subprocess.run(["umount", "--lazy", str(place)], check=True)


# -- a full disk, played in the process -----------------------------------------------------------------


class FullDisk:
    """Fails the commit of each LMDB transaction while the reserve is there, as a full disk does."""

    def __init__(self, db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = db.engine._store
        self.is_full = True
        self._begin = self.store.begin
        monkeypatch.setattr(self.store, "begin", self._begun)

    def _begun(self, write: bool = False) -> Any:
        txn = self._begin(write)
        return Failing(txn, self) if write else txn

    @property
    def has_room(self) -> bool:
        return not self.is_full or not self.store.reserve.size_bytes


class Failing:
    def __init__(self, txn: Any, disk: FullDisk) -> None:
        self._txn, self._disk = txn, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()

    def commit(self) -> None:
        if not self._disk.has_room:
            self._txn.abort()
            error = lmdb.DiskError("commit")
            error.code = errno.ENOSPC
            raise error
        self._txn.commit()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{tmp_path}/data", runtime=Ageless()) as database:
        database[b"old"] = b"x" * 1_000
        yield database


@pytest.fixture
def full(db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(db, monkeypatch)


@pytest.fixture
def free_bytes(db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give up the reserve; a call sets the bytes of the free pages in the data file."""
    store = db.engine._store
    store.reserve.give_up()
    store.committer._pool.note_short(True)
    monkeypatch.setattr(store.reserve, "make", lambda: False)
    return lambda count: monkeypatch.setattr(store, "free_bytes", lambda: count)


def test_only_what_makes_room_uses_the_reserve(db: fdbqueue.Database, full: FullDisk) -> None:
    """A key written again in a cleared range is freed once only; a key with a stamp takes room as well."""

    def again(tr: fdbqueue.Transaction) -> None:
        tr.clear_range(b"old", b"old\x00")
        tr[b"old"] = b"x" * 1_900

    def stamped(tr: fdbqueue.Transaction) -> None:
        tr.clear(b"old")
        tr.set_versionstamped_key(b"stamped" + bytes(10) + (7).to_bytes(4, "little"), b"x" * 1_900)

    for grows in (
        lambda tr: tr.set(b"new", b""),
        lambda tr: tr.set(b"old", b"x" * 1_001),
        lambda tr: tr.set_versionstamped_value(b"stamp", bytes(14)),
        again,
        stamped,
    ):
        tr = db.create_transaction()
        grows(tr)
        with pytest.raises(StorageFull):
            tr.commit().wait()
    assert full.store.reserve.size_bytes == BYTES_MAX, "nothing of it was given up"
    assert [(row.key, row.value) for row in db.get_range(b"", b"\xff")] == [(b"old", b"x" * 1_000)]


@pytest.mark.parametrize("remove", [lambda db: db.clear(b"old"), lambda db: db.clear_range(b"o", b"p")])
def test_a_removal_uses_the_reserve(
    db: fdbqueue.Database, full: FullDisk, remove: Callable[[fdbqueue.Database], None]
) -> None:
    remove(db)
    assert db[b"old"] is None
    assert full.is_full


def test_a_removal_does_not_fail_with_the_puts_of_its_batch(db: fdbqueue.Database, full: FullDisk) -> None:
    """Each request of a batch has an answer of its own."""
    grows, shrinks = db.create_transaction(), db.create_transaction()
    grows[b"new"] = b"y"
    del shrinks[b"old"]
    requests = [commit.CommitRequest(tr._buffer, tr._reads, None, tr._size_bytes) for tr in (grows, shrinks)]
    full.store.committer._commit_batch(requests)
    assert isinstance(requests[0].error, StorageFull)
    assert requests[1].error is None
    assert db[b"old"] is None


def test_a_full_disk_answers_requests_asked_of_others(
    db: fdbqueue.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process commits them, so this one decides them as they stand in its slot."""
    programs.take_a_slot(db.engine)
    pool = Pool(Directory.open(f"{tmp_path}/data"), RealRuntime())
    programs.lead(pool)
    FullDisk(db, monkeypatch)
    grows, bypasses = db.create_transaction(), db.create_transaction()
    grows[b"new"] = b"y"
    bypasses[b"kept"] = b"y"
    bypasses.options.set_bypass_storage_quota()
    requests = [grows._request(), bypasses._request()]
    asking = threading.Thread(target=db.engine._store.committer.commit_all, args=(requests,))
    asking.start()
    wait_until(lambda: list(pool._asked) != list(pool._answered))
    pool.resign()
    asking.join(PATIENCE_S)
    pool.close()
    assert [type(one.error) for one in requests] == [StorageFull, type(None)]
    assert (db[b"new"], db[b"kept"]) == (None, b"y")


def test_a_reserve_given_up_in_vain_is_made_again(
    db: fdbqueue.Database, full: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FullDisk, "has_room", property(lambda _: False))
        with pytest.raises(StorageFull):
            del db[b"old"]
    assert full.store.reserve.is_whole
    del db[b"old"]
    assert db[b"old"] is None


@pytest.mark.parametrize("is_plain", [True, False])
def test_consumers_go_on_and_producers_are_refused(
    db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    """A consumer that opens its session on the full disk goes on too."""
    side = Plain(db) if is_plain else Tasks(db)
    for number in range(5):
        side.put(f"{number} {'x' * 300}")
    disk = FullDisk(db, monkeypatch)
    with pytest.raises(StorageFull):
        side.put("more")
    assert [text.split()[0] for text in drain(side)] == list("01234")
    disk.is_full = False
    side.put("again")
    assert drain(side) == ["again"]
    assert disk.store.reserve.is_whole


def test_an_element_is_locked_and_removed_on_a_full_disk(
    db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fdbqueue.SimpleElementQueue(Subspace(("elements",)))
    names = [queue.add(db, "x" * 300) for _ in range(3)]
    FullDisk(db, monkeypatch)
    with pytest.raises(StorageFull):
        queue.add(db, "more")
    for name in names:
        assert queue.lock(db, name)
        queue.remove(db, name)
    assert queue.count(db) == 0


@pytest.mark.parametrize("is_another_attempt", [False, True])
def test_the_quota_is_bypassed_by_one_attempt(
    db: fdbqueue.Database, full: FullDisk, is_another_attempt: bool
) -> None:
    """As on a cluster, the option is for transactions that make room later, or let others make it.

    A body may choose by what it finds, and finds something else in its second attempt.
    """
    assert full.is_full
    tr = db.engine.create_transaction()
    tr.options.set_bypass_storage_quota()
    if is_another_attempt:
        tr.on_error(NOT_COMMITTED).wait()
    tr[b"a"] = b"1"
    with pytest.raises(StorageFull) if is_another_attempt else nullcontext():
        tr.commit().wait()
    assert db[b"a"] == (None if is_another_attempt else b"1")


@pytest.mark.parametrize(("left_bytes", "admitted"), [(BYTES_MAX // 2, b"1"), (BYTES_MAX // 2 - 1, None)])
def test_the_second_half_of_the_reserve_is_for_removals(
    db: fdbqueue.Database, free_bytes: Callable[[int], None], left_bytes: int, admitted: bytes | None
) -> None:
    """A disk could not be emptied if takes and sessions had used up all of it."""
    free_bytes(left_bytes)
    tr = db.create_transaction()
    tr.options.set_bypass_storage_quota()
    tr[b"session"] = b"1"
    with suppress(StorageFull):
        tr.commit().wait()
    assert db[b"session"] == admitted
    del db[b"old"]
    assert db[b"old"] is None


def test_an_opening_without_the_whole_reserve_keeps_free_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full already, so no commit has met its end."""
    monkeypatch.setattr(Reserve, "make", lambda _: False)
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        monkeypatch.setattr(db.engine._store, "free_bytes", lambda: BYTES_MAX)
        with pytest.raises(StorageFull):
            db[b"a"] = b"1"


def test_a_reserve_that_is_not_whole_is_kept_in_free_pages(
    db: fdbqueue.Database, free_bytes: Callable[[int], None]
) -> None:
    """Otherwise puts would use up all room that the first drain has left, and no removal could commit."""
    free_bytes(BYTES_MAX)
    with pytest.raises(StorageFull):
        db[b"b"] = b"1"
    del db[b"old"]
    free_bytes(BYTES_MAX + 100_000)
    db[b"b"] = b"1"
    assert db[b"b"] == b"1"


def test_the_reserve_of_a_small_disk_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(os.statvfs(tmp_path))
    found[2] = 8 * 1_000_000 // found[1]  # f_blocks
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result(found))
    directory = Directory.open(str(tmp_path))
    reserve = Reserve(directory)
    assert 900_000 < reserve.size_bytes <= 1_000_000
    reserve.close()
    directory.close()


def test_without_fallocate_there_is_no_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        db[b"a"] = b"1"
        assert db.engine._store.reserve is None
        assert db[b"a"] == b"1"
