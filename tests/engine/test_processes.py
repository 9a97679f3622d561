"""One directory, many processes: no commit is lost or torn, and no process waits for a dead one."""

import errno
import os
import random
import stat
import tempfile
import threading
from contextlib import ExitStack

import pytest

import fdbqueue
from fdbqueue.core.errors import StorageInUse
from fdbqueue.embedded import directory, store
from tests.engine import programs
from tests.engine.running import in_turn, running
from tests.support import (
    NOT_COMMITTED,
    TOO_OLD,
    Ageless,
    becomes_ready,
    begin,
    commit_code,
    error_code,
    run_program,
    wait_until,
)


@pytest.fixture
def shared(path):
    """Open the directory in this process."""
    with fdbqueue.open(f"embedded:{path}", runtime=Ageless()) as database:
        yield database


def test_the_kernel_tells_which_processes_are_gone(path, shared):
    engine = shared.engine
    with running("tell_name", path) as program:
        name, child = bytes.fromhex(program.line()), bytes.fromhex(program.line())
        others = [name, child, engine.name_of_process()]
        assert len({*others}) == 3
        wait_until(lambda: [engine.is_gone(other) for other in others] == [False, True, False])
        program.kill()
        wait_until(lambda: engine.is_gone(name + b"and more"))
    assert [engine.is_gone(other) for other in (b"", name[:-1], b"another")] == [None, None, None]


def test_concurrent_increments_lose_none(path, shared, rounds):
    count = rounds(50, 500)
    with ExitStack() as stack:
        others = [stack.enter_context(running("increment", path, "n", count)) for _ in range(3)]
        for program in others:
            program.expect("ready")
        for program in others:
            program.go()
        for _ in range(count):
            increment(shared)
        for program in others:
            program.expect("done")
    assert shared[b"n"] == b"%d" % (4 * count)


def increment(db):
    tr = db.create_transaction()
    while True:
        tr[b"n"] = b"%d" % (int(tr[b"n"].value or b"0") + 1)
        code = commit_code(tr)
        if code == 0:
            return
        tr.on_error(code).wait()


def test_conflicts_are_found_across_processes(path, shared):
    with running("increment", path, "a", 1) as other:
        other.expect("ready")  # before the read: a start may take longer than a transaction may live
        tr = begin(shared)
        tr[b"a"].wait()
        other.go()
        other.expect("done")
        tr[b"b"] = b"1"
        assert commit_code(tr) == NOT_COMMITTED


def test_a_commit_is_seen_by_other_processes_at_once(path, shared):
    with running("write_together", path, "w") as writer:
        for _ in range(20):
            acknowledged = int(writer.line())
            assert int(shared[b"w" + programs.TOGETHER[0]]) >= acknowledged


def test_a_watch_set_in_one_process_fires_from_another(path, shared):
    """This process writes a key twenty times. Before each read the program waits for its watch alone."""
    with running("watch", path, "bell") as watcher:
        watcher.expect("saw None")
        for number in range(20):
            shared[b"bell"] = b"%d" % number
            watcher.expect(f"saw b'{number}'")


def test_a_watch_of_this_process_fires_from_another(path, shared):
    """A ring is only a hint to look: a watch of another key does not fire."""
    tr = shared.create_transaction()
    changed, elsewhere = tr.watch(b"w" + programs.TOGETHER[0]), tr.watch(b"elsewhere")
    tr.commit().wait()
    with running("write_together", path, "w") as writer:
        assert becomes_ready(changed)
        for _ in range(10):
            writer.line()
    assert not elsewhere.is_ready()


@pytest.mark.parametrize("writer", ["write_together", "write_together_in_threads"])
def test_a_killed_writer_loses_and_tears_nothing(path, writer, rounds):
    """After a kill at a random moment, each acknowledged transaction is stored, and none in part."""
    moments = random.Random(f"{writer} 1")
    total = 0
    for attempt in range(rounds(4, 25)):
        name = f"w{attempt}-"
        with running(writer, path, name) as program:
            said = [int(program.line()) for _ in range(moments.randrange(1, 40))]
            # The kill comes between two lines.
            threading.Event().wait(moments.random() * 0.01)
            said += [int(line) for line in program.kill() if line.isdigit()]
        with fdbqueue.open(f"embedded:{path}") as db:
            stored = check_together(db, name.encode())
            total += stored
            assert stored >= len(said)
            assert int.from_bytes(db[b"total"], "little") == total


