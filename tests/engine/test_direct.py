"""Direct transactions have the effects of ordinary ones, and refuse what takes long."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
import fdbqueue.embedded as fdb
from fdbqueue import NotTaken, Queue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.once import receipts_of
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import FDBError, NotDirect
from fdbqueue.embedded import layout
from fdbqueue.embedded.commit import Batches, Committer
from fdbqueue.embedded.direct import _BYTES_READ_MAX, _CLEARED_MAX
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.embedded.transaction import open_private
from tests.engine.running import running
from tests.support import COMMIT_UNKNOWN, PATIENCE_S, becomes_ready, in_child


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    with fdb.open(str(tmp_path / "data")) as db:
        yield db


KEYS = [b"a", b"b", b"b" * 600, b"b" * 600 + b"c", b"c", b"d" * 10_000]
ENDS = [b"", *KEYS, b"z"]
keys, values, ends = st.sampled_from(KEYS), st.binary(max_size=9), st.sampled_from(ENDS)
steps = st.one_of(
    st.tuples(st.just("set"), keys, values),
    st.tuples(st.just("clear"), keys),
    st.tuples(st.just("clear_range"), ends, ends).filter(lambda step: step[1] <= step[2]),
    st.tuples(st.just("add"), keys, values),
    st.tuples(st.just("compare_and_clear"), keys, values),
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("get_range"), ends, ends, st.integers(0, 3), st.booleans()),
)


def run(tr: Any, script: list[tuple[Any, ...]], seen: list[Any]) -> None:
    seen.clear()
    for name, *arguments in script:
        found = getattr(tr, name)(*arguments)
        if name == "get":
            seen.append(found.value)
        elif name == "get_range":
            seen.append([(row.key, row.value) for row in found.to_list()])


@given(st.dictionaries(keys, values), st.lists(steps, max_size=8))
def test_direct_and_ordinary_transactions_have_the_same_effects(
    before: dict[bytes, bytes], script: list[tuple[Any, ...]]
) -> None:
    ends: list[list[Any]] = []
    for is_direct in (True, False):
        with open_private() as db:
            for key, value in before.items():
                db[key] = value
            seen: list[Any] = []
            if is_direct:
                try:
                    db.run_directly(lambda tr: run(tr, script, seen))  # noqa: B023
                except NotDirect:
                    assert any(step[0] == "get_range" for step in script)
                    return
            else:
                tr = db.create_transaction()
                run(tr, script, seen)
                tr.commit().wait()
            ends.append([seen, [(row.key, row.value) for row in db.get_range(b"", b"\xff")]])
    assert ends[0] == ends[1]


def watch(tr: Any) -> None:
    tr.watch(b"a")


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "a watch": watch,
    "a versionstamp": lambda tr: tr.set_versionstamped_key(b"a" * 14 + bytes(4), b""),
    "a read version": lambda tr: tr.get_read_version(),
    "another option": lambda tr: tr.options.set_timeout(1),
    "a range with own writes": lambda tr: (tr.set(b"b", b""), tr.get_range(b"a", b"c")),
    "a long range": lambda tr: tr.get_range(b"many", b"man\xff"),
    "many cleared keys": lambda tr: tr.clear_range(b"many", b"man\xff"),
    "system keys read": lambda tr: tr.get(b"\xff/a"),
    "a range of system keys": lambda tr: tr.get_range(b"a", b"\xff\xff"),
    "system keys": lambda tr: tr.set(b"\xff/a", b""),
    "a long key": lambda tr: tr.set(b"a" * (limits.KEY_BYTES_MAX + 1), b""),
    "a long value": lambda tr: tr.set(b"a", b"a" * (limits.VALUE_BYTES_MAX + 1)),
    "a future as a value": lambda tr: tr.set(b"a", tr.get(b"many0000")),
    "much": lambda tr: [tr.set(b"%d" % n, b"a" * limits.VALUE_BYTES_MAX) for n in range(11)],
    "a commit inside": lambda tr: tr.db.set(b"inside", b""),
    "a direct one inside": lambda tr: tr.db.run_directly(lambda inner: inner.set(b"inside", b"")),
}


@pytest.mark.parametrize("body", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_step_is_refused_before_anything_is_written(db: Any, body: Callable[[Any], Any]) -> None:
    def fill(tr: Any) -> None:
        for number in range(_CLEARED_MAX):
            tr[b"many%04d" % number] = bytes(_BYTES_READ_MAX // _CLEARED_MAX)

    fdb.transactional(fill)(db)
    before = db.get_range(b"", b"\xff")

    def unusual(tr: Any) -> None:
        tr.set(b"first", b"")
        body(tr)

    with pytest.raises(NotDirect):
        db.run_directly(unusual)
    assert [row.key for row in db.get_range(b"", b"\xff")] == [row.key for row in before]
    db[b"after"] = b"the engine goes on"


def test_a_class_with_transactions_of_its_own_has_no_direct_ones() -> None:
    class Stepwise:
        def create_transaction(self) -> None:
            """Take a step of its own."""

    class Mixed(Stepwise, EmbeddedDatabase):  # type: ignore[misc]
        pass

    assert Mixed.run_directly is None


def test_options_of_a_database_are_left_to_ordinary_transactions(db: Any) -> None:
    db.options.set_transaction_timeout(1_000)
    with pytest.raises(NotDirect):
        db.run_directly(lambda tr: tr.set(b"a", b""))


def test_an_error_of_the_body_leaves_no_writes(db: Any) -> None:
    def fails(tr: Any) -> None:
        tr.set(b"a", b"1")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as raised:
        db.run_directly(fails)
    assert [entry.name for entry in raised.traceback][-1] == "fails"
    assert db.get(b"a") is None


def test_a_watch_hears_of_a_direct_commit(db: Any) -> None:
    _, changed = db.get_and_watch(b"a")
    db.run_directly(lambda tr: tr.set(b"a", b"1"))
    assert becomes_ready(changed)


def test_a_forked_child_commits_directly_too(db: Any) -> None:
    db.run_directly(lambda tr: tr.set(b"a", b"1"))
    assert in_child(lambda: (db.run_directly(lambda tr: tr.set(b"b", b"2")), db.get(b"a") == b"1")[1])
    assert db.get(b"b") == b"2"


def test_no_call_is_direct_while_another_process_leads(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with fdb.open(str(path)) as db:
        db[b"before"] = b""
        with running("lead_until_told", path) as program:
            program.expect("leading")
            with pytest.raises(NotDirect):
                db.run_directly(lambda tr: tr.set(b"a", b""))


def test_no_call_is_direct_while_another_thread_leads(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on, commit = threading.Event(), threading.Event(), Batches.commit

    def slow(self: Batches, own: Any, pool: Any) -> Any:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return commit(self, own, pool)

    with monkeypatch.context() as patched:
        patched.setattr(Batches, "commit", slow)
        first = threading.Thread(target=db.set, args=(b"first", b""))
        first.start()
        assert inside.wait(PATIENCE_S)
        with pytest.raises(NotDirect):
            db.run_directly(lambda tr: tr.set(b"a", b""))
        go_on.set()
        first.join(PATIENCE_S)
    db.run_directly(lambda tr: tr.set(b"a", b""))


def test_an_error_amid_the_writes_leaves_none_of_them(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(txn: Any, _: dict[bytes, bytes]) -> None:
        txn.put(layout.DATA_PREFIX + b"a", b"half")
        raise RecursionError

    with monkeypatch.context() as patched:
        patched.setattr(layout, "write", fails)
        with pytest.raises(RecursionError):
            db.run_directly(lambda tr: tr.set(b"a", b""))
    db[b"after"] = b"the engine goes on"
    assert db.get(b"a") is None


class Directly:
    """Counts the direct transactions, and those that the body could not end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = self.refused = 0
        run_directly = EmbeddedDatabase.run_directly

        def counted(database: EmbeddedDatabase, body: Any) -> None:
            self.begun += 1
            try:
                run_directly(database, body)
            except NotDirect:
                self.refused += 1
                raise

        monkeypatch.setattr(EmbeddedDatabase, "run_directly", counted)


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> Directly:
    return Directly(monkeypatch)


