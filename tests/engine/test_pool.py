"""Processes that commit for each other: if one dies or stops, each commit is made once or never.

The test's own process is one of the askers. They count with atomic adds, so a commit made twice would show.
"""

import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.embedded import commit, directory, layout, writes
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.processes import BODY_BYTES_MAX, REQUESTS_MAX, Answer, Pool
from fdbqueue.embedded.writes import Flush
from tests.engine import programs
from tests.engine.running import Program, running
from tests.support import (
    COMMIT_UNKNOWN,
    NOT_COMMITTED,
    PATIENCE_S,
    Ageless,
    begin,
    commit_code,
    wait_until,
)

ONE = (1).to_bytes(8, "little")


A_WHILE_S = 0.15
"""Long enough for a wait to end by mistake."""


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    """Return a database of this process, with a slot in the pool."""
    with fdbqueue.open(f"embedded:{path}", runtime=Ageless()) as database:
        programs.take_a_slot(database.engine)
        yield database


@pytest.fixture
def pool(path: Path, db: fdbqueue.Database) -> Iterator[Pool]:  # noqa: ARG001  # it makes the directory
    """Return the pool as one more process sees it; by leading, it makes all others wait."""
    pool = Pool(Directory.open(str(path)), fdbqueue.RealRuntime())
    yield pool
    pool.close()


class Commit:
    """A commit in a thread of its own; `code` is its outcome."""

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


def asked(db, pool: Pool, key: bytes = b"ours") -> Commit:
    """A commit that this process has asked the others for; the pool leads, so none is made."""
    programs.lead(pool)
    made = Commit(counting(db, key))
    wait_until_asked(pool, 1)
    return made


@pytest.fixture
def asking(path: Path) -> Iterator[Callable[[str], Program]]:
    """Start a program that waits for a line before it asks."""
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
def test_a_killed_leader_neither_loses_nor_doubles_a_commit(path, db, pool, asking, moment, committed):
    """The askers learn its outcome, or commit themselves."""
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


def test_a_request_of_a_killed_asker_is_dropped(path, db, pool, asking):
    """It is dropped by the next commit, however late; and the slot is free for another process."""
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


def test_a_request_of_a_dead_asker_is_examined_once(db, pool, asking):
    """Later leaders do not test the slot again."""
    victim = asking("victim")
    programs.lead(pool)
    victim.go()
    wait_until_asked(pool, 1)
    victim.kill()
    pool.resign()
    assert commit_code(counting(db)) == 0
    assert not pool.is_owed


def test_a_stopped_leader_holds_up_all_commits(path, db, pool, asking):
    """They go on when it goes on: a stopped leader cannot be told from a slow one."""
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


def test_a_stopped_leader_that_is_killed_holds_up_no_commit(path, db, pool):
    with running("lead_until_told", path) as leader:
        leader.expect("leading")
        leader.process.send_signal(signal.SIGSTOP)
        ours = Commit(counting(db))
        wait_until_asked(pool, 1)
        leader.kill()
        assert ours.result() == 0
    assert count(db, b"both") == 1


def stopped_asker(pool, asking):
    """Another process, which has stopped after it has asked for a commit. No process leads."""
    other = asking("other")
    programs.lead(pool)
    other.go()
    wait_until_asked(pool, 1)
    other.process.send_signal(signal.SIGSTOP)
    pool.resign()
    return other


def test_a_stopped_asker_holds_up_no_commit(db, pool, asking):
    """Its request is committed once in the meantime, and it finds the answer after later commits."""
    other = stopped_asker(pool, asking)
    for _ in range(100):
        assert commit_code(counting(db)) == 0
    assert count(db, b"other") == 1
    other.process.send_signal(signal.SIGCONT)
    assert other.line().split()[0].isdigit()
    assert [count(db, key) for key in (b"other", b"both")] == [1, 101]


def test_a_leader_whose_commit_may_wait_flushes_for_others(db, pool, asking, monkeypatch):
    """The other process has asked for a durable commit, and its call returns."""
    other = stopped_asker(pool, asking)
    durability, flushed = db.engine._store.committer._batches._durability, []
    write = durability.write
    monkeypatch.setattr(
        durability, "write", lambda entry, flush: (flushed.append(flush), write(entry, flush))
    )
    tr = counting(db)
    tr.options.set_durability_risky()
    assert commit_code(tr) == 0
    other.process.send_signal(signal.SIGCONT)
    assert other.line().split()[0].isdigit()
    assert flushed == [Flush.NOW]
    assert count(db, b"both") == 2


def test_an_interrupted_asker_knows_that_its_commit_is_decided(path, db, pool):
    """A request that is not committed when the interrupt is raised is never committed."""
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


