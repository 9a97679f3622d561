"""Every stored key and value of every kind of queue, damaged in ten ways, one at a time.

Afterwards each call that takes, lists, sweeps, counts, works or closes succeeds, or raises an FdbQueueError.
Nothing hangs, sessions live, and the keys of other roots do not change. The short version draws some of
the damages; FDBQUEUE_TEST_SLOW=1 runs all of them.
"""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    Database,
    ElementQueue,
    FairQueue,
    PersistentQueue,
    Queue,
    Session,
    SimpleElementQueue,
    TaskQueue,
    Worker,
)
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.task import TaskState
from tests.conftest import SLOW

LARGE = "x" * 1_000
DAMAGES: dict[str, Callable[[random.Random, bytes, bytes], bytes | None]] = {
    "empty": lambda _, __, ___: b"",
    "cut": lambda _, whole, __: whole[:-1],
    "half": lambda _, whole, __: whole[: len(whole) // 2],
    "ff": lambda _, whole, __: b"\xff" * len(whole),
    "00": lambda _, whole, __: bytes(len(whole)),
    "random": lambda chance, whole, __: chance.randbytes(len(whole)),
    "longer": lambda chance, whole, __: whole + chance.randbytes(9),
    "foreign": lambda _, __, other: other,
    "json": lambda _, __, ___: b'{"a":[1,2,3]}',
    "deleted": lambda _, __, ___: None,
}
TASK_KINDS = ("fifo", "fifottl", "limfifottl", "utube", "utubettl", "fair")
KINDS = (*TASK_KINDS, "plain", "fair queue", "persistent", "elements", "simple elements")
PATIENCE_S = 20.0
ROOT = Subspace(("fdbqueue-test", "damage"))
DRAWN, TOGETHER = 3, 8
"""Damages of each kind in the short version; damages in one database."""


class Bench:
    """A queue of one kind with a task in every state, and the calls on it."""

    def __init__(self, db: Database, root: Subspace, kind: str) -> None:
        self.db = db
        self.root = root
        self.kind = kind
        self.mine = Session(db, ttr=60, root=root)
        if kind in TASK_KINDS:
            self._fill_tasks()
        elif kind == "plain":
            Queue.named(db, "q", root=root).enqueue_many(db, [1, "x" * 100_000, LARGE])
        elif kind == "fair queue":
            for item in ("a", LARGE, "b"):
                self.fair().put(db, item)
        elif kind == "persistent":
            queue = self.persistent()
            for item in ("a", LARGE, "b"):
                queue.put(item)
            self.held = queue.get()
        else:
            self.elements().add(db, {"body": LARGE} if kind == "elements" else LARGE)
            self.elements().lock(db, self.elements().add(db, {"body": "b"} if kind == "elements" else "b"))

    def _fill_tasks(self) -> None:
        keyed = self.kind in ("utube", "utubettl", "fair")
        timed = self.kind in ("fifottl", "limfifottl", "utubettl")
        options: dict[str, Any] = {"capacity": 100} if self.kind == "limfifottl" else {}
        queue = TaskQueue.create(self.db, "q", self.kind, root=self.root, **options)
        for n, data in enumerate(("buried", "failed", "held", LARGE, "x" * 100_000, "last")):
            given: dict[str, Any] = {"key": n % 5} if keyed else {}
            queue.put(self.db, data, **given, **({"ttl": 1_000} if timed else {}))
        queue.bury(self.db, queue.take(self.db, 0, session=self.mine))
        queue.defer(self.db, queue.take(self.db, 0, session=self.mine), 0.001)
        self.held = queue.take(self.db, 0, session=self.mine)

    def fair(self) -> FairQueue:
        return FairQueue(self.root[99], key=lambda item: item[:1], root=self.root)

    def persistent(self) -> PersistentQueue:
        return PersistentQueue(self.db, "q", owner="me", root=self.root)

    def elements(self) -> Any:
        if self.kind == "elements":
            return ElementQueue.named(self.db, "q", schema={"body": "string"}, root=self.root)
        return SimpleElementQueue.named(self.db, "q", root=self.root)

    def calls(self) -> Iterator[Callable[[], object]]:
        db, root = self.db, self.root
        keeper = keeper_of(db, RootKeys(root))
        yield keeper.tick
        yield lambda: fdbqueue.list_queues(db, root=root)
        yield lambda: fdbqueue.statistics(db, root=root)
        yield lambda: fdbqueue.workers(db, root=root)
        if self.kind in TASK_KINDS:
            yield from self._calls_of_tasks(lambda: TaskQueue.open(db, "q", root=root))
        elif self.kind == "plain":
            yield from self._calls_of_plain(lambda: Queue.named(db, "q", root=root))
        elif self.kind == "fair queue":
            yield from self._calls_of_fair(self.fair)
        elif self.kind == "persistent":
            yield from self._calls_of_persistent()
        else:
            yield from self._calls_of_elements()
        yield lambda: Registry(root).names(db)
        yield keeper.tick
        yield self.mine.beat
        yield lambda: self._drop()
        yield self.mine.end
        yield keeper.tick

    def _drop(self) -> None:
        try:
            TaskQueue.open(self.db, "q", root=self.root).drop(self.db)
        except FdbQueueError:
            Registry(self.root).drop(self.db, "q")

    def _calls_of_tasks(self, queue: Callable[[], TaskQueue]) -> Iterator[Callable[[], object]]:
        db, mine = self.db, self.mine
        for state in TaskState:
            yield lambda state=state: queue().tasks(db, state, 100)
        yield lambda: queue().statistics(db)
        yield lambda: queue().peek(db, self.held.id)
        yield lambda: queue().failures(db, self.held.id)
        yield lambda: queue().put(db, "new", **({"key": 1} if "t" in self.kind and "u" in self.kind else {}))
        yield lambda: queue().aside(db, 10)
        for _ in range(3):
            yield lambda: queue().take(db, 0, session=mine)
        yield lambda: queue().take(db, 0.05, session=mine)
        yield lambda: self._take_within(queue())
        yield lambda: queue().ack(db, self.held)
        yield lambda: queue().kick(db, 10)
        yield lambda: queue().busy(db)
        yield lambda: queue().release_all(db)
        yield lambda: queue().key_statistics(db, 10)
        yield lambda: self._work(queue())
        yield lambda: queue().aside(db, 100)
        yield lambda: queue().truncate_some(db)
        yield lambda: queue().truncate(db)

    def _take_within(self, queue: TaskQueue) -> None:
        tr = self.db.create_transaction()
        queue.take(tr, 0, session=self.mine)
        tr.commit().wait()

    def _work(self, queue: TaskQueue) -> None:
        """For a moment: what cannot be taken would keep it from ending."""
        worker = Worker(self.db, queue, str, threads=2, root=self.root)
        worker.start()
        worker.join(0.1)
        worker.stop()
        assert worker.join(PATIENCE_S)
        if worker.error is not None:
            raise worker.error

    def _calls_of_plain(self, queue: Callable[[], Queue]) -> Iterator[Callable[[], object]]:
        db = self.db
        yield lambda: queue().items(db, 10)
        yield lambda: queue().peek(db)
        yield lambda: queue().size(db)
        yield lambda: queue().enqueue(db, "new")
        yield lambda: queue().dequeue(db)
        yield lambda: self._held(queue())
        yield lambda: queue().dequeue(db, timeout=0.05)
        yield lambda: queue().dequeue(db.create_transaction())
        yield lambda: queue().dequeue_many(db, 10)
        yield lambda: queue().aside(db, 100)
        yield lambda: queue().clear(db)

    def _held(self, queue: Queue) -> None:
        holder = queue.holder(self.db)
        holder.hold(1)
        holder.settle(0)

    def _calls_of_fair(self, queue: Callable[[], FairQueue]) -> Iterator[Callable[[], object]]:
        db = self.db
        yield lambda: queue().snapshot(db)
        yield lambda: queue().size(db)
        yield lambda: queue().key_statistics(db, 10)
        yield lambda: queue().put(db, "new")
        yield lambda: queue().get(db)
        yield lambda: queue().get(db.create_transaction())
        for _ in range(4):
            yield lambda: queue().get(db, 0.02)
        yield lambda: queue().aside(db, 100)

    def _calls_of_persistent(self) -> Iterator[Callable[[], object]]:
        opened: list[PersistentQueue] = []  # none, if its definition cannot be read
        yield lambda: opened.append(self.persistent())
        yield lambda: [queue.put("new") for queue in opened]
        yield lambda: [queue.qsize() for queue in opened]
        for _ in range(4):
            yield lambda: [queue.get_nowait() for queue in opened]
        yield lambda: [queue.task_done() for queue in opened]
        yield lambda: [queue.close() for queue in opened]

    def _calls_of_elements(self) -> Iterator[Callable[[], object]]:
        db, queue = self.db, self.elements
        names: list[str] = []
        yield lambda: names.extend(queue().names(db))
        yield lambda: queue().count(db)
        yield lambda: queue().add(db, {"body": "new"} if self.kind == "elements" else "new")
        for n in range(2):
            yield lambda n=n: names[n:] and queue().lock(db, names[n])
            yield lambda n=n: names[n:] and queue().get(db, names[n])
            yield lambda n=n: names[n:] and queue().remove(db, names[n])
        yield lambda: queue().purge(db, maxlock=1)
        yield lambda: queue().aside(db, 100)


def all_of(db: Database, under: Subspace) -> list[tuple[bytes, bytes]]:
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(under.key())]


