"""The program of one pair of Python and binding: it prints one line of JSON with the outcome of each step.

It needs no package but those of a plain `pip install fdbqueue`.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

OK = "ok"


def main() -> None:
    outcomes = {"import": outcome_of(import_all)}
    if outcomes["import"] == OK:
        outcomes["embedded"] = outcome_of(lambda: work_at("memory:"))
        cluster_file = os.environ.get("FDB_CLUSTER_FILE")
        if cluster_file:
            outcomes["cluster"] = outcome_of(lambda: work_at(f"fdb:{cluster_file}"))
    print(json.dumps(outcomes))


def outcome_of(step: Callable[[], None]) -> str:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return OK


def import_all() -> None:
    for module in ("fdb", "fdbqueue", "fdbqueue.embedded"):
        importlib.import_module(module)


def work_at(url: str) -> None:
    """One item, one task, one transaction, below a subspace of its own that is cleared afterwards."""
    fdbqueue: Any = importlib.import_module("fdbqueue")
    space = fdbqueue.Subspace(("fdbqueue-test", os.urandom(8)))
    with fdbqueue.open(url) as db:
        fdbqueue.core.database.require_answer(db, url, 10)
        try:
            put_and_take(fdbqueue, db, space)
        finally:
            db.clear_range_startswith(space.key())


def put_and_take(fdbqueue: Any, db: Any, space: Any) -> None:
    root, effect = space["root"], space["effect"].key()
    items = fdbqueue.Queue(space["items"], root=root)
    items.enqueue(db, {"number": 1})
    require(items.dequeue(db, timeout=5) == {"number": 1}, "an item")
    tasks = fdbqueue.TaskQueue.create(db, "tasks", "fifottl", ttr=30, root=root)
    tasks.put(db, "first")

    @fdbqueue.transactional
    def work(tr: Any) -> bool:
        tr[effect] = b"done"
        return bool(tasks.ack(tr, task, session=session))

    with fdbqueue.Session(db, root=root) as session:
        task = tasks.take(db, 5, session=session)
        require(task.data == "first", "a task")
        work(db)
    require(bytes(db[effect]) == b"done", "the effect of the task")


def require(truth: bool, name: str) -> None:
    if not truth:
        raise AssertionError(f"{name} did not arrive")


if __name__ == "__main__":
    sys.exit(main())
