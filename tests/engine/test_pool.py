"""Processes that commit for each other: whoever dies or stops when, each commit is made once or never.

The test's own process is one of those who ask. It counts with atomic adds: twice would show.
"""

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.embedded import bytelocks, layout
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.pool import BODY_BYTES_MAX, REQUESTS_MAX, Pool
from tests.engine import programs
from tests.engine.running import Program, running, wait_until
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED, PATIENCE_S, Ageless, begin, commit_code

ONE = (1).to_bytes(8, "little")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    """A database of this process, which has a seat."""
    with fdbqueue.open(f"embedded:{path}", runtime=Ageless()) as database:
        programs.take_a_seat(database.engine)
        yield database


@pytest.fixture
def pool(path: Path, db: fdbqueue.Database) -> Iterator[Pool]:  # noqa: ARG001  # it makes the directory
    """What one more process sees, which can keep all others waiting by leading."""
    pool = Pool(Directory.open(str(path)), fdbqueue.RealRuntime())
    yield pool
    pool.close()


class Commit:
    """A commit in a thread of its own; `code` is what came of it."""

    def __init__(self, tr) -> None:
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(tr,), daemon=True)
        self._thread.start()

    def _run(self, tr) -> None:
        self.code = commit_code(tr)

    def result(self) -> int | None:
        self._thread.join(PATIENCE_S)
        return self.code


def counting(db, key: bytes = b"ours"):
    tr = db.create_transaction()
    tr.add(key, ONE)
    tr.add(b"both", ONE)
    return tr


def count(db, key: bytes) -> int:
    value = db[key]
    return int.from_bytes(value, "little") if value is not None else 0


def wait_until_asked(pool: Pool, requests: int) -> None:
    wait_until(lambda: sum(a != b for a, b in zip(pool._asked, pool._answered, strict=True)) == requests)


@pytest.fixture
def asking(path: Path) -> Iterator[Callable[[str], Program]]:
    """Start a program that asks when it is told to."""
    with ExitStack() as programs_:

        def start(key: str, times: int = 1) -> Program:
            program = programs_.enter_context(running("ask", path, key, times))
            program.expect("ready")
            return program

        yield start


@pytest.mark.parametrize(
    ("moment", "committed"),
    [
        ("looks", False),
        ("commits", False),
        ("has noted that it commits", False),
        ("answers", True),
        ("has answered one of two", True),
        ("resigns", True),
    ],
)
def test_a_leader_killed_at_any_moment_costs_no_commit_and_doubles_none(
    path, db, pool, asking, moment, committed
):
    """Those who asked it learn what it did, or do it themselves."""
    other = asking("other")
    with running("lead_and_die", path, moment) as leader:
        leader.expect("leading")
        ours = Commit(counting(db))
        other.go()
        wait_until_asked(pool, 2)
        leader.go()
        assert ours.result() == 0
        assert other.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"ours", b"other", b"both")] == [1, 1, 2]
    assert (db[b"leader"] is not None) == committed


def test_a_killed_asker_is_passed_over(path, db, pool, asking):
    """However long it has been dead when somebody commits; and its seat is free for another."""
    victim = asking("victim")
    with running("lead_until_told", path) as leader:
        leader.expect("leading")
        victim.go()
        wait_until_asked(pool, 1)
        victim.kill()
        ours = Commit(counting(db))
        wait_until_asked(pool, 2)
        leader.go()
        leader.expect("done")
        assert ours.result() == 0
    successor = asking("successor")
    successor.go()
    assert successor.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"ours", b"victim", b"successor", b"both")] == [1, 0, 1, 2]


def test_what_the_dead_asked_is_looked_at_once(db, pool, asking):
    """Not by every leader from then on, until somebody takes the seat."""
    victim = asking("victim")
    programs.lead(pool)
    victim.go()
    wait_until_asked(pool, 1)
    victim.kill()
    pool.resign()
    assert commit_code(counting(db)) == 0
    assert not pool.is_owed


def test_a_stopped_leader_holds_all_up_until_it_goes_on(path, db, pool, asking):
    """As the holder of LMDB's writer lock always did: nobody can tell it from a slow one."""
    other = asking("other")
    with running("lead_until_told", path) as leader:
        leader.expect("leading")
        leader.process.send_signal(signal.SIGSTOP)
        leader.go()
        ours = Commit(counting(db))
        other.go()
        wait_until_asked(pool, 2)
        leader.process.send_signal(signal.SIGCONT)
        assert ours.result() == 0
        assert other.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"ours", b"other", b"both")] == [1, 1, 2]


