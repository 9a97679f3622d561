"""Files of a directory that are removed, replaced or damaged while processes have them open."""

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.errors import StorageReplaced
from fdbqueue.embedded import directory, durability
from fdbqueue.embedded.journal import Journal
from fdbqueue.embedded.processes import BODY_BYTES_MAX
from tests.engine import programs
from tests.engine.test_pool import pool  # noqa: F401  # a fixture
from tests.support import PATIENCE_S, Ageless, run_program


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{path}", runtime=Ageless()) as database:
        programs.take_a_slot(database.engine)
        database[b"before"] = b"1"
        yield database


def copied(path: Path) -> None:
    """Replace the data file by a copy of itself, as the restore of a backup does."""
    shutil.copy(path / "data.mdb", path / "copy")
    (path / "copy").rename(path / "data.mdb")


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda path: (path / "lock.mdb").unlink(), "lock.mdb"),
        (lambda path: (path / "data.mdb").unlink(), "data.mdb"),
        (copied, "data.mdb"),
        (shutil.rmtree, "data.mdb"),
        (moved, "data.mdb"),
    ],
    ids=[
        "lock file removed",
        "data file removed",
        "data file replaced",
        "directory removed",
        "directory moved",
    ],
)
def test_a_missing_file_fails_the_next_commit(
    path: Path, db: fdbqueue.Database, damage: Callable[[Path], object], file: str
) -> None:
    """Otherwise commits would go to a file without a name, or overwrite those of other processes."""
    damage(path)
    with pytest.raises(StorageReplaced, match=f"the file {file} was removed or replaced") as refused:
        db[b"after"] = b"1"
    assert "Never delete a file" in str(refused.value)
    with pytest.raises(StorageReplaced):
        db[b"after"] = b"1"


def test_opening_without_the_lock_file_loses_no_commit(path: Path, db: fdbqueue.Database) -> None:
    (path / "lock.mdb").unlink()
    writes = f"""
        import fdbqueue
        with fdbqueue.open("embedded:{path}") as db:
            db[b"after"] = b"of another"
            print(db[b"before"], db[b"after"])
    """
    assert run_program(path.parent, writes) == "b'1' b'of another'\n"
    with pytest.raises(StorageReplaced):
        db[b"after"] = b"ours"
    assert run_program(path.parent, writes.replace("of another", "again")) == "b'1' b'again'\n"


def test_a_process_with_another_data_file_asks_no_leader(
    path: Path,
    db: fdbqueue.Database,
    pool,  # noqa: F811
) -> None:
    """The leader would commit the request to the new file: for example the ack of a task of the old one."""
    programs.lead(pool)
    copied(path)
    with pytest.raises(StorageReplaced):
        db[b"after"] = b"1"
    assert not pool.is_owed


def test_other_files_of_the_directory_may_change(path: Path, db: fdbqueue.Database) -> None:
    for number in range(3):
        (path / f"{number}").touch()
        db[b"after"] = b"%d" % number
        (path / f"{number}").unlink()
        db[b"after"] = b"%d." % number
    assert db[b"after"] == b"2."


