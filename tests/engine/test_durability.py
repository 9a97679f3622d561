"""When a commit reaches the disk: at once, a moment later, or with a later commit."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.errors import StorageInUse, UnknownUrl
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded.durability import Flusher
from fdbqueue.embedded.journal import FILES, NOWHERE, Journal, JournalLost
from fdbqueue.embedded.writes import Flush
from tests.support import (
    COMMIT_UNKNOWN,
    NOT_COMMITTED,
    PATIENCE_S,
    FailsOnce,
    commit_code,
    in_child,
    run_program,
    wait_until,
)


class Flushes:
    """The flushes of the journals of this process."""

    def __init__(self) -> None:
        self.count = 0
        self.another = threading.Event()

    def note(self) -> None:
        self.count += 1
        self.another.set()


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    counted, flush = Flushes(), Journal.flush

    def noted(journal: Journal, generation: int) -> None:
        flush(journal, generation)
        counted.note()

    monkeypatch.setattr(Journal, "flush", noted)
    return counted


Opened = Callable[..., AbstractContextManager[fdbqueue.Database]]


@pytest.fixture
def opened(path: Path, flushes: Flushes) -> Opened:
    """Open the directory; flushes are counted from then on."""

    @contextmanager
    def counting(durability: str = "") -> Iterator[fdbqueue.Database]:
        with fdbqueue.open(f"embedded:{path}{durability}") as db:
            flushes.count = 0
            flushes.another.clear()
            yield db

    return counting


def lose_power(path: Path) -> None:
    """The machine starts again, so only the journal and the base are believed."""
    (path / "in-use").write_bytes(b"of another boot")


@pytest.mark.parametrize("durability", ["", "?durability=commit"])
def test_a_durable_commit_is_one_flush(opened: Opened, flushes: Flushes, durability: str) -> None:
    with opened(durability) as db:
        for number in range(5):
            db[b"%d" % number] = b"x"
        assert flushes.count == 5


def test_a_commit_that_may_wait_is_flushed_soon(opened: Opened, flushes: Flushes) -> None:
    with opened("?durability=soon") as db:
        for number in range(5):
            db[b"%d" % number] = b"x"
        assert flushes.another.wait(PATIENCE_S)
        assert flushes.count < 5


def test_a_commit_that_may_wait_is_flushed_at_closing(opened: Opened, flushes: Flushes) -> None:
    with opened("?durability=soon") as db:
        db[b"a"] = b"x"
    assert flushes.count >= 1


def test_a_commit_for_the_process_is_never_flushed(path: Path, opened: Opened, flushes: Flushes) -> None:
    with opened("?durability=process") as db:
        db[b"a"] = b"x"
        assert not any(thread.name == "fdbqueue-flush" for thread in threading.enumerate())
    assert flushes.count == 0
    with fdbqueue.open(f"embedded:{path}") as db:
        assert db[b"a"] == b"x"


def test_an_option_of_a_transaction_lets_its_commit_wait(opened: Opened, flushes: Flushes) -> None:
    with opened() as db:
        tr = db.create_transaction()
        tr.options.set_durability_risky()
        tr[b"a"] = b"x"
        tr.commit().wait()
        assert flushes.another.wait(PATIENCE_S)
        tr = db.create_transaction()
        tr[b"b"] = b"x"
        tr.commit().wait()
        assert flushes.count >= 2, "the option counts for one transaction"


def test_another_attempt_is_durable_without_the_option(opened: Opened, flushes: Flushes) -> None:
    """A body may choose by what it finds, and finds something else in its second attempt."""
    with opened() as db:
        tr = db.engine.create_transaction()
        tr.options.set_durability_risky()
        tr.on_error(NOT_COMMITTED).wait()
        tr[b"a"] = b"x"
        tr.commit().wait()
        assert flushes.count == 1


def test_an_option_brings_no_flush_forward(opened: Opened, flushes: Flushes) -> None:
    with opened("?durability=process") as db:
        tr = db.create_transaction()
        tr.options.set_durability_risky()
        tr[b"a"] = b"x"
        tr.commit().wait()
    assert flushes.count == 0


@pytest.mark.parametrize("flush", [(Flush.NOW, Flush.NEVER), (Flush.NEVER, Flush.NOW)])
def test_a_batch_with_one_durable_commit_is_flushed(
    opened: Opened, flushes: Flushes, flush: tuple[Flush, Flush]
) -> None:
    with opened() as db:
        requests = []
        for number, wanted in enumerate(flush):
            tr = db.engine.create_transaction()
            tr[b"%d" % number] = b"x"
            requests.append(tr._request())
            requests[-1].flush = wanted
        db.engine._store.committer.commit_all(requests)
        assert flushes.count == 1


def base_of(path: Path) -> int:
    """The number of the base's file, which each new base changes."""
    return (path / "base.mdb").stat().st_ino