def test_short_calls_are_direct(memory: fdbqueue.Database, directly: Directly) -> None:
    tasks, items = TaskQueue.create(memory, "tasks"), Queue.named(memory, "items")
    for _ in range(3):
        before = directly.begun
        tasks.put(memory, 1)
        task = tasks.take(memory, 0)
        assert task is not None
        tasks.ack(memory, task)
        items.enqueue(memory, 1)
        assert items.dequeue(memory) == 1
        assert directly.begun == before + 5
    assert directly.refused == 0


@dataclass
class Typed:
    """Its constructor is code of the user."""

    number: int


def test_no_code_of_the_user_runs_in_a_direct_transaction(
    memory: fdbqueue.Database, directly: Directly
) -> None:
    items = Queue(Subspace(("typed",)), type=Typed)
    tasks = TaskQueue.create(memory, "typed", type=Typed)
    items.enqueue(memory, Typed(1))
    begun = directly.begun
    assert items.dequeue(memory) == Typed(1)
    for _ in range(2):  # the second put shows the task that is there
        assert tasks.put(memory, Typed(1), unique="one").data == Typed(1)
    assert tasks.take(memory, 0) is not None
    assert directly.begun == begun


def test_a_poll_of_an_empty_queue_is_direct_every_other_time(
    memory: fdbqueue.Database, directly: Directly
) -> None:
    """A direct take holds up the commits of others."""
    items = Queue.named(memory, "items")
    for _ in range(10):
        assert items.dequeue(memory) is None
    assert directly.begun == 5


