"""Write `e93aa1e.json`: the data of a small database that the code of commit e93aa1e has written.

It runs in a checkout of that commit, not in this one: `PYTHONPATH=CHECKOUT python write_old.py FILE`. The
processes of that release are gone without closing anything: their leases and sessions are left. Its
sessions live until 2058, so that the tests decide when they die.
"""

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    ElementQueue,
    FairQueue,
    PersistentQueue,
    Queue,
    Session,
    SimpleElementQueue,
    TaskQueue,
)
from fdbqueue.task import Failure, TaskState

KINDS = ("fifo", "fifottl", "limfifottl", "utube", "utubettl", "fair")
TTR_S = 900_000_000
SESSION_TTR_S = 1_000_000_000
COUNT = 12
LARGE_BYTES = 200


def options_of(kind: str, number: int) -> dict[str, Any]:
    options: dict[str, Any] = {"key": f"k{number % 3}"} if kind in ("utube", "utubettl", "fair") else {}
    return options | ({"pri": number % 2} if kind in ("fifottl", "limfifottl", "utubettl") else {})


def write_tasks(db: Any, kind: str, session: Session) -> None:
    """Twelve tasks: three delayed, two taken, two buried by a failure, one by its id; the rest ready."""
    delays = kind not in ("fifo", "utube")
    created: dict[str, Any] = {"ttr": TTR_S} if delays else {}
    created |= {"capacity": 50} if kind == "limfifottl" else {}
    queue = TaskQueue.create(db, f"tasks-{kind}", kind, **created)
    for number in range(COUNT - (3 if delays else 0)):
        data = [kind, number, "x" * (700 if number == 5 else 1)]
        queue.put(db, data, **options_of(kind, number))
    if delays:
        for number in range(COUNT - 3, COUNT):
            queue.put(db, [kind, number, "later"], delay=TTR_S, **options_of(kind, number))
    for error in ("ValueError", "KeyError"):
        task = queue.take(db, 0, session=session)
        queue.bury(db, task, failure=Failure(error, f"{error} of {kind}"))
        queue.take(db, 0, session=session)
    ready = queue.tasks(db, TaskState.READY, 1)[0]
    queue.bury(db, ready.id)


def write(db: Any) -> None:
    session = Session(db, ttr=SESSION_TTR_S)
    named = Session(db, "worker", ttr=SESSION_TTR_S)
    for kind in KINDS:
        write_tasks(db, kind, named if kind == "fifottl" else session)
    plain = Queue.named(db, "plain")
    fair = FairQueue(Subspace(("bare", "fair")), key=lambda item: item[0])
    bare = Queue(Subspace(("bare", "plain")))
    for number in range(COUNT):
        plain.enqueue(db, {"n": number, "text": "y" * (100_000 if number == 3 else 1)})
        bare.enqueue(db, number)
        fair.put(db, [f"k{number % 3}", number])
    plain.dequeue(db)
    persistent = PersistentQueue(db, "persistent", owner="me", ttr=SESSION_TTR_S)
    for number in range(5):
        persistent.put(number)
    persistent.get()
    elements = ElementQueue.named(db, "elements", {"body": "string", "head": "table?"})
    names = [elements.add(db, {"body": f"b{n}", "head": {"n": str(n)}}) for n in range(4)]
    elements.lock(db, names[0])
    simple = SimpleElementQueue.named(db, "simple")
    for number in range(4):
        simple.add(db, f"s{number}")


def packed(value: bytes) -> str:
    """The value in hexadecimal; a large one compressed, behind a "z"."""
    return value.hex() if len(value) <= LARGE_BYTES else "z" + zlib.compress(value).hex()


def main(path: str) -> None:
    db = fdbqueue.open("memory:")
    write(db)
    rows = db.get_range(b"", b"\xff")
    found = {bytes(row.key).hex(): packed(bytes(row.value)) for row in rows}
    Path(path).write_text(json.dumps(found, indent=0) + "\n")
    os._exit(0)  # without the ends of sessions


if __name__ == "__main__":
    main(sys.argv[1])
