"""Each command of the program is a look, usual work, or an action that leaves a line in the audit."""

import os
import sqlite3
from contextlib import ExitStack, closing

import click
import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    Database,
    DeadLetters,
    ElementQueue,
    Failure,
    Group,
    Limit,
    Queue,
    Schedule,
    TaskQueue,
    Worker,
)
from fdbqueue.core.database import run
from fdbqueue.operate.audit import Deed, Trail
from fdbqueue.operate.cli.commands import AUDITED
from fdbqueue.operate.cli.frame import cli
from fdbqueue.tasks.stored.records import COUNTER_NAMES, packed
from tests.cli.shell import Within
from tests.support import PATIENCE_S, wait_until

LOOKS = {
    *("audit", "completion", "conformance", "dead classes", "dead list", "dead show", "demo", "doctor"),
    *("elements get", "elements list", "ended", "estimate", "explain", "export", "fleet", "follow"),
    *("group list", "group show", "group wait", "limit keys", "limit list", "limit show", "metrics"),
    *("partitions", "peek", "queues", "redrive status", "schedule list", "schedule next", "schedule show"),
    *("size", "stats", "tasks", "top", "trash list", "waiting"),
}
WORK = {
    "ack",
    "dashboard",
    "elements add",
    "get",
    "group create",
    "put",
    "release",
    "serve",
    "take",
    "touch",
    "work",
}
"""What programs do with their own tasks, by hand."""
# Actions as they are typed: names of tasks are those of `things`.
ACTIONS = {
    "alter": "alter q --ttl 90",
    "aside": "aside items --remove-all",
    "bury": "bury q READY",
    "cancel": "cancel q READY",
    "change": "change q --set pri=3",
    "clear": "clear items --yes",
    "complete": "complete q HANDED",
    "create": "create other",
    "dead edit": "dead edit q BURIED 7",
    "dead kick": "dead kick q --error Bad",
    "delete": "delete q READY",
    "drop": "drop fresh --yes",
    "elements export-dirq": "elements export-dirq pieces OUT",
    "elements import-dirq": "elements import-dirq other OUT --create",
    "elements purge": "elements purge pieces --maxlock 0.000001",
    "elements remove": "elements remove pieces ELEMENT",
    "fail": "fail q HANDED no",
    "fleet drain": "fleet drain WORKER --detach",
    "fleet pause": "fleet pause --detach",
    "fleet resume": "fleet resume",
    "group cancel": "group cancel GROUP --yes",
    "group close": "group close GROUP",
    "import fdb-layer": "import fdb-layer PREFIX copied --text --create",
    "import file": "import file FILE",
    "import persist-queue": "import persist-queue FILE copied --serializer json --create",
    "kick": "kick q",
    "limit delete": "limit delete api",
    "limit set": "limit set api --slots 3",
    "pause": "pause q",
    "redrive pause": "redrive pause q",
    "redrive resume": "redrive resume q --detach",
    "redrive run": "redrive run q",
    "redrive start": "redrive start fresh --detach",
    "redrive stop": "redrive stop q",
    "release-all": "release-all q",
    "repartition": "repartition fresh 2",
    "result": "result q ENDED --forget",
    "resume": "resume q",
    "schedule change": "schedule change nightly --every 70",
    "schedule create": "schedule create weekly q --every 60",
    "schedule delete": "schedule delete nightly",
    "schedule fire": "schedule fire",
    "schedule pause": "schedule pause nightly",
    "schedule resume": "schedule resume nightly",
    "schedule run": "schedule run nightly",
    "spread": "spread items --remove --apply",
    "trash empty": "trash empty q --yes",
    "trash restore": "trash restore q",
    "truncate": "truncate q --yes",
    "verify": "verify q --mend",
}


def paths() -> set[str]:
    """All commands, each with its kinds of action."""
    cli.load()
    found: set[str] = set()
    for name, command in cli.commands.items():
        inner = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        for of_group, one in inner:
            path = f"{name} {of_group}".strip()
            kinds = [param.type.choices for param in one.params if param.name == "action"]
            found |= {path, *(f"{path} {kind}" for choices in kinds for kind in choices)}
    return found


