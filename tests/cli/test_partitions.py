"""The commands on the partitions of a queue: create --partitions, partitions and repartition."""

import json
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.operate.cli import queues
from fdbqueue.operate.spreading import lines_to_remove
from tests.cli.shell import Within


def listed(program: Within, queue: str) -> list[Any]:
    return program.rows("partitions", queue, "--interval", "0")


def test_a_queue_is_created_with_partitions(program: Within) -> None:
    assert program.run("create", "mail", "--partitions", "4")[0] == 0
    found = listed(program, "mail")
    assert [one["number"] for one in found] == [0, 1, 2, 3]
    assert {one["state"] for one in found} == {"open"}


def test_partitions_show_their_tasks_and_rates(program: Within) -> None:
    program.run("create", "mail", "--kind", "utube", "--partitions", "2")
    program.run("put", "mail", "--key", "someone", "1", "2")
    status, out, _ = program.run("partitions", "mail", "--interval", "0.01")
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert sorted(row[2] for row in rows) == ["0", "2"]
    assert {(row[6], row[7]) for row in rows} == {("0.0", "0.0")}
    assert sorted(row[8] for row in rows) == ["", "flag"]


def test_a_partition_tells_its_storage_servers_on_a_cluster(program: Within) -> None:
    program.run("create", "mail", "--partitions", "2")
    teams = [one["team"] for one in listed(program, "mail")]
    if program.url.startswith("fdb:"):
        assert all(teams)
    else:
        assert teams == [None, None]


def test_a_repartition_changes_the_number(program: Within) -> None:
    program.run("create", "mail")
    program.run("put", "mail", "1", "2", "3")
    told = "fdbqueue: 'mail' goes from 1 to 4 partitions: done\n"
    assert program.run("repartition", "mail", "4") == (0, "", told)
    found = program.row("repartition", "mail", "2")
    assert found == {"queue": "mail", "before": 4, "partitions": 2, "is_finished": True}


@pytest.fixture
def moving(program: Within) -> Within:
    """A queue whose repartition to 8 waits for ready tasks of moved task keys."""
    program.run("create", "mail", "--kind", "utube")
    for key in range(8):
        program.run("put", "mail", "--key", str(key), "x")
    program.run("repartition", "mail", "8", "--timeout", "0")
    return program


def test_a_repartition_that_waits_too_long_is_status_1(moving: Within) -> None:
    status, out, err = moving.run("repartition", "mail", "8", "--timeout", "0.01")
    assert (status, out) == (1, "")
    assert "but not done: `fdbqueue" in err
    status, out, err = moving.run("repartition", "mail", "8", "--timeout", "0", "--json")
    assert (status, json.loads(out)["is_finished"], err) == (1, False, "")


def test_a_repartition_tells_the_tasks_that_it_waits_for(
    moving: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "PLAIN_EVERY_S", 0.0)
    err = moving.run("repartition", "mail", "8", "--timeout", "3")[2]  # a step of a busy cluster takes 1 s
    assert "until takes have drained them" in err
    assert "8 ready tasks and 0 taken tasks" in err


def test_a_second_repartition_is_refused_by_status_1(moving: Within) -> None:
    status, _, err = moving.run("repartition", "mail", "3")
    assert status == 1
    assert "from 1 to 8 partitions" in err


@pytest.mark.parametrize("number", ["0", "257", "x"])
def test_an_impossible_number_changes_nothing(program: Within, number: str) -> None:
    assert program.run("create", "mail", "--partitions", number)[0] == 2
    program.run("create", "mail")
    assert program.run("repartition", "mail", number)[0] == 2
    assert len(listed(program, "mail")) == 1


def test_a_plain_queue_has_partitions(program: Within) -> None:
    status, out, _ = program.run("create", "plain", "--kind", "queue", "--partitions", "3", "--json")
    assert (status, json.loads(out)["options"]) == (0, {"codec": "json", "partitions": 3})
    program.run("put", "plain", "1", "2")
    rows = [
        line.split("\t") for line in program.run("partitions", "plain", "--interval", "0.01")[1].splitlines()
    ]
    assert sum(int(row[2]) for row in rows) == 2
    assert {(row[6], row[7]) for row in rows} == {("", "")}
    told = "fdbqueue: 'plain' goes from 3 to 2 partitions: done\n"
    assert program.run("repartition", "plain", "2") == (0, "", told)
    assert len([one for one in listed(program, "plain") if one["state"] == "open"]) == 2


