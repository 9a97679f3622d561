"""SIGTERM reaches the handler of a process first, and ends the process in any case."""

import os
import signal
import subprocess
import sys

import pytest

BUSY = """
import os, signal, sys, time
from loadtest import termination

{before}
termination.install()
{after}
print("busy", os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""
IGNORING = "signal.signal(signal.SIGTERM, lambda *_: None)"
PASSES_ON_THE_STATUS_OF_A_CHILD = """
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def start():
    started = []

    def start_(before: str, after: str = "") -> subprocess.Popen[str]:
        program = [sys.executable, "-c", BUSY.format(before=before, after=after)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start_
    for process in started:
        process.kill()
        process.communicate()


def terminate(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the process, or the child of it, that says that it is busy."""
    assert process.stdout is not None
    os.kill(int(process.stdout.readline().split()[1]), signal.SIGTERM)


def test_a_process_without_a_handler_ends_by_the_signal(start):
    process = start("")
    terminate(process)
    assert process.wait(60) == -signal.SIGTERM


def test_a_handler_that_ends_the_process_is_called(start):
    process = start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))")
    terminate(process)
    assert process.wait(60) == 7


def test_a_second_signal_ends_a_process_that_goes_on(start):
    process = start(IGNORING)
    terminate(process)
    assert "ending the run" in process.stderr.readline()
    process.terminate()
    assert process.wait(60) == 1
    assert process.stderr.read() == "verdict: none: a second SIGTERM\n"


def test_a_process_that_goes_on_for_too_long_is_ended(start):
    process = start(f"{IGNORING}; termination.ORDERLY_END_S = 0.1")
    terminate(process)
    assert process.wait(60) == 1


def test_a_forked_child_is_supervised_too(start):
    process = start(f"{IGNORING}; termination.ORDERLY_END_S = 0.1", PASSES_ON_THE_STATUS_OF_A_CHILD)
    terminate(process)
    assert process.wait(60) == 1
