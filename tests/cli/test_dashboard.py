"""`fdbqueue dashboard` and `metrics`: servers that end when told to, and options that cannot be had."""

import logging
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from tests.cli.shell import TERMINATED, Shell, Within
from tests.support import PATIENCE_S

HUNG_UP = 128 + signal.SIGHUP
TOKEN = "FDBQUEUE_DASHBOARD_TOKEN"


def hang_up_by_default() -> None:
    """The tests may run under nohup: their programs inherit that SIGHUP is ignored, and obey."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.commits_by_hand  # a page is a transaction with a timeout
def test_a_server_serves_until_it_is_told_to_end(shell: Shell) -> None:
    """An open stream of events does not keep it."""
    ending, status = (
        (signal.SIGHUP, HUNG_UP) if shell.url.startswith("embedded") else (signal.SIGTERM, TERMINATED)
    )
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "mails", root=shell.space)
    process = shell.start("dashboard", "--port", "0", preexec_fn=hang_up_by_default)
    try:
        served = re.search(r"serving (http://127.0.0.1:\d+), read-only", process.stderr.readline())
        assert served is not None
        with urllib.request.urlopen(served[1], timeout=PATIENCE_S) as page:
            assert b"mails" in page.read()
        events = urllib.request.urlopen(f"{served[1]}/events", timeout=PATIENCE_S)
        assert events.readline() == b"retry: 2000\n"
    finally:
        process.send_signal(ending)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert events.read()
    events.close()
    assert (process.returncode, out, err) == (status, "", "")


@pytest.fixture
def created(program: Within) -> Within:
    program.run("create", "mails")
    return program


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        *(([command, "--port", "65536"], "65536") for command in ("dashboard", "metrics")),
        *(([command, "--host", ""], "it is empty") for command in ("dashboard", "metrics")),
        (["metrics", "--host", "host.invalid"], "cannot listen on host.invalid"),
        (["metrics", "--keys", "51"], "51"),
        (["metrics", "--processes", "nowhere"], "nowhere"),
        (["dashboard", "--host", "0.0.0.0"], f"browsers need a token: set {TOKEN}, or give --token-file"),
        (["dashboard", "--token-file", "nowhere"], "nowhere"),
        (["dashboard", "--token-file", "short"], "the token of short has less than 16 characters"),
        (["dashboard", "--token-file", "bytes"], "the token of bytes is no text"),
        (["dashboard", "--host", "host.invalid", "--token-file", "long"], "cannot listen on host.invalid"),
    ],
)
def test_options_that_cannot_be_had_are_refused(
    created: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, token in (("short", b"x"), ("long", b"x" * 16), ("bytes", b"\xff" * 16)):
        Path(name).write_bytes(token)
    err = created.mistake(*arguments)
    assert reason in err


def test_a_port_in_use_is_told(created: Within) -> None:
    level = logging.getLogger().level
    with socket.create_server(("127.0.0.1", 0)) as other:
        err = created.mistake("dashboard", "--port", str(other.getsockname()[1]))
    assert "Address already in use" in err
    assert logging.getLogger().level == level


def test_a_short_token_in_the_environment_is_refused(
    created: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "short")
    assert f"the token of {TOKEN} has less than 16 characters" in created.mistake("dashboard")


def test_a_place_without_a_database_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = Within(Shell(f"embedded:{tmp_path}/data", [], tmp_path), capfd)
    err = program.mistake("dashboard")
    assert "there is no database" in err


def test_a_missing_extra_is_told(created: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fdbqueue.operate.dashboard.app", raising=False)
    monkeypatch.delattr("fdbqueue.operate.dashboard.app", raising=False)
    status, _, err = created.run("dashboard")
    assert status == 2
    assert "pip install 'fdbqueue[dashboard]'" in err


def test_one_page_is_printed(program: Within) -> None:
    program.run("create", "mails")
    program.run("put", "mails", "x")
    status, out, err = program.run("metrics", "--once")
    assert (status, err) == (0, "")
    assert 'fdbqueue_tasks{queue="mails",state="ready"} 1.0' in out


@pytest.mark.commits_by_hand  # a scrape has a timeout
def test_named_queues_alone_are_told(program: Within) -> None:
    for name in ("mails", "prints"):
        program.run("create", name)
    _, out, _ = program.run("metrics", "prints", "--once")
    assert ('queue="prints"' in out, 'queue="mails"' in out) == (True, False)


@pytest.mark.parametrize("shell", ["embedded"], indirect=True)
def test_metrics_are_served_until_the_program_is_told_to_end(shell: Shell) -> None:
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "mails", root=shell.space)
    process = shell.start("metrics", "--port", "0")
    try:
        served = re.search(r"http://127.0.0.1:\d+", process.stderr.readline())
        assert served is not None
        with urllib.request.urlopen(f"{served[0]}/metrics", timeout=PATIENCE_S) as page:
            assert b'fdbqueue_workers{queue="mails"} 0.0' in page.read()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (TERMINATED, "", "")


def test_metrics_without_a_database_fail(program: Within) -> None:
    status, out, err = program.run("--url", "embedded:nowhere", "metrics", "--once")
    assert (status, out) == (2, "")
    assert "there is no database at embedded:nowhere" in err
