"""Fair queues of items: create --kind fair-items, put --key, get, peek, size, as plain queues have them."""

import os
import subprocess

import pytest

from tests.cli.shell import CLOSED_PIPE, Shell, Within


@pytest.fixture
def fair(program: Within) -> Within:
    """The program, with three items of two keys."""
    program.run("create", "f", "--kind", "fair-items", "--weight", "ada=2", "--capacity", "4")
    for item, key in (("a1", "ada"), ("b1", "7"), ("a2", "ada"), ("a3", "ada")):
        program.run("put", "f", item, "--key", key)
    return program


def test_items_come_in_rounds_over_their_keys(fair: Within) -> None:
    assert fair.run("peek", "f") == (0, '"a1"\n', "")
    assert fair.row("size", "f") == {"queue": "f", "items": 4}
    assert fair.get("f") == ["a1", "b1", "a2", "a3"]
    assert fair.run("get", "f") == (1, "", "fdbqueue: 'f' is empty\n")
    assert fair.run("peek", "f") == (1, "", "fdbqueue: 'f' is empty\n")


def test_a_full_queue_is_told_behind_the_first_items(fair: Within) -> None:
    assert fair.run("put", "f", "x")[0] == 1
    fair.get("f", 2)
    told = "The first 2 were put. Then the queue 'f' was full: it holds 4 items, its capacity is 4."
    assert fair.run("put", "f", "1", "2", "3", "--key", "k", "--cost", "2") == (1, "", f"fdbqueue: {told}\n")


def test_tools_know_it(fair: Within) -> None:
    assert fair.run("queues")[1].split() == ["f", "fair-items", "4"]
    row = fair.row("stats", "f")
    assert (row["items"], row["options"]) == (4, {"capacity": 4, "weights": {"ada": 2}})
    for command in (["verify"], ["verify", "f"], ["doctor"], ["aside", "f"], ["waiting", "f"]):
        assert fair.run(*command)[0] == 0, command
    assert fair.run("metrics", "f", "--once")[0] == 0
    assert fair.run("drop", "f", "--yes") == (0, "", "fdbqueue: 'f' is gone\n")


def test_what_it_does_not_have_is_refused(fair: Within) -> None:
    told = "'f' is a fair queue, of items without leases: put, get, peek, size, waiting"
    for command in (["take", "f"], ["work", "f", "m:f"], ["partitions", "f"], ["clear", "f", "--yes"]):
        assert told in fair.mistake(*command)
    assert "--ttl is for task queues, and 'f' is a fair queue" in fair.mistake("put", "f", "1", "--ttl", "3")
    assert "--cost" in fair.mistake("put", "f", "1", "--cost", "0")
    for option in (["--ttr", "3"], ["--partitions", "2"], ["--limit", "x"]):
        said = fair.mistake("create", "g", "--kind", "fair-items", *option)
        assert said == f"fdbqueue: {option[0]} is for task queues\n"
    assert fair.run("size", "f")[1] == "4\n"


def test_a_reader_that_is_gone_gets_no_item(shell: Shell, fair: Within) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = shell.start("get", "f", "-n", "9", stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert process.wait(60) == CLOSED_PIPE
    assert fair.run("size", "f")[1] == "4\n"


def test_a_create_tells_whether_there_was_one(program: Within) -> None:
    for kind in (["--kind", "fair-items"], ["--kind", "queue"], ["--kind", "fifo"]):
        name = kind[1]
        ask = ("create", name, *kind)
        assert program.row(*ask)["created"] is True
        status, out, err = program.run(*ask)
        assert (status, out) == (1, "")
        assert f"A queue named '{name}' exists already, of kind {name}" in err
        assert program.row(*ask, "--if-not-exists")["created"] is False
        told = f"fdbqueue: '{name}' exists already, of kind {name}\n"
        assert program.run(*ask, "--if-not-exists") == (0, "", told)
    status, _, err = program.run("create", "fair-items", "--kind", "fair-items", "--capacity", "3")
    assert (status, "--capacity" in err) == (1, True)