def damage(db: Database, root: Subspace, row: tuple[bytes, bytes], part: str, how: str, other: bytes) -> None:
    """Damage a value, or the part of a key behind the prefix of the root."""
    key, value = row
    chance = random.Random(repr((key[len(root.key()) :][:3], part, how)))
    if part == "value":
        changed = DAMAGES[how](chance, value, other)
        if changed is None:
            db.clear(key)
        else:
            db[key] = changed
        return
    rest = DAMAGES[how](chance, key[len(root.key()) + 1 :], other)
    db.clear(key)
    if rest is not None:
        db[key[: len(root.key()) + 1] + rest[:2_000]] = value


def outcome(call: Callable[[], object]) -> BaseException | None:
    """The error of the call, unless it is one of ours. It must end in time."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            call()
        except (FdbQueueError, fdbqueue.queues.persistent.Empty):
            pass
        except BaseException as error:  # whatever it is, it is the finding
            raised.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        return TimeoutError("the call hangs")
    return raised[0] if raised else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["value", "key"])
def test_one_damage_stops_nothing_else(kind: str, part: str) -> None:
    cases = [(number, how) for number in range(keys_stored(kind)) for how in DAMAGES]
    if not SLOW:
        cases = random.Random(f"{kind} {part}").sample(cases, DRAWN)
    found: list[str] = []
    for start in range(0, len(cases), TOGETHER):
        found += failing_of(kind, part, cases[start : start + TOGETHER])
    assert not found, "\n".join(found)


def keys_stored(kind: str) -> int:
    with fdbqueue.open("memory:") as db:
        Bench(db, ROOT, kind)
        return len(all_of(db, ROOT))


def failing_of(kind: str, part: str, cases: list[tuple[int, str]]) -> list[str]:
    """What fails after each of these damages, under roots of their own beside a sound one."""
    found = []
    with fdbqueue.open("memory:") as db:
        sound = Bench(db, ROOT["sound"], "plain")
        kept = all_of(db, Registry(sound.root).keys.contents(1))
        for case, (number, how) in enumerate(cases):
            found += failing(db, ROOT[case], kind, part, number, how)
        sound.mine.beat()
        if sound.mine.lost or kept != all_of(db, Registry(sound.root).keys.contents(1)):
            found.append(f"{kind}: {part}: the sound root has changed")
    return found


def failing(db: Database, root: Subspace, kind: str, part: str, number: int, how: str) -> list[str]:
    """What fails in another way than it should, of a fresh queue with one damage."""
    bench = Bench(db, root, kind)
    rows = all_of(db, root)
    row = rows[number % len(rows)]
    damage(db, root, row, part, how, rows[(number * 7 + 3) % len(rows)][1])
    found = []
    for at, call in enumerate(bench.calls()):
        error = outcome(call)
        if error is not None:
            where = row[0][len(root.key()) :].hex()
            found.append(f"{kind}: {part} of {where} {how}, call {at}: {type(error).__name__}: {error}")
    return found