class Things:
    """One thing of each kind that an action may be about, and the words that name it."""

    def __init__(self, program: Within, db: Database) -> None:
        self._db, self._program = db, program
        root = {"root": program.space}
        self.queue = queue = TaskQueue.create(db, "q", "utubettl", **root)
        TaskQueue.create(db, "fresh", **root)
        ready, ended, handed, buried, _ = (queue.put(db, n, key=n, result_ttl=60).id for n in range(5))
        held = {task.id: task for task in queue.take_many(db, 5, timeout=0)}
        queue.ack(db, held[ended], result=1)
        queue.hand_off(db, held[handed], ttl=60)
        queue.bury(db, held[buried], failure=Failure("Bad", "it is"))
        queue.release(db, held[ready])
        self._items = Queue.named(db, "items", **root)
        self._items.enqueue(db, 1)
        self._pieces = ElementQueue.named(db, "pieces", {"body": "string"}, **root)
        element = self._pieces.add(db, {"body": "x"})
        Limit.set(db, "api", slots=1, **root)
        self.nightly = Schedule.create(db, "nightly", every=1, queue="q", **root)
        self.words = {"READY": ready, "ENDED": ended, "HANDED": handed, "BURIED": buried, "ELEMENT": element}
        self.words |= {"GROUP": Group.create(db, **root).id, "OUT": f"{program.folder}/out"}
        self.words |= {"FILE": f"{program.folder}/file", "WORKER": f"{os.getpid()}"}
        self.words["PREFIX"] = Subspace((*program.root, "old")).key().hex()

    def before(self, action: str, stack: ExitStack) -> None:
        """Make what only this action needs."""
        db, queue = self._db, self.queue
        match action.split():
            case ["redrive", verb] if verb != "start":
                DeadLetters.open(db, "q", root=self._program.space).begin_redrive(db)
            case ["schedule", "fire"]:
                wait_until(lambda: (self.nightly.status(db).due or 0) < db.runtime.now())
            case ["trash", _]:
                self._program.run("delete", "q", "--where", "state=ready")
            case ["verify"]:
                db.add(queue.contents[9].key(), packed(COUNTER_NAMES, {"ready": 1}))
            case ["aside"]:
                self._items.enqueue(db, 2)
                run(db, lambda tr: self._items._recipe.aside.put(tr, b"1", [b"damaged"], "damaged"))
            case ["elements", "purge"]:
                self._pieces.acquire(db, self.words["ELEMENT"])
            case ["elements", "import-dirq"]:
                self._program.run("elements", "export-dirq", "pieces", self.words["OUT"])
            case ["import", "file"]:
                for words in (["pause", "fresh"], ["export", self.words["FILE"], "fresh"]):
                    assert self._program.run(*words)[0] == 0
                TaskQueue.open(db, "fresh", root=self._program.space).drop(db)
            case ["import", "persist-queue"]:
                with closing(sqlite3.connect(self.words["FILE"])) as theirs, theirs:
                    theirs.execute("CREATE TABLE queue_default (_id INTEGER, data BLOB, timestamp FLOAT)")
                    theirs.execute("INSERT INTO queue_default VALUES (1, CAST('1' AS BLOB), 1.0)")
            case ["import", "fdb-layer"]:
                db[bytes.fromhex(self.words["PREFIX"]) + layer.pack((1, b"random"))] = b"1"
            case ["fleet", "drain"]:
                worker = Worker(db, "fresh", print, root=self._program.space)
                worker.start()
                stack.callback(worker.join, PATIENCE_S)
                stack.callback(worker.stop)
                wait_until(lambda: bool(self._program.rows("fleet")))


@pytest.mark.parametrize("action", sorted(paths() - LOOKS - WORK))
def test_a_command_is_a_look_or_writes_its_line(
    program: Within, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A line with the effect; of an action on many tasks, a second one with its end."""
    monkeypatch.setenv("FDBQUEUE_ACTOR", "ann")
    monkeypatch.setattr("fdbqueue.operate.cli.queues._require_cluster", lambda *_: None)
    monkeypatch.setattr("fdbqueue.operate.cli.queues._fdbcli", lambda _: lambda _: "")
    with fdbqueue.open(program.url) as db, ExitStack() as stack:
        things = Things(program, db)
        things.before(action, stack)
        before = program.rows("audit")
        status, _, err = program.run(*(things.words.get(word, word) for word in ACTIONS[action].split()))
        assert status == 0, err
        lines = program.rows("audit")[: -len(before) or None]
        phases = [line["phase"] for line in lines if line["action"] == action and line["actor"] == "ann"]
        assert len(phases) == len(lines)
        assert phases in (["done"], ["ended", "begun"])
        assert phases == ["done"] or lines[0]["tasks"] is not None or action == "spread"


def test_each_command_is_of_one_kind() -> None:
    """A look or usual work has no audit, so it writes no line."""
    assert sorted(ACTIONS) == sorted(AUDITED)
    assert sorted(paths()) == sorted([*ACTIONS, *LOOKS, *WORK])


@pytest.mark.parametrize("words", ["kick q", "dead kick q --error Bad", "change q --set pri=0"])
def test_an_action_on_no_task_writes_no_line(program: Within, words: str) -> None:
    program.run("create", "q", "--kind", "limfifottl")
    before = program.rows("audit")
    program.run(*words.split())
    with fdbqueue.open(program.url) as db:
        noting = Trail(db, program.space, Deed("ann", "kick", "q", is_bulk=True)).over()
        queue = TaskQueue.open(db, "q", root=program.space)
        assert (queue.kick(noting, 3), queue.release_some(noting), queue.truncate_some(noting)) == (0, 0, 0)
        assert DeadLetters.open(db, "q", root=program.space).kick_matching(noting) == 0
    assert program.rows("audit") == before