def test_the_answers_of_a_batch_keep_the_order_of_its_requests(db, pool):
    """One process asks for three commits at once, and the second one is refused."""
    trs = [begin(db) for _ in range(3)]
    trs[1][b"read"].wait()
    db[b"read"] = b"1"
    for number, tr in enumerate(trs):
        tr[b"k%d" % number] = b"1"
    requests = [tr._request() for tr in trs]
    programs.lead(pool)
    asking = threading.Thread(target=db.engine._store.committer.commit_all, args=(requests,))
    asking.start()
    wait_until_asked(pool, 1)
    pool.resign()
    asking.join(PATIENCE_S)
    assert [one.error and one.error.code for one in requests] == [None, NOT_COMMITTED, None]
    assert [requests[0].order, requests[2].order] == [0, 1]
    assert [db[b"k%d" % number] for number in range(3)] == [b"1", None, b"1"]


def test_a_batch_that_is_too_large_for_a_slot_is_committed(db, pool):
    """For large transactions, and for too many of them, the process waits to lead itself."""
    large = db.create_transaction()
    large[b"large"] = b"v" * 90_000
    large[b"larger"] = b"v" * (BODY_BYTES_MAX - 90_000)
    programs.lead(pool)
    commits = [Commit(large)]
    wait_until(lambda: db.engine._store.committer._batch)
    commits += [Commit(counting(db)) for _ in range(REQUESTS_MAX + 1)]
    wait_until(lambda: len(db.engine._store.committer._waiting) == REQUESTS_MAX + 1)
    pool.resign()
    assert {one.result() for one in commits} == {0}
    assert count(db, b"both") == REQUESTS_MAX + 1


def test_a_child_forked_in_a_commit_holds_up_no_commit(path, db):
    """The parent closes the database and dies while it leads; its live child keeps no lock of the parent."""
    with running("fork_while_leading", path) as parent:
        parent.expect("leading")
        parent.process.kill()
        parent.process.wait()
        assert Commit(counting(db)).result() == 0


def test_a_child_forked_in_a_commit_keeps_no_descriptor(path, db, pool):
    """The dead parent led, had a slot and watched: none of its locks and sockets lives on in its child."""
    ours = slots_taken(pool)
    with running("fork_while_leading_and_watching", path, "bell") as parent:
        parent.expect("leading")
        parent.process.kill()
        parent.process.wait()
        assert Commit(counting(db)).result() == 0
        wait_until(lambda: slots_taken(pool) == ours)
        board = directory.LockFile(Directory.open(str(path / "doorbells")), "board")
        assert not any(board.is_locked(slot) for slot in range(10))
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringer,
            pytest.raises(ConnectionRefusedError),
        ):
            ringer.sendto(b"!", str(path / "doorbells" / "0"))
        board.close()


def test_a_child_forked_in_a_commit_keeps_no_file_of_the_journal(path):
    """The frames of the leading thread, which the child does not have, still refer to it."""
    with running("count_journals_of_a_child", path) as program:
        of_parent, of_child = int(program.line()), int(program.line())
    assert of_parent > 0
    assert of_child < of_parent


def test_a_byte_lock_ends_while_a_map_of_the_file_lives(tmp_path):
    """A map duplicates the descriptor of its file; the duplicate must not keep the locks."""
    file, other = (directory.LockFile(Directory.open(str(tmp_path)), "file") for _ in range(2))
    mapped = file.map(4096)
    assert file.try_lock(0)
    assert not other.try_lock(0)
    file.close()
    assert other.try_lock(0)
    mapped.close()


def slots_taken(pool: Pool) -> list[int]:
    return [slot for slot in range(256) if pool._lock_file.is_locked((1 << 40) + slot)]


def test_an_answer_missing_in_the_log_is_an_unknown_result(db, pool):
    """A leader died, and its commit was trimmed from the log before another process led."""
    for number in range(3):
        db[b"a"] = b"%d" % number
    trim_the_log(db)
    ours = asked(db, pool)
    pool.note_committing(1)
    pool.resign()
    assert ours.result() == COMMIT_UNKNOWN
    assert commit_code(counting(db)) == 0


def test_a_request_of_a_closed_database_has_an_unknown_result(path, db, pool):
    """Another process may have taken its slot, and then the answer there is not its own."""
    assert commit_code(counting(db)) == 0
    ours = asked(db, pool)
    db.close()
    pool.take_slot()
    pool.resign()
    assert ours.result() == COMMIT_UNKNOWN
    with fdbqueue.open(f"embedded:{path}") as again:
        assert count(again, b"both") == 1


def test_a_wait_lasts_until_its_leader_resigns(path, db, pool):  # noqa: ARG001  # the database makes the directory
    """A wait that returns at once would keep a processor busy."""
    other = Pool(Directory.open(str(path)), fdbqueue.RealRuntime())
    programs.lead(pool)
    assert not other.try_lead()
    waiting = threading.Thread(target=other.wait, daemon=True)
    waiting.start()
    waiting.join(A_WHILE_S)
    assert waiting.is_alive()
    pool.resign()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    other.close()


