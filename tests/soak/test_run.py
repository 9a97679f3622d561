"""The soak of kills and stops, in its short version."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.testing.history import read
from tests.support import PATIENCE_S, wait_until
from tests.system.soak import __main__ as program
from tests.system.soak.client import NOTES, Client, Setup
from tests.system.soak.counting import counted_in
from tests.system.soak.subjects import SUBJECTS, opened
from tests.system.soak.subjects.items import Persistent

STEPS = 4


@pytest.mark.in_turn(4)
def test_each_subject_keeps_its_promise(tmp_path: Path) -> None:
    setup = Setup("memory:", tuple(SUBJECTS), ttr_s=0.3, wait_s=0, batch_max=6)
    with fdbqueue.open(setup.url) as db:
        program.prepare(tmp_path, setup, db)
        client = Client(db, setup, tmp_path, f"w{random.randrange(10_000)}")
        for subject in opened(db, setup):
            subject.put(client, 2)  # steps by chance may put nothing
            for _ in range(STEPS):
                subject.step(client)
        counts = counted_in(db, setup, tmp_path)
    assert [finding for count in counts for finding in count.findings] == []
    assert all(count.ended > 0 for count in counts if count.subject != "schedules")


def test_an_ack_ends_the_last_lease_of_an_item_that_came_twice(tmp_path: Path) -> None:
    """The process stood still for longer than its first lease. The ack names the item, and no lease."""
    setup = Setup("memory:", ("persistent",), wait_s=0)
    with fdbqueue.open(setup.url) as db:
        program.prepare(tmp_path, setup, db)
        client = Client(db, setup, tmp_path, "w")
        [subject] = opened(db, setup)
        assert isinstance(subject, Persistent)
        fetched = iter([(["x", "w:1"], "x"), (["x", "w:2"], "x")])
        subject._fetch = lambda *_: next(fetched, None)  # type: ignore[method-assign]
        client.random.seed(1)
        while not subject.take(client, 2):
            pass
    acks = [
        call.argument for call in read(tmp_path / NOTES / subject.name) if call.name in ("ack", "release")
    ]
    assert acks == [[["x", "w:2"]]]


@pytest.mark.in_turn(4)
@pytest.mark.timeout(300)
def test_a_kill_loses_nothing_and_an_interrupt_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.system.soak", "--minutes", "60", "--processes", "2"]
    few = ["--subjects", "items,leases,keyed,elements", "--pause", "1", "--wait", "0"]
    with subprocess.Popen(
        [*command, *few, "--directory", tmp_path], stdout=subprocess.PIPE, text=True
    ) as soak:
        try:
            # The third process takes the place of one that was killed.
            wait_until(lambda: bool(list(tmp_path.glob(f"*/{NOTES}/w2"))), 6 * PATIENCE_S)
            soak.send_signal(signal.SIGINT)
            said, _ = soak.communicate(timeout=120)
        finally:
            soak.kill()
    assert "nothing lost" in said
    assert (soak.returncode, list(tmp_path.iterdir())) == (0, [])


def test_the_count_has_no_faults_of_the_client() -> None:
    environment = {f"{program.FAULTS}ENABLE": "", "HOME": "/"}
    assert program.faults_taken(environment) == {f"{program.FAULTS}ENABLE": ""}
    assert environment == {"HOME": "/"}


def test_a_root_with_keys_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    with fdbqueue.open(url) as db:
        db[Setup(url, ()).space["x"].key()] = b"theirs"
    assert program.main(["--url", url, "--directory", str(tmp_path)]) == 2
    assert "the root 'soak' has keys" in capsys.readouterr().err


def test_an_unknown_subject_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["--subjects", "leases,theirs"])
    assert "'theirs' is none of items, leases" in capsys.readouterr().err
