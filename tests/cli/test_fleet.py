"""fleet: the listing, and orders that a worker obeys."""

import os
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

import fdbqueue
from fdbqueue import HeldTask, Session, Worker
from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.fleet.status import Presence, Tally
from fdbqueue.operate.cli import fleet
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


def test_a_fleet_without_workers_says_so(program: Within) -> None:
    program.run("create", "q")
    assert program.run("fleet") == (0, "", "fdbqueue: no worker is alive\n")


def test_an_order_is_obeyed_before_the_command_ends(program: Within, worker: Worker) -> None:
    [row] = program.rows("fleet")
    assert (row["process_id"], row["version"], row["state"]) == (os.getpid(), fdbqueue.__version__, "working")
    assert row["memory_bytes"] > 1_000_000
    assert row["heartbeat_s"] < PATIENCE_S
    row_of_pause = program.row("fleet", "pause", "--for", "900")
    assert (row_of_pause["paused"], row_of_pause["workers"]) == (True, 1)
    assert 0 < row_of_pause["until"] - time.time() <= 900
    status, out, err = program.run("fleet")
    assert (status, out.split("\t")[2]) == (0, "paused")
    assert "it ends in 1" in err
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
        ("fleet pause", {"paused": "True", "for_s": "900"}),
    )


@pytest.fixture
def older(program: Within, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker of a release without orders."""
    monkeypatch.setattr(limits, "ORDERS_PATIENCE_S", 0.0)
    monkeypatch.setattr(fleet, "_LOOK_S", 0.02)
    program.run("create", "q")
    with fdbqueue.open(program.url) as db, Session(db, root=program.space) as session:
        shown = Presence("a", 1, ("q",), "f", 1, 0.0, Tally(), (), 0.0)
        db[RootKeys(program.space).presence(session.id)] = msgspec.json.encode(shown)
        yield


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("words", [("pause",), ("drain", "a"), ("drain", "a", "--detach")])
def test_no_order_waits_for_ever_beside_an_older_release(program: Within, words: tuple[str, ...]) -> None:
    status, _, err = program.run("fleet", *words)
    assert status == 1
    assert "a:1 of ? did not obey in 0 s" in err


@pytest.mark.usefixtures("older")
def test_a_pause_ends_with_a_resume_that_is_given_meanwhile(
    program: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "paused", lambda *_: None)
    status, _, err = program.run("fleet", "pause")
    assert (status, "the pause is over" in err) == (1, True)
    assert program.row("fleet", "pause", "--detach")["workers"] == 1


def test_a_detached_drain_waits_for_no_task(
    program: Within, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But until the worker has obeyed: an order is lost with the session of one that has not."""
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(worker, "_handler", lambda _: (begun.set(), may_end.wait(PATIENCE_S)))
    program.run("put", "q", "1")
    assert begun.wait(PATIENCE_S)
    assert program.rows("fleet", "drain", str(os.getpid()), "--detach") == []
    assert worker.drained
    may_end.set()


def test_a_wrong_target_is_refused(program: Within) -> None:
    program.run("create", "q")
    assert program.run("fleet", "drain", "nowhere")[0] == 2
    for words in (("drain",), ("pause", "x"), ("resume", "x"), ("stop",)):
        assert program.run("fleet", *words)[0] == 2
