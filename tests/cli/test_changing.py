"""`fdbqueue change`, and `--where` of kick, bury, cancel and delete."""

import shlex
import signal

import pytest

from fdbqueue import Limit
from fdbqueue.core import limits
from tests.cli.shell import INTERRUPTED, Within


@pytest.fixture
def ids(program: Within) -> list[str]:
    program.run("create", "q", "--kind", "fifottl")
    with program.opened() as (db, queue):
        tasks = [queue.put(db, {"to": to, "n": n}, headers={"t": to}) for n, to in enumerate(("ada", "bob"))]
    return [task.id for task in tasks]


def states(program: Within) -> dict[str, int]:
    with program.opened() as (db, queue):
        return {name: n for name, n in queue.statistics(db)["tasks"].items() if n}


@pytest.mark.usefixtures("ids")
def test_change_sets_options_of_tasks_that_match(program: Within) -> None:
    assert program.run("change", "q", "--where", "data.to=bob", "--set", "pri=0", "--set", "delay=60") == (
        0,
        "",
        "fdbqueue: 1 changed\n",
    )
    assert states(program) == {"ready": 1, "delayed": 1, "total": 2}
    [row] = program.rows("change", "q", "--where", "headers.t=ada", "--set", "pri=7")
    numbers = {"looked_at": 2, "matched": 1, "changed": 1}
    assert row == {"queue": "q", **numbers, "after": None, "examples": []}
    assert [task["pri"] for task in program.rows("tasks", "q")] == [7]


def test_a_dry_run_shows_examples_and_changes_nothing(program: Within, ids: list[str]) -> None:
    status, out, err = program.run("delete", "q", "--where", "data.n=1", "--dry-run")
    assert (status, err) == (0, "fdbqueue: 1 match, nothing was changed\n")
    assert out.split("\t")[0] == ids[1]
    [row] = program.rows("delete", "q", "--where", "data.n=1", "--dry-run")
    assert ([task["id"] for task in row["examples"]], row["changed"]) == ([ids[1]], 0)
    assert states(program) == {"ready": 2, "total": 2}


@pytest.mark.usefixtures("ids")
def test_verbs_take_filters_in_place_of_ids(program: Within) -> None:
    assert program.run("bury", "q", "--where", "data.to=ada")[2] == "fdbqueue: 1 buried\n"
    assert states(program) == {"ready": 1, "buried": 1, "total": 2}
    assert program.run("kick", "q", "--where", "class=")[2] == "fdbqueue: 1 kicked\n"
    assert program.run("cancel", "q", "--where", "state=ready", "--where", "data.n=0")[0] == 0
    assert program.run("delete", "q", "--where", "older_than=0")[2] == "fdbqueue: 1 deleted\n"
    assert states(program) == {"done": 1}  # that in the trash may come back


@pytest.mark.usefixtures("ids")
def test_tasks_move_and_name_limits(program: Within) -> None:
    with program.opened() as (db, _):
        Limit.set(db, "each", slots=1, per_key=True, root=program.space)
    program.run("create", "other", "--kind", "fifottl", "--task-limit", "each")
    assert program.run("change", "q", "--set", "queue=other")[2] == "fdbqueue: 2 changed\n"
    assert program.run("change", "other", "--set", "limits.each=ada")[2] == "fdbqueue: 2 changed\n"
    assert [task["limits"] for task in program.rows("tasks", "other")] == [{"each": "ada"}] * 2
    assert program.run("change", "other", "--set", "limits=")[2] == "fdbqueue: 2 changed\n"
    assert [task["limits"] for task in program.rows("tasks", "other")] == [{}] * 2


@pytest.mark.usefixtures("ids")
def test_a_bounded_look_tells_how_to_go_on(program: Within) -> None:
    _, _, err = program.run("change", "q", "--where", "data.to=bob", "--set", "pri=1", "--look", "1")
    assert err.startswith("fdbqueue: 0 changed; looked at 1 of 2 tasks; go on with --after ")
    _, *option = shlex.split(err[err.index("with") :])
    again = program.run("change", "q", "--where", "data.to=bob", "--set", "pri=1", *option)
    assert again == (0, "", "fdbqueue: 1 changed\n")