def check_together(db, name):
    """Return the number of stored transactions of `name`, and check that each is whole."""
    total = 0
    for writer in [name, *(name + b"%d" % number for number in range(4))]:
        numbers = {bytes(db[writer + key] or b"0") for key in programs.TOGETHER}
        large = db[writer + b"large"]
        numbers.add(large.removesuffix(programs.LARGE) if large is not None else b"0")
        assert len(numbers) == 1, (writer, numbers)
        total += int(numbers.pop())
    return total


def test_a_killed_writer_leaves_nothing_locked(path, rounds):
    """Another process that writes meanwhile goes on writing."""
    moments = random.Random(3)
    with running("write_together", path, "survivor") as survivor:
        survivor.line()
        for attempt in range(rounds(3, 10)):
            with running("write_together_in_threads", path, f"victim{attempt}-") as victim:
                for _ in range(moments.randrange(1, 20)):
                    victim.line()
                victim.kill()
            numbers = [int(survivor.line()) for _ in range(50)]
            assert numbers == list(range(numbers[0], numbers[0] + 50))


def test_a_forked_child_gets_a_clean_handle(tmp_path):
    """Parent and child both go on reading, writing, watching, and see each other's commits."""
    printed = run_program(
        tmp_path,
        """
        import os
        import fdbqueue

        db = fdbqueue.open("embedded:data")
        db[b"a"] = b"parent"
        before = db.create_transaction()
        before[b"a"].wait()
        watching = db.create_transaction()
        changed = watching.watch(b"from child")
        watching.commit().wait()
        child = os.fork()
        if child == 0:
            assert db[b"a"] == b"parent"
            db[b"from child"] = b"1"
            for _ in range(50):
                db.add(b"count", b"\\x01\\x00")
            value, bell = db.get_and_watch(b"from parent")
            if not value.present():
                bell.wait()
            print("child", db[b"from parent"], flush=True)
            os._exit(0)
        changed.wait()
        print("parent", db[b"from child"], flush=True)
        for _ in range(50):
            db.add(b"count", b"\\x01\\x00")
        assert before[b"a"] == b"parent"
        db[b"from parent"] = b"2"
        _, status = os.waitpid(child, 0)
        print(status, int.from_bytes(db[b"count"], "little"))
        db.close()
        """,
    )
    assert printed == "parent b'1'\nchild b'2'\n0 100\n"


def test_a_forked_child_of_many_threads_is_not_locked(tmp_path):
    """After a fork in the middle of other threads' commits, the child has a database that works."""
    printed = run_program(
        tmp_path,
        """
        import os
        import threading
        import fdbqueue

        db = fdbqueue.open("embedded:data")
        stop = threading.Event()

        def work():
            while not stop.is_set():
                db.add(b"count", b"\\x01\\x00\\x00\\x00")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(10):
            child = os.fork()
            if child == 0:
                db[b"child"] = b"%d" % number
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0
            assert db[b"child"] == b"%d" % number
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
        """,
    )
    assert printed == "done\n"


def test_a_forked_child_shares_the_private_database(tmp_path):
    """Its files have no names, so the child opens them by their descriptors; its exit closes none of them."""
    printed = run_program(
        tmp_path,
        """
        import os
        import sys
        import fdbqueue

        db = fdbqueue.open("memory:")
        db[b"a"] = b"1"
        child = os.fork()
        if child == 0:
            db[b"b"] = db[b"a"] + b"2"
            db.close()
            sys.exit(0)
        os.waitpid(child, 0)
        db[b"c"] = db[b"b"] + b"3"
        print(db[b"c"])
        """,
    )
    assert printed == "b'123'\n"


def test_a_forked_child_that_ends_leaves_the_parents_snapshots(tmp_path):
    """The end of the child's interpreter frees no reader slot of the parent."""
    printed = run_program(
        tmp_path,
        """
        import os
        import sys
        import fdbqueue

        db = fdbqueue.open("embedded:data")
        for number in range(50):
            db[b"%02d" % number] = b"old" + b"v" * 10_000
        tr = db.create_transaction()
        tr.get_read_version().wait()
        child = os.fork()
        if child == 0:
            db[b"child"] = b"1"
            sys.exit(0)
        os.waitpid(child, 0)
        for turn in range(5):
            for number in range(50):
                db[b"%02d" % number] = b"new" + b"w" * 10_000
        rows = tr.get_range(b"0", b"9").to_list()
        print(len(rows), {row.value[:4] for row in rows}, db[b"child"])
        """,
    )
    assert printed == "50 {b'oldv'} b'1'\n"


