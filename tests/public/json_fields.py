"""The fields that commands print with --json: each runs on a small database, and its keys are noted."""

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

import fdbqueue
from fdbqueue import (
    Failure,
    FairQueue,
    Group,
    Limit,
    Queue,
    SimpleElementQueue,
    TaskQueue,
    Worker,
    workers,
)
from fdbqueue.core.errors import WaitStopped
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from tests.support import wait_until

FREE = {"after", "before", "data", "headers", "limits", "options", "result", "trace", "values", "weights"}
"""Fields with names of the user's own, or with those of one kind of queue."""
LEFT_OUT = {
    **dict.fromkeys(("import fdb-layer", "import persist-queue"), "they need data of another system"),
    **dict.fromkeys(("elements export-dirq", "elements import-dirq"), "they need a directory of dirq"),
    "conformance": "it needs a program in another language",
    "elements get": "the user names its fields",
    "follow": "its fields are those of `tasks`",
    "redrive run": "its fields are those of `redrive status`",
    "spread": "it needs a cluster",
}
"""Commands with --json that are not run, and the reason."""


def commands_with_json(command: click.Command = cli, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        cli.load()
        for name, below in sorted(command.commands.items()):
            yield from commands_with_json(below, f"{path} {name}".strip())
    elif any("--json" in one.opts for one in command.params):
        yield path


def _filled(url: str) -> Mapping[str, str]:
    """Fill a database. Return the ids that the commands name."""
    with fdbqueue.open(url) as db:
        queue = TaskQueue.create(db, "q", "fair", retain_s=1_000)
        ids = {}
        for name in ("acked", "buried", "other", "third", "token", "held", "paid", "declined"):
            queue.put(db, name, key="k", result_ttl=1_000)
            task = queue.take(db, 0)
            assert task is not None
            queue.step(db, task, "step", lambda: None)
            ids[name] = task.id
            if name == "acked":
                queue.ack(db, task, result=1)
            elif name in ("buried", "other", "third"):
                queue.bury(db, task, failure=Failure("ValueError"))
            elif name in ("paid", "declined"):
                queue.hand_off(db, task, 1_000)
            else:
                ids[name] = queue.detach(db, task, 1_000)
        ids["ready"] = queue.put(db, "ready", key="k").id
        ids["group"] = Group.create(db).id
        Queue.named(db, "plain", partitions=2).enqueue_many(db, [1, 2])
        FairQueue.named(db, "fair").put(db, 1, key="k")
        SimpleElementQueue.named(db, "e").add(db, b"x")
        Limit.set(db, "keyed", slots=1, per_key=True)
        under = TaskQueue.create(db, "under", task_limits=["keyed"])
        under.put(db, 1, limits={"keyed": "k"})
        under.detach(db, under.take(db, 0), 1_000)
        damaged = Queue.named(db, "damaged")
        damaged.enqueue(db, 1)
        items = damaged._recipe_of(db).keys.items
        [row] = db.get_range(items.start, items.stop)
        db[row.key] = bytes(row.value)[:1] + b"\xff"
        damaged.dequeue(db)
        TaskQueue.create(db, "idle")

    return ids


@contextmanager
def _waiting(url: str) -> Iterator[None]:
    """A call that waits for a task of the queue `idle`, and a worker of it."""
    stop = threading.Event()

    def wait() -> None:
        with fdbqueue.open(url) as db, suppress(WaitStopped):
            TaskQueue.open(db, "idle").take(db, stop=stop)

    waiter = threading.Thread(target=wait)
    waiter.start()
    try:
        with fdbqueue.open(url) as db:
            wait_until(lambda: bool(TaskQueue.open(db, "idle").waiting(db, 1)))
            worker = Worker(db, "idle", print)
            worker.start()
            wait_until(lambda: bool(workers(db)))
            yield
            worker.stop()
            worker.join()
    finally:
        stop.set()
        waiter.join()


LINES = """
create new
put q x --key k
queues
stats q
stats plain
tasks q
tasks q --state taken
explain q {ready}
partitions q --interval 1
top q -n 1 --interval 0.1
ended q
result q {acked}
take q
touch q {token}
release q {token}
ack q {held}
complete q {paid}
fail q {declined} no
alter q --capacity 1000
change q --where key=k --set delay=5 --dry-run
pause q
audit q
resume q
verify
doctor
fleet
fleet pause --detach
fleet resume
estimate --tasks-per-second 20000
aside damaged
waiting idle
dead classes q
dead list q
dead show q {buried}
dead edit q {buried} 7
dead kick q {buried}
redrive start q --rate 0.001 --detach
redrive pause q
redrive status q
redrive resume q --detach
redrive stop q
get plain
peek plain
size plain
repartition plain 3
clear plain --yes
limit set l --slots 2
limit list
limit show l
limit keys keyed
limit delete l
group create
group list
group show {group}
group close {group}
group cancel {group} --yes
group wait {group}
schedule create s q --every 60 --data 1
schedule list
schedule show s
schedule next s
schedule run s
schedule change s --every 70
schedule pause s
schedule resume s
schedule fire
schedule delete s
elements add e x
elements list e
export file plain --in-use
import file file --root other
bury q {ready}
kick q
cancel q {ready}
delete q {other}
release-all q
work q builtins:print --until-empty
truncate q --yes
trash list q
trash restore q
trash empty q --yes
drop new --yes
"""


def fields() -> Mapping[str, Sequence[str]]:
    """By command, the fields of all rows that it has printed."""
    found: dict[str, set[str]] = {}
    folder = Path(tempfile.mkdtemp())
    try:
        url = f"embedded:{folder}/data"
        ids = _filled(url)
        with _waiting(url), chdir(folder):
            for line in LINES.split("\n"):
                words = line.format_map(ids).split()
                name = next((one for one in commands_with_json() if line.startswith(f"{one} ")), line)
                if words:
                    printed = _printed(folder / "out", ["--url", url, *words, "--json"])
                    found.setdefault(name, set()).update(*map(_names, printed))
    finally:
        shutil.rmtree(folder)
    return {f"fdbqueue {name}": sorted(names) for name, names in found.items()}


def _printed(path: Path, words: Sequence[str]) -> list[Any]:
    with ExitStack() as stack:
        for name, file in (("stdout", path), ("stderr", path.with_suffix(".err"))):
            stack.enter_context(patch.object(sys, name, stack.enter_context(file.open("w"))))
        run(cli, words)
    return [json.loads(line) for line in path.read_text().splitlines()]


def _names(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _names(one, path)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield f"{path}{name}"
            if name not in FREE:
                yield from _names(one, f"{path}{name}.")
