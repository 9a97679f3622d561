"""take, ack, release, touch and bury by a TOKEN: a script holds a lease over several commands."""

import os
import shlex
import signal
import subprocess
from typing import Any

import pytest

from fdbqueue.core.errors import DatabaseClosed
from tests.cli.shell import CLOSED_PIPE, PROGRAM, Shell, Within
from tests.support import wait_until

NOT_HELD = "is not held under this lease, or no longer: nothing was changed.\n"


def taken(program: Shell, *options: str) -> Any:
    return program.row("take", "q", *options)


@pytest.fixture
def tasks(program: Within) -> Within:
    """The program, with a queue of two tasks."""
    program.run("create", "q")
    program.run("put", "q", '{"a": "x  y\\tz"}', "second")
    return program


def states(program: Within) -> dict[str, int]:
    counted = program.row("stats", "q")["tasks"]
    return {state: count for state, count in counted.items() if count and state != "total"}


def test_a_script_takes_and_acks(tasks: Within) -> None:
    status, out, err = tasks.run("take", "q", "--ttr", "60")
    id_, token, data = out.removesuffix("\n").split("\t")
    assert (status, err, data) == (0, "", '{"a":"x  y\\tz"}')
    assert shlex.quote(token) == token
    assert token.startswith(id_)
    assert tasks.run("ack", "q", token) == (0, "", f"fdbqueue: {id_} acked\n")
    assert states(tasks) == {"ready": 1, "done": 1}
    assert tasks.run("ack", "q", token) == (1, "", f"fdbqueue: Task {id_} {NOT_HELD}")


def test_with_json_all_attributes_are_told(tasks: Within) -> None:
    task = taken(tasks, "--ttr", "60")
    (listed,) = tasks.rows("tasks", "q", "--state", "taken")
    assert {name: listed[name] for name in task.keys() - {"token"}} == {
        name: value for name, value in task.items() if name != "token"
    }
    assert (task["attempts"], task["until"] - task["taken"]) == (1, pytest.approx(60, abs=5))
    assert listed["holder"]["processes"][0]["process_id"] == os.getppid()
    done = tasks.row("ack", "q", task["token"])
    assert (done["id"], done["state"]) == (task["id"], "done")


def test_a_task_without_an_ack_comes_back(tasks: Within) -> None:
    first = taken(tasks, "--ttr", "0.3")
    taken(tasks, "--ttr", "60")
    again = taken(tasks, "--wait", "30")
    assert (again["id"], again["attempts"], again["orphaned"]) == (first["id"], 2, 1)
    for verb in ("ack", "release", "touch", "bury"):
        status, out, err = tasks.run(verb, "q", first["token"])
        assert (status, out, err) == (1, "", f"fdbqueue: Task {first['id']} {NOT_HELD}")
    assert tasks.run("ack", "q", again["token"])[0] == 0


def test_a_touch_gives_it_more_time(tasks: Within) -> None:
    first = taken(tasks, "--ttr", "5")
    touched = tasks.row("touch", "q", first["token"], "--ttr", "1000")
    assert touched["until"] - first["until"] == pytest.approx(995, abs=60)
    status, _, err = tasks.run("touch", "q", first["token"])
    assert (status, err) == (0, f"fdbqueue: {first['id']} touched\n")


def test_a_release_gives_it_back_with_a_delay_or_a_failure(tasks: Within) -> None:
    first, second = taken(tasks), taken(tasks)
    assert tasks.row("release", "q", first["token"], "--delay", "100")["state"] == "delayed"
    released = tasks.row("release", "q", second["token"], "--failure", "Odd", "--reason", "no luck")
    assert (released["state"], released["failures"]) == ("ready", 1)
    (listed,) = tasks.rows("tasks", "q")
    assert [(one["error"], one["message"]) for one in listed["history"]] == [("Odd", "no luck")]
    assert tasks.mistake("release", "q", first["token"], "--reason", "x") == (
        "fdbqueue: --reason needs --failure\n"
    )


def test_it_is_buried_under_its_lease_or_by_its_id(tasks: Within) -> None:
    first, second = taken(tasks), taken(tasks)
    assert tasks.run("bury", "q", first["token"], second["id"], "--failure", "Odd") == (
        0,
        "",
        f"fdbqueue: {first['id']} buried\nfdbqueue: {second['id']} buried\n",
    )
    assert {row["error"]: row["tasks"] for row in tasks.rows("dead", "classes", "q")} == {"Odd": 2}


def test_a_result_is_kept(program: Within) -> None:
    program.run("create", "q")
    program.run("put", "q", "x", "--result-ttl", "60")
    task = taken(program)
    program.run("ack", "q", task["token"], "--result", '{"n": 7}')
    assert program.run("result", "q", task["id"])[1] == '{"n":7}\n'