def test_after_a_call_that_could_not_be_direct_many_do_not_try(
    memory: fdbqueue.Database, directly: Directly
) -> None:
    tasks = TaskQueue.create(memory, "tasks")
    for _ in range(10):
        tasks.put(memory, "x" * 600_000)
    assert (directly.begun, directly.refused) == (1, 1)


def test_many_items_are_written_in_an_ordinary_transaction(
    memory: fdbqueue.Database, directly: Directly
) -> None:
    tasks = TaskQueue.create(memory, "tasks")
    tasks.put_many(memory, range(limits.DIRECT_ITEMS_MAX + 1))
    assert len(tasks.take_many(memory, limits.DIRECT_ITEMS_MAX + 1)) == limits.DIRECT_ITEMS_MAX + 1
    assert directly.begun == 0


def test_the_slot_of_an_attempt_that_has_ended_is_used_again(
    memory: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the body ends it; one that comes after the body may leave it under way."""
    tasks, receipts = TaskQueue.create(memory, "tasks"), receipts_of(memory, RootKeys(DEFAULT_ROOT))
    task = tasks.put(memory, 1)
    free = list(receipts.free)
    with pytest.raises(NotTaken):
        tasks.ack(memory, task)
    assert receipts.free == free

    def interrupt(*_: object) -> None:
        raise OSError("of a handler of signals")

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "_hand_over", interrupt)
        with pytest.raises(OSError, match="signals"):
            tasks.put(memory, 2)
    assert receipts.free == []


def test_a_direct_commit_with_an_unknown_result_happens_once(
    memory: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, commit = TaskQueue.create(memory, "tasks"), Committer.commit_directly

    def unknown(committer: Committer, request: Any) -> None:
        monkeypatch.setattr(Committer, "commit_directly", commit)
        commit(committer, request)
        request.version, request.error = None, FDBError(COMMIT_UNKNOWN)

    monkeypatch.setattr(Committer, "commit_directly", unknown)
    task = tasks.put(memory, 1)
    assert [one.id for one in tasks.take_many(memory, 9)] == [task.id]


def test_a_commit_that_lmdb_may_have_is_not_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of signals may raise behind it, while another process waits for the leader."""
    with fdb.open(str(path)) as db:
        pool = db._store.committer._pool
        monkeypatch.setattr(type(pool), "is_owed", True)
        durability = db._store.committer._batches._durability

        def fails(*_: object) -> None:
            raise ValueError("of a handler of signals")

        with monkeypatch.context() as patched:
            patched.setattr(durability, "committed", fails)
            with pytest.raises(ValueError, match="signals"):
                db.run_directly(lambda tr: tr.add(b"count", b"\x01"))
        assert db.get(b"count") == b"\x01"