def test_a_stopped_leader_that_is_killed_holds_nobody_up(path, db, pool):
    with running("lead_until_told", path) as leader:
        leader.expect("leading")
        leader.process.send_signal(signal.SIGSTOP)
        ours = Commit(counting(db))
        wait_until_asked(pool, 1)
        leader.kill()
        assert ours.result() == 0
    assert count(db, b"both") == 1


def test_a_stopped_asker_holds_nobody_up_and_finds_its_answer(db, pool, asking):
    """It is committed for it meanwhile, once, however much is committed after it."""
    other = asking("other")
    programs.lead(pool)
    other.go()
    wait_until_asked(pool, 1)
    other.process.send_signal(signal.SIGSTOP)
    pool.resign()
    for _ in range(100):
        assert commit_code(counting(db)) == 0
    assert count(db, b"other") == 1
    other.process.send_signal(signal.SIGCONT)
    assert other.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"other", b"both")] == [1, 101]


def test_an_interrupted_asker_knows_that_its_commit_is_decided(path, db, pool):
    """What was not committed when the interrupt is raised never will be."""
    with running("ask_and_be_interrupted", path, "k") as asker:
        asker.expect("ready")
        programs.lead(pool)
        asker.go()
        wait_until_asked(pool, 1)
        asker.process.send_signal(signal.SIGALRM)
        pool.resign()
        said = asker.line()
        assert said in ("interrupted None", "interrupted b'1'")
        db[b"later"] = b"1"
        assert asker.line() == said.replace("interrupted", "afterwards")


def test_what_is_committed_together_has_one_version_and_stamps_in_order(db, pool, asking):
    others = [asking(f"k{number}") for number in range(3)]
    programs.lead(pool)
    for other in others:
        other.go()
    wait_until_asked(pool, 3)
    pool.resign()
    said = [other.line().split() for other in others]
    assert len({version for version, _ in said}) == 1
    assert len({stamp for _, stamp in said}) == 3
    assert {int(stamp[16:], 16) for _, stamp in said} == {0, 1, 2}
    assert count(db, b"both") == 3


def test_one_that_conflicts_is_refused_alone(db, pool, asking):
    other = asking("other")
    tr = begin(db)
    tr[b"both"].wait()
    tr[b"refused"] = b"1"
    programs.lead(pool)
    other.go()
    wait_until_asked(pool, 1)
    pool.resign()
    other.line()
    assert commit_code(tr) == NOT_COMMITTED
    assert db[b"refused"] is None


def all_kinds_of_writes(db, tr) -> None:
    """Whatever a transaction can hold, to be carried to another process."""
    for key in (b"cleared", b"in range 1", b"in range 2"):
        db[key] = b"1"
    begin_, end = b"in range", b"in rangf"
    tr.snapshot[b"x"].wait()
    tr.add_read_conflict_range(b"r", b"s")
    tr.add_write_conflict_key(b"w")
    tr.clear(b"cleared")
    tr.clear_range(begin_, end)
    tr[b"in range 2"] = b"2"
    tr[b"long" * 500] = b"v" * 1_000
    tr.add(b"sum", ONE)
    tr.byte_max(b"sum", ONE)
    tr.compare_and_clear(b"nothing", b"1")
    tr.set_versionstamped_key(b"stamped" + bytes(10) + (7).to_bytes(4, "little"), b"key")
    tr.set_versionstamped_value(b"stamp", bytes(14))
    tr.options.set_next_write_no_write_conflict_range()
    tr[b"silent"] = b"1"


def test_everything_that_a_transaction_writes_arrives_from_another_process(path, db, pool):
    """As if it had committed itself."""
    tr = db.create_transaction()
    all_kinds_of_writes(db, tr)
    with running("lead_until_told", path) as leader:
        leader.expect("leading")
        commit = Commit(tr)
        wait_until_asked(pool, 1)
        leader.go()
        leader.expect("done")
        assert commit.result() == 0
    stamp = tr.get_committed_version().to_bytes(8, "big") + b"\x00\x00"
    found = {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}
    assert found == {
        b"in range 2": b"2",
        b"leader": b"was here",
        b"long" * 500: b"v" * 1_000,
        b"silent": b"1",
        b"stamp": stamp,
        b"stamped" + stamp: b"key",
        b"sum": ONE,
    }


