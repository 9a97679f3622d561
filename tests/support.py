"""Common parts of the tests of both engines: short keys, error codes, results of commits, a manual clock."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.core.runtime import RealRuntime

TOO_OLD = 1007
FUTURE_VERSION = 1009
NOT_COMMITTED = 1020
COMMIT_UNKNOWN = 1021
CANCELLED = 1025
TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
UNREADABLE = 1036
CLUSTER_VERSION_CHANGED = 1039
OPERATION_CANCELLED = 1101
INVALID_OPERATION = 2000
KEY_OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
INVALID_OPTION_VALUE = 2006
READ_VERSION_ALREADY_SET = 2010
VERSION_INVALID = 2011
USED_DURING_COMMIT = 2017
INVALID_MUTATION_TYPE = 2018
NO_COMMIT_VERSION = 2021
TRANSACTION_TOO_LARGE = 2101
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103
EXACT_MODE_WITHOUT_LIMITS = 2210

# How long a test waits for what should come at once, before it says that it never came.
PATIENCE_S = 40.0


def replace_method(patch: pytest.MonkeyPatch, one: Any, name: str, new: Callable[..., Any]) -> None:
    """Have `new` in place of a method of one object, whose class has slots."""
    usual = getattr(type(one), name)

    def method(self: Any, *given: Any, **named: Any) -> Any:
        return new(*given, **named) if self is one else usual(self, *given, **named)

    patch.setattr(type(one), name, method)


class Keys:
    """Short byte keys under one prefix: `k("a")`; a set of them has the prefix's order."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.begin = prefix
        self.end = prefix + b"\xff"

    def __call__(self, name: str | bytes) -> bytes:
        return self.prefix + (name.encode() if isinstance(name, str) else name)

    def names(self, rows: Any) -> str:
        """The rows' keys as one string: `"abc"` for the keys a, b and c."""
        return "".join(bytes(row.key)[len(self.prefix) :].decode() for row in rows)

    def write(self, db: Any, names: str, value: bytes = b"value") -> None:
        """Set one key per letter, in one transaction."""
        tr = db.create_transaction()
        for name in names:
            tr[self(name)] = value
        tr.commit().wait()


def error_code(action: Callable[[], Any]) -> int:
    """The code of the FDBError that `action` ends in, 0 for none."""
    try:
        action()
    except Exception as error:
        code = getattr(error, "code", None)
        if not isinstance(code, int):
            raise
        return code
    return 0


def commit_code(tr: Any) -> int:
    """What committing came to: 0, or the error's code."""
    return error_code(lambda: tr.commit().wait())


def begin(db: Any) -> Any:
    """A transaction that has its read version: what commits from now on is concurrent with it."""
    tr = db.create_transaction()
    tr.get_read_version().wait()
    return tr


def becomes_ready(future: Any, within_s: float = PATIENCE_S) -> bool:
    """Wait for a future without its result or error."""
    ready = threading.Event()
    future.on_ready(lambda _: ready.set())
    return ready.wait(within_s)


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for an effect of another process or thread that has no signal."""
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)


def in_child(body: Callable[[], bool]) -> bool:
    """The result of `body` in a forked child. A child that hangs is killed by its alarm."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if body() else 1)
        except BaseException:  # it must not go on as a second pytest
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def run_program(directory: Path, text: str, timeout_s: float = 60) -> str:
    """Run a Python program in a process of its own, and return its output. It must end well."""
    program = directory / "program.py"
    program.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, program], cwd=directory, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class FailsOnce:
    """A step of a thread that raises `error` the first time it is called. A test can wait for its calls."""

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error
        self._semaphore = threading.Semaphore(0)
        self._ending: threading.Thread | None = None

    def __call__(self, *_: object) -> None:
        error, self._error = self._error, None
        if error is not None and not isinstance(error, Exception):
            self._ending = threading.current_thread()
        self._semaphore.release()
        if error is not None:
            raise error

    def wait_for(self, count: int) -> None:
        """Wait for the calls, and for the end of a thread that the error ends.

        pytest hears of that end late on a busy machine, and would blame the next test.
        """
        assert all(self._semaphore.acquire(timeout=PATIENCE_S) for _ in range(count))
        if self._ending is not None:
            self._ending.join(PATIENCE_S)
            assert not self._ending.is_alive()


class IdleThread:
    """A thread that was never started."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool:
        return False


class Ageless(RealRuntime):
    """A real runtime in which no transaction becomes too old, however slow the machine is."""

    def monotonic(self) -> float:  # type: ignore[override]
        return 0.0


class ManualClock(RealRuntime):
    """A real runtime with a clock that only `advance` and `sleep` move."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    monotonic = now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for the files of a second user")
