"""Groups and schedules on the command line: `group`, `put --group`, `put --after`, `schedule`."""

import json
from typing import Any

import pytest

from fdbqueue.operate.cli.beside import GROUP_COLUMNS, WITHOUT, change, groups
from fdbqueue.tasks.options import PutOptions
from tests.cli.shell import Within, parsed


def shown(program: Within, *arguments: str) -> tuple[int, Any, str]:
    status, out, err = program.run(*arguments, "--json")
    return status, json.loads(out.splitlines()[0]) if out else None, err


def test_a_group_is_made_filled_closed_and_awaited(program: Within) -> None:
    for name in ("q", "then"):
        program.run("create", name, "--kind", "fifottl")
    status, out, err = program.run("group", "create", "--then", "then", '{"a": 1}')
    group = out.strip()
    assert (status, err) == (0, "")
    _, task, _ = shown(program, "put", "q", "1", "--group", group)
    assert task["groups"] == [group]
    _, found, _ = shown(program, "group", "show", group)
    assert (found["state"], found["left"], found["then_queue"]) == ("open", 1, "then")
    assert program.run("group", "list")[1].split("\t")[:4] == [group, "open", "1", "0"]
    _, waiting, _ = shown(program, "tasks", "then", "--state", "delayed")
    assert waiting["waits_for"] == group
    explained = program.run("explain", "then", waiting["id"])[1]
    assert f"It waits for the group {group}: 1 member of it is left. The group is open." in explained
    assert program.run("group", "close", group)[0] == 0
    assert program.run("group", "wait", group, "--timeout", "0")[0] == 1
    program.run("delete", "q", task["id"])
    status, ended, _ = shown(program, "group", "wait", group, "--timeout", "60")
    assert (status, ended["state"], ended["failed"]) == (0, "ended", 1)
    assert shown(program, "tasks", "then")[1]["data"] == {"a": 1}


def test_a_cancel_asks_for_a_confirmation(program: Within) -> None:
    program.run("create", "q")
    group = program.run("group", "create", "--skip-buried")[1].strip()
    program.run("put", "q", "1", "2", "--group", group)
    status, _, err = program.run("group", "cancel", group)
    assert (status, "would end 2 tasks" in err) == (1, True)
    assert program.run("group", "cancel", group, "--yes")[0] == 0
    assert shown(program, "group", "wait", group, "--timeout", "60")[1]["failed"] == 2
    status, _, err = program.run("put", "q", "3", "--group", group)
    assert (status, "cancelled" in err) == (1, True)


def test_a_task_is_put_after_another(program: Within) -> None:
    program.run("create", "q")
    _, parent, _ = shown(program, "put", "q", "parent")
    _, child, _ = shown(program, "put", "q", "child", "--after", parent["id"])
    assert child["state"] == "delayed"
    assert f"the end of the task {parent['id']}" in program.run("explain", "q", child["id"])[1]


def test_a_group_that_does_not_exist_is_refused(program: Within) -> None:
    program.run("create", "q")
    for arguments in (("group", "show", "0" * 32), ("put", "q", "1", "--group", "0" * 32)):
        status, _, err = program.run(*arguments)
        assert (status, "There is no group" in err) == (1, True)
    assert program.run("group", "show", "x")[0] == 2


@pytest.mark.parametrize("command", ["list", "show"])
def test_the_help_tells_the_columns_of_groups(command: str) -> None:
    told = (groups.commands[command].help or "").split("Columns:")[-1]
    assert [name for name in GROUP_COLUMNS if name not in told] == ["then"]  # the task that starts


def called(program: Within, *arguments: str) -> tuple[int, list[Any], str]:
    status, out, err = program.run("schedule", *arguments, "--json")
    return status, parsed(out), err


def test_a_schedule_is_created_shown_and_deleted(program: Within) -> None:
    program.run("create", "reports", "--kind", "fifottl")
    options = ("--data", '{"a":1}', "--timezone", "Europe/Rome", "--priority", "3", "--header", "x=y")
    status, [made], _ = called(program, "create", "nightly", "reports", "0 3 * * *", *options)
    assert (status, made["expression"], made["timezone"]) == (0, "0 3 * * *", "Europe/Rome")
    assert (made["data"], made["options"]) == ({"a": 1}, {"pri": 3, "headers": {"x": "y"}})
    assert called(program, "list")[1][0]["name"] == "nightly"
    [shown] = called(program, "show", "nightly")[1]
    assert (shown["due"], shown["fired"]) == (made["due"], 0)
    assert called(program, "delete", "nightly")[1] == [{"name": "nightly", "deleted": True}]
    assert called(program, "list")[1] == []
    assert called(program, "show", "nightly")[0] == 2


