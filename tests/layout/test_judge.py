"""`fdbqueue conformance --consumer` keeps to its word: it passes a right consumer, and finds a broken one."""

import json
import sys

import pytest

from fdbqueue.operate import judge
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from tests.conftest import CLUSTER_FILE, TEST_ROOT
from tests.layout.consumer_worker import BROKEN

WORKER = [sys.executable, "-m", "tests.layout.consumer_worker"]
FOUND_BY = {
    "acks twice": {"each task has its effect once"},
    "never ends the dead": {"a killed process loses its task to another one"},
    "never renews": {"it holds a task for longer than its times"},
    "keeps its tasks": {"told to end, it ends its session and its leases"},
    "counts no failure": {"all tasks end, without a process of this library"},
    "refuses none": {"it refuses a queue with retain_s"},
}


@pytest.fixture(params=["embedded", "fdb"])
def url(request, tmp_path):
    if request.param == "embedded":
        return f"embedded:{tmp_path}/data"
    if CLUSTER_FILE is None:
        pytest.skip("it needs FDB_CLUSTER_FILE")
    return f"fdb:{CLUSTER_FILE}"


def test_a_consumer_written_from_the_page_keeps_all(url, capfd, monkeypatch, rounds):
    """In short: a queue of one kind."""
    monkeypatch.setattr(judge, "PLACE", TEST_ROOT["judge"])
    monkeypatch.setattr(judge, "KINDS", rounds({"fifottl": judge.KINDS["fifottl"]}, judge.KINDS))
    status = run(cli, ["conformance", "--json", "--consumer", url, *WORKER])
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row for row in rows if row["verdict"] != "kept"] == []
    assert {row["kind"] for row in rows} >= set(judge.KINDS)
    assert status == 0
    assert "promises: all kept" in err


def test_each_broken_consumer_has_its_promise():
    assert FOUND_BY.keys() == set(BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_promise_is_told(broken, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "_PATIENCE_S", 8.0)
    kind = "fifo" if broken == "never ends the dead" else "fifottl"  # that has leases without an end by time
    monkeypatch.setattr(judge, "KINDS", {kind: judge.KINDS[kind]})
    found = [*judge.judged(f"embedded:{tmp_path}/data", [*WORKER, *broken.split()])]
    assert FOUND_BY[broken] <= {row.promise for row in found if row.verdict == "broken"}


def test_a_program_that_is_no_consumer_is_told(tmp_path, capfd):
    url = f"embedded:{tmp_path}/data"
    assert run(cli, ["conformance", "--consumer", url, sys.executable, "-c", "pass"]) == 1
    assert "broken\tfifo\tit answers\tit has ended with status 0" in capfd.readouterr().out
    assert run(cli, ["conformance", "--consumer", url, "/no/such/program"]) == 2


@pytest.mark.parametrize(
    "options", [["memory:"], ["fdb:", "--only", "fifo"], ["fdb:", "--vectors", __file__]]
)
def test_what_a_consumer_cannot_be_proved_on_is_refused(options, capfd):
    assert run(cli, ["conformance", "--consumer", *options, "true"]) == 2
    assert "--consumer takes a database that processes share" in capfd.readouterr().err