def test_a_wait_that_fails_is_an_unknown_result(db, pool, monkeypatch):
    """The request is not committed later, when this process leads."""

    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    programs.lead(pool)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "wait", no_locks)
        assert commit_code(counting(db)) == COMMIT_UNKNOWN
    pool.resign()
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 1


def test_a_broken_request_fails_no_other_request(db, pool, asking):
    """It may lack room for its writes, or have bytes that cannot be decoded."""
    other = asking("other")
    programs.lead(pool)
    pool.take_slot()
    assert pool.ask(b"what nobody can read")
    ours = Commit(counting(db))
    other.go()
    wait_until_asked(pool, 3)
    pool.resign()
    assert ours.result() == 0
    assert other.line().split()[0].isdigit()
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 3


def test_a_failure_after_a_commit_does_not_repeat_it(db, pool, asking, monkeypatch):
    """The askers learn the outcome from the log."""

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


def test_an_answer_that_no_asker_waits_for_is_dropped(db, pool):
    """A later asker does not take it for its own."""
    for number in range(3):
        db[b"a"] = b"%d" % number
    programs.lead(pool)
    pool.note_committing(1)
    pool.resign()
    assert commit_code(counting(db)) == 0
    trim_the_log(db)
    ours = asked(db, pool)
    pool.resign()
    assert ours.result() == 0


def test_an_answer_given_twice_revives_no_dropped_request(path, pool):
    """A successor repeats the answers of a dead leader, and the slot may have had another request since."""
    asker = Pool(Directory.open(str(path)), fdbqueue.RealRuntime())
    programs.lead(asker)
    asker.take_slot()
    asker.resign()
    asker.ask(b"first")
    programs.lead(pool)
    answers = [Answer(asked.slot, asked.number, [0]) for asked in pool.pending()]
    pool.answer(1, answers)
    pool.resign()
    assert asker.answered(1) == (1, [0])
    asker.ask(b"second")
    asker.withdraw()
    programs.lead(pool)
    pool.answer(1, answers)
    assert list(pool.pending()) == []
    pool.resign()
    asker.close()


@pytest.mark.parametrize("ahead", [1, 2, 1_000])
def test_a_note_of_an_uncommitted_version_answers_no_request(db, pool, ahead):
    """A power cut or a backup leaves such a note; so does a leader that died before its commit."""
    assert commit_code(counting(db)) == 0
    tr = begin(db)
    newest = tr.get_read_version().wait()
    ours = asked(db, pool)
    pool.note_committing(newest + ahead)
    pool.resign()
    assert ours.result() == 0
    assert commit_code(counting(db)) == 0
    assert count(db, b"both") == 3


def test_a_copy_of_a_directory_in_use_has_nothing_pending(path, db, pool, tmp_path):
    """Its askers do not use the copy: their requests are not committed there, and hold up no commit."""
    assert commit_code(counting(db)) == 0
    ours = asked(db, pool)
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


def test_without_room_for_the_pool_each_process_commits_alone(path, monkeypatch):
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


# A batch has a bound: a leader leaves the requests behind it to the next one.


@pytest.mark.parametrize("epochs_passed", [0, 1])
def test_a_leader_finishes_its_own_requests_in_any_epoch(
    db: fdbqueue.Database, pool: Pool, monkeypatch: pytest.MonkeyPatch, epochs_passed: int
) -> None:
    """With each epoch another slot comes first, but its caller waits for this batch."""
    programs.lead(pool)
    pool.take_slot()
    body = writes.encode([counting(db, b"theirs")._request()])
    assert pool.ask(body)
    monkeypatch.setattr(commit, "BATCH_BYTES_MAX", len(body))
    for _ in range(epochs_passed):
        pool.resign()
        programs.lead(pool)
    ours = Commit(counting(db, b"ours.."))
    wait_until_asked(pool, 2)
    pool.resign()
    assert ours.result() == 0
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


def test_random_kills_neither_lose_nor_double_a_commit(db, asking, rounds):
    """Six processes count in one key as fast as they can; each acknowledged count is stored once."""
    moments = random.Random(4)
    acknowledged = 0
    for attempt in range(rounds(1, 30)):
        crew = [asking(f"{attempt}-{number}", 1_000_000) for number in range(6)]
        for program in crew:
            program.go()
        said = {program: [program.line() for _ in range(5)] for program in crew}
        for program in crew:
            threading.Event().wait(moments.random() * 0.02)
            said[program] += program.kill()
        # LMDB shows the commit of a killed writer with the next write, at the latest.
        db[b"afterwards"] = b"1"
        for number, program in enumerate(crew):
            counted = count(db, f"{attempt}-{number}".encode())
            whole = [line for line in said[program] if len(line.split()) == 2 and len(line.split()[1]) == 20]
            assert len(whole) <= counted <= len(said[program]) + 1
            acknowledged += counted
    assert count(db, b"both") == acknowledged
