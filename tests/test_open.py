"""`fdbqueue.open(url)`: which engine, where, and what goes wrong on the way."""

import contextlib
import gc
import sys
import threading
import types
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, embedded
from fdbqueue.core.errors import (
    ClusterForked,
    DatabaseClosed,
    DatabaseNotFound,
    FdbQueueError,
    NotADatabase,
    UnknownUrl,
    WaitStopped,
)
from fdbqueue.core.limits import CLOSE_TIMEOUT_S, TRANSACTION_AGE_MAX_S
from fdbqueue.core.logger import logger
from fdbqueue.core.open import _require_file
from fdbqueue.core.runtime import RealEvent
from tests.support import PATIENCE_S, TOO_OLD, ManualClock, begin, error_code, in_child


@pytest.fixture(autouse=True)
def somewhere_else(monkeypatch, tmp_path):
    """An empty working directory, and an environment that says nothing."""
    monkeypatch.delenv("FDBQUEUE_URL", raising=False)
    monkeypatch.delenv("FDB_CLUSTER_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cluster(monkeypatch):
    """A binding without a network: which cluster files it was asked for, with which API version."""
    fake = types.ModuleType("fdb")
    fake.versions, fake.opened = [], []
    fake.is_api_version_selected = lambda: bool(fake.versions)
    fake.api_version = fake.versions.append
    fake.open = lambda cluster_file=None: (
        fake.opened.append(cluster_file) or embedded.transaction.open_private()
    )
    fake.impl = types.ModuleType("fdb.impl")
    fake.impl.FDBError = embedded.FDBError
    fake.impl._capi = types.SimpleNamespace(fdb_get_max_api_version=lambda: 730)
    monkeypatch.setattr("fdbqueue.core.binding.fdb", fake)
    monkeypatch.setitem(sys.modules, "fdb.impl", fake.impl)
    monkeypatch.setattr("fdbqueue.core.open._require_file", lambda _: None)
    return fake


def test_without_a_url_it_is_the_embedded_engine_here(somewhere_else):
    """`./fdbqueue-data`, durable."""
    with fdbqueue.open() as db:
        db[b"a"] = b"1"
        assert not db.engine._store.private
    assert (somewhere_else / "fdbqueue-data" / "data.mdb").exists()
    with fdbqueue.open("embedded:fdbqueue-data") as db:
        assert db[b"a"] == b"1"


def test_without_create_a_missing_directory_stays_missing(somewhere_else):
    with pytest.raises(DatabaseNotFound):
        fdbqueue.open("embedded:data", create=False)
    assert list(somewhere_else.iterdir()) == []


def test_the_url_of_the_environment_comes_first(monkeypatch, somewhere_else, cluster):
    """FDBQUEUE_URL wins over FDB_CLUSTER_FILE."""
    monkeypatch.setenv("FDBQUEUE_URL", "embedded:elsewhere")
    monkeypatch.setenv("FDB_CLUSTER_FILE", "/etc/some.cluster")
    fdbqueue.open().close()
    assert (somewhere_else / "elsewhere").is_dir()
    assert cluster.opened == []


def test_then_the_cluster_file_of_the_environment(monkeypatch, cluster):
    monkeypatch.setenv("FDB_CLUSTER_FILE", "/etc/some.cluster")
    with fdbqueue.open():
        assert cluster.opened == ["/etc/some.cluster"]


def test_a_url_of_the_call_is_not_asked_of_the_environment(monkeypatch, cluster):
    monkeypatch.setenv("FDBQUEUE_URL", "fdb:/etc/other.cluster")
    fdbqueue.open("memory:").close()
    assert cluster.opened == []


@pytest.mark.parametrize(
    ("url", "cluster_file"), [("fdb:", None), ("fdb:/etc/a:b.cluster", "/etc/a:b.cluster")]
)
def test_a_cluster_is_opened_by_its_file_or_by_default(cluster, url, cluster_file):
    """`fdb:` leaves the choice to the client library."""
    with fdbqueue.open(url) as db:
        assert cluster.opened == [cluster_file]
        assert db.create_transaction() is not None


@pytest.mark.parametrize("from_environment", [True, False])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("", "it has no line DESCRIPTION:ID@HOST:PORT"),
        ("directory", "Is a directory"),
    ],
)
def test_a_cluster_file_that_is_of_no_use_is_named(
    cluster, monkeypatch, somewhere_else, content, reason, from_environment
):
    monkeypatch.setattr("fdbqueue.core.open._require_file", _require_file)
    named = somewhere_else / "my.cluster"
    if content == "directory":
        named.mkdir()
    elif content is not None:
        named.write_text(content)
    if from_environment:
        monkeypatch.setenv("FDB_CLUSTER_FILE", str(named))
    with pytest.raises(DatabaseNotFound) as refused:
        fdbqueue.open("fdb:" if from_environment else f"fdb:{named}")
    assert f"The cluster file '{named}'" in str(refused.value)
    assert ("FDB_CLUSTER_FILE" in str(refused.value)) == from_environment
    assert f"cannot be used: {reason}." in str(refused.value)
    assert cluster.opened == []