def failing_flush() -> tuple[threading.Event, Callable[..., None]]:
    """A flush that fails, and the event that it sets."""
    failed = threading.Event()

    def broken(*_: object) -> None:
        failed.set()
        raise JournalLost

    return failed, broken


def test_a_failed_late_flush_renews_the_journal(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the old journal is believed, and all that was committed is in the new base."""
    failed, broken = failing_flush()
    with opened("?durability=soon") as db:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "flush", broken)
            db[b"a"] = b"x"
            assert failed.wait(PATIENCE_S)
        before = base_of(path)
        while base_of(path) == before:
            db[b"b"] = b"y"
    lose_power(path)
    with fdbqueue.open(f"embedded:{path}") as db:
        assert (db[b"a"], db[b"b"]) == (b"x", b"y")


def test_no_commit_follows_a_flush_that_failed(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the changes of earlier commits, too: the next one begins a new journal."""
    flush = Journal.flush

    def broken(*_: object) -> None:
        monkeypatch.setattr(Journal, "flush", flush)
        raise JournalLost

    with opened() as db:
        before = base_of(path)
        monkeypatch.setattr(Journal, "flush", broken)
        tr = db.create_transaction()
        tr[b"a"] = b"x"
        assert commit_code(tr) == COMMIT_UNKNOWN
        db[b"b"] = b"y"
        renewed = base_of(path)
        assert renewed != before
        db[b"c"] = b"z"
        assert base_of(path) == renewed, "once is enough"


def test_a_renewed_journal_must_be_there_after_a_power_cut(path: Path, opened: Opened) -> None:
    with opened() as db:
        db.engine._store.committer._batches._durability.renew()
        db[b"a"] = b"x"
    for name in FILES:
        (path / name).unlink()
    lose_power(path)
    with pytest.raises(StorageInUse):
        fdbqueue.open(f"embedded:{path}")


RENEWS = """
    import fdbqueue
    from fdbqueue.embedded.journal import NOWHERE, Journal, JournalLost

    flush = Journal.flush

    def broken(*_):
        Journal.flush = flush
        raise JournalLost

    with fdbqueue.open("embedded:data") as db:
        for _ in range(2):  # so that the next record goes into a file of the same name
            Journal.flush = broken
            db[b"of another process"] = b"x"
"""


def test_a_process_goes_on_in_the_journal_that_another_one_began(
    path: Path, tmp_path: Path, opened: Opened
) -> None:
    with opened() as db:
        db[b"a"] = b"x"
        run_program(tmp_path, RENEWS)
        base = base_of(path)
        db[b"b"] = b"y"
        assert base_of(path) == base
    lose_power(path)
    with fdbqueue.open(f"embedded:{path}") as db:
        assert (db[b"a"], db[b"b"], db[b"of another process"]) == (b"x", b"y", b"x")


RENEWS_AND_DIES = """
    import os
    import fdbqueue

    db = fdbqueue.open("embedded:data")
    for _ in range(2):
        db.engine._store.committer._batches._durability.renew()
    os._exit(0)
"""


def test_a_process_without_rights_finds_a_new_journal(
    path: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not look whether the directory has changed, and files without names are lost."""

    def refused(_: str) -> os.stat_result:
        raise PermissionError

    with opened() as db:
        db[b"a"] = b"x"
        monkeypatch.setattr(db.engine._store.in_place, "_stat", refused)
        run_program(tmp_path, RENEWS_AND_DIES)
        db[b"b"] = b"y"
    lose_power(path)
    with fdbqueue.open(f"embedded:{path}") as db:
        assert (db[b"a"], db[b"b"]) == (b"x", b"y")


def test_a_failed_late_flush_is_known_to_all_processes(
    path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next commit of another process would follow a record that no power cut leaves."""
    failed, broken = failing_flush()
    with opened("?durability=soon") as db:
        before = base_of(path)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "flush", broken)
            db[b"a"] = b"x"
            assert failed.wait(PATIENCE_S)
            wait_until(lambda: db.engine._store.newest_place() == NOWHERE)
        assert in_child(lambda: db.set(b"b", b"y") is None)
        assert base_of(path) != before


def test_a_late_note_of_a_failed_flush_spares_the_next_journal(opened: Opened) -> None:
    """A leader may have begun that journal between the failure and the note."""
    with opened() as db:
        db[b"a"] = b"x"
        store = db.engine._store
        place = store.newest_place()
        Flusher(store)._tell_others(place.generation - 1)
        assert store.newest_place() == place


def test_a_commit_during_a_flush_is_flushed_by_the_next_one(
    opened: Opened, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush that is under way may not have met it."""
    with opened("?durability=soon") as db:
        flusher, committing = Flusher(db.engine._store), []
        flush = flusher._flush_newest

        def commit_meanwhile() -> None:
            flush()
            if not committing:
                committing.append(flusher.flush_soon())

        monkeypatch.setattr(flusher, "_flush_newest", commit_meanwhile)
        monkeypatch.setattr(flusher, "_start", lambda: None)  # nothing flushes but this test, and the close
        db[b"a"] = b"x"
        flusher.flush_soon()
        flusher._flush()
        flushes.count = 0
        flusher.close()
        assert flushes.count == 1


def test_closing_waits_for_the_end_of_a_late_flush(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens its files below the descriptor of the directory, which another file could get."""
    with opened("?durability=process") as db:
        flusher, ended = Flusher(db.engine._store), []
        closing = threading.Thread(target=lambda: (flusher.close(), ended.append("closing")), daemon=True)

        def slowly() -> None:
            closing.start()
            closing.join(0.3)  # it waits, or has ended
            ended.append("flush")

        monkeypatch.setattr(flusher, "_flush_newest", slowly)
        monkeypatch.setattr(flusher, "_start", lambda: None)
        flusher.flush_soon()
        flusher._flush()
        closing.join(PATIENCE_S)
        assert ended == ["flush", "closing"]


class Ticks:
    """An event that is never set, and for which no call waits."""

    def wait(self, _: float) -> bool:
        return False

    def set(self) -> None:
        """The flusher is closed."""


def test_the_flushing_thread_stays_for_a_commit_beside_its_flush(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit has found the thread running, and has started no other one."""
    with opened("?durability=process") as db:
        flusher, flushed = Flusher(db.engine._store), []

        def beside_a_commit() -> None:
            flushed.append(1)
            if len(flushed) == 1:
                flusher.flush_soon()

        monkeypatch.setattr(flusher, "_start", lambda: None)
        monkeypatch.setattr(flusher, "_closed", Ticks())
        monkeypatch.setattr(flusher, "_flush_newest", beside_a_commit)
        flusher.flush_soon()
        flusher._run()
        assert len(flushed) == 2


def test_without_a_thread_a_late_flush_comes_at_once(
    opened: Opened, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("?durability=soon") as db:
        refused = FailsOnce(RuntimeError("can't start new thread"))
        monkeypatch.setattr(db.engine._store.runtime, "spawn", refused)
        db[b"a"] = b"x"
        assert flushes.count == 1


def test_a_late_flush_that_could_not_begin_stays_due(
    opened: Opened, flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of the newest commit is read first, and for that a reader slot may be missing."""
    with opened("?durability=process") as db:
        db[b"a"] = b"x"
        flusher = Flusher(db.engine._store)
        monkeypatch.setattr(flusher, "_start", lambda: None)
        flusher.flush_soon()
        with monkeypatch.context() as patch:
            patch.setattr(db.engine._store, "newest_place", FailsOnce(FDBError(1037)))
            with pytest.raises(FDBError):
                flusher._flush()
        flusher.close()
        assert flushes.count == 1


@pytest.mark.parametrize("durability", ["?durability=", "?durability=later", "?durability=soon&x=1"])
def test_an_unknown_durability_is_refused(path: Path, tmp_path: Path, durability: str) -> None:
    with pytest.raises(UnknownUrl):
        fdbqueue.open(f"embedded:{path}{durability}")
    assert not list(tmp_path.iterdir())
