"""The first user makes a directory ready, whatever happened to the directory, or to other first users."""

import errno
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.core.errors import StorageFormat, StorageInUse
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import durability, layout, processes, store
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.durability import Durable
from fdbqueue.embedded.journal import Journal
from fdbqueue.embedded.layout import Written, append
from fdbqueue.embedded.processes import Users
from fdbqueue.embedded.writes import KeySet
from tests.engine import programs
from tests.support import PATIENCE_S, in_child

ENTRIES = {b"key %d" % number: b"value %d" % number for number in range(5)}
# The calls before which the process is killed: all that change a file.
STEPS = {
    "copyfd", "fdatasync", "fsync", "ftruncate", "posix_fallocate", "put", "pwrite",
    "rename", "sync", "unlink",
}  # fmt: skip


class Interrupt(BaseException):
    """Comes between two steps."""


def url(path: Path) -> str:
    return f"embedded:{path}"


def entries(path: Path) -> dict[bytes, bytes]:
    with fdbqueue.open(url(path)) as db:
        return {row.key: row.value for row in db.get_range(b"", b"\xff")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with the entries."""
    made = tmp_path / "made"
    with fdbqueue.open(url(made)) as db:
        for key, value in ENTRIES.items():
            db[key] = value
    return made


def lose_power(path: Path) -> None:
    """The machine starts again: nothing of `data.mdb` is right, and the mark is that of another boot."""
    data = path / "data.mdb"
    data.write_bytes(random.Random(1).randbytes(data.stat().st_size))
    (path / "in-use").write_bytes(b"another boot")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A directory of an earlier release."""
    made = tmp_path / "earlier"
    made.mkdir(mode=0o700)
    with lmdb.open(str(made)) as env, env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, b"1.0")
        for key, value in ENTRIES.items():
            layout.put(txn, key, value)
        append(txn, Written(1_000, KeySet(), KeySet()), 0)  # a copy may have records of later versions
    return made


def killed(at: int, path: Path) -> bool:
    """Open the directory in a child that is killed at a step; False if it came to its end before that."""
    child = os.fork()
    if not child:
        steps = iter(range(at))

        def look(_: Any, event: str, called: Any) -> None:
            if event == "c_call" and called.__name__ in STEPS and next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(look)
        try:
            fdbqueue.open(url(path)).close()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def killed_everywhere(path: Path, tmp_path: Path, look: Callable[[Path], object]) -> int:
    """Kill the first user of a copy at each step in turn; return their number."""
    at = 0
    while True:
        copied = tmp_path / f"copy {at}"
        shutil.copytree(path, copied)
        was_killed = killed(at, copied)
        look(copied)
        killed(at, copied)  # the second one, too
        assert entries(copied) == ENTRIES
        shutil.rmtree(copied)
        if not was_killed:
            return at
        at += 1