def test_a_child_of_a_process_with_a_cluster_opens_none(cluster, monkeypatch):
    """The client library does not survive a fork: each call would wait for ever."""
    fdbqueue.open("fdb:/parent").close()
    monkeypatch.setattr(sys.modules["fdbqueue.core.open"], "_library_process", -1)
    with pytest.raises(ClusterForked, match="fdb:/child"):
        fdbqueue.open("fdb:/child")
    assert cluster.opened == ["/parent"]


def test_a_forked_child_is_refused_the_cluster_of_its_parent(cluster):
    """Each use raises the error; to close the database is no use."""
    cluster.impl.Database = embedded.transaction.Database
    db = fdbqueue.open("fdb:/parent")
    raw, queue = db.engine, Queue.named(db, "q")
    uses = (
        lambda: db[b"a"],
        lambda: db.set(b"a", b"1"),
        db.create_transaction,
        lambda: queue.enqueue(db, 1),
        lambda: queue.enqueue(raw, 1),
    )

    def are_refused():
        for use in uses:
            with pytest.raises(ClusterForked):
                use()
        db.close()
        return True

    assert in_child(are_refused)
    queue.enqueue(db, 1)
    db.close()


def test_the_api_version_is_chosen_unless_it_was(cluster):
    """710, or the version that the program has chosen already."""
    fdbqueue.open("fdb:")
    fdbqueue.open("fdb:")
    assert cluster.versions == [710]
    cluster.versions[:] = [730]
    fdbqueue.open("fdb:")
    assert cluster.versions == [730]


@pytest.mark.parametrize(
    "url",
    ["", "fdb", "embedded:", "embedded", "memory", "memory:x", "redis://localhost", "/some/path", "FDB:"],
)
def test_another_url_is_refused_with_the_choices(url):
    with pytest.raises(UnknownUrl) as refused:
        fdbqueue.open(url)
    assert repr(url) in str(refused.value)
    assert '"embedded:PATH"' in str(refused.value)
    assert isinstance(refused.value, FdbQueueError)
    assert isinstance(refused.value, ValueError)


def test_a_closed_database_says_so():
    db = fdbqueue.open("memory:")
    db.close()
    db.close()
    assert db.closed
    with pytest.raises(DatabaseClosed):
        db.create_transaction()


def test_the_context_manager_closes():
    with pytest.raises(LookupError, match="mine"), fdbqueue.open("memory:") as db:
        raise LookupError("mine")
    assert db.closed


def test_a_transaction_of_a_closed_database_fails():
    """A commit that is not stored cannot succeed."""
    db = fdbqueue.open("memory:")
    tr = begin(db)
    tr[b"a"] = b"1"
    db.close()
    with pytest.raises((DatabaseClosed, embedded.FDBError)):
        tr.commit().wait()


def test_a_home_directory_in_a_path_is_not_guessed(somewhere_else):
    fdbqueue.open("embedded:deep/er/data").close()
    assert (somewhere_else / "deep" / "er" / "data").is_dir()


def test_the_runtime_of_the_caller_is_the_engines_too():
    clock = ManualClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        tr = begin(db)
        assert db.runtime is clock
        clock.advance(TRANSACTION_AGE_MAX_S + 1)
        assert error_code(lambda: tr[b"a"].wait()) == TOO_OLD


class Recorder:
    """A service that counts how often it was made and closed."""

    made = 0

    def __init__(self, db):
        self.db, self.closed = db, 0
        Recorder.made += 1

    def close(self):
        self.closed += 1


def test_a_service_exists_once_per_database():
    """Made at first use, the same afterwards, another one for another database or key."""
    with fdbqueue.open("memory:") as db, fdbqueue.open("memory:") as other:
        service = db.service("key", Recorder)
        assert service.db is db
        assert db.service("key", Recorder) is service
        assert db.service("other key", Recorder) is not service
        assert other.service("key", Recorder) is not service


