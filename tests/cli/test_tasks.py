"""The commands on tasks: tasks, kick, bury, cancel, delete, release-all, truncate, and `put --unique`."""

import json
import os
import platform
import shlex
from typing import Any

import pytest

from fdbqueue.core.task import Failure
from fdbqueue.operate.cli.show import HELD_COLUMNS, shown_held
from tests.cli.shell import Shell, Within, rest_of


def put(program: Within, *arguments: str) -> list[str]:
    """Put tasks; return their ids."""
    return [row["id"] for row in program.rows("put", *arguments)]


def listed(program: Within, state: str) -> list[dict[str, Any]]:
    return program.rows("tasks", "q", "--state", state)


def test_options_of_a_put_are_those_of_the_tasks(program: Within) -> None:
    program.run("create", "q", "--kind", "utubettl")
    put(program, "q", "last", "--priority", "9", "--ttl", "100", "--key", "k")
    put(program, "q", "later", "--delay", "100", "--key", "7")
    put(program, "q", "first", "--priority", "1", "--ttr", "5")
    assert [(task["data"], task["pri"], task["key"]) for task in listed(program, "ready")] == [
        ("first", 1, None),
        ("last", 9, "k"),
    ]
    (later,) = listed(program, "delayed")
    assert (later["data"], later["key"], later["expires"]) == ("later", 7, None)


@pytest.mark.commits_by_hand  # a page reads nine hundred keys in one transaction
def test_tasks_with_a_long_key_are_put_in_parts(program: Within) -> None:
    program.run("create", "q", "--kind", "utube")
    words = [str(n) for n in range(900)]
    ids = put(program, "q", *words, "--key", "k" * 980, "--header", "h=" + "v" * 980)
    assert len(set(ids)) == 900
    assert [task["data"] for task in program.rows("tasks", "q", "-n", "900")] == list(range(900))


def test_lines_become_tasks(shell: Shell, program: Within) -> None:
    program.run("create", "q", "--kind", "limfifottl", "--capacity", "3")
    lines = "1\ntwo\n\n[3]\n"
    assert shell.run("put", "q", "--lines", "-", given=lines) == (0, "", "fdbqueue: 3 put\n")
    assert [task["data"] for task in listed(program, "ready")] == [1, "two", [3]]


@pytest.mark.commits_by_hand  # a page reads a thousand keys in one transaction
def test_tasks_lists_the_first_n(program: Within) -> None:
    program.run("create", "q")
    with program.opened() as (db, queue):
        for start in (0, 1_000):
            queue.put_many(db, range(start, start + 1_000))
        queue.put_many(db, range(2_000, 2_100))
    assert [task["data"] for task in program.rows("tasks", "q", "-n", "9999")] == list(range(2_100))
    status, out, err = program.run("tasks", "q")
    assert (status, len(out.splitlines())) == (0, 100)
    assert err == "fdbqueue: more tasks follow the first 100: -n N lists N\n"


def test_a_task_is_listed_with_its_failures(program: Within) -> None:
    program.run("create", "q")
    put(program, "q", "poison")
    with program.opened() as (db, queue):
        for failure in (Failure("ValueError", "odd\nnumber", "Traceback"), Failure("OSError")):
            task = queue.take(db, 0)
            queue.release(db, task, failure=failure)
        task = queue.take(db, 0)
        queue.bury(db, task, failure=Failure("ValueError", "odd\nagain", "Traceback (most recent ..."))
    status, out, _ = program.run("tasks", "q", "--state", "buried")
    id_, _, attempts, most, key, data, error = out.rstrip("\n").split("\t")
    assert (status, id_, attempts, most, key, data) == (0, task.id, "3", "its worker's", "", '"poison"')
    assert error == "ValueError: odd again"
    (whole,) = listed(program, "buried")
    assert whole["failures"] == 3
    assert [failure["error"] for failure in whole["history"]] == ["ValueError", "OSError", "ValueError"]
    assert whole["history"][-1]["detail"] == "Traceback (most recent ..."
    assert whole["history"][-1]["outcome"] == "buried"