def test_the_next_due_times_are_printed_in_the_time_zone(program: Within) -> None:
    program.run("create", "reports")
    called(program, "create", "nightly", "reports", "0 3 * * *", "--timezone", "Asia/Kolkata")
    rows = called(program, "next", "nightly", "-n", "2")[1]
    assert [row["at"][10:] for row in rows] == ["T03:00:00+05:30"] * 2
    assert program.run("schedule", "next", "nightly")[1].count("T03:00:00+05:30") == 5


def test_a_schedule_is_paused_resumed_changed_and_run(program: Within) -> None:
    program.run("create", "reports", "--kind", "fifottl")
    called(program, "create", "tick", "reports", "--every", "3600", "--ttl", "50", "--paused")
    assert called(program, "show", "tick")[1][0]["paused"]
    assert called(program, "resume", "tick")[1][0]["due"] is not None
    assert called(program, "pause", "tick")[1][0]["due"] is None
    [changed] = called(program, "change", "tick", "--every", "60", "--data", "5", "--without", "ttl")[1]
    assert (changed["every"], changed["data"], changed["options"]) == (60, 5, {})
    [task] = called(program, "run", "tick")[1]
    assert (task["data"], task["headers"]) == (5, {"schedule": "tick"})
    assert called(program, "fire")[1] == [{"put": 0}]


@pytest.mark.parametrize("dashes", ["", "--"])
def test_a_change_takes_back_options_by_their_names(program: Within, dashes: str) -> None:
    program.run("create", "jobs", "--kind", "fifottl")
    given = ("--priority", "3", "--result-ttl", "60", "--header", "a=b")
    [made] = called(program, "create", "tick", "jobs", "--every", "5", *given)[1]
    assert made["options"] == {"pri": 3, "result_ttl": 60, "headers": {"a": "b"}}
    names = ("priority", "result-ttl", "header")
    without = [word for name in names for word in ("--without", dashes + name)]
    [changed] = called(program, "change", "tick", *without)[1]
    assert changed["options"] == {}


def test_each_option_that_can_be_taken_back_is_one_of_change() -> None:
    options = {name: param.name for param in change.params for name in param.opts}
    assert {name: options[f"--{name}"] for name in WITHOUT} == WITHOUT
    assert sorted(WITHOUT.values()) == sorted(PutOptions.named())


def test_a_name_of_python_is_no_option_to_take_back(program: Within) -> None:
    status, _, err = program.run("schedule", "change", "tick", "--without", "pri")
    assert (status, "'priority'" in err, "result_ttl" in err) == (2, True, False)


def test_a_list_names_times_and_states(program: Within) -> None:
    program.run("create", "reports")
    called(program, "create", "a", "reports", "0 3 * * *")
    called(program, "create", "b", "reports", "--every", "60", "--paused")
    lines = [line.split("\t") for line in program.run("schedule", "list")[1].splitlines()]
    assert [(line[0], line[1], line[-1]) for line in lines] == [
        ("a", "0 3 * * *", ""),
        ("b", "every 60 s", "paused"),
    ]


def test_mistakes_are_told_in_one_line(program: Within) -> None:
    program.run("create", "reports")
    for status, arguments in (
        (2, ("create", "x", "missing", "--every", "5")),
        (2, ("create", "x", "reports")),
        (2, ("create", "x", "reports", "61 * * * *")),
        (2, ("create", "x", "reports", "* * * * *", "--every", "5")),
        (2, ("create", "x", "reports", "* * * * *", "--timezone", "Nowhere")),
        (2, ("create", "x", "reports", "--every", "5", "--priority", "3")),
        (2, ("create", "x", "reports", "--every", "0.1")),
        (2, ("pause", "missing")),
        (2, ("delete", "missing")),
    ):
        got, rows, err = called(program, *arguments)
        assert (got, rows) == (status, []), (arguments, err)
    called(program, "create", "x", "reports", "--every", "5")
    assert called(program, "create", "x", "reports", "--every", "5")[0] == 1
