"""Checkpoints go on beside commits, fail without harm, and keep the journal small."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import directory, durability, journal, processes
from fdbqueue.embedded.directory import SYSTEM, Directory
from fdbqueue.embedded.durability import Base, BrokenChain, Checkpoints, Held
from tests.support import PATIENCE_S

GENERATION_BYTES = 1_000
COMMITS = 30
"""They fill several generations."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GENERATION_BYTES_MAX", GENERATION_BYTES)
    monkeypatch.setattr(journal, "_ZEROS_BYTES", GENERATION_BYTES)


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{path}") as opened:
        yield opened


def commit(db: fdbqueue.Database, count: int = COMMITS, name: str = "key") -> dict[bytes, bytes]:
    written = {f"{name} {number}".encode(): b"%d" % number for number in range(count)}
    for key, value in written.items():
        db[key] = value
    return written


def held(path: Path) -> Held:
    """The state of the base."""
    directory = Directory.open(str(path))
    try:
        with durability.opened(directory, SYSTEM) as base:
            return base.held()
    finally:
        directory.close()


def after_a_power_cut(path: Path) -> dict[bytes, bytes]:
    (path / "in-use").write_bytes(b"another boot")
    with fdbqueue.open(f"embedded:{path}") as db:
        return {row.key: row.value for row in db.get_range(b"", b"\xff")}


class Slow:
    """A checkpoint that waits in its middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        add = Base.add

        def slow(*given: Any) -> None:
            self.begun.set()
            assert self.may_end.wait(PATIENCE_S)
            add(*given)

        monkeypatch.setattr(Base, "add", slow)


def started(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def broken(monkeypatch: pytest.MonkeyPatch, error: int) -> pytest.MonkeyPatch:
    def fail(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Base, "add", fail)
    return monkeypatch


def test_commits_go_on_beside_a_checkpoint(
    db: fdbqueue.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    making = started(lambda: commit(db, name="maker"))
    assert slow.begun.wait(PATIENCE_S)

    commit(db, name="beside")  # the second generation is full, too: it grows

    slow.may_end.set()
    making.join(PATIENCE_S)
    db.close()
    assert len(after_a_power_cut(path)) == 2 * COMMITS


def test_the_journal_stays_within_its_bound(db: fdbqueue.Database, path: Path) -> None:
    largest = 0
    for _ in range(5):
        commit(db)
        largest = max(largest, *((path / name).stat().st_size for name in journal.FILES))

    assert largest <= 4 * GENERATION_BYTES
    assert held(path).version > 4 * COMMITS


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_checkpoint_that_fails_keeps_the_base(
    db: fdbqueue.Database, path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    before, written = held(path), {}
    with monkeypatch.context() as patched:
        broken(patched, error)
        for number in range(COMMITS):
            try:
                written |= commit(db, 1, f"{number}")
            except fdbqueue.StorageFull:
                break
        assert held(path) == before
    written |= commit(db, name="after the fault")

    assert held(path) > before
    db.close()
    assert after_a_power_cut(path) == written


def test_a_broken_chain_renews_the_journal(
    db: fdbqueue.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that later ones rely on is missing, and LMDB's file has its writes."""

    def missing(*_: object) -> None:
        raise BrokenChain

    before = held(path)
    with monkeypatch.context() as patched:
        patched.setattr(Base, "add", missing)
        written = commit(db, name="before")
    assert held(path).version > before.version, "all data are copied"
    written |= commit(db, name="behind")
    db.close()
    assert after_a_power_cut(path) == written


def test_the_journal_keeps_its_bound_beside_a_base_made_again(path: Path) -> None:
    """The new base begins behind all generations that are in the files."""
    with fdbqueue.open(f"embedded:{path}") as db:
        written = commit(db) | commit(db, name="more")
    (path / durability.FILE).unlink()
    with fdbqueue.open(f"embedded:{path}") as db:
        for number in range(5):
            written |= commit(db, name=f"later {number}")
        largest = max((path / name).stat().st_size for name in journal.FILES)

    assert largest <= 4 * GENERATION_BYTES
    assert after_a_power_cut(path) == written