def test_files_are_their_owners_only(path, shared):
    """Modes are 0600 in 0700, for each umask."""
    shared[b"a"] = b"1"
    for file in (path, *path.iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file


def test_contents_outlive_the_process(path):
    """After closing and opening, all keys are stored, and versions go on ascending."""
    with fdbqueue.open(f"embedded:{path}") as db:
        db[b"a"] = b"1"
        before = begin(db).get_read_version().wait()
    with fdbqueue.open(f"embedded:{path}") as db:
        assert db[b"a"] == b"1"
        assert begin(db).get_read_version().wait() >= before


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "data").write_text("something else")
    with pytest.raises(StorageInUse):
        fdbqueue.open(f"embedded:{tmp_path / 'data'}")


@pytest.fixture
def small_map(monkeypatch):
    monkeypatch.setattr(directory, "MAP_BYTES_FIRST", 1 << 20)


@pytest.mark.usefixtures("small_map")
@pytest.mark.parametrize("chunk", [1, 90])
def test_the_map_grows_by_itself(path, chunk):
    """It grows as often as needed, also for one transaction that is larger than the map."""
    with fdbqueue.open(f"embedded:{path}") as db:
        for first in range(0, 90, chunk):
            tr = db.create_transaction()
            for number in range(first, first + chunk):
                tr[b"%03d" % number] = b"v" * 100_000
            assert commit_code(tr) == 0
        assert len(db.get_range(b"0", b"9")) == 90
    with fdbqueue.open(f"embedded:{path}") as db:
        assert len(db.get_range(b"0", b"9")) == 90


@pytest.mark.usefixtures("small_map")
def test_a_map_that_another_process_grew_is_followed(path):
    """Reading and writing go on in the process with the small map, watches included."""
    with fdbqueue.open(f"embedded:{path}") as db:
        db[b"a"] = b"1"
        tr = db.create_transaction()
        changed = tr.watch(b"a")
        tr.commit().wait()
        run_program(
            path.parent,
            f"""
            import fdbqueue
            db = fdbqueue.open("embedded:{path}")
            for number in range(100):
                db[b"%03d" % number] = b"v" * 100_000
            db[b"a"] = b"2"
            """,
        )
        assert becomes_ready(changed)
        assert len(db.get_range(b"0", b"9")) == 100
        db[b"b"] = b"1"
        assert db[b"b"] == b"1"


@pytest.mark.usefixtures("small_map")
def test_a_snapshot_that_growing_ended_is_too_old(path):
    """Open transactions may end with 1007, which is retryable; they never read anything else."""
    with fdbqueue.open(f"embedded:{path}") as db:
        db[b"a"] = b"1"
        tr = begin(db)
        for number in range(100):
            db[b"%03d" % number] = b"v" * 100_000
        db[b"a"] = b"2"
        code = error_code(lambda: tr[b"a"].wait())
        assert code in (0, TOO_OLD)
        assert code == TOO_OLD or tr[b"a"] == b"1"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_private_database_leaves_no_file_behind(temporary):
    """Even if its process is killed: its files have no names."""
    before = set(os.listdir("/proc/self/fd"))
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b"1"
        assert list(temporary.iterdir()) == []
        assert db[b"a"] == b"1"
    assert set(os.listdir("/proc/self/fd")) <= before  # earlier tests may let go of theirs meanwhile


def test_a_private_database_that_does_not_open_leaves_nothing(temporary, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(store, "Watches", broken)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageInUse, match="broken"):
        fdbqueue.open("memory:")
    assert list(temporary.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) <= before  # earlier tests may let go of theirs meanwhile


def test_two_private_databases_share_nothing():
    with fdbqueue.open("memory:") as first, fdbqueue.open("memory:") as second:
        first[b"a"] = b"1"
        assert second[b"a"] is None


# Group commit: several transactions, one batch, one fsync, each still on its own.


@pytest.fixture
def grouped(shared):
    """Run commits in one batch, behind one that leads; return their codes."""

    def commit_together(transactions):
        codes = {}
        leader = shared.create_transaction()
        leader[b"leader"] = b"1"
        works = [lambda tr=tr: codes.update({tr: commit_code(tr)}) for tr in (leader, *transactions)]
        in_turn(shared, *works)
        return [codes[tr] for tr in transactions]

    return commit_together


def test_commits_that_wait_together_are_one_batch(shared, grouped):
    writers = [shared.create_transaction() for _ in range(8)]
    stamps = []
    for number, tr in enumerate(writers):
        tr[b"k%d" % number] = b"1"
        stamps.append(tr.get_versionstamp())
    assert grouped(writers) == [0] * 8
    assert len({tr.get_committed_version() for tr in writers}) == 1
    assert [stamp.value for stamp in stamps] == sorted({stamp.value for stamp in stamps})
    assert len(shared.get_range(b"k", b"l")) == 8