def test_a_copied_directory_holds_all(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy")
    assert entries(tmp_path / "copy") == ENTRIES


@pytest.mark.in_turn(4)
def test_a_recovery_that_is_killed_is_repeated(path: Path, tmp_path: Path) -> None:
    lose_power(path)
    assert killed_everywhere(path, tmp_path, lambda _: None) > 10


@pytest.mark.in_turn(4)
def test_an_upgrade_that_is_killed_is_repeated(earlier: Path, tmp_path: Path) -> None:
    def refused_once_a_base_is_there(copied: Path) -> None:
        with lmdb.open(str(copied)) as env, env.begin() as txn:
            found = txn.get(layout.FORMAT_KEY)
        assert found == layout.FORMAT or not (copied / durability.FILE).exists()

    assert killed_everywhere(earlier, tmp_path, refused_once_a_base_is_there) > 10


def test_an_upgraded_directory_survives_a_power_cut(earlier: Path) -> None:
    with fdbqueue.open(url(earlier)) as db:
        db[b"new"] = b"value"
    lose_power(earlier)

    assert entries(earlier) == {**ENTRIES, b"new": b"value"}


def test_an_upgrade_waits_for_the_end_of_the_earlier_release(earlier: Path) -> None:
    with held_by_another(earlier), pytest.raises(StorageInUse, match="earlier release has it open"):
        fdbqueue.open(url(earlier))
    assert entries(earlier) == ENTRIES


@contextmanager
def held_by_another(path: Path) -> Iterator[None]:
    """Another process has the LMDB environment open."""
    ready, told = os.pipe()
    ended, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        with lmdb.open(str(path)):
            os.write(told, b".")
            os.read(ended, 1)
        os._exit(0)
    os.close(ended)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.close(end)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def test_without_its_lock_file_a_directory_in_use_is_refused(path: Path) -> None:
    (path / "in-use").unlink()
    with held_by_another(path), pytest.raises(StorageInUse, match="has it open"):
        fdbqueue.open(url(path))
    assert entries(path) == ENTRIES


def newer(base: Path) -> None:
    with lmdb.open(str(base), subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, b"3.0")


@pytest.mark.parametrize(
    ("file", "damage", "error", "text"),
    [
        (durability.FILE, Path.unlink, StorageInUse, "base.mdb is missing: restore all files"),
        (
            durability.FILE,
            lambda base: base.write_bytes(b""),
            StorageInUse,
            "base.mdb has no state, so it is damaged",
        ),
        (durability.FILE, newer, StorageFormat, "upgrade fdbqueue"),
        (
            "journal.1",
            Path.unlink,
            StorageInUse,
            "journal.1 is missing: .* or go on without the last commits",
        ),
    ],
    ids=["no base", "empty base", "newer base", "no journal"],
)
def test_after_a_power_cut_a_damaged_directory_is_refused(
    path: Path, file: str, damage: Callable[[Path], object], error: type[Exception], text: str
) -> None:
    damage(path / file)
    lose_power(path)

    for _ in range(2):
        with pytest.raises(error, match=text):
            fdbqueue.open(url(path))


def test_after_a_power_cut_a_directory_goes_on_without_a_journal(path: Path) -> None:
    """Its commits are gone: all since the last checkpoint."""
    lose_power(path)
    (path / "journal.1").write_bytes(b"")
    assert entries(path) == {}


def test_files_that_were_copied_in_use_are_refused(path: Path, monkeypatch: Any) -> None:
    """The base was copied first, then came a checkpoint, and then the journal was copied."""
    monkeypatch.setattr(limits, "GENERATION_BYTES_MAX", 1_000)
    early = (path / durability.FILE).read_bytes()
    with fdbqueue.open(url(path)) as db:
        for number in range(30):
            db[b"number"] = b"%d" % number
    (path / durability.FILE).write_bytes(early)
    lose_power(path)

    with pytest.raises(StorageInUse, match=r"commits between base.mdb and the journal are missing"):
        fdbqueue.open(url(path))


@pytest.mark.parametrize("generation_bytes", [limits.GENERATION_BYTES_MAX, 1_000])
def test_an_old_copy_over_the_data_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, generation_bytes: int
) -> None:
    monkeypatch.setattr(limits, "GENERATION_BYTES_MAX", generation_bytes)
    old = (path / "data.mdb").read_bytes()
    later = {b"later %d" % number: b"value" for number in range(20)}
    with fdbqueue.open(url(path)) as db:
        for key, value in later.items():
            db[key] = value
    (path / "data.mdb").write_bytes(old)  # in place, so the mark names it

    assert entries(path) == ENTRIES | later
    lose_power(path)
    assert entries(path) == ENTRIES | later


@pytest.mark.parametrize("new", [{}, {b"new": b"value"}], ids=["no commit", "a commit"])
@pytest.mark.parametrize(
    "files", [[durability.FILE], ["journal.0", "journal.1"], ["journal.0"], ["journal.1"]], ids=" ".join
)
def test_in_the_same_boot_missing_files_are_made_again(
    path: Path, files: list[str], new: dict[bytes, bytes]
) -> None:
    for name in files:
        (path / name).unlink()
    with fdbqueue.open(url(path)) as db:
        for key, value in new.items():
            db[key] = value
    lose_power(path)

    assert entries(path) == ENTRIES | new


def test_versions_go_on_above_all_that_were_handed_out(path: Path) -> None:
    with fdbqueue.open(url(path)) as db:
        before = db.create_transaction().get_read_version().wait()
    lose_power(path)
    with fdbqueue.open(url(path)) as db:
        assert db.create_transaction().get_read_version().wait() > before


def test_versions_go_on_above_those_of_a_base_that_was_removed(path: Path) -> None:
    lose_power(path)
    assert entries(path) == ENTRIES  # from now on, versions are far from the numbers of generations
    (path / durability.FILE).unlink()

    test_versions_go_on_above_all_that_were_handed_out(path)


def test_a_recovery_that_fails_leaves_nothing_behind(path: Path, monkeypatch: Any) -> None:
    lose_power(path)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *_: 0)  # the base has become shorter
        with pytest.raises(StorageInUse, match="shorter"):
            fdbqueue.open(url(path))

    assert not (path / "data.new").exists()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert entries(path) == ENTRIES