def test_a_checkpoint_removes_what_was_cleared(db: fdbqueue.Database, path: Path) -> None:
    written = commit(db) | commit(db, name="more")
    del db[b"key 7"]
    db.clear_range(b"key 2", b"key 3")
    left = {k: v for k, v in written.items() if k != b"key 7" and not b"key 2" <= k < b"key 3"}
    left |= commit(db, name="later")
    db.close()

    assert after_a_power_cut(path) == left


def test_each_kind_of_write_survives_a_power_cut(db: fdbqueue.Database, path: Path) -> None:
    """A record of the journal tells the result of each write."""
    one, template = (1).to_bytes(8, "little"), bytes(10) + (1).to_bytes(4, "little")
    for key in (b"cleared", b"compared", b"range 1", b"range 2", b"sum"):
        db[key] = one
    tr = db.create_transaction()
    tr.clear(b"cleared")
    tr.compare_and_clear(b"compared", one)
    tr.clear_range(b"range", b"rangf")
    tr[b"range 2"] = b"2"
    tr.add(b"sum", one)
    tr[b"long" * 500] = b"v" * 1_000
    tr.set_versionstamped_key(b"k" + template, b"key")
    tr.set_versionstamped_value(b"stamp", b"v" + template)
    tr.options.set_next_write_no_write_conflict_range()
    tr[b"silent"] = b"1"
    tr.commit().wait()
    stored = {row.key: row.value for row in db.get_range(b"", b"\xff")}
    db.close()
    assert len(stored) == 6
    assert after_a_power_cut(path) == stored


def test_a_base_grows_beyond_its_map(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAP_BYTES_FIRST", 1 << 20)
    written = {b"key %d" % number: b"v" * 90_000 for number in range(30)}
    with fdbqueue.open(f"embedded:{path}") as db:
        for key, value in written.items():
            db[key] = value

    assert after_a_power_cut(path) == written


def test_the_next_process_makes_the_checkpoint_of_a_dead_one(
    db: fdbqueue.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(path)
    child = os.fork()
    if not child:
        monkeypatch.setattr(Base, "add", lambda *_: os._exit(0))
        commit(db, name="dead")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert held(path) == before

    commit(db)
    assert held(path).version > before.version
    db.close()
    there = after_a_power_cut(path)
    assert len(there) > COMMITS
    assert b"dead 0" in there


def test_one_process_at_a_time_makes_checkpoints(db: fdbqueue.Database, path: Path) -> None:
    directory = Directory.open(str(path))
    other = processes.Users(directory, RealRuntime())
    other.begin_checkpoint()
    before = held(path)
    commit(db)
    assert held(path) == before

    other.end_checkpoint()
    commit(db)
    assert held(path) > before
    other.close()
    directory.close()


def test_closing_waits_for_the_end_of_a_checkpoint(
    db: fdbqueue.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are opened below the descriptor of the directory, which another file could get."""
    slow = Slow(monkeypatch)
    closes, close = threading.Event(), Checkpoints.close

    def noted(checkpoints: Checkpoints) -> None:
        closes.set()
        close(checkpoints)

    def work() -> None:
        with pytest.raises(fdbqueue.DatabaseClosed):
            commit(db)

    monkeypatch.setattr(Checkpoints, "close", noted)
    making = started(work)
    assert slow.begun.wait(PATIENCE_S)
    descriptor = db.engine._store.directory.fd
    closing = started(db.close)
    assert closes.wait(PATIENCE_S)
    assert closing.is_alive()
    assert os.path.samestat(os.fstat(descriptor), os.stat(path))

    slow.may_end.set()
    for thread in (making, closing):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert b"key 0" in after_a_power_cut(path)
