"""Commands beside a process that was stopped in a commit: each ends, and one that commits names it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fdbqueue.core import limits
from fdbqueue.operate.cli import session
from tests.cli.shell import Shell, Within
from tests.engine.running import Program
from tests.engine.test_stopped import stopped

TIMEOUT_S = 0.5


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The program on a directory."""
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    yield shell
    shell.end()


@pytest.fixture
def culprit(program: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The process that is stopped, beside a queue with a task."""
    monkeypatch.setattr(session, "DIRECTORY_TIMEOUT_S", TIMEOUT_S)
    for name in ("LEADER_STANDS_S", "CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, TIMEOUT_S)
    program.run("create", "q", "--kind", "fifottl")
    program.run("put", "q", "task", "--delay", "0.001")
    with stopped("stop_in_a_commit", tmp_path / "data") as found:
        yield found


@pytest.mark.parametrize(
    "command",
    ["queues", "stats q", "tasks q", "top -n 1", "verify", "dead classes q", "limit list", "schedule list"],
)
@pytest.mark.usefixtures("culprit")
def test_a_command_that_looks_does_not_wait(program: Within, command: str) -> None:
    status, _, err = program.run(*command.split())
    assert (status, err) in ((0, ""), (0, "fdbqueue: 1 queue, 8 keys: no finding\n"))


@pytest.mark.parametrize("command", ["put q task", "pause q", "create other", "truncate q --yes"])
def test_a_command_that_commits_names_the_process(program: Within, culprit: Program, command: str) -> None:
    status, out, err = program.run(*command.split())
    assert (status, out) == (2, "")
    assert f"process {culprit.process.pid} (" in err
    assert "which is stopped" in err


def test_doctor_names_the_process(program: Within, culprit: Program) -> None:
    status, out, err = program.run("doctor", "--watch", "0")
    assert (status, err) == (1, "")
    told = next(line for line in out.splitlines() if line.startswith("failure\tdirectory"))
    assert f"all commits wait for process {culprit.process.pid} (" in told
    assert f"kill -CONT {culprit.process.pid}" in told
