"""The calculator of clusters: its counts are those of the calls, and it tells which part ends a queue."""

import json
from pathlib import Path

import pytest

from benchmarks import sizing, writes
from benchmarks.writes import Shape
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.operate.cli.exits import run
from fdbqueue.operate.cli.frame import cli
from fdbqueue.operate.estimate import (
    KINDS,
    Plan,
    Server,
    bounds_of,
    calls_of,
    cost_of,
    estimate,
    load_of,
    partitions_for,
)

SIZING = (Path(__file__).parents[1] / "docs" / "sizing.md").read_text()
RECEIPT_BYTES, RECORD_BYTES = 44, 250
"""A bag reads one record more, if its hand is near the end of the circle."""
SHAPES = (
    *writes.SHAPES,
    Shape("fifo", ("unique", "result", "retain"), payload=1_000, batch=10, partitions=4),
    Shape("utubettl", ("ttr", "ttl", "retain"), batch=10),
    Shape("bag", ("ttl", "result"), payload=200_000, batch=2),
    Shape("fair", ("unique",), payload=256),
    Shape("queue", payload=5_000, batch=10),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_costs_are_those_of_the_calls(shape):
    """Counts are exact. Bytes depend on lengths of names and numbers."""
    calls = calls_of(shape.kind, shape.options, shape.partitions)._asdict()
    with writes.counting() as counts:
        found = counts.of_calls(shape)
    for name, one in found.items():
        batch = shape.batch if name != "put" or shape.puts_together else 1
        told = cost_of(calls[name], name, shape.payload, batch, shape.kind)
        without_receipt = name == "ack" and batch > 1
        ahead = shape.kind == "fair" and name == "take" and batch > 1  # a look behind the last task key
        assert (name, one.mutations + without_receipt) == (name, told.mutations)
        assert (name, one.reads) == (name, told.reads + ahead)
        assert one.commits == 1
        written = one.size_bytes + without_receipt * RECEIPT_BYTES
        assert (name, told.bytes_written) == (name, pytest.approx(written, rel=0.08, abs=30))
        assert (name, told.bytes_read) == (
            name,
            pytest.approx(one.bytes_read, rel=0.1, abs=60 + RECORD_BYTES * (shape.kind == "bag")),
        )


def test_a_batch_shares_the_costs_of_its_transactions():
    one, ten = load_of(Plan(1)), load_of(Plan(1, batch=10))
    assert (one.mutations, one.commits, one.receipts) == pytest.approx((12, 3, 2))
    assert (ten.mutations, ten.commits, ten.receipts) == pytest.approx((7.5, 0.3, 0.2))


def test_a_ttl_has_the_costs_of_a_ttr():
    loads = [load_of(Plan(1, kind="fifottl", options=options)) for options in (["ttl"], ["ttl", "ttr"])]
    assert loads[0] == loads[1]


def ends(partitions, **plan):
    """The part that ends a queue, and the rate. A storage process has 16,000 writes a second."""
    asked = Plan(1, server=Server(storage_writes=16_000, storage_reads=1e12), **plan)
    bound = bounds_of(load_of(asked), asked, partitions)[0]
    return bound.part, bound.tasks_per_second


def test_a_queue_of_single_calls_ends_at_its_receipts():
    bytes_of_task = load_of(Plan(1)).bytes_written
    assert ends(1) == ("partitions", pytest.approx(8_000 / (12 + bytes_of_task / 4_096)))
    assert ends(256) == ("receipts", 8_000 / 2)
    assert [ends(partitions)[0] for partitions in (4, 8)] == ["partitions", "receipts"]
    assert ends(256, receipts=64)[1] > ends(256)[1]
    assert ends(16, batch=100)[0] == "partitions"


def test_the_definition_ends_a_queue_with_spread_receipts():
    asked = Plan(1, partitions=256, receipts=64, replication=2)
    first = bounds_of(load_of(asked), asked, 256)[0]
    assert (first.part, first.tasks_per_second) == ("definition", 2 * 55_000 / 2 / 3)


def test_half_of_the_partitions_for_a_rate_do_not_carry_it():
    plan = Plan(20_000, batch=100)
    task, needed = load_of(plan), partitions_for(load_of(plan), plan)
    assert bounds_of(task, plan, needed)[0].tasks_per_second >= 20_000
    assert bounds_of(task, plan, needed // 2)[0].tasks_per_second < 20_000
    assert partitions_for(load_of(Plan(20_000)), Plan(20_000)) is None  # the receipts end it


def test_processes_grow_with_rate_copies_and_payload():
    small, large = estimate(Plan(1_000)), estimate(Plan(100_000))
    for name in ("storage_teams", "commit_proxies", "client_cores"):
        assert getattr(large, name) >= 10 * getattr(small, name)
    assert large.logs > small.logs == 3  # one for each copy
    assert estimate(Plan(1_000, payload=100_000)).storage_teams > small.storage_teams
    assert estimate(Plan(1_000, replication=1)).logs == 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_an_estimate(kind):
    assert estimate(Plan(1_000, kind=kind)).second.commits == (2_000 if kind == "queue" else 3_000)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"tasks_per_second": 0}, "tasks_per_second must be more than 0"),
        ({"tasks_per_second": float("nan")}, "tasks_per_second must be more than 0"),
        ({"payload": -1}, "payload must be a whole number from 0"),
        ({"kind": "filo"}, "kind must be one of queue, fifo,"),
        ({"partitions": 257}, "partitions must be a whole number from 1 to 256"),
        (
            {"options": ["ttl"]},
            "kind must be one of fifottl, limfifottl, bag, utubettl, with ttl",
        ),
        ({"options": ["unique"], "kind": "queue"}, "kind must be one of fifo, .*, with unique"),
        ({"options": ["pri"]}, "options must be one of ttr, ttl,"),
        ({"batch": 1_000, "payload": 2_000}, "too much for one transaction"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_plan_is_refused(plan, told):
    with pytest.raises(FdbQueueError, match=told):
        Plan(**{"tasks_per_second": 1, **plan})


def test_the_command_tells_the_estimate(capfd):
    plan = "--payload 1000 --kind fifottl --with ttl --batch 100 --commits 100"
    words = ["estimate", "--tasks-per-second", "20000", *plan.split()]
    assert run(cli, [*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    found = estimate(
        Plan(20_000, 1_000, "fifottl", batch=100, options=("ttl",), server=Server(proxy_commits=100))
    )
    assert told["second"] == vars(found.second)
    assert told["bounds"] == [vars(bound) for bound in found.bounds]
    assert run(cli, words) == 0
    assert f"logs\t{found.logs}\n" in capfd.readouterr().out


def test_the_page_has_the_counts_and_the_estimate(capfd):
    assert "\n".join(writes.page()) in SIZING
    [line] = [line for line in SIZING.splitlines() if line.startswith("fdbqueue estimate ")]
    assert run(cli, line.split()[1:]) == 0
    printed = capfd.readouterr().out
    shown = SIZING.partition("```text\n...\n")[2].partition("```")[0]
    assert printed.endswith(shown)
    assert "storage teams" in shown


def test_the_command_refuses_in_one_sentence(capfd):
    assert run(cli, ["estimate", "--tasks-per-second", "1", "--with", "ttl"]) == 2
    kinds = "fifottl, limfifottl, bag, utubettl"
    told = f"fdbqueue: --kind must be one of {kinds}, with ttl, not 'fifo'\n"
    assert capfd.readouterr() == ("", told)


def test_a_measurement_is_told_beside_its_prediction():
    plan = Plan(100, replication=1)
    seen = {name: 2 * value for name, value in vars(load_of(plan).times(100)).items()}
    found = sizing.Measured(100, seen, {"put": 200.0}, {"storage": 0.5})
    _, first, *_, spent, busy = sizing.rows(Shape("fifo"), found)
    assert first.split() == ["mutations", "1,200", "2,400", "2.00"]
    assert (spent.split()[-2:], busy.split()[-2:]) == (["put", "200"], ["storage", "0.50"])
