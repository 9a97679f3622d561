"""Run the programs of programs.py, and wait for their lines."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import fdbqueue
from tests.engine import programs
from tests.support import PATIENCE_S, wait_until


class Program:
    """A running program of programs.py; a thread reads its lines."""

    def __init__(self, *arguments: object, within: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*within, sys.executable, programs.__file__, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line; it is empty if the program has ended."""
        return self.process.stdout.readline().rstrip("\n")

    def expect(self, line: str) -> None:
        found = self.line()
        assert found == line

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> list[str]:
        """Kill it with SIGKILL; return its unread lines."""
        self.process.send_signal(signal.SIGKILL)
        rest = self.process.stdout.read().splitlines()
        self.process.wait()
        return rest


@contextmanager
def running(*arguments: object, patience_s: float = 3 * PATIENCE_S, within: Sequence[str] = ()):
    program = Program(*arguments, within=within)
    watchdog = threading.Timer(patience_s, program.process.kill)  # a program that hangs fails the test
    watchdog.start()
    try:
        yield program
    finally:
        watchdog.cancel()
        program.process.kill()
        program.process.wait()
        program.process.stdout.close()
        program.process.stdin.close()


def in_turn(db: fdbqueue.Database, *commits: Callable[[], object]) -> None:
    """Run each commit in a thread: the first one leads, and the others wait in this order. All have ended."""
    committer = db.engine._store.committer
    threads = [threading.Thread(target=commit, daemon=True) for commit in commits]
    holding = db.engine._store.begin(write=True)
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: committer._leader and len(committer._waiting) == number)
    holding.abort()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
