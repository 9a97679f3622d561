"""Unique keys on the command line: `put --unique`."""

import json
from typing import Any

from tests.cli.shell import Within


def put(program: Within, *arguments: str) -> tuple[int, Any, str]:
    status, out, err = program.run("put", "q", *arguments, "--json")
    return status, json.loads(out) if out else None, err


def test_a_second_put_prints_the_first_task(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    _, first, _ = put(program, "a", "--unique", "7")
    _, again, _ = put(program, "b", "--unique", "7")
    assert (first["existed"], again["existed"], again["unique"]) == (False, True, 7)
    assert (again["id"], again["data"]) == (first["id"], "a")
    _, other, _ = put(program, "c", "--unique", '"7"', "--scope", "60")
    assert (other["existed"], other["unique"]) == (False, "7")
    [shown, _] = (json.loads(line) for line in program.run("tasks", "q", "--json")[1].splitlines())
    assert shown["unique"] == 7
    assert json.loads(program.run("explain", "q", first["id"], "--json")[1])["task"]["unique"] == 7


def test_a_list_names_a_key_that_is_a_tuple(program: Within) -> None:
    """JSON has no tuples, and a list is no key."""
    program.run("create", "q", "--kind", "fifottl")
    assert put(program, "a", "--unique", '["acme", [7]]')[1]["unique"] == ["acme", [7]]
    assert put(program, "b", "--unique", '["acme",[7]]')[1]["existed"]
    status, _, err = put(program, "c", "--unique", "[" * 900 + "]" * 900)
    assert (status, err.count("\n")) == (2, 1)


def test_a_later_put_replaces_and_debounces(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    put(program, "a", "--unique", "k")
    _, task, _ = put(program, "b", "--unique", "k", "--on-conflict", "replace")
    assert (task["data"], task["state"]) == ("b", "ready")
    later = ("--on-conflict", "debounce", "--delay", "50", "--debounce-max", "99")
    _, task, _ = put(program, "c", "--unique", "k", *later)
    assert (task["data"], task["state"]) == ("c", "delayed")


def test_a_buried_task_cannot_be_replaced(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    _, task, _ = put(program, "a", "--unique", "k")
    program.run("bury", "q", task["id"])
    status, out, err = put(program, "b", "--unique", "k", "--on-conflict", "replace")
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
        assert put(program, *arguments)[:2] == (2, None), arguments