def test_a_queue_keeps_the_results_of_its_tasks(program: Within) -> None:
    program.run("create", "q", "--result-ttl", "60")
    program.run("put", "q", "x")
    task = taken(program)
    program.run("ack", "q", task["token"], "--result", "7")
    assert program.run("result", "q", task["id"])[1] == "7\n"
    assert program.row("queues")["options"]["result_ttl"] == 60
    told = "fdbqueue: 'q' changes --result-ttl from 60 to none\n"
    assert program.run("alter", "q", "--without", "result-ttl") == (0, "", told)
    assert "--result-ttl" in program.mistake("create", "r", "--result-ttl", "0")


def test_the_ttr_of_the_queue_is_the_usual_one(program: Within) -> None:
    program.run("create", "q", "--ttr", "500")
    program.run("put", "q", "x")
    task = taken(program)
    assert task["until"] - task["taken"] == pytest.approx(500, abs=5)


def test_no_task_is_told_by_the_status(tasks: Within) -> None:
    taken(tasks)
    tasks.run("pause", "q")
    assert tasks.run("take", "q") == (1, "", "fdbqueue: no task of 'q' is ready: it is paused\n")
    tasks.run("resume", "q")
    taken(tasks)
    assert tasks.run("take", "q", "--wait", "0.1") == (1, "", "fdbqueue: no task of 'q' is ready\n")


def test_a_wrong_word_is_a_mistake(tasks: Within) -> None:
    token = taken(tasks)["token"]
    told = "fdbqueue: TOKEN must be the text of a detached lease: an id, a dash and digits, not"
    for verb in ("ack", "release", "touch"):
        for word in ("x", token[:-2], token.partition("-")[0]):
            assert tasks.mistake(verb, "q", word) == f"{told} '{word}'\n"
    for ttr in ("0", "-1", "inf", "nan", "soon"):
        for words in (["take", "q"], ["touch", "q", token]):
            assert "--ttr" in tasks.mistake(*words, "--ttr", ttr)
    assert states(tasks) == {"ready": 1, "taken": 1}


def test_a_token_of_another_queue_is_refused(tasks: Within) -> None:
    token = taken(tasks)["token"]
    tasks.run("create", "other")
    status, _, err = tasks.run("ack", "other", token)
    assert (status, err) == (1, f"fdbqueue: Task {token.partition('-')[0]} {NOT_HELD}")
    assert states(tasks) == {"ready": 1, "taken": 1}


def test_a_plain_queue_has_no_leases(program: Within) -> None:
    program.run("create", "plain", "--kind", "queue")
    assert "'plain' is a plain queue" in program.mistake("take", "plain")


def test_its_sessions_are_gone_with_their_leases(tasks: Within) -> None:
    tasks.run("ack", "q", taken(tasks)["token"])
    tasks.run("release", "q", taken(tasks)["token"])
    tasks.run("bury", "q", taken(tasks)["token"])
    (told,) = [row for row in tasks.rows("doctor") if row["name"] == "sessions"]
    assert "no session" in told["text"] or told["text"].startswith("0 ")
    assert tasks.run("verify")[0] == 0


def test_an_ack_succeeds_without_the_end_of_its_session(
    program: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.run("create", "q")
    program.run("put", "q", "x")

    def away(*_: object) -> None:
        raise DatabaseClosed

    monkeypatch.setattr("fdbqueue.operate.cli.leases.forget", away)
    first = taken(program, "--ttr", "1")
    assert program.run("ack", "q", first["token"]) == (
        0,
        "",
        f"fdbqueue: the session of the lease of {first['id']} stays until its time is over: "
        f"{DatabaseClosed()}\n"
        f"fdbqueue: {first['id']} acked\n",
    )

    def is_over() -> bool:
        program.run("take", "q")
        (told,) = [row for row in program.rows("doctor") if row["name"] == "sessions"]
        return "no session" in told["text"] or bool(told["text"].startswith("0 "))

    wait_until(is_over)


def test_a_reader_that_is_gone_gets_no_task(shell: Shell, tasks: Within) -> None:
    """The task is back at once, as its token is lost."""
    reader, writer = os.pipe()
    os.close(reader)
    process = shell.start("take", "q", "--ttr", "1000", stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert process.wait(60) == CLOSED_PIPE
    assert states(tasks) == {"ready": 2}


def test_a_script_that_is_killed_holds_its_task_until_its_ttr(shell: Shell, tasks: Within) -> None:
    program = shlex.join([*PROGRAM, *shell.where])
    script = f"{program} take q --ttr 2 > taken; touch is_taken; exec sleep 1000"
    process = subprocess.Popen(["bash", "-c", script], cwd=shell.folder, start_new_session=True)
    wait_until((shell.folder / "is_taken").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    id_, token, _ = (shell.folder / "taken").read_text().split("\t")
    tasks.run("ack", "q", taken(tasks)["token"])
    again = taken(tasks, "--wait", "30")
    assert (again["id"], again["attempts"], again["orphaned"]) == (id_, 2, 1)
    assert tasks.run("ack", "q", token)[0] == 1
