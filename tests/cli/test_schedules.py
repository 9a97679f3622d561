"""`fdbqueue schedule`: create, look, pause, resume, run, change and delete."""

import json
from typing import Any

import pytest

from fdbqueue.operate.cli.beside import WITHOUT, change
from fdbqueue.tasks.options import PutOptions
from tests.cli.shell import Within


def called(program: Within, *arguments: str) -> tuple[int, list[Any], str]:
    status, out, err = program.run("schedule", *arguments, "--json")
    return status, [json.loads(line) for line in out.splitlines()], err


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