def test_closing_a_database_closes_its_services_first():
    """While they can still write."""
    db = fdbqueue.open("memory:")

    class Writer(Recorder):
        def close(self):
            self.db[b"goodbye"] = b"1"
            super().close()

    service = db.service("key", Writer)
    db.close()
    assert service.closed == 1
    with pytest.raises(DatabaseClosed):
        db.service("key", Writer)


def test_a_forked_child_closes_no_service_of_its_parent(monkeypatch):
    """It would end the session of the parent, and clear the receipts of its calls."""
    db = fdbqueue.open("memory:")
    service = db.service("key", Recorder)
    monkeypatch.setattr(db.runtime, "process_id", lambda: 1)
    db.close()
    assert service.closed == 0


class PatientClock(ManualClock):
    """A clock that a thread moves on by waiting for an event, which nothing sets."""

    def event(self):
        return Passing(self)


class Passing(threading.Event):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def wait(self, timeout):
        assert timeout > 0
        self.clock.advance(timeout)
        return False


def test_closing_waits_for_other_calls_for_a_bounded_time():
    """A database that does not answer lets no call return."""
    clock = PatientClock()
    db = fdbqueue.open("memory:", runtime=clock)
    calling = threading.Thread(target=lambda: db.waiter().__enter__())
    calling.start()
    calling.join()
    began = clock.monotonic()
    db.close()
    assert clock.monotonic() - began == CLOSE_TIMEOUT_S


def test_closing_waits_for_no_call_of_its_own_thread():
    """A signal handler that closes has interrupted the call."""
    clock = PatientClock()
    db, began = fdbqueue.open("memory:", runtime=clock), clock.monotonic()
    with db.waiter() as waiter:
        db.close()
        with pytest.raises(DatabaseClosed):
            waiter.check()
    assert clock.monotonic() == began


def test_closing_waits_for_no_call_that_was_refused():
    """Its event was set already, so it has never begun."""
    clock, stop = PatientClock(), RealEvent()
    stop.set()
    db, began = fdbqueue.open("memory:", runtime=clock), clock.monotonic()

    def call():
        with pytest.raises(WaitStopped), db.waiter(stop):
            raise AssertionError

    in_thread(call)
    db.close()
    assert clock.monotonic() == began


def test_closing_waits_for_no_call_that_comes_too_late():
    """It is refused while the closing waits for another one."""
    clock = PatientClock()
    db, began = fdbqueue.open("memory:", runtime=clock), clock.monotonic()
    waiter = db.waiter()

    def come_late():
        with pytest.raises(DatabaseClosed), db.waiter():
            raise AssertionError

    def return_after_another(_):
        in_thread(come_late)
        waiter.__exit__()

    in_thread(waiter.__enter__)
    waiter.on_ready(return_after_another)
    db.close()
    assert clock.monotonic() == began


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_forked_child_waits_for_no_call_of_its_parent(monkeypatch):
    """The thread of that call is not in the child."""
    clock = PatientClock()
    db, began = fdbqueue.open("memory:", runtime=clock), clock.monotonic()
    in_thread(lambda: db.waiter().__enter__())
    monkeypatch.setattr(db.runtime, "process_id", lambda: 1)
    db.service("key", Recorder)
    db.close()
    assert clock.monotonic() == began


def test_a_call_raises_the_first_reason_to_end_its_wait():
    stop = RealEvent()
    with fdbqueue.open("memory:") as db, db.waiter(stop) as waiter:
        stop.set()
        db.close()
        with pytest.raises(WaitStopped):
            waiter.check()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_wait_cancels_its_watches(monkeypatch, is_interrupted):
    """A watch with a callback outlives its last reference."""
    with fdbqueue.open("memory:") as db:
        if is_interrupted:
            monkeypatch.setattr(db.runtime, "wait_any", Mock(side_effect=KeyboardInterrupt))
        _, watch = db.get_and_watch(b"a")
        with contextlib.suppress(KeyboardInterrupt), db.waiter() as waiter:
            waiter.sleep([watch], 0.0)
        assert watch.cancelled()


def test_a_raw_database_has_one_companion():
    """The binding's own database, never wrapped by us, keeps its services for as long as it lives."""
    raw = embedded.transaction.open_private()
    try:
        companion = fdbqueue.core.database.as_database(raw)
        assert fdbqueue.core.database.as_database(raw) is companion
        assert companion.service("key", Recorder) is fdbqueue.core.database.as_database(raw).service(
            "key", Recorder
        )
    finally:
        raw.close()


