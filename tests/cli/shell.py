"""A shell for tests: it runs each command in a process, on one database."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from tests.support import PATIENCE_S

PROGRAM = [sys.executable, "-m", "fdbqueue.operate.cli"]
CLOSED_PIPE, INTERRUPTED, TERMINATED = 141, 130, 143
HELD_S = 10.0
HERE = Path(__file__).parents[2]


def rest_of(process: Any, timeout_s: float = PATIENCE_S) -> tuple[str, str]:
    """Return all output until the end; `communicate` would lose lines that `readline` buffered."""
    with process.stdout, process.stderr:
        written = process.stdout.read(), process.stderr.read()
    process.wait(timeout_s)
    return written


def parsed(out: str) -> list[Any]:
    """The lines of JSON."""
    return [json.loads(line) for line in out.splitlines()]


class Shell:
    """Runs the program with one `url` and `root` in every command."""

    def __init__(self, url: str, root: list[str], folder: Path) -> None:
        self.url = url
        self.where = ["--url", url, *(["--root", "/".join(root)] if root else [])]
        self.root = root
        self.space = Subspace(tuple(root)) if root else DEFAULT_ROOT
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def program(self, *arguments: str) -> list[str]:
        return [*PROGRAM, *self.where, *arguments]

    def start(self, *arguments: str, **options: Any) -> Any:
        """Return the process; it has a pipe for each output."""
        usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            self.program(*arguments), text=True, **(usual | {"cwd": self.folder} | options)
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill the programs that a failed test has left: they would go on for ever."""
        for process in self._started:
            process.kill()

    def run(self, *arguments: str, given: str | None = None, **options: Any) -> tuple[int, str, str]:
        """Return the status, the standard output and the standard error."""
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        out, err = process.communicate(given, timeout=60)
        return process.returncode, out, err

    def rows(self, *arguments: str) -> list[Any]:
        """Return the records that a command prints with --json."""
        return parsed(self.run(*arguments, "--json")[1])

    def row(self, *arguments: str) -> Any:
        """Return the only record that a command prints with --json."""
        [only] = self.rows(*arguments)
        return only

    def mistake(self, *arguments: str) -> str:
        """Return the one line with which a command refuses what it was told."""
        status, out, err = self.run(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        return err

    def screen(self, *arguments: str, stream: str = "stdout", **environment: str) -> str:
        """Return all that the program shows on a terminal, which is one of its streams. It ends well."""
        ours, theirs = pty.openpty()
        shown = os.environ | {"TERM": "xterm", "COLUMNS": "120"} | environment
        process = self.start(*arguments, **{stream: theirs}, cwd=HERE, env=shown)
        os.close(theirs)
        screen = read_all(ours)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (out or "", err or "", process.returncode) == ("", "", 0)
        return screen

    @contextmanager
    def opened(self, queue: str = "q") -> Iterator[tuple[fdbqueue.Database, Any]]:
        """Open the database, and a task queue in it."""
        with fdbqueue.open(self.url) as db:
            yield db, fdbqueue.TaskQueue.open(db, queue, root=self.space)

    def get(self, queue: str, n: int = 1000) -> list[Any]:
        """Return all items that `get` prints, read as JSON."""
        return parsed(self.run("get", queue, "-n", str(n))[1])

    def get_until(self, queue: str, complete: Callable[[list[Any]], bool]) -> list[Any]:
        """Return all items that are left, those that a dead reader holds too."""
        left: list[Any] = []
        deadline = time.monotonic() + HELD_S + PATIENCE_S
        while not complete(left):
            assert time.monotonic() < deadline, "some never came back"
            _, out, _ = self.run("get", queue, "-n", "1000", "--wait", "1")
            left += parsed(out)
        return left


class Within(Shell):
    """Runs the program within this process, which is faster; pytest captures the output."""

    def __init__(self, shell: Shell, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(shell.url, shell.root, shell.folder)
        self._capture = capture

    def run(self, *arguments: str, given: str | None = None, **options: Any) -> tuple[int, str, str]:
        assert given is None
        assert not options
        self._capture.readouterr()
        status = run(cli, [*self.where, *arguments])
        return status, *self._capture.readouterr()


def read_all(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the error of Linux if the other side of a terminal is closed
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)
