"""`fdbqueue limit`, and queues under limits on the command line."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fdbqueue
from fdbqueue import Limit, Task, TaskQueue
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.cli.work import Progress
from fdbqueue.tasks.limits.rule import LimitKeys
from tests.cli.shell import Shell, Within
from tests.cli.test_work import IDLE, progress_of, running


@contextmanager
def taken(shell: Shell) -> Iterator[Task]:
    """A task of the queue, held by a program."""
    with shell.opened() as (db, queue):
        yield queue.take(db, 0)


def test_a_limit_is_set_shown_listed_and_deleted(shell: Shell, program: Within) -> None:
    assert program.run("limit", "set", "api", "--slots", "1")[0] == 0
    assert program.run("limit", "set", "mails", "--rate", "100", "--per", "60", "--burst", "20")[0] == 0
    program.run("create", "q", "--limit", "api")
    program.run("put", "q", "a", "b")
    with taken(shell) as task:
        rows = [line.split("\t") for line in program.run("limit", "list")[1].splitlines()]
        assert rows == [["api", "1 at a time", "1", "0"], ["mails", "100 in 60 s, burst 20", "0", "20"]]
        shown = program.row("limit", "show", "api")
        assert (shown["slots"], shown["used"], shown["free"]) == (1, 1, 0)
        assert [(one["task"], one["queue"]) for one in shown["holders"]] == [(task.id, "q")]
        assert program.run("limit", "show", "api")[1].startswith(f"{task.id}\tq\t")
        status, _, err = program.run("limit", "delete", "api")
    assert (status, err.count("\n")) == (1, 1)
    assert "is in use by 1 task:" in err
    deleted = program.row("limit", "delete", "mails")
    assert deleted == {"name": "mails", "deleted": True}


def test_a_limit_of_slots_and_a_rate_is_set_and_listed(shell: Shell, program: Within) -> None:
    both = ("--slots", "2", "--rate", "1", "--per", "600", "--per-key")
    said = program.run("limit", "set", "host", *both)[2]
    assert "2 tasks at a time; 1 start in 600 s, at most 1 at once for each key" in said
    program.run("create", "q", "--task-limit", "host")
    program.run("put", "q", "--limit-key", "host", "acme", "a", "b")
    with taken(shell):
        [row] = [line.split("\t") for line in program.run("limit", "list")[1].splitlines()]
        assert row == ["host", "2 at a time; 1 in 600 s, burst 1 for each key", "1", "1"]
        assert program.row("limit", "keys", "host", "--key", "acme")["free"] == 0
        waits = program.row("tasks", "q", "--state", "ready")
        [first, *_] = program.run("explain", "q", waits["id"])[1].splitlines()
    assert first.startswith("limit reached\tThe limit 'host' has no token for the key 'acme': ")
    assert program.run("limit", "set", "host", "--rate", "1", "--per", "1", "--per-key")[0] == 2
    assert program.run("limit", "set", "host", "--slots", "2", "--per-key")[0] == 0


def test_an_explanation_tells_the_limit(shell: Shell, program: Within) -> None:
    program.run("limit", "set", "api", "--slots", "1")
    program.run("create", "q", "--limit", "api")
    program.run("put", "q", "a", "b")
    with taken(shell) as task:
        waits = program.row("tasks", "q", "--state", "ready")
        [first, *_] = program.run("explain", "q", waits["id"])[1].splitlines()

    assert first.startswith("limit reached\tThe limit 'api' has no free slot: 1 of 1 are held, by ")
    assert task.id in first


@contextmanager
def stalled(as_json: bool) -> Iterator[tuple[Progress, Task]]:
    """The progress of a fleet whose queue has one slot, and the task that holds it."""
    with fdbqueue.open("memory:") as db:
        Limit.set(db, "api", slots=1)
        queue = TaskQueue.create(db, "q", limits=["api"])
        queue.put_many(db, ["a", "b"])
        TaskQueue.create(db, "r").put(db, "of no limit")
        held = queue.take(db, 0)
        with progress_of(db, "q", "r", as_json=as_json) as progress:
            yield progress, held


@pytest.mark.usefixtures("at_once")
def test_a_stalled_fleet_names_its_limit_once(capfd: pytest.CaptureFixture[str]) -> None:
    with stalled(as_json=False) as (progress, held):
        for _ in range(3):
            progress.tick(IDLE)
    [line] = capfd.readouterr().err.splitlines()
    assert "0 done; 0/s, 3 left; 'q' waits: the limit 'api' has no free slot: " in line
    assert f"held, by {held.id} of 'q'" in line


@pytest.mark.usefixtures("at_once")
def test_a_paused_queue_under_a_limit_waits_for_both(capfd: pytest.CaptureFixture[str]) -> None:
    with stalled(as_json=False) as (progress, _):
        progress._place.tasks_in(progress._database, "q").pause(progress._database)
        progress.tick(IDLE)
    [line] = capfd.readouterr().err.splitlines()
    both = "the queue is paused. fdbqueue resume q ends the pause. The limit 'api' has no free slot: "
    assert f"'q' waits: {both}" in line


@pytest.mark.usefixtures("at_once")
def test_json_of_a_stalled_fleet_has_its_limits(capfd: pytest.CaptureFixture[str]) -> None:
    with stalled(as_json=True) as (progress, held):
        progress.tick(IDLE)
    [found] = json.loads(capfd.readouterr().out)["reached"]
    assert (found["queue"], found["name"], found["slots"], found["key"]) == ("q", "api", 1, None)
    assert [holder["task"] for holder in found["holders"]] == [held.id]


@pytest.mark.usefixtures("at_once")
def test_a_fleet_that_runs_a_task_names_no_limit(capfd: pytest.CaptureFixture[str]) -> None:
    with stalled(as_json=False) as (progress, held):
        progress.tick(running(held.id, "q"))
    assert "api" not in capfd.readouterr().err


@pytest.mark.in_turn(4)
@pytest.mark.usefixtures("at_once")
def test_work_that_waits_for_a_token_says_so(program: Within) -> None:
    program.run("limit", "set", "api", "--rate", "1", "--per", "4")
    program.run("create", "q", "--limit", "api")
    program.run("put", "q", "a", "b")
    status, _, err = program.run("work", "q", "--exec", "--until-empty", "--processes", "1", "--", "true")
    assert (status, "2 done in " in err.splitlines()[-1]) == (0, True)
    said = "; 'q' waits: the limit 'api' has no token: .* Its next token comes in [0-9.]+ s\\.$"
    assert re.search(said, err, re.MULTILINE), err


def test_wrong_limits_are_refused(program: Within) -> None:
    for wrong in ("", "--slots 1 --rate 1", "--rate 1", "--slots 2 --per 1", "--slots 10001"):
        program.mistake("limit", "set", "api", *wrong.split())
    program.run("create", "plain", "--kind", "queue")
    assert program.run("limit", "show", "api")[0] == 2
    assert program.run("limit", "delete", "api")[0] == 2
    assert program.run("create", "q", "--limit", "api")[0] == 2
    assert program.run("create", "p", "--kind", "queue", "--limit", "api")[0] == 2


def test_a_task_names_limits(shell: Shell, program: Within) -> None:
    program.run("limit", "set", "api", "--slots", "1")
    assert program.run("create", "q", "--task-limit", "api")[0] == 0
    assert program.run("put", "q", "--limit", "api", "a", "b")[0] == 0
    put = json.loads(program.run("put", "q", "--json", "free")[1])
    assert put["limits"] == {}
    with taken(shell) as task:
        assert (task.data, dict(task.limits)) == ("a", {"api": None})
        with taken(shell) as other:
            assert other.data == "free"
        ready = program.rows("tasks", "q", "--state", "ready")
        [waits] = [row for row in ready if row["limits"] == {"api": None}]
        assert program.run("explain", "q", waits["id"])[1].startswith("limit reached\tThe limit 'api'")
    program.mistake("put", "q", "--limit", "none", "x")


def test_a_limit_counts_each_key_apart(shell: Shell, program: Within) -> None:
    told = program.run("limit", "set", "tenant", "--slots", "1", "--per-key")
    assert told[0] == 0
    program.run("create", "q", "--task-limit", "tenant")
    for key in ("acme", "acme", "7"):
        assert program.run("put", "q", "--limit-key", "tenant", key, f"of {key}")[0] == 0
    with taken(shell) as task:
        assert dict(task.limits) == {"tenant": "acme"}
        with taken(shell) as other:
            assert dict(other.limits) == {"tenant": 7}
            assert program.run("limit", "list")[1] == "tenant\t1 at a time for each key\t2\t1\n"
            rows = {row["key"]: row for row in program.rows(*KEYS)}
            assert {key: (row["used"], row["free"]) for key, row in rows.items()} == {
                "acme": (1, 0),
                7: (1, 0),
            }
        assert "more keys follow the first 1" in program.run(*KEYS, "-n", "1")[2]
        one = program.row(*KEYS, "--key", "acme")
        assert [holder["task"] for holder in one["holders"]] == [task.id]
        assert program.run(*KEYS, "--key", "acme")[1].startswith(f"{task.id}\tq\t")
        ready = program.rows("tasks", "q", "--state", "ready")
        [waits] = [row for row in ready if row["limits"] == {"tenant": "acme"}]
        reason = program.run("explain", "q", waits["id"])[1]
        assert reason.startswith("limit reached\tThe limit 'tenant' has no free slot for the key 'acme': ")
    assert program.run("limit", "set", "tenant", "--slots", "2")[0] == 2
    program.run("limit", "set", "whole", "--slots", "2")
    assert program.run("limit", "keys", "whole")[0] == 2
    assert program.run("put", "q", "--limit-key", "none", "a", "x")[0] == 2


KEYS = ("limit", "keys", "tenant")


def test_an_unreadable_limit_is_told(shell: Shell, program: Within) -> None:
    program.run("limit", "set", "api", "--slots", "1")
    with fdbqueue.open(shell.url) as db:
        db[LimitKeys(RootKeys(shell.space).prefix, "api").row] = b"damaged"
    assert program.run("limit", "list")[1] == "api\tunreadable\t\t\n"
    row = program.row("limit", "list")
    assert (row["name"], row["slots"], "cannot be read" in row["error"]) == ("api", None, True)
    for command in (("limit", "show", "api"), ("limit", "keys", "api"), ("create", "q", "--limit", "api")):
        status, _, err = program.run(*command)
        assert (status, err.startswith("fdbqueue: The limit 'api' cannot be read")) == (2, True)
    assert program.run("limit", "set", "api", "--slots", "2")[0] == 0
    assert program.run("create", "q", "--limit", "api")[0] == 0


def test_a_list_of_limits_has_no_holders(shell: Shell, program: Within) -> None:
    """Those are in `show`, and in `keys --key`."""
    program.run("limit", "set", "tenant", "--slots", "3", "--per-key")
    program.run("create", "q", "--task-limit", "tenant")
    program.run("put", "q", "--limit-key", "tenant", "acme", "x")
    with taken(shell):
        for listed in (("limit", "list"), KEYS):
            row = program.row(*listed)
            assert (row["used"], "holders" in row) == (1, False)
        told = program.run("limit", "show", "tenant")[2]
        assert "tasks hold 1 slot; `fdbqueue limit keys tenant` lists the keys" in told


def test_a_put_names_one_limit_with_a_key(program: Within) -> None:
    """Each of these dropped a limit, and put the task."""
    for name in ("tenant", "other"):
        program.run("limit", "set", name, "--slots", "1", "--per-key")
    program.run("create", "q", "--task-limit", "tenant", "--task-limit", "other")
    tenant = ("--limit-key", "tenant", "a")
    for more in (("--limit-key", "other", "b"), ("--limit-key", "tenant", "b"), ("--limit", "tenant")):
        assert program.run("put", "q", *tenant, *more, "x")[0] == 2
        assert program.run("schedule", "create", "s", "q", "--every", "60", *tenant, *more)[0] == 2
    assert program.run("tasks", "q")[1] == ""
    assert program.run("put", "q", *tenant, "--limit", "other", "x")[0] == 0


def test_tasks_of_a_schedule_name_a_key(program: Within) -> None:
    program.run("limit", "set", "tenant", "--slots", "1", "--per-key")
    program.run("create", "q", "--task-limit", "tenant")
    made = program.run(
        "schedule", "create", "s", "q", "--every", "60", "--limit-key", "tenant", "acme", "--json"
    )
    assert json.loads(made[1])["options"]["limits"] == {"tenant": "acme"}
    changed = program.run("schedule", "change", "s", "--without", "limit", "--json")
    assert "limits" not in json.loads(changed[1])["options"]
