"""`fdbqueue dashboard`: a server that ends when it is told to, and options that cannot be had."""

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
from tests.cli.test_queues import root_of
from tests.support import PATIENCE_S

HUNG_UP = 128 + signal.SIGHUP


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
        TaskQueue.create(db, "mails", root=root_of(shell))
    process = shell.start("dashboard", "--port", "0", preexec_fn=hang_up_by_default)
    assert process.stderr is not None
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
        (["--port", "65536"], "65536"),
        (["--host", ""], "it is empty"),
        (["--host", "0.0.0.0"], "browsers need a token: set FDBQUEUE_DASHBOARD_TOKEN, or give --token-file"),
        (["--token-file", "nowhere"], "nowhere"),
        (["--token-file", "short"], "the token of short has less than 16 characters"),
        (["--token-file", "bytes"], "the token of bytes is no text"),
        (["--host", "host.invalid", "--token-file", "long"], "cannot listen on host.invalid"),
    ],
)
def test_options_that_cannot_be_had_are_refused(
    created: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, token in (("short", b"x"), ("long", b"x" * 16), ("bytes", b"\xff" * 16)):
        Path(name).write_bytes(token)
    status, out, err = created.run("dashboard", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_a_port_in_use_is_told(created: Within) -> None:
    level = logging.getLogger().level
    with socket.create_server(("127.0.0.1", 0)) as other:
        status, _, err = created.run("dashboard", "--port", str(other.getsockname()[1]))
    assert (status, err.count("\n")) == (2, 1)
    assert "Address already in use" in err
    assert logging.getLogger().level == level


def test_a_short_token_in_the_environment_is_refused(
    created: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDBQUEUE_DASHBOARD_TOKEN", "short")
    status, _, err = created.run("dashboard")
    assert status == 2
    assert "the token of FDBQUEUE_DASHBOARD_TOKEN has less than 16 characters" in err


def test_a_place_without_a_database_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = Within(Shell(f"embedded:{tmp_path}/data", [], tmp_path), capfd)
    status, _, err = program.run("dashboard")
    assert (status, err.count("\n")) == (2, 1)
    assert "there is no database" in err


def test_a_missing_extra_is_told(created: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fdbqueue.operate.dashboard.app", raising=False)
    monkeypatch.delattr("fdbqueue.operate.dashboard.app", raising=False)
    status, _, err = created.run("dashboard")
    assert status == 2
    assert "pip install 'fdbqueue[dashboard]'" in err