def test_what_is_too_much_for_a_seat_is_committed_all_the_same(db, pool):
    """Large transactions, and more threads than one asks for: the process waits to lead itself."""
    large = db.create_transaction()
    large[b"large"] = b"v" * 90_000
    large[b"larger"] = b"v" * (BODY_BYTES_MAX - 90_000)
    programs.lead(pool)
    commits = [Commit(large)]
    wait_until(lambda: db.engine._store.committer._batch)
    commits += [Commit(counting(db)) for _ in range(REQUESTS_MAX + 1)]
    wait_until(lambda: len(db.engine._store.committer._waiting) == REQUESTS_MAX + 1)
    pool.resign()
    assert {commit.result() for commit in commits} == {0}
    assert count(db, b"both") == REQUESTS_MAX + 1


def test_a_child_keeps_nothing_of_its_dead_parents(path, pool):
    """Else its seat would be taken for ever, and what it asked last would be committed by whoever comes."""
    with running("take_a_seat_and_fork", path) as parent:
        seat = int(parent.line())
        before = len(seats_taken(pool))
        parent.process.send_signal(signal.SIGKILL)
        parent.process.wait()
        assert seat in range(256)
        wait_until(lambda: len(seats_taken(pool)) == before - 1)


@pytest.mark.parametrize("ending", ["open", "closed"])
def test_a_child_forked_in_a_commit_holds_nobody_up(path, db, ending):
    """The parent dies while it leads; its child lives on, and keeps no lock of it."""
    with running("fork_while_leading", path, ending) as parent:
        parent.expect("leading")
        parent.process.send_signal(signal.SIGKILL)
        parent.process.wait()
        assert Commit(counting(db)).result() == 0


def test_the_lock_on_a_byte_ends_although_a_map_lives_on(tmp_path):
    """A map duplicates the descriptor that it is made of; the duplicate must not keep the locks."""
    file, other = (bytelocks.LockFile(Directory.open(str(tmp_path)), "file") for _ in range(2))
    mapped = file.map(4096)
    assert bytelocks.try_lock(file.fd, 0)
    assert not bytelocks.try_lock(other.fd, 0)
    file.close()
    assert bytelocks.try_lock(other.fd, 0)
    mapped.close()


def seats_taken(pool: Pool) -> list[int]:
    return [seat for seat in range(256) if bytelocks.is_locked(pool._fd, (1 << 40) + seat)]


def test_an_answer_that_nobody_knows_any_more_is_an_unknown_result(db, pool):
    """A leader died; and before anybody missed it, the log was trimmed beyond its commit."""
    for number in range(3):
        db[b"a"] = b"%d" % number
    trim_the_log(db)
    programs.lead(pool)
    ours = Commit(counting(db))
    wait_until_asked(pool, 1)
    pool.note_committing(1)
    pool.resign()
    assert ours.result() == COMMIT_UNKNOWN
    assert commit_code(counting(db)) == 0


def test_what_is_asked_when_the_database_is_closed_has_an_unknown_result(path, db, pool):
    """Its seat may be another's before it sees the answer, which is then not its own."""
    assert commit_code(counting(db)) == 0
    programs.lead(pool)
    ours = Commit(counting(db))
    wait_until_asked(pool, 1)
    db.close()
    pool.take_seat()
    pool.resign()
    assert ours.result() == COMMIT_UNKNOWN
    with fdbqueue.open(f"embedded:{path}") as again:
        assert count(again, b"both") == 1


def test_an_answer_that_cannot_be_waited_for_is_an_unknown_result(db, pool, monkeypatch):
    """And what was asked is not made later, when this process next leads."""

    def no_locks(_: Pool) -> None:
        raise OSError("no locks available")

    programs.lead(pool)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "wait", no_locks)
        assert commit_code(counting(db)) == COMMIT_UNKNOWN
    pool.resign()
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 1