def test_a_raw_database_outlives_its_companion():
    raw = embedded.transaction.open_private()
    try:
        queue = fdbqueue.Queue(Subspace(("queue",)))
        with fdbqueue.open(raw) as first:
            queue.enqueue(raw, "a")
        assert queue.dequeue(raw) == "a"
        with pytest.raises(DatabaseClosed):
            queue.size(first)
        fdbqueue.core.database.as_database(raw).close()
    finally:
        raw.close()


def test_the_error_names_an_object_that_is_no_database(tmp_path: Path):
    with pytest.raises(NotADatabase, match="PosixPath") as refused:
        fdbqueue.core.database.as_database(tmp_path)
    assert isinstance(refused.value, TypeError)


def test_a_forked_child_makes_services_of_its_own(monkeypatch):
    """Those of its parent have threads, and slots of receipts, that are the parent's."""
    with fdbqueue.open("memory:") as db:
        service = db.service("key", Recorder)
        monkeypatch.setattr(db.runtime, "process_id", lambda: 1)
        assert db.service("key", Recorder) is not service


def test_a_forked_child_needs_no_lock_of_its_parent(monkeypatch):
    """A thread of the parent, which is not in the child, may have made a service at the fork."""
    found = []

    def make_at_the_fork(db):
        monkeypatch.setattr(db.runtime, "process_id", lambda: 1)
        child = threading.Thread(target=lambda: found.append(db.service("key", Recorder)))
        child.start()
        child.join(PATIENCE_S)
        return Recorder(db)

    with fdbqueue.open("memory:") as db:
        db.service("another key", make_at_the_fork)
        assert found == [db.service("key", Recorder)]


def test_a_forked_child_tells_troubles_of_its_own(monkeypatch, caplog):
    """Its parent has told the same one, and may have held the lock of the troubles at the fork."""
    with fdbqueue.open("memory:") as db:
        for process_id in (1, 2):
            monkeypatch.setattr(db.runtime, "process_id", lambda process_id=process_id: process_id)
            db.service("key", Recorder)
            db.troubles.met(logger("fdbqueue"), "it fails", LookupError("x"))
    assert [record.getMessage() for record in caplog.records] == ["it fails: LookupError: x"] * 2


def test_an_open_raw_database_lives_until_it_is_closed():
    """A program need not keep it, and one that opens databases again and again loses no memory."""
    raw = embedded.transaction.open_private()
    dropped, db = weakref.ref(raw), fdbqueue.open(raw)
    del raw
    gc.collect()
    db[b"a"] = b"1"
    db.engine.close()
    db.close()
    gc.collect()
    assert dropped() is None


def test_a_closed_database_gives_its_engine_free():
    """As for a cluster: there, closing leaves the binding's own database open."""
    raw = embedded.transaction.open_private()
    try:
        fdbqueue.core.database.known_by_engine(fdbqueue.Database(raw)).close()
        fdbqueue.Queue(Subspace(("queue",))).enqueue(raw, "a")
        assert fdbqueue.Queue(Subspace(("queue",))).dequeue(raw) == "a"
    finally:
        raw.close()


def test_a_service_that_fails_to_close_keeps_nothing_open(caplog):
    class Failing(Recorder):
        def close(self):
            super().close()
            raise LookupError("mine")

    db = fdbqueue.open("memory:")
    services = [db.service(number, Failing) for number in range(2)]
    db.close()
    assert [service.closed for service in services] == [1, 1]
    assert "a Failing has failed: LookupError: mine" in caplog.text
    with pytest.raises(DatabaseClosed):
        db.engine.create_transaction()


def test_a_tilde_is_the_home_directory(somewhere_else, monkeypatch, cluster):
    """A shell leaves it alone behind a colon. A directory of that name would be removed by `rm -r ~`."""
    home = somewhere_else / "home"
    monkeypatch.setenv("HOME", str(home))
    with fdbqueue.open("embedded:~/data?durability=soon") as db:
        db[b"a"] = b"1"
    assert (home / "data" / "data.mdb").exists()
    assert not (somewhere_else / "~").exists()
    fdbqueue.open("fdb:~/fdb.cluster").close()
    assert cluster.opened == [f"{home}/fdb.cluster"]
    with fdbqueue.open("embedded:./~/data"):
        assert (somewhere_else / "~" / "data").exists()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("scheme", ["embedded", "fdb"])
def test_an_unknown_home_is_refused(somewhere_else, scheme):
    with pytest.raises(UnknownUrl):
        fdbqueue.open(f"{scheme}:~nobody-of-this-name/data")
    assert list(somewhere_else.iterdir()) == []
