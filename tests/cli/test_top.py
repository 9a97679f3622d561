"""`fdbqueue top` tells limits, schedules and groups beside the queues."""

import json
import os
import pty
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Group, TaskQueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from tests.cli.shell import Shell, Within, read_all


def root_of(shell: Shell) -> Any:
    return Subspace(tuple(shell.root)) if shell.root else DEFAULT_ROOT


def held_group(program: Shell) -> Group:
    """A group with a buried member."""
    with fdbqueue.open(program.url) as db:
        queue, group = TaskQueue.open(db, "q", root=root_of(program)), Group.create(db, root=root_of(program))
        group.put(db, queue, "x")
        queue.bury(db, queue.take_many(db, 1)[0])
    return group


def lines_of(program: Within, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.run("top", *arguments, "-n", "1", "--json")[1].splitlines()]


def test_limits_and_schedules_are_with_their_queue(program: Within) -> None:
    program.run("limit", "set", "api", "--slots", "2")
    program.run("create", "q", "--limit", "api")
    program.run("create", "r")
    program.run("schedule", "create", "tick", "q", "--every", "3600")
    q, r = lines_of(program)
    assert [(one["name"], one["slots"], one["used"]) for one in q["limits"]] == [("api", 2, 0)]
    assert [(one["name"], one["late_s"]) for one in q["schedules"]] == [("tick", 0.0)]
    assert (r["limits"], r["schedules"]) == ([], [])
    assert len(program.run("top", "-n", "1")[1].splitlines()) == 2


def test_groups_have_a_line_if_there_are_any(program: Within) -> None:
    program.run("create", "q")
    group = held_group(program)
    queue, groups = lines_of(program)
    assert queue["queue"] == "q"
    assert groups["groups"] == {"unfinished": 1, "held": 1, "first_held": [group.id], "whole": True}
    assert len(lines_of(program, "q")) == 1


def test_a_terminal_has_tables_of_them(shell: Shell) -> None:
    shell.run("limit", "set", "[bold]api", "--slots", "2")
    shell.run("create", "q", "--limit", "[bold]api")
    shell.run("schedule", "create", "tick", "q", "--every", "3600", "--paused")
    group = held_group(shell)
    ours, theirs = pty.openpty()
    process = shell.start(
        "top", "-n", "1", stdout=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(theirs)
    screen = read_all(ours)
    assert process.communicate(timeout=20) == (None, "")
    for word in ("[bold]api", "2 at a time", "tick", "paused", "held by burials", group.id):
        assert word in screen