def test_where_the_boot_has_no_id_each_first_user_recovers(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(processes, "_BOOT_ID", "/proc/none")
    lose_power(path)
    for number in range(3):
        assert entries(path) == ENTRIES
        assert number or processes.mark_of(0) is None


def test_the_process_that_waited_for_a_dead_one_is_the_first(tmp_path: Path) -> None:
    """Otherwise it would take the directory for ready."""
    directory = Directory.open(str(tmp_path))
    one, other = (Users(directory, RealRuntime()) for _ in range(2))
    found: list[bool] = []
    assert one.enter()
    waiting = threading.Thread(target=lambda: found.append(other.enter()))
    waiting.start()
    one.close()
    waiting.join(PATIENCE_S)

    assert found == [True]
    other.close()
    directory.close()


def test_a_base_without_its_last_free_pages_is_copied(path: Path) -> None:
    """LMDB does not write a page that the same commit takes and frees."""
    rng = random.Random(1)
    with lmdb.open(str(path / durability.FILE), subdir=False, lock=False, map_size=1 << 30) as env:
        os.truncate(path / durability.FILE, (env.info()["last_pgno"] + 1) * 4096)
        while (env.info()["last_pgno"] + 1) * 4096 <= (path / durability.FILE).stat().st_size:
            with env.begin(write=True) as txn:
                for _ in range(rng.randrange(400)):
                    txn.put(b"\x02x%d" % rng.randrange(1_000), bytes(rng.randrange(3_000)))
                for number in range(1_000):
                    txn.delete(b"\x02x%d" % number)
    lose_power(path)

    assert entries(path) == ENTRIES


def test_a_full_disk_has_room_in_the_file_that_is_wrong(path: Path, monkeypatch: Any) -> None:
    copy_some = store._copy_some

    def full(*given: int) -> int:
        if (path / "data.mdb").exists():
            raise OSError(errno.ENOSPC, "full")
        return copy_some(*given)

    lose_power(path)
    monkeypatch.setattr(store, "_copy_some", full)
    assert entries(path) == ENTRIES


@pytest.mark.parametrize("is_noted", [False, True])
def test_an_interrupt_after_a_commit_cuts_no_record(path: Path, monkeypatch: Any, is_noted: bool) -> None:
    """The record would be gone, and all behind it: also if the end of the commit is noted as a failure."""
    ends: list[Any] = []

    def interrupt(*given: object) -> None:
        ends.append(given)
        raise Interrupt

    with fdbqueue.open(url(path)) as db:
        with monkeypatch.context() as patched:
            patched.setattr(Durable, "committed", interrupt)
            with pytest.raises(Interrupt):
                db[b"interrupted"] = b"value"
        if is_noted:
            [(durable, entry, flush)] = ends
            durable.failed(entry, flush)
        db[b"later"] = b"value"
    lose_power(path)

    assert entries(path) == {**ENTRIES, b"interrupted": b"value", b"later": b"value"}


@pytest.mark.parametrize("can_cut", [True, False])
def test_the_record_of_a_failed_commit_is_taken_back(path: Path, monkeypatch: Any, can_cut: bool) -> None:
    """After a power cut, it would be there."""
    write = Durable.write

    def written_in_vain(*given: Any) -> None:
        write(*given)
        raise Interrupt

    with fdbqueue.open(url(path)) as db:
        with monkeypatch.context() as patched:
            patched.setattr(Durable, "write", written_in_vain)
            if not can_cut:
                patched.setattr(Journal, "cut", failing)
            with pytest.raises(Interrupt):
                db[b"failed"] = b"value"
        if not can_cut:
            db[b"later"] = b"value"  # it begins with a new journal
    lose_power(path)

    assert entries(path) == (ENTRIES if can_cut else {**ENTRIES, b"later": b"value"})


def failing(*_: object) -> None:
    raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize("commits", [3, 4])
def test_the_newest_state_of_a_file_gets_the_raised_version(tmp_path: Path, commits: int) -> None:
    """Odd versions are in one page of LMDB's file, even ones in the other."""
    path = tmp_path / "file"
    with lmdb.open(str(path), subdir=False, lock=False) as env:
        for number in range(commits):
            with env.begin(write=True) as txn:
                txn.put(b"key", b"%d" % number)
    fd = os.open(path, os.O_RDWR)
    store._raise_version(fd, 1_000)
    os.close(fd)

    with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin() as txn:
        assert txn.id() >= 1_000
        assert txn.get(b"key") == b"%d" % (commits - 1)


def test_before_the_first_commit_the_journal_may_be_missing(tmp_path: Path) -> None:
    """A power cut in the first opening removes names that no flush has covered."""
    made = tmp_path / "made"
    fdbqueue.open(url(made)).close()
    base = lmdb.open(str(made / durability.FILE), subdir=False, lock=False, map_size=1 << 30)
    with base, base.begin(write=True) as txn:
        txn.delete(durability._FILES_KEY)
    (made / "journal.0").unlink()
    (made / "journal.1").unlink()
    lose_power(made)

    assert entries(made) == {}


def test_a_renewal_that_is_interrupted_is_repeated(path: Path, monkeypatch: Any) -> None:
    with fdbqueue.open(url(path)) as db:
        durable = db.engine._store.committer._batches._durability

        def interrupt(*_: object) -> None:
            raise Interrupt

        with monkeypatch.context() as patched:
            patched.setattr(durable._journal, "renew", interrupt)
            with pytest.raises(Interrupt):
                durable.renew()
        db[b"later"] = b"value"
    lose_power(path)

    assert entries(path) == {**ENTRIES, b"later": b"value"}


def test_forks_leave_no_descriptor_of_the_parent(path: Path) -> None:
    with fdbqueue.open(url(path)) as db:
        db[b"before"] = b"value"
        opened = programs.journals(str(path))
        assert opened
        assert in_child(
            lambda: (db.set(b"in the child", b"value"), programs.journals(str(path)) == opened)[1]
        )
        assert db[b"in the child"] == b"value"