def test_an_element_queue_has_no_partitions(program: Within) -> None:
    program.run("elements", "create", "dirs", "--schema", "body=string")
    assert program.run("partitions", "dirs")[0] == 2
    assert program.run("repartition", "dirs", "2")[0] == 2


def test_spread_prints_a_line_for_each_partition(program: Within) -> None:
    program.run("create", "mail", "--partitions", "3")
    status, out, err = program.run("spread", "mail")
    if not program.url.startswith("fdb:"):
        assert (status, out) == (2, "")
        assert "only a FoundationDB cluster has storage servers" in err
        return
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["rangeconfig", "update"]] * 3
    assert program.run("spread", "mail", "--remove")[1].endswith(" default\n")
    assert len(program.run("spread", "mail", "--receipts")[1].splitlines()) == 3


FDBCLI = """#!/bin/sh
for last; do :; done
echo "$last" >> "$0.log"
cat "$0.json"
"""


def test_spread_finds_the_boundaries_of_dropped_queues(
    program: Within, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """fdbcli is a script here: tests do not configure a cluster."""
    for name in ("mail", "gone"):
        program.run("create", name, "--partitions", "2")
    kept, gone = (bytes.fromhex(listed(program, name)[0]["prefix"]) for name in ("mail", "gone"))
    assert program.run("drop", "gone", "--yes")[0] == 0
    ranges = [{"begin": begin.decode("latin-1"), "end": "x"} for begin in (kept, gone)]
    (tmp_path / "fdbcli.json").write_text(json.dumps({"ranges": ranges}))
    (tmp_path / "fdbcli").write_text(FDBCLI)
    (tmp_path / "fdbcli").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(queues, "is_cluster", lambda _: True)
    status, out, _ = program.run("spread", "--dropped")
    assert (status, out) == (0, "".join(f"{line}\n" for line in lines_to_remove([gone])))
    assert program.run("spread", "--dropped", "--apply")[0] == 0
    assert (tmp_path / "fdbcli.log").read_text().splitlines()[-1] == out.strip()


@pytest.mark.parametrize("words", [[], ["mail", "--dropped"], ["--dropped", "--receipts"], ["--dropped"]])
def test_spread_refuses_options_that_do_not_fit(program: Within, words: list[str]) -> None:
    if words == ["--dropped"] and program.url.startswith("fdb:"):
        pytest.skip("only a directory has no boundaries")
    assert program.run("spread", *words)[0] == 2


def test_spread_starts_fdbcli_with_a_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root may be long, and each line has it several times."""
    monkeypatch.setattr(queues, "BYTES_OF_A_RUN", 25)
    lines = ["x" * 10] * 3 + ["y" * 40] + ["z" * 3] * 2
    assert list(queues._in_runs(lines)) == [lines[:2], lines[2:3], lines[3:4], lines[4:]]


def test_spread_names_the_cluster_file_of_a_url_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(queues.shutil, "which", lambda _: "fdbcli")
    monkeypatch.setattr(queues, "_run", lambda command: started.append(command) or "")
    queues._fdbcli("fdb:/etc/fdb.cluster?tag=reports")(["status"])
    queues._fdbcli("fdb:?tag=reports")(["status"])
    assert started == [
        ["fdbcli", "-C", "/etc/fdb.cluster", "--exec", "status"],
        ["fdbcli", "--exec", "status"],
    ]


def test_spread_without_fdbcli_says_so(program: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    if not program.url.startswith("fdb:"):
        pytest.skip("a directory has no storage servers")
    monkeypatch.setenv("PATH", "")
    program.run("create", "mail")
    status, _, err = program.run("spread", "mail", "--apply")
    assert (status, "no fdbcli" in err) == (2, True)


def test_an_interval_of_more_than_a_minute_is_refused(program: Within) -> None:
    program.run("create", "mail")
    status, _, err = program.run("partitions", "mail", "--interval", "61")
    assert (status, "60" in err) == (2, True)