def test_a_request_that_cannot_be_done_fails_nobody_else(db, pool, asking):
    """Whatever is wrong with it: no room for what it writes, or nobody can read it."""
    other = asking("other")
    programs.lead(pool)
    pool.take_seat()
    assert pool.ask(b"what nobody can read")
    ours = Commit(counting(db))
    other.go()
    wait_until_asked(pool, 3)
    pool.resign()
    assert ours.result() == 0
    assert other.line().split()[0].isdigit()
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 3


def test_what_fails_after_a_commit_does_not_have_it_made_again(db, pool, asking, monkeypatch):
    """Those who have asked learn from the log what became of it."""

    answer = Pool.answer

    def fail_once(*_: object) -> None:
        monkeypatch.setattr(Pool, "answer", answer)
        raise RuntimeError("after the commit")

    other = asking("other")
    programs.lead(programs.pool_of(db.engine))
    other.go()
    wait_until_asked(pool, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "try_lead", lambda _: True)  # it does
        monkeypatch.setattr(Pool, "answer", fail_once)
        with pytest.raises(RuntimeError):
            counting(db).commit().wait()
    assert other.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"ours", b"other", b"both")] == [1, 1, 2]


def test_an_answer_that_nobody_waits_for_any_more_is_forgotten(db, pool):
    """It is not taken for that of somebody who asks later."""
    for number in range(3):
        db[b"a"] = b"%d" % number
    programs.lead(pool)
    pool.note_committing(1)
    pool.resign()
    assert commit_code(counting(db)) == 0
    trim_the_log(db)
    programs.lead(pool)
    ours = Commit(counting(db))
    wait_until_asked(pool, 1)
    pool.resign()
    assert ours.result() == 0


@pytest.mark.parametrize("ahead", [1, 2, 1_000])
def test_a_note_of_a_version_that_was_never_committed_answers_nobody(db, pool, ahead):
    """Left by a power cut or in a backup, or by a leader whose transaction another process then made."""
    assert commit_code(counting(db)) == 0
    tr = begin(db)
    newest = tr.get_read_version().wait()
    programs.lead(pool)
    ours = Commit(counting(db))
    wait_until_asked(pool, 1)
    pool.note_committing(newest + ahead)
    pool.resign()
    assert ours.result() == 0
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 3


def test_a_copy_of_a_directory_in_use_has_nothing_pending(path, db, pool, tmp_path):
    """Whoever asked is not there: its request is not made in the copy, and is in nobody's way."""
    assert commit_code(counting(db)) == 0
    programs.lead(pool)
    ours = Commit(counting(db))
    wait_until_asked(pool, 1)
    shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("doorbells"))
    pool.resign()
    assert ours.result() == 0
    with fdbqueue.open(f"embedded:{tmp_path / 'copy'}") as copy:
        assert commit_code(counting(copy)) == 0
        assert count(copy, b"both") == 2
        assert not copy.engine._store.committer._pool.is_owed


def trim_the_log(db) -> None:
    with db.engine._store.begin(write=True) as txn:
        txn.delete(layout.log_key(1))
        txn.delete(layout.log_key(2))


def test_without_room_for_its_file_processes_commit_one_after_the_other(path, monkeypatch):
    def no_room(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with fdbqueue.open(f"embedded:{path}") as db, running("increment", path, "n", 20) as other:
        other.expect("ready")
        other.go()
        for _ in range(20):
            assert commit_code(counting(db)) == 0
        other.expect("done")
        assert (count(db, b"both"), db[b"n"]) == (20, b"20")


def test_processes_killed_at_random_lose_and_double_nothing(db, asking, rounds):
    """Six at a time count in one key as fast as they can; what was acknowledged is there, once."""
    moments = random.Random(4)
    acknowledged = 0
    for attempt in range(rounds(3, 30)):
        crew = [asking(f"{attempt}-{number}", 1_000_000) for number in range(6)]
        for program in crew:
            program.go()
        said = {program: [program.line() for _ in range(5)] for program in crew}
        for program in crew:
            threading.Event().wait(moments.random() * 0.02)
            said[program] += program.kill()
        # LMDB shows what a killed writer has committed at the latest when somebody writes.
        db[b"afterwards"] = b"1"
        for number, program in enumerate(crew):
            counted = count(db, f"{attempt}-{number}".encode())
            whole = [line for line in said[program] if len(line.split()) == 2 and len(line.split()[1]) == 20]
            assert len(whole) <= counted <= len(said[program]) + 1
            acknowledged += counted
    assert count(db, b"both") == acknowledged
