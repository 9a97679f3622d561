"""get into a pipe with a reader that ends early: an item leaves the queue only if its line was read."""

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import fdbqueue
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.exits import LineWriter, ReaderGone
from fdbqueue.operate.cli.items import get_lines as get
from tests.cli.shell import CLOSED_PIPE, Shell, Within

LENGTHS = (1, 10, 100, 1_000, 4_096, 10_000, 65_535, 70_000, 100_000)
RUNS = 50


def lines(length: int, count: int) -> list[str]:
    """Different texts that become JSON lines of about `length` bytes."""
    return [str(number % 10) if length < 10 else f"{number:06}".ljust(length, "x") for number in range(count)]


def fill(shell: Shell, values: Iterable[int]) -> None:
    with fdbqueue.open(shell.url) as db:
        fdbqueue.Queue.named(db, "p", root=shell.space).enqueue_many(db, values)


def piped_into(command: list[str], write: Callable[[LineWriter, Signals], object]) -> list[str]:
    """Return the lines that `command` prints, while `write` writes into its pipe."""
    with TemporaryFile("w+") as printed:  # a pipe would block a reader that prints a long line
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=printed) as reader:
            signals = Signals()
            with suppress(ReaderGone):
                write(LineWriter(reader.stdin.fileno(), signals.check), signals)
        printed.seek(0)
        return printed.read().splitlines()


@pytest.mark.parametrize("read", [1, 3])
def test_head_takes_only_the_items_that_it_read(tmp_path: Path, read: int) -> None:
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        queue = fdbqueue.Queue.named(db, "p")
        for number in range(RUNS):
            items = lines(LENGTHS[number % len(LENGTHS)], 9)
            queue.enqueue_many(db, items)
            printed = piped_into(
                ["head", f"-{read}"],
                lambda out, signals: get(db, queue.holder(db), out, signals, 10, 0.0),
            )
            left = queue.dequeue_many(db, 100)
            assert [json.loads(line) for line in printed] == items[:read]
            assert left in (items[read:], items[read + 1 :]), f"run {number}: {len(left)} left"


def test_get_into_head_keeps_the_unread_items(shell: Shell, program: Within) -> None:
    fill(shell, range(10))
    piped = f"{shlex.join(shell.program('get', 'p', '-n', '10'))} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (CLOSED_PIPE, "0\n", "")
    assert program.get("p") in (list(range(1, 10)), list(range(2, 10)))


def test_a_stalled_reader_holds_no_items(shell: Shell, program: Within) -> None:
    """One line is in the pipe; the other items are in the queue for other readers."""
    fill(shell, range(10))
    getting = shell.start("get", "p", "-n", "10")
    while program.run("size", "p")[1] != "9\n":
        time.sleep(0.02)
    assert program.get("p") == list(range(1, 10))
    getting.stdout.close()
    assert getting.communicate(timeout=60)[1] == ""
    program.run("put", "p", "10")
    assert program.get("p") == [10]


@pytest.mark.parametrize("made", [os.pipe, lambda: [end.detach() for end in socket.socketpair()]])
def test_a_line_is_drained_when_it_was_read(made: Callable[[], list[int]]) -> None:
    ours, theirs = made()
    out = LineWriter(theirs, lambda: None)
    assert out.is_drained(0)
    assert out.write(b"line\n")
    assert not out.is_drained(0.01)
    assert os.read(ours, 100) == b"line\n"
    assert out.is_drained(None)
    os.close(ours)
    assert out.is_drained(None), "all was read before the reader went"
    assert not out.is_read()
    os.close(theirs)


def test_a_line_left_in_the_pipe_is_not_drained() -> None:
    ours, theirs = os.pipe()
    out = LineWriter(theirs, lambda: None)
    out.write(b"line\n")
    os.read(ours, 2)
    os.close(ours)
    with pytest.raises(ReaderGone):
        out.is_drained(None)
    os.close(theirs)


def test_a_file_is_always_drained(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("wb") as file:
        out = LineWriter(file.fileno(), lambda: None)
        out.write(b"line\n")
        assert out.is_drained(None)
