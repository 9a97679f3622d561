"""Real Celery workers, each a process of its own with the application of app.py."""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import wait_until

PATIENCE_S = 120.0
"""A worker imports much before it is ready, and the machine may be busy."""


class Place:
    """A broker, with an application whose queues and exchanges have names of their own."""

    def __init__(self, directory: Path, cluster_file: str | None = None) -> None:
        self.on_cluster = cluster_file is not None
        self.broker = (
            f"fdbqueue+fdb://{cluster_file}" if cluster_file else f"fdbqueue+embedded://{directory}/data"
        )
        self.environment = {
            "BROKER": self.broker,
            "SEEN": str(directory / "seen"),
            "NAME": f"celery-{os.urandom(4).hex()}",
        }
        self._log = directory / "log"

    def app(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """The module of the application, for the process of the test."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        sys.modules.pop("tests.celery.app", None)
        return importlib.import_module("tests.celery.app")

    def start(self, *options: str, **environment: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "celery", "--app", "tests.celery.app", "worker", *options]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--loglevel", "INFO"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **environment},
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @contextmanager
    def worker(self, *options: str, **environment: str) -> Iterator[Any]:
        """A worker that is ready. It must end well after the block, unless the block has killed it."""
        ready = self.log().count(" ready.") + 1
        process = self.start(*options, **environment)
        try:
            wait_until(lambda: self.log().count(" ready.") >= ready or process.poll() is not None, PATIENCE_S)
            assert process.poll() is None, self.log()
            yield process
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0, self.log()
        except BaseException:
            print(self.log())
            raise
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
