"""`fdbqueue aside`: values that were set aside are listed, exported and removed."""

import json
from base64 import b64decode
from pathlib import Path

from fdb import tuple as layer

import fdbqueue
from fdbqueue import Queue, TaskQueue
from fdbqueue.core.root_keys import LAYOUT
from fdbqueue.tasks.stored.records import PAYLOAD
from tests.cli.shell import Shell, Within, parsed


def poisoned(shell: Shell, count: int) -> None:
    with fdbqueue.open(shell.url) as db:
        queue = Queue.named(db, "q", root=shell.space)
        queue.enqueue_many(db, ["bad"] * count)
        under = queue._recipe.keys.items
        for row in list(db.get_range(under.start, under.stop)):
            db[row.key] = b"\x00{damaged"
        queue.enqueue(db, "good")
        assert queue.dequeue(db) == "good"


def test_values_that_were_set_aside_are_listed(shell: Shell, program: Within) -> None:
    poisoned(shell, 3)
    status, out, err = program.run("aside", "q", "-n", "2", "--json")
    assert (status, "more follow the first 2" in err) == (0, True)
    found = parsed(out)
    assert [b64decode(value) for record in found for value in record["values"]] == [b"\x00{damaged"] * 2
    status, out, _ = program.run("aside", "q")
    assert (status, len(out.splitlines())) == (0, 3)
    assert found[0]["id"] in out
    assert program.row("stats", "q")["unreadable"] == 3


def test_exported_values_can_be_removed(shell: Shell, program: Within, tmp_path: Path) -> None:
    poisoned(shell, 3)
    file = tmp_path / "aside.jsonl"
    status, out, _ = program.run("aside", "q", "--export", str(file), "--json")
    assert (status, json.loads(out)) == (0, {"queue": "q", "exported": 3})
    ids = [json.loads(line)["id"] for line in file.read_text().splitlines()]
    assert program.run("aside", "q", "--remove", ids[0])[0] == 0
    assert len(program.run("aside", "q")[1].splitlines()) == 2
    assert program.run("aside", "q", "--export", str(file), "--remove-all")[0] == 0
    assert len(file.read_text().splitlines()) == 5
    assert program.run("aside", "q") == (0, "", "")
    assert program.run("aside", "q", "--remove", "nonsense")[0] == 2
    assert program.run("aside", "nothing")[0] == 2


def test_a_task_that_cannot_be_read_stops_no_command(shell: Shell, program: Within) -> None:
    """The task is buried with the reason, listed with its stored bytes, and removed like any other."""
    with fdbqueue.open(shell.url) as db:
        queue = TaskQueue.create(db, "jobs", root=shell.space)
        task = queue.put(db, "x" * 500)
        keys = queue._shape.keys
        [payload] = db.get_range(PAYLOAD.start(keys.prefix), keys.ready.start)
        db[payload.key] = b"{" * len(payload.value)
        queue.put(db, "good")
        assert queue.take(db, 0).data == "good"
    status, out, _ = program.run("tasks", "jobs", "--state", "buried", "--json")
    found = json.loads(out)
    assert (status, found["id"]) == (0, task.id)
    assert "json" in found["data"]["unreadable"]
    assert b64decode(found["data"]["payload"]) == b"{" * len(payload.value)
    assert found["history"][0]["error"] == "PayloadUnreadable"
    assert task.id in program.run("tasks", "jobs", "--state", "buried")[1]
    assert program.run("delete", "jobs", task.id)[0] == 0
    assert program.run("drop", "jobs", "--yes")[0] in (0, 1)


def test_a_queue_with_an_unreadable_definition_can_be_dropped(shell: Shell, program: Within) -> None:
    with fdbqueue.open(shell.url) as db:
        queue = TaskQueue.create(db, "jobs", root=shell.space)
        TaskQueue.create(db, "others", root=shell.space)
        db[queue._shape.root.definition("jobs")] = b"damaged"
    records = program.rows("queues")
    assert [record["name"] for record in records] == ["jobs", "others"]
    assert "jobs" in records[0]["error"]
    for command in ("queues", "stats", "top -n 1"):
        assert program.run(*command.split())[0] == 0
    assert program.run("tasks", "jobs")[0] == 2
    assert program.run("drop", "jobs")[0] == 1
    assert program.run("drop", "jobs", "--yes")[0] == 0
    assert "jobs" not in program.run("queues")[1]


def test_a_drop_of_a_newer_layout_asks_for_nothing(shell: Shell, program: Within) -> None:
    with fdbqueue.open(shell.url) as db:
        queue = TaskQueue.create(db, "jobs", root=shell.space)
        db[queue._shape.root.definition("jobs")] = layer.pack((1, "", b"", LAYOUT + 1))
    for given in ([], ["--yes"]):
        status, _, err = program.run("drop", "jobs", *given)
        assert (status, "use a newer release" in err, "--yes" in err) == (2, True, False)
