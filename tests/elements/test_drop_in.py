"""fdbqueue.integrations.dirq: programs of dirq, with other imports, do the same on a database."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dirq.Exceptions import QueueLockError
from dirq.queue import Queue, QueueSet
from dirq.QueueNull import QueueNull
from dirq.QueueSimple import QueueSimple

import fdbqueue
from fdbqueue.core.errors import InvalidArgument, QueueInSet
from fdbqueue.integrations import dirq as ours

THEIRS = SimpleNamespace(
    Queue=Queue,
    QueueSet=QueueSet,
    QueueNull=QueueNull,
    QueueSimple=QueueSimple,
    QueueLockError=QueueLockError,
)
SCHEMA = {"body": "string", "header": "table?"}


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def both(program: Any, tmp_path: Path, db: fdbqueue.Database) -> tuple[Any, Any]:
    """What a program returns with dirq, and with ours. Its `new` makes a queue at a path."""

    def theirs(kind: str, path: str, *arguments: Any, **named: Any) -> Any:
        return getattr(THEIRS, kind)(f"{tmp_path}/{path}", *arguments, **named)

    def here(kind: str, path: str, *arguments: Any, **named: Any) -> Any:
        return getattr(ours, kind)(path, *arguments, db=db, **named)

    return program(THEIRS, theirs), program(ours, here)


def producer_and_consumer(lib: Any, new: Any) -> Any:
    """The documented example: arguments in the order of dirq, a loop, locks, and a pass by first and next."""
    outbox = new("Queue", "outbox", 0o022, 3, 2, SCHEMA)
    names = [outbox.add({"body": f"element {n}", "header": {"n": str(n)}}) for n in range(5)]
    told: list[Any] = [outbox.count(), {name[-1] for name in names}]
    consumer = new("Queue", "outbox", schema=SCHEMA)
    for name in consumer:
        if name == names[0] or not consumer.lock(name):
            continue
        told.append((consumer.get(name), consumer.lock(name)))
        if name == names[1]:
            consumer.unlock(name)
        else:
            consumer.remove(name)
    name = consumer.first()
    while name:
        told.append(consumer.get_element(name)["body"])
        told.append(consumer.dequeue(name)["header"])
        name = consumer.next()
    consumer.purge(maxlock=0)
    with pytest.raises(lib.QueueLockError):
        consumer.dequeue(names[0])
    return [*told, outbox.count(), [*outbox.names()], [*outbox.copy()]]


def simple(_: Any, new: Any) -> Any:
    q = new("QueueSimple", "simple", None, 37, 10)
    names = [q.add("héllo"), q.add(b"\x00\xff"), q.add_ref(b"x")]
    told = [q.lock(names[0]), q.lock(names[0]), q.unlock(names[1], permissive=True)]
    got = [q.get(name) for name in names[:1]]
    q.remove(names[0])
    return [told, got, q.count(), {name[-1] for name in names}, [*q] == names[1:]]


def sets(lib: Any, new: Any) -> Any:
    one, two = (new("Queue", path, schema=SCHEMA) for path in ("one", "two"))
    for number, queue in enumerate((one, two, one)):
        queue.add({"body": str(number)})
    together = lib.QueueSet([one, two])
    told = [queue.get_element(name)["body"] for queue, name in together]
    queue, name = together.first()
    told += [queue.lock(name), one.lock(name), queue.path == one.path]
    together.remove(one)
    return [told, together.count(), together.first()[0].path == two.path, together.next()]


def null(lib: Any, _: Any) -> Any:
    q = lib.QueueNull()
    with pytest.raises(NotImplementedError):
        q.lock("x")
    return [q.add("x"), q.count(), q.purge()]


@pytest.mark.parametrize("program", [producer_and_consumer, simple, sets, null])
def test_a_program_of_dirq_does_the_same(program: Any, tmp_path: Path, db: fdbqueue.Database) -> None:
    theirs, here = both(program, tmp_path, db)
    assert here == theirs


@pytest.mark.parametrize("wrong", [(1,), ("q", "0o022"), ("q", None, "f"), ("q", None, None, "9")])
def test_an_argument_of_another_type_is_a_type_error(
    wrong: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for make in (Queue, lambda *given: ours.Queue(*given, db=db)):
        with pytest.raises(TypeError):
            make(*wrong)


def test_a_set_has_queues_of_one_database_each_once(db: fdbqueue.Database) -> None:
    one = ours.Queue("one", schema=SCHEMA, db=db)
    with fdbqueue.open("memory:") as other, pytest.raises(InvalidArgument, match="of one database"):
        ours.QueueSet(one, ours.QueueSimple("two", db=other))
    with pytest.raises(QueueInSet):
        ours.QueueSet(one, one)
    with pytest.raises(TypeError):
        ours.QueueSet(one, "two")
    assert (list(ours.QueueSet()), ours.QueueSet(ours.QueueNull()).first()) == ([], (None, None))


def test_a_call_of_a_transaction_is_one_of_the_queue_behind(db: fdbqueue.Database) -> None:
    q = ours.Queue(b"outbox", schema=SCHEMA, db=db)
    tr = db.create_transaction()
    q.elements.add(tr, {"body": "x"})
    assert q.count() == 0
    tr.commit().wait()
    assert q.count() == 1


def test_a_path_is_a_queue_of_the_database_of_the_environment(tmp_path: Path) -> None:
    program = """
        from fdbqueue.integrations.dirq import Queue
        outbox = Queue("/var/spool/outbox", schema={"body": "string"})
        print([*outbox], outbox.add({"body": "x"}))
    """
    environment = os.environ | {"FDBQUEUE_URL": f"embedded:{tmp_path}/data"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    said = [subprocess.check_output(command, text=True, env=environment, timeout=60) for _ in range(2)]
    [empty, name], [found, _] = (line.split() for line in said)
    assert (empty, found) == ("[]", f"['{name}']")
