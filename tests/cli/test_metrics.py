"""`fdbqueue metrics`: one page, or a server."""

import re
import urllib.request

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from tests.cli.shell import TERMINATED, Shell, Within
from tests.cli.test_queues import root_of
from tests.support import PATIENCE_S


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
def test_a_server_serves_until_it_is_told_to_end(shell: Shell) -> None:
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "mails", root=root_of(shell))
    process = shell.start("metrics", "--port", "0")
    assert process.stderr is not None
    try:
        served = re.search(r"http://127.0.0.1:\d+", process.stderr.readline())
        assert served is not None
        with urllib.request.urlopen(f"{served[0]}/metrics", timeout=PATIENCE_S) as page:
            assert b'fdbqueue_workers{queue="mails"} 0.0' in page.read()
    finally:
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (TERMINATED, "", "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "65536"], "65536"),
        (["--host", ""], "it is empty"),
        (["--host", "host.invalid"], "cannot listen on host.invalid"),
        (["--keys", "51"], "51"),
        (["--processes", "nowhere"], "nowhere"),
    ],
)
def test_options_that_cannot_be_had_are_refused(program: Within, arguments: list[str], reason: str) -> None:
    program.run("create", "mails")
    status, out, err = program.run("metrics", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_metrics_without_a_database_fail(program: Within) -> None:
    status, out, err = program.run("--url", "embedded:nowhere", "metrics", "--once")
    assert (status, out) == (2, "")
    assert "there is no database at embedded:nowhere" in err
