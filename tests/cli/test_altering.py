"""The command `alter`, and the options in force as other commands tell them."""

import pytest

from fdbqueue.core import limits
from tests.cli.shell import Within


@pytest.fixture
def shop(program: Within) -> Within:
    assert program.run("create", "shop", "--kind", "limfifottl", "--capacity", "10")[0] == 0
    return program


def test_options_change_and_are_in_force(shop: Within) -> None:
    told = "fdbqueue: 'shop' changes --ttr from none to 90, --capacity from 10 to 5000\n"
    assert shop.run("alter", "shop", "--capacity", "5000", "--ttr", "90") == (0, "", told)
    [row] = shop.rows("queues")
    assert row["options"] == {"capacity": 5000, "ttr": 90.0}
    assert shop.row("stats", "shop")["options"] == {"capacity": 5000, "ttr": 90.0}
    again = "fdbqueue: 'shop' has these options already\n"
    assert shop.run("alter", "shop", "--ttr", "90") == (0, "", again)


def test_an_option_is_taken_back(shop: Within) -> None:
    assert shop.row("alter", "shop", "--without", "capacity")["changes"] == {"capacity": [10, None]}
    shop.run("put", "shop", *map(str, range(12)))
    assert shop.row("stats", "shop")["tasks"]["ready"] == 12
    status, _, said = shop.run("alter", "shop", "--ttl", "5", "--without", "ttl")
    assert (status, "--ttl" in said) == (2, True)


def test_attempts_and_backoff_change(shop: Within) -> None:
    told = "fdbqueue: 'shop' changes --attempts from none to inf, --backoff from none to 2,60\n"
    given = ("--attempts", "inf", "--backoff", "2,60")
    assert shop.run("alter", "shop", *given) == (0, "", told)
    assert shop.row("alter", "shop", "--attempts", "7")["changes"] == {"attempts": ["inf", 7]}
    shop.run("put", "shop", "1")
    [row] = shop.rows("tasks", "shop")
    assert (row["attempts_max"], row["attempts_from"]) == (7, "queue")
    taken_back = shop.row("alter", "shop", "--without", "attempts", "--without", "backoff")
    assert taken_back["changes"] == {"attempts": [7, None], "backoff": ["2,60", None]}
    assert len(shop.run("alter", "shop")[1].splitlines()) == 5


def test_the_last_changes_are_listed(shop: Within) -> None:
    assert shop.run("alter", "shop") == (0, "", "")
    for capacity in range(20, 20 + limits.ALTERATIONS_MAX):
        shop.run("alter", "shop", "--capacity", str(capacity))
    shop.run("alter", "shop", "--ttr", "5", "--priority", "3")
    lines = [line.split("\t") for line in shop.run("alter", "shop")[1].splitlines()]
    assert sorted(line[2:] for line in lines[:2]) == [["priority", "0", "3"], ["ttr", "none", "5"]]
    assert lines[2][2:] == ["capacity", str(18 + limits.ALTERATIONS_MAX), str(19 + limits.ALTERATIONS_MAX)]
    assert len(lines) == limits.ALTERATIONS_MAX + 1


def test_weights_have_their_keys(program: Within) -> None:
    program.run("create", "fair", "--kind", "fair", "--weight", "a=2")
    program.run("alter", "fair", "--weight", "b=3", "--weight", "c=4")
    [row] = program.rows("queues")
    assert row["options"]["weights"] == {"b": 3, "c": 4}
    program.run("alter", "fair", "--without", "weight")
    [row] = program.rows("queues")
    assert row["options"] == {}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            ("--codec", "bytes"),
            "The option 'codec' of a queue cannot change: stored payloads are in it. Instead",
        ),
        (
            ("--kind", "bag"),
            "The option 'kind' of a queue cannot change: stored tasks lie in its order. Instead",
        ),
        (("--partitions", "3"), "Instead, use `repartition`"),
        (("--key-concurrency", "3"), "does not support --key-concurrency: utube and utubettl do"),
        (("--capacity", "0"), "'--capacity': 0 is not in the range"),
        (("--ttl", "nan"), "not a number of seconds"),
        (("--attempts", "0"), "no whole number from 1 to"),
        (("--backoff", "soon"), "not of the form S[,CAP]"),
        (("--without", "codec"), "'--without': 'codec' is not one of"),
    ],
)
def test_other_options_are_refused_with_the_reason(shop: Within, option: tuple[str, ...], said: str) -> None:
    status, out, err = shop.run("alter", "shop", *option)
    assert (status, out) == (2, "")
    assert said in err
    assert shop.rows("queues")[0]["options"] == {"capacity": 10}
