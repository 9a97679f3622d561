"""`fdbqueue dead` and `fdbqueue redrive`: buried tasks looked at, mended, and sent back."""

import json
import shlex
import signal

import pytest

import fdbqueue
from fdbqueue import Failure, TaskQueue
from tests.cli.shell import INTERRUPTED, Shell, Within

ESCAPE = "\x1b[31m"


def bury(program: Within, *failures: tuple[str, str], queue: str = "q") -> list[str]:
    """Put a task for each failure, and bury it with that. Return the ids."""
    ids = []
    with fdbqueue.open(program.url) as db:
        tasks = TaskQueue.open(db, queue, root=program.space)
        for error, message in failures:
            task = tasks.put(db, {"said": message})
            tasks.bury(db, task.id, failure=Failure(error, message, f"Traceback\n  {ESCAPE}line", "here:1"))
            ids.append(task.id)
    return ids


@pytest.fixture
def ids(program: Within) -> list[str]:
    program.run("create", "q")
    return bury(program, ("ValueError", "odd"), ("KeyError", "missing"), ("ValueError", f"even{ESCAPE}"))


def test_classes_tell_numbers_and_an_example(program: Within, ids: list[str]) -> None:
    _, out, _ = program.run("dead", "classes", "q")
    assert [line.split("\t")[:3] for line in out.splitlines()] == [
        ["2", "ValueError", ids[0]],
        ["1", "KeyError", ids[1]],
    ]
    [first, _] = program.rows("dead", "classes", "q")
    assert (first["error"], first["tasks"], first["failure"]["message"]) == ("ValueError", 2, "odd")


def test_the_cure_of_a_buried_task_kicks_that_task_only(program: Within, ids: list[str]) -> None:
    _, out, _ = program.run("explain", "q", ids[1])
    name, *words = shlex.split(out.split("\t")[2])
    assert name == "fdbqueue"
    assert program.run(*words)[0] == 0
    assert [row["id"] for row in program.rows("dead", "list", "q")] == [ids[0], ids[2]]


def test_list_chooses_by_class_and_text(program: Within, ids: list[str]) -> None:
    def listed(*options: str) -> list[str]:
        return [row["id"] for row in program.rows("dead", "list", "q", *options)]

    assert listed() == ids
    assert listed("--error", "ValueError") == [ids[0], ids[2]]
    assert listed("--match", "missing") == [ids[1]]
    assert listed("--error", "", "--match", "x") == []
    status, out, err = program.run("dead", "list", "q", "-n", "2")
    assert (status, len(out.splitlines())) == (0, 2)
    assert "more tasks may follow the first 2" in err


def test_no_output_has_an_escape_sequence(program: Within, ids: list[str]) -> None:
    for command in (["classes", "q"], ["list", "q"], ["show", "q", ids[2]]):
        for json_option in ([], ["--json"]):
            _, out, _ = program.run("dead", *command, *json_option)
            assert out
            assert "\x1b" not in out


def test_show_has_every_traceback(program: Within, ids: list[str]) -> None:
    with program.opened() as (db, queue):
        queue.kick(db, 3)
        queue.bury(db, ids[0], failure=Failure("OSError", "disk", "Traceback two"))
    _, out, _ = program.run("dead", "show", "q", ids[0])
    first, second = out.rstrip("\n").split("\n\n")
    assert first.splitlines()[1:3] == ["ValueError: odd", "Traceback"]
    assert second.splitlines()[1:] == ["OSError: disk", "Traceback two"]
    row = program.row("dead", "show", "q", ids[0])
    assert [failure["error"] for failure in row["history"]] == ["ValueError", "OSError"]


def test_edit_changes_data_and_kicks_if_told(program: Within, ids: list[str]) -> None:
    assert program.run("dead", "edit", "q", ids[0], '{"n": 1}')[0] == 0
    assert program.run("dead", "edit", "q", ids[1], "42", "--text", "--kick")[0] == 0
    ready = program.row("tasks", "q")
    assert (ready["id"], ready["data"]) == (ids[1], "42")
    assert program.rows("dead", "list", "q")[0]["data"] == {"n": 1}