def test_a_task_is_listed_with_its_steps(program: Within) -> None:
    program.run("create", "q")
    for data in ("x", "y"):
        put(program, "q", data)
    with program.opened() as (db, queue):
        task = queue.take(db, 0)
        for name in ("mail", "charge"):
            queue.step(db, task, name, lambda: None)
        queue.release(db, task)
    assert [task["steps_done"] for task in listed(program, "ready")] == [["charge", "mail"], []]


def test_a_taken_task_is_listed_with_its_holder(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    put(program, "q", "x")
    here = {"host": platform.node(), "process_id": os.getpid()}
    with program.opened() as (db, queue):
        task = queue.take(db)
        (row,) = listed(program, "taken")
        columns = program.run("tasks", "q", "--state", "taken")[1].rstrip("\n").split("\t")
        top = program.row("top", "q", "-n", "1")
        put(program, "q", "y")
        (other,) = listed(program, "ready")
    assert (row["session"], row["taken"]) == (task.session, task.taken)
    assert (row["holder"]["session"], row["holder"]["processes"]) == (task.session, [here])
    assert columns[-1] == f"{here['host']}:{here['process_id']}"
    [held] = top["held"]
    assert (held["id"], held["holder"]["processes"], held["session"]) == (task.id, [here], task.session)
    [shown] = shown_held([top], 9)
    told = {name: cell(shown) for name, cell in HELD_COLUMNS.items()}
    del told["for"]
    assert list(told.values()) == ["q", task.id, "", columns[-1], task.session]
    assert shown_held([top], 0) == []
    assert (other["session"], other["taken"], other["holder"]) == (None, None, None)


def test_an_explanation_has_each_reason_with_its_cure(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    (id_,) = put(program, "q", "x\x1b[31m")
    program.run("pause", "q")
    status, out, err = program.run("explain", "q", id_)
    assert (status, err) == (0, "")
    where = shlex.join(["fdbqueue", *program.where])
    nobody = "No worker takes from the queue, and no call waits."
    assert [line.split("\t") for line in out.splitlines()] == [
        ["paused", "The queue is paused.", f"{where} resume q", ""],
        ["no worker", nobody, f"{where} work q MODULE:FUNCTION", ""],
    ]
    found = program.row("explain", "q", id_)
    assert (found["task"]["id"], found["paused"], found["workers"]) == (id_, True, 0)
    assert [reason["why"] for reason in found["reasons"]] == ["paused", "no worker"]


def test_an_explanation_of_a_missing_task_is_refused(program: Within) -> None:
    program.run("create", "q")
    (id_,) = put(program, "q", "x")
    program.run("delete", "q", id_)
    assert program.run("explain", "q", id_) == (1, "", f"fdbqueue: no such task in 'q': {id_}\n")
    program.mistake("explain", "q", "x")


def test_bury_kick_and_delete_by_hand(program: Within) -> None:
    program.run("create", "q")
    ids = put(program, "q", "a", "b", "c", "d")
    said = f"fdbqueue: {ids[0]} buried\nfdbqueue: {ids[1]} buried\n"
    assert program.run("bury", "q", ids[0], ids[1]) == (0, "", said)
    assert program.row("bury", "q", ids[2])["state"] == "buried"
    assert program.run("kick", "q", "-n", "0") == (0, "", "fdbqueue: 0 kicked\n")
    assert program.run("kick", "q") == (0, "", "fdbqueue: 1 kicked\n")
    assert [task["data"] for task in listed(program, "buried")] == ["b", "c"]
    assert program.run("kick", "q", "--all", "--json")[1] == '{"queue":"q","kicked":2}\n'
    assert program.run("kick", "q", "-n", "5") == (0, "", "fdbqueue: 0 kicked\n")
    status, _, err = program.run("delete", "q", ids[3], ids[3])
    assert (status, err) == (1, f"fdbqueue: {ids[3]} deleted\nfdbqueue: no such task in 'q': {ids[3]}\n")
    assert [task["data"] for task in listed(program, "ready")] == ["a", "b", "c"]


def test_explain_without_an_id_tells_of_the_first_that_waits(program: Within) -> None:
    """A ready one comes before a delayed one, whatever their ages."""
    program.run("create", "q", "--ttr", "60")
    delayed, ready = put(program, "q", "a", "--delay", "60")[0], put(program, "q", "b")[0]
    program.run("pause", "q")
    status, out, err = program.run("explain", "q")
    assert (status, err) == (0, f"fdbqueue: the first task that waits is {ready}\n")
    assert "the queue is paused" in out.lower()
    assert program.row("explain", "q")["task"]["id"] == ready
    program.run("delete", "q", ready)
    assert program.row("explain", "q")["task"]["id"] == delayed
    program.run("bury", "q", delayed)
    look = f"`fdbqueue {' '.join(program.where)} dead classes q`"
    told = f"fdbqueue: no task of 'q' waits: 0 taken, 1 buried ({look})\n"
    assert program.run("explain", "q") == (1, "", told)


def test_explain_of_a_queue_full_of_buried_tasks_makes_room(program: Within) -> None:
    program.run("create", "q", "--kind", "limfifottl", "--capacity", "1")
    program.run("bury", "q", put(program, "q", "a")[0])
    here = f"fdbqueue {' '.join(program.where)}"
    told = (
        "fdbqueue: no task of 'q' waits: 0 taken, 1 buried; it is full. First mend or stop what fails, which"
        f" `{here} dead classes q` tells, or else it fills again. Then"
        f" `{here} delete q --where state=buried --where class=CLASS` makes room.\n"
    )
    assert program.run("explain", "q") == (1, "", told)
    assert program.run("delete", "q", "--where", "state=buried", "--where", "class=")[0] == 0
    assert listed(program, "buried") == []


def test_explain_tells_of_a_task_that_the_line_has_lost(program: Within) -> None:
    program.run("create", "q")
    put(program, "q", "a")
    with program.opened() as (db, queue):
        ready = queue._shape.keys.ready
        del db[ready.start : ready.stop]
    see = f"`fdbqueue {' '.join(program.where)} verify q`"
    told = f"no task of 'q' stands in line, but 1 counted as ready: see {see}"
    assert program.run("explain", "q") == (1, "", f"fdbqueue: {told}\n")


def test_cancel_ends_waiting_tasks_and_marks_taken_ones(program: Within) -> None:
    program.run("create", "q")
    ids = put(program, "q", "a", "b")
    with program.opened() as (db, queue):
        task = queue.take(db, 0)
        said = f"{ids[0]} cancelled: it is taken, and ends with its lease\nfdbqueue: {ids[1]} cancelled"
        assert program.run("cancel", "q", *ids) == (0, "", f"fdbqueue: {said}\n")
        queue.progress(db, task, 0.4)
        assert program.run("tasks", "q", "--state", "taken")[1].split("\t")[-2] == "40% cancelled"
        (row,) = listed(program, "taken")
        assert row["progress"] == 0.4
        assert row["cancel_asked"] >= row["taken"]
        explained = program.row("explain", "q", ids[0])
        assert [reason["why"] for reason in explained["reasons"]] == ["cancelled"]
        assert queue.release(db, task).state == "-"
    gone = f"fdbqueue: no such task in 'q': {ids[0]}\n"
    assert program.run("cancel", "q", ids[0], "--json") == (1, "", gone)
    assert program.row("stats", "q")["ends"]["cancelled"] == 2


def test_ended_tasks_are_listed_and_found(program: Within) -> None:
    program.run("create", "q", "--kind", "utube", "--retain", "60")
    ids = [put(program, "q", "x", "--key", key)[0] for key in ("a", "b", "a")]
    for id_ in ids:
        program.run("delete", "q", id_)
    rows = program.rows("ended", "q")
    assert [(row["id"], row["outcome"], row["attempts"]) for row in rows] == [
        (id_, "deleted", 0) for id_ in ids[::-1]
    ]
    status, out, err = program.run("ended", "q", "--key", "a", "-n", "1")
    assert (status, out.split("\t")[:2], out.split("\t")[-1]) == (0, [ids[2], "deleted"], '"a"\n')
    assert err == "fdbqueue: more ended tasks may follow the last 1: -n N lists N\n"
    assert program.run("ended", "q", ids[1])[1].startswith(f"{ids[1]}\tdeleted\t")
    status, _, err = program.run("explain", "q", ids[1])
    assert (status, err.split(" (it was deleted ")[0]) == (1, f"fdbqueue: no such task in 'q': {ids[1]}")
    for key, options in (("42", ["--text"]), ("[odd", ["--text"]), ("null", [])):
        (id_,) = put(program, "q", "x", "--key", key, *options)
        program.run("delete", "q", id_)
        assert program.run("ended", "q", "--key", key, *options)[1].startswith(id_)
    assert program.run("ended", "q", "--key", "42")[1] == ""
    assert "--text takes it as it is" in program.run("ended", "q", "--key", "[odd")[2]
    missing = "0" * 32
    for command in (["cancel"], ["delete"], ["bury"], ["dead", "show"]):
        status, _, err = program.run(*command, "q", ids[1])
        assert (status, f"{ids[1]} (it was deleted " in err) == (1, True)
    refused = f"fdbqueue: not among the ended tasks of 'q': {missing}\n"
    assert program.run("ended", "q", missing) == (1, "", refused)
    assert program.run("ended", "q", missing, "--key", "a")[0] == 2
    assert program.run("ended", "q", "--key", "[")[0] == 2


def test_a_queue_that_keeps_no_ended_tasks_says_so(program: Within) -> None:
    program.run("create", "q")
    said = "fdbqueue: A queue of kind 'fifo' does not support ended tasks: it has no --retain.\n"
    assert program.run("ended", "q") == (2, "", said)


def test_follow_prints_each_progress_until_the_task_ends(shell: Shell) -> None:
    shell.run("create", "q", "--kind", "fifottl", "--ttr", "60")
    with shell.opened() as (db, queue):
        id_ = queue.put(db, "x").id
        task = queue.take(db, 0)
        following = shell.start("follow", "q", id_)
        assert following.stdout.readline() == "taken\t\n"
        for number in (0.25, 0.5):
            queue.progress(db, task, number)
            assert following.stdout.readline() == f"taken\t{number:.0%}\n"
        queue.ack(db, task)
    assert rest_of(following) == ("", f"fdbqueue: {id_} has ended\n")
    assert following.returncode == 0
    gone = f"fdbqueue: no such task in 'q': {id_}\n"
    assert shell.run("follow", "q", id_) == (1, "", gone)


def test_many_tasks_are_changed_in_bounded_transactions(program: Within) -> None:
    """There are more tasks than one transaction may change."""
    program.run("create", "q", "--kind", "fair")
    put(program, "q", *map(str, range(450)))
    with program.opened() as (db, queue):
        taken = [task for _ in range(9) for task in queue.take_many(db, 50, 0)]
        assert len(taken) == 450
        assert program.run("release-all", "q") == (0, "", "fdbqueue: 450 released\n")
        for task in queue.tasks(db, "r", 300):
            queue.bury(db, task.id)
        assert program.run("kick", "q", "--all") == (0, "", "fdbqueue: 300 kicked\n")
        queue.take_many(db, 50, 0)
        refused = "fdbqueue: truncate would remove 450 tasks of 'q': confirm with --yes\n"
        assert program.run("truncate", "q") == (1, "", refused)
        assert program.run("truncate", "q", "--yes") == (0, "", "fdbqueue: 450 removed\n")
        found = queue.statistics(db)
        assert set(found["tasks"].values()) == {0}
        assert found["calls"]["delete"] == 0
        assert program.run("drop", "q", "--yes")[0] == 0


def test_removing_some_keeps_order_and_statistics_of_the_rest(program: Within) -> None:
    """After an interruption the queue is sound."""
    program.run("create", "q", "--kind", "utube")
    for number in range(6):
        put(program, "q", str(number), "--key", "ab"[number % 2])
    with program.opened() as (db, queue):
        assert queue.take(db, 0) is not None
        assert queue.truncate_some(db, 3) == 3
        assert queue.statistics(db)["tasks"]["total"] == 3
        found = [queue.take(db, 0), queue.take(db, 0), queue.take(db, 0)]
        assert [task and task.data for task in found] == [3, 4, None]


def put_unique(program: Within, *arguments: str) -> tuple[int, Any, str]:
    status, out, err = program.run("put", "q", *arguments, "--json")
    return status, json.loads(out) if out else None, err


def test_a_second_put_prints_the_first_task(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    _, first, _ = put_unique(program, "a", "--unique", "7")
    _, again, _ = put_unique(program, "b", "--unique", "7")
    assert (first["existed"], again["existed"], again["unique"]) == (False, True, 7)
    assert (again["id"], again["data"]) == (first["id"], "a")
    _, other, _ = put_unique(program, "c", "--unique", '"7"', "--scope", "60")
    assert (other["existed"], other["unique"]) == (False, "7")
    [shown, _] = program.rows("tasks", "q")
    assert shown["unique"] == 7
    assert program.row("explain", "q", first["id"])["task"]["unique"] == 7


def test_a_list_names_a_key_that_is_a_tuple(program: Within) -> None:
    """JSON has no tuples, and a list is no key."""
    program.run("create", "q", "--kind", "fifottl")
    assert put_unique(program, "a", "--unique", '["acme", [7]]')[1]["unique"] == ["acme", [7]]
    assert put_unique(program, "b", "--unique", '["acme",[7]]')[1]["existed"]
    status, _, err = put_unique(program, "c", "--unique", "[" * 900 + "]" * 900)
    assert (status, err.count("\n")) == (2, 1)


def test_a_later_put_replaces_and_debounces(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    put_unique(program, "a", "--unique", "k")
    _, task, _ = put_unique(program, "b", "--unique", "k", "--on-conflict", "replace")
    assert (task["data"], task["state"]) == ("b", "ready")
    later = ("--on-conflict", "debounce", "--delay", "50", "--debounce-max", "99")
    _, task, _ = put_unique(program, "c", "--unique", "k", *later)
    assert (task["data"], task["state"]) == ("c", "delayed")


def test_a_buried_task_cannot_be_replaced(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    _, task, _ = put_unique(program, "a", "--unique", "k")
    program.run("bury", "q", task["id"])
    status, out, err = put_unique(program, "b", "--unique", "k", "--on-conflict", "replace")
    assert (status, out, err.count("\n")) == (1, None, 1)
    assert f"{task['id']} has the unique key 'k' and is buried" in err


def test_wrong_options_of_unique_are_refused(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    for arguments in (
        ("a", "b", "--unique", "k"),
        ("--lines", "/dev/null", "--unique", "k"),
        ("a", "--unique", "k", "--scope", "soon"),
        ("a", "--unique", "k", "--on-conflict", "fail"),
        ("a", "--unique", "k", "--on-conflict", "debounce"),
        ("a", "--scope", "queued"),
        ("a", "--debounce-max", "5"),
        ("a", "--on-conflict", "replace"),
    ):
        assert put_unique(program, *arguments)[:2] == (2, None), arguments


def test_the_attempts_in_force_are_told_with_their_source(program: Within) -> None:
    program.run("create", "q", "--attempts", "3", "--backoff", "0,0")
    own, none = put(program, "q", "own", "--attempts", "inf") + put(program, "q", "none")
    told = {row["id"]: (row["attempts_max"], row["attempts_from"]) for row in listed(program, "ready")}
    assert told == {own: (None, "task"), none: (3, "queue")}
    _, out, _ = program.run("tasks", "q")
    assert [line.split("\t")[3] for line in out.splitlines()] == ["inf, task's", "3, queue's"]
    for verb in (("explain", "q", none), ("dead", "show", "q", none)):
        (row,) = program.rows(*verb)
        found = row.get("task", row)
        assert (found["attempts_max"], found["attempts_from"]) == (3, "queue")
    program.run("bury", "q", none)
    assert program.run("dead", "list", "q")[1].split("\t")[3] == "3, queue's"
    (queue,) = program.rows("queues")
    assert queue["options"] == {"attempts": 3, "backoff": {"first_s": 0.0, "growth": 2.0, "cap_s": 0.0}}


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "True", "1000001", "many", "-inf", "nan"])
def test_attempts_that_are_none_are_refused(program: Within, value: str) -> None:
    program.run("create", "q")
    for words in (("create", "r"), ("put", "q", "1"), ("work", "q", "a:b")):
        status, _, err = program.run(*words, "--attempts", value)
        assert (status, f"{value!r} is no whole number from 1 to 1000000, nor inf" in err) == (2, True)
    assert program.rows("queues")[0]["tasks"]["total"] == 0


@pytest.mark.parametrize("value", ["", "x", "-1", "1,", "1,2,3", "inf", "nan", "2,1", "601"])
def test_a_backoff_that_is_none_is_refused(program: Within, value: str) -> None:
    program.run("create", "q")
    for words in (("create", "r"), ("put", "q", "1"), ("work", "q", "a:b")):
        status, _, err = program.run(*words, "--backoff", value)
        assert (status, "is not of the form S[,CAP], in seconds" in err) == (2, True)
    assert len(program.rows("queues")) == 1


def test_a_task_that_was_handed_off_is_completed_or_failed(program: Within) -> None:
    program.run("create", "q")
    first, second = put(program, "q", "1", "--result-ttl", "60"), put(program, "q", "2")
    with program.opened() as (db, queue):
        for task in queue.take_many(db, 2):
            queue.hand_off(db, task, 3600, for_="Ada" if task.data == 1 else None)
        assert [
            line.split("\t")[-1] for line in program.run("tasks", "q", "--state", "taken")[1].splitlines()
        ] == [
            "handed off: Ada",
            "handed off",
        ]
        [reason] = program.row("explain", "q", *first)["reasons"]
        assert (reason["why"], reason["text"]) == ("handed off", "It was handed off, and waits for Ada.")
        assert program.run("complete", "q", *first, '{"paid": 7}')[::2] == (
            0,
            f"fdbqueue: {first[0]} completed\n",
        )
        assert program.row("result", "q", *first)["result"] == {"paid": 7}
        assert program.row("fail", "q", *second, "declined", "--delay", "60")["state"] == "delayed"
        assert [failure.message for failure in queue.failures(db, second[0])] == ["declined"]
    missing = f"fdbqueue: no such task in 'q': {first[0]}\n"
    assert program.run("complete", "q", *first) == (1, "", missing)
    refused = f"fdbqueue: Task {second[0]} is delayed, not handed off: nothing was changed.\n"
    assert program.run("fail", "q", *second, "no") == (1, "", refused)
    assert program.run("complete", "q", *second, "--text", "{") == (1, "", refused)


def test_nonsense_about_a_hand_off_is_refused(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    [id_] = put(program, "q", "1")
    assert "RESULT" in shell.mistake("complete", "q", id_, "{")
    assert "REASON must be a text" in program.run("fail", "q", id_, "")[2]
    assert "-1" in shell.mistake("fail", "q", id_, "x", "--delay", "-1")
    assert "ID must be" in program.run("complete", "q", "x")[2]