def test_an_unchanged_directory_costs_one_system_call(
    path: Path, db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit compares only the directory's time."""
    monkeypatch.setattr(db.engine._store.in_place, "_runtime", fdbqueue.RealRuntime())
    os.utime(path, ns=(0, 10**18))
    db[b"a"] = b"1"
    monkeypatch.setattr(directory, "_identity", lambda *_: 1 / 0)
    monkeypatch.setattr(Journal, "forget_renewed", lambda _: 1 / 0)
    db[b"a"] = b"2"
    assert db[b"a"] == b"2"


def test_descriptors_that_the_program_closes_are_not_written_to(tmp_path: Path) -> None:
    """The start of a daemon closes all; then other files get their numbers."""
    printed = run_program(
        tmp_path,
        """
        import os, sys, fdbqueue
        db = fdbqueue.open("embedded:data")
        db[b"a"] = b"1"
        os.closerange(3, 200)
        others = [open(f"other{number}", "w+b") for number in range(100)]
        for _ in range(2):
            try:
                db[b"a"] = b"2"
            except fdbqueue.DescriptorsClosed as error:
                print(error.heals)
        print([os.fstat(other.fileno()).st_size for other in others if os.fstat(other.fileno()).st_size])
        sys.stdout.flush()
        os._exit(0)  # an end would close descriptors of the others
        """,
    )
    assert printed.splitlines() == ["False"] * 2 + ["[]"]
    with fdbqueue.open(f"embedded:{tmp_path}/data") as database:
        assert database[b"a"] == b"1"


def test_two_changes_in_one_tick_of_the_clock_are_noticed(
    path: Path, db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a file system is coarse: two changes of a directory may leave it with the same time."""
    monkeypatch.setattr(db.engine._store.in_place, "_runtime", fdbqueue.RealRuntime())
    tick_ns = time.time_ns() + 3600 * 10**9
    os.utime(path, ns=(0, tick_ns))
    db[b"a"] = b"1"
    copied(path)
    os.utime(path, ns=(0, tick_ns))
    with pytest.raises(StorageReplaced):
        db[b"after"] = b"1"


# -- the file of the pooled commits ---------------------------------------------------------------------

EPOCH, MAGIC, LENGTHS = 0, 16, 64 + 2 * 8 * 256


def overwrite(path: Path, at: int, number: int) -> None:
    with open(path / "commits.1", "r+b") as file:
        file.seek(at)
        file.write(struct.pack("@Q", number))


DAMAGES = [(EPOCH, 2**64 - 1), (EPOCH, 2**63 - 2**41), (MAGIC, 1), (LENGTHS, BODY_BYTES_MAX + 1)]


@pytest.mark.parametrize(("at", "number"), DAMAGES)
def test_a_damaged_file_of_commits_is_made_anew_at_opening(path: Path, at: int, number: int) -> None:
    """Its numbers are beyond all positions of locks, so no process could commit with it."""
    fdbqueue.open(f"embedded:{path}").close()
    overwrite(path, at, number)
    damaged = os.stat(path / "commits.1").st_ino
    for _ in range(2):
        with fdbqueue.open(f"embedded:{path}", runtime=Ageless()) as db:
            programs.take_a_slot(db.engine)
            assert db.engine._store.committer._pool is not None
            db[b"a"] = b"1"
    with open(path / "commits.1", "rb") as file:
        assert int.from_bytes(file.read(8), "little") < 100
    assert damaged


@pytest.mark.parametrize("number", [2**64 - 1, 2**63 - 2**41])
def test_a_file_of_commits_damaged_in_use_is_made_anew(
    path: Path, db: fdbqueue.Database, number: int
) -> None:
    """Each process that has it open goes on with the new file."""
    program = f"""
        import fdbqueue, sys
        with fdbqueue.open("embedded:{path}") as db:
            db[b"theirs"] = b"1"
            print(db[b"theirs"], db[b"ours"])
    """
    overwrite(path, EPOCH, number)
    db[b"ours"] = b"1"
    assert db.engine._store.committer._pool is not None
    assert run_program(path.parent, program) == "b'1' b'1'\n"
    overwrite(path, EPOCH, number)
    assert run_program(path.parent, program) == "b'1' b'1'\n"
    db[b"ours"] = b"2"
    assert db[b"ours"] == b"2"


def test_a_file_of_commits_of_an_earlier_release_is_used(path: Path) -> None:
    """It has no magic, and processes of that release may have it open."""
    fdbqueue.open(f"embedded:{path}").close()
    overwrite(path, MAGIC, 0)
    overwrite(path, EPOCH, 1_000)
    with fdbqueue.open(f"embedded:{path}") as db:
        db[b"a"] = b"1"
    with open(path / "commits.1", "rb") as file:
        assert int.from_bytes(file.read(8), "little") > 1_000


def test_a_removed_directory_can_be_closed_with_a_flush_due(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal that it would flush is gone."""
    monkeypatch.setattr(durability, "FLUSH_SOON_S", PATIENCE_S)
    with fdbqueue.open(f"embedded:{path}?durability=soon") as db:
        db[b"a"] = b"1"
        shutil.rmtree(path)


# -- opening without room -------------------------------------------------------------------------------


def test_the_lock_file_has_room_before_it_is_mapped(path: Path) -> None:
    """Without room at its first access, a hole in it kills the process."""
    with fdbqueue.open(f"embedded:{path}"):
        status = os.stat(path / "lock.mdb")
    assert status.st_blocks * 512 >= status.st_size == 64 * 4096 + 128


def test_a_lock_file_that_is_a_hole_gets_its_room(path: Path) -> None:
    """A restored backup may have holes."""
    fdbqueue.open(f"embedded:{path}").close()
    os.truncate(path / "lock.mdb", 0)
    os.truncate(path / "lock.mdb", 64 * 4096 + 128)
    with fdbqueue.open(f"embedded:{path}") as db:
        status = os.stat(path / "lock.mdb")
        db[b"a"] = b"1"
    assert status.st_blocks * 512 >= status.st_size


TOLD = 42


def told_in_child(first: fdbqueue.Database, gone: fdbqueue.Database, last: fdbqueue.Database) -> int:
    """Write to all three; return TOLD if only the middle one refuses, to read and to write."""
    first[b"a"] = last[b"a"] = b"child"
    refused = 0
    for use in (lambda: gone[b"a"], lambda: gone.set(b"a", b"2"), lambda: gone.get_and_watch(b"a")):
        try:
            use()
        except StorageReplaced:
            refused += 1
    gone.close()
    return TOLD if refused == 3 else refused


@pytest.mark.parametrize("damage", [shutil.rmtree, moved, copied], ids=["removed", "moved", "replaced"])
def test_a_forked_child_is_told_which_directory_is_gone(tmp_path, damage):
    """Its other databases, opened before or after that one, have handles of the child's own."""
    with contextlib.ExitStack() as opened:
        first, gone, last = (
            opened.enter_context(fdbqueue.open(f"embedded:{tmp_path}/{name}"))
            for name in ("first", "gone", "last")
        )
        gone[b"a"] = b"1"
        damage(tmp_path / "gone")
        child = os.fork()
        if child == 0:
            try:
                os._exit(told_in_child(first, gone, last))
            finally:
                os._exit(1)  # an error must not go on as a second pytest
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == TOLD
        assert first[b"a"] == last[b"a"] == b"child"
