"""Groups on the command line: `group`, `put --group`, `put --after`."""

import json
from typing import Any

import pytest

from fdbqueue.operate.cli.beside import GROUP_COLUMNS, groups
from tests.cli.shell import Within


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