def test_tasks_lists_those_that_match(program: Within, ids: list[str]) -> None:
    def listed(*words: str) -> list[str]:
        return [row["id"] for row in program.rows("tasks", "q", *words)]

    assert listed("--where", f"id={ids[1]}") == listed("--where", "data.to=bob") == ids[1:]
    assert listed("--where", "headers.t=ada", "--where", "state=ready") == ids[:1]
    assert listed("--where", "unique=7") == listed("--where", "group=" + "0" * 32) == []
    with program.opened() as (db, queue):
        assert queue.take(db, 0) is not None
        status, out, err = program.run("tasks", "q", "--where", "state=taken")
    assert (status, out.split("\t")[:2], err) == (0, [ids[0], "taken"], "")
    first = program.run("tasks", "q", "--where", "data.to=bob", "--look", "1")
    assert (first[0], first[1]) == (0, "")
    assert first[2].startswith("fdbqueue: looked at 1 of 2 tasks; go on with --after ")
    place = first[2].split()[-1]
    assert listed("--where", "data.to=bob", "--after", place) == ids[1:]
    assert [row["id"] for row in program.rows("tasks", "q", "--where", f"id={','.join(ids)}")] == ids
    assert program.run("delete", "q", "--where", f"id={ids[1]}")[2] == "fdbqueue: 1 deleted\n"


@pytest.mark.usefixtures("ids")
def test_an_interrupted_change_tells_where_it_was(program: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKED_THROUGH", 1)
    monkeypatch.setattr("fdbqueue.operate.cli.changing.PLAIN_EVERY_S", -1.0)
    told = "fdbqueue.operate.cli.changing._looked"
    looked = __import__("fdbqueue.operate.cli.changing", fromlist=["_looked"])._looked

    def interrupted(*given: object) -> str:
        monkeypatch.setattr(told, looked)
        signal.raise_signal(signal.SIGINT)
        return str(looked(*given))

    monkeypatch.setattr(told, interrupted)
    status, _, err = program.run("bury", "q", "--where", "state=ready")
    assert status == INTERRUPTED
    assert states(program) == {"ready": 1, "buried": 1, "total": 2}
    first, second, *_ = err.splitlines()
    assert first == "fdbqueue: looked at 1 of 2 tasks, 1 buried so far"
    assert second.startswith("fdbqueue: looked at 1 of 2 tasks, 1 buried; go on with --after ")
    rest = program.run("bury", "q", "--where", "state=ready", "--after", second.split()[-1])
    assert rest[2].splitlines()[-1] == "fdbqueue: 1 buried"


@pytest.mark.parametrize(
    "words",
    [
        "change q --set pri=x",
        "change q --set pri=1 --set pri=2",
        "change q --set nothing=1",
        "change q --set queue=q",
        "change q --set queue=none",
        "change q --set limits=x",
        "change q --set pri",
        "change q --set pri=1 --where",
        "change q --set pri=1 --where key",
        "change q --set pri=1 --where key=1",
        "change q --set pri=1 --where state=taken",
        "change q --set pri=1 --where stat=ready",
        "change q --set pri=1 --where state=ready --where state=buried",
        "change q --set pri=1 --after x",
        "change q --set pri=1 --look 0",
        "change q --where state=ready",
        "change q --set pri=1 --where id=x",
        "tasks q --where id=x",
        "tasks q --where group=x",
        "tasks q --where key=x",
        "tasks q --where state=done",
        "tasks q --where unique={",
        "tasks q --where state=ready --state ready",
        "tasks q --where data=1 --where data=2",
        "tasks q --where data=1 --after x",
        "tasks q --after x",
        "tasks q --look 3",
        "kick q --where state=ready",
        "kick q --where state=buried -n 3",
        "kick q --dry-run",
        "bury q",
        "bury q --dry-run",
        "delete q ID --where state=ready",
        "delete q ID --dry-run",
    ],
)
@pytest.mark.usefixtures("ids")
def test_bad_input_is_refused_in_one_line(program: Within, words: str) -> None:
    status, out, err = program.run(*words.split())
    assert (status in (1, 2), out, err.count("\n")) == (True, "", 1)
    assert states(program) == {"ready": 2, "total": 2}
