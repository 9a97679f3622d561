"""fleet: the listing, and orders that a worker obeys."""

import os
from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import HeldTask, Worker
from fdbqueue.core import limits
from tests.cli.shell import Within
from tests.support import PATIENCE_S, wait_until


def nothing(_: HeldTask) -> None: ...


@pytest.fixture
def worker(program: Within, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(limits, "ORDERS_EVERY_S", 0.05)
    monkeypatch.setattr(limits, "PRESENCE_EVERY_S", 0.05)
    program.run("create", "q")
    with fdbqueue.open(program.url) as db:
        hired = Worker(db, "q", nothing, root=program.space)
        hired.start()
        wait_until(lambda: bool(program.rows("fleet")))
        yield hired
        hired.stop()
        assert hired.join(PATIENCE_S)


def test_an_order_is_obeyed_before_the_command_ends(program: Within, worker: Worker) -> None:
    [row] = program.rows("fleet")
    assert (row["process_id"], row["version"], row["state"]) == (os.getpid(), fdbqueue.__version__, "working")
    assert row["memory_bytes"] > 1_000_000
    assert row["heartbeat_s"] < PATIENCE_S
    assert program.row("fleet", "pause") == {"paused": True, "workers": 1}
    status, out, err = program.run("fleet")
    assert (status, out.split("\t")[2]) == (0, "paused")
    assert "fleet resume" in err
    assert program.row("fleet", "resume") == {"paused": False}
    assert program.rows("fleet", "drain", row["worker"]) == [{"worker": row["worker"], "state": "ended"}]
    assert worker.join(PATIENCE_S)
    assert worker.drained
    lines = [(line["action"], line["after"]) for line in program.rows("audit")]
    drained, resumed, paused, _ = lines
    assert drained == ("fleet drain", {"targets": row["worker"]})
    assert (resumed, paused) == (
        ("fleet resume", {"paused": "False"}),
        ("fleet pause", {"paused": "True"}),
    )


def test_a_wrong_target_is_refused(program: Within) -> None:
    program.run("create", "q")
    assert program.run("fleet", "drain", "nowhere")[0] == 2
    for words in (("drain",), ("pause", "x"), ("resume", "x"), ("stop",)):
        assert program.run("fleet", *words)[0] == 2
