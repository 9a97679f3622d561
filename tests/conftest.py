"""Engines, key spaces and lengths: the fixtures that every test shares.

A test that takes `db` runs once per engine: in memory, durable in a directory, and on a FoundationDB
cluster if FDB_CLUSTER_FILE names one (with libfdb_c on the library path); test_cluster.py says so when it
does not. Nothing here may assume an empty database: a cluster is shared, so a test writes below its `space`.
guard.py refuses every other write.
"""

import gc
import importlib
import os
import signal
import threading
from binascii import crc32
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import HealthCheck, settings

import fdbqueue
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from tests import buggify
from tests.by_hand import makes_transactions
from tests.commit import first_seed
from tests.guard import TEST_ROOT, clear_default_root, take_cluster
from tests.support import PATIENCE_S, Keys, ManualClock, wait_until

T = TypeVar("T")

# A loaded machine takes longer than Hypothesis allows an example, or the drawing of its values.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

CLUSTER_FILE = take_cluster()
SLOW = os.environ.get("FDBQUEUE_TEST_SLOW") == "1"
BUGGIFY = buggify.percent()
ENGINES = ("memory", "embedded") if CLUSTER_FILE is None else ("memory", "embedded", "fdb")
# Those that processes can share.
DURABLE = tuple(name for name in ENGINES if name != "memory")
__all__ = ["TEST_ROOT"]


def pytest_configure() -> None:
    if BUGGIFY is not None:
        if CLUSTER_FILE is None:
            raise pytest.UsageError(
                f"{buggify.VARIABLE} needs FDB_CLUSTER_FILE: only a cluster's client has its faults"
            )
        buggify.begin(BUGGIFY)
    # A database of the program must not be opened by a test that names none.
    os.environ.pop("FDBQUEUE_URL", None)
    # A shell starts its background commands with SIGINT ignored, nohup with SIGHUP, and so would our children
    # be: those that test a signal need the default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CLUSTER_FILE is not None and not hasattr(config, "workerinput"):
        clear_default_root(f"fdb:{CLUSTER_FILE}")
        if BUGGIFY is not None:
            buggify.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if BUGGIFY is not None and not hasattr(config, "workerinput"):
        terminalreporter.line(buggify.told(BUGGIFY, buggify.counted()))
        terminalreporter.line("Tests that commit by hand, count attempts or use no cluster stayed out.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if BUGGIFY is not None:
        config.hook.pytest_deselected(items=[item for item in items if not meets_faults(item)])
        items[:] = filter(meets_faults, items)
    if SLOW:
        return
    config.hook.pytest_deselected(items=[item for item in items if not has_its_turn(item)])
    items[:] = filter(has_its_turn, items)
    skip = pytest.mark.skip(reason="a long test: FDBQUEUE_TEST_SLOW=1 runs it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


def has_its_turn(item: pytest.Item) -> bool:
    """True if a test that runs at one of n commits runs at this one. Those with one name run together."""
    marker = item.get_closest_marker("in_turn")
    if marker is None:
        return True
    n, name = (*marker.args, item.nodeid)[:2]
    return (crc32(name.encode()) + first_seed()) % n == 0


def pytest_collection_finish() -> None:
    """Leave what is there now out of collections: to visit all modules and tests takes a second each time."""
    gc.collect()
    gc.freeze()


def meets_faults(item: pytest.Item) -> bool:
    """True for a test on a cluster that survives the faults of its client library."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("commits_by_hand") is not None:
        return False
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    on_cluster = any(isinstance(value, str) and value.split(":")[0] == "fdb" for value in given)
    in_room = "cluster" in item.path.parts
    return (on_cluster or in_room) and not makes_transactions(item.path, item.originalname)


@pytest.fixture(autouse=True)
def _each_keeper_ends() -> Iterator[None]:
    """Fail the test that left a database open which holds sessions.

    Their heartbeats would go on after the directory is removed, and would disturb the tests that follow.
    """
    before = keeper_threads()
    yield
    wait_until(lambda: keeper_threads() <= before)


def keeper_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "fdbqueue-keeper"}


@pytest.fixture
def workers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of this process ends soon after its last task; those of others have the usual time."""
    monkeypatch.setattr("fdbqueue.core.limits.EMPTY_QUEUE_LOOK_S", 0.02)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine's name: a test that takes `db` runs on each of them."""
    return request.param


def url_of(engine: str, directory: Path) -> str:
    return {"memory": "memory:", "embedded": f"embedded:{directory}", "fdb": f"fdb:{CLUSTER_FILE}"}[engine]


def open_engine(engine: str, directory: Path, runtime: fdbqueue.Runtime | None = None) -> fdbqueue.Database:
    return fdbqueue.open(url_of(engine, directory), runtime=runtime)


@pytest.fixture
def url(engine: str, tmp_path: Path) -> str:
    """Where `db` is, for other processes."""
    return url_of(engine, tmp_path / "data")


@pytest.fixture
def db(url: str) -> Iterator[fdbqueue.Database]:
    """An open database of the engine, closed afterwards."""
    with fdbqueue.open(url) as database:
        yield database


@pytest.fixture
def other(db: fdbqueue.Database) -> Iterator[fdbqueue.Database]:
    """The same database as another process has it: with services and handles of its own."""
    with fdbqueue.Database(db.engine, db.runtime) as database:
        yield database


@pytest.fixture
def memory() -> Iterator[fdbqueue.Database]:
    """An open database in memory, for a test that needs no engine but one."""
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine_db(db: fdbqueue.Database) -> Any:
    """The engine's own database, below ours."""
    return db.engine


@pytest.fixture
def fdb_module(engine: str, db: fdbqueue.Database) -> ModuleType:  # noqa: ARG001  # opening chooses the API version
    """The module that this engine's program imports as `fdb`: its FDBError, KeySelector, StreamingMode."""
    return importlib.import_module("fdb" if engine == "fdb" else "fdbqueue.embedded")


@pytest.fixture
def space(db: fdbqueue.Database) -> Iterator[Subspace]:
    """A fresh subspace, cleared afterwards."""
    fresh = TEST_ROOT[os.urandom(8)]
    yield fresh
    if not db.closed:
        db.clear_range_startswith(fresh.key())


@pytest.fixture
def k(space: Subspace) -> Keys:
    """Short keys below `space`: `k("a")`."""
    return Keys(space.key())


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting call does not look by itself for minutes: only a signal or the time of an event wakes it."""
    for pause in ("LOOK_EVERY_S", "REQUEST_RENEW_S"):
        monkeypatch.setattr(fdbqueue.core.limits, pause, 100 * PATIENCE_S)


@pytest.fixture
def rounds() -> Callable[[T, T], T]:
    """`rounds(short, long)`: how much of a repetitive test to run; long with FDBQUEUE_TEST_SLOW=1."""
    return lambda short, long: long if SLOW else short


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is direct, so a rival can come between the reads and the commit of one."""
    monkeypatch.setattr(EmbeddedDatabase, "run_directly", None)