def test_kick_takes_ids_or_a_choice(program: Within, ids: list[str]) -> None:
    assert program.run("dead", "kick", "q", ids[1])[0] == 0
    status, _, err = program.run("dead", "kick", "q", ids[1], ids[0])
    assert (status, "is ready, not buried" in err, f"{ids[0]} kicked" in err) == (1, True, True)
    _, out, _ = program.run("dead", "kick", "q", "--error", "ValueError", "--json")
    assert json.loads(out) == {"queue": "q", "kicked": 1}
    assert program.run("dead", "kick", "q")[0] == 2
    assert program.run("dead", "kick", "q", ids[0], "--match", "x")[0] == 2


def test_a_redrive_runs_to_its_end(program: Within, ids: list[str]) -> None:
    status, _, err = program.run("redrive", "start", "q", "--error", "ValueError", "--rate", "1000")
    assert (status, err) == (0, "fdbqueue: done: 2 moved\n")
    row = program.row("redrive", "status", "q")
    assert (row["state"], row["moved"], row["error"]) == ("done", 2, "ValueError")
    assert [row["id"] for row in program.rows("dead", "list", "q")] == [ids[1]]


def test_a_redrive_goes_on_in_another_process(program: Within, ids: list[str]) -> None:
    program.run("create", "other", "--kind", "utube")
    begun = program.run("redrive", "start", "q", "--into", "other", "--rate", "1000", "--detach")
    assert begun == (0, "", "fdbqueue: running: 0 moved, 3 left\n")
    assert program.run("redrive", "pause", "q")[0] == 0
    assert program.run("redrive", "run", "q")[2] == "fdbqueue: paused: 0 moved, 3 left\n"
    assert program.run("redrive", "start", "q")[0] == 1
    assert program.run("redrive", "resume", "q", "--detach")[0] == 0
    assert program.run("redrive", "run", "q")[2] == "fdbqueue: done: 3 moved\n"
    moved = program.rows("tasks", "other")
    assert [row["data"]["said"] for row in moved] == ["odd", "missing", f"even{ESCAPE}"]
    assert len(ids) == 3


def test_an_interrupted_redrive_stays(shell: Shell, program: Within, ids: list[str]) -> None:
    process = shell.start("redrive", "start", "q", "--rate", "0.01")
    with fdbqueue.open(program.url) as db:
        letters = fdbqueue.DeadLetters.open(db, "q", root=program.space)
        while (found := letters.redrive(db)) is None or not found.moved:
            db.runtime.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert f"interrupted: `{shlex.join(['fdbqueue', *program.where, 'redrive', 'run', 'q'])}` goes on" in err
    _, out, _ = program.run("redrive", "status", "q")
    assert out.split("\t")[:3] == ["running", "1", str(len(ids) - 1)]
    assert program.run("redrive", "stop", "q") == (0, "", "fdbqueue: stopped: 1 moved\n")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["dead", "show", "q", "00"], 2, "the id of a task"),
        (["dead", "edit", "q", "00", "{"], 2, "is not JSON"),
        (["redrive", "status", "q"], 1, "no redrive"),
        (["redrive", "pause", "q"], 1, "no redrive"),
        (["redrive", "run", "q"], 1, "no redrive"),
        (["redrive", "start", "q", "--rate", "0"], 2, "--rate"),
        (["redrive", "start", "q", "--into", "nowhere"], 2, "no queue named 'nowhere'"),
        (["redrive", "start", "q", "--into", "q"], 2, "another queue"),
        (["redrive", "start", "q", "--into", "plain"], 2, "plain queue"),
    ],
)
def test_bad_input_is_a_sentence_and_a_status(
    program: Within, arguments: list[str], status: int, says: str
) -> None:
    program.run("create", "q")
    program.run("create", "plain", "--kind", "queue")
    found, out, err = program.run(*arguments)
    assert (found, out, says in err, "Traceback" in err) == (status, "", True, False)


def test_a_task_that_is_gone_is_told(program: Within, ids: list[str]) -> None:
    program.run("delete", "q", ids[0])
    for command in (["show", "q", ids[0]], ["edit", "q", ids[0], "1"], ["kick", "q", ids[0]]):
        status, _, err = program.run("dead", *command)
        assert (status, ids[0] in err) == (1, True)
