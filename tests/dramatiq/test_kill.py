"""Workers of Dramatiq, killed with SIGKILL in the middle of their messages: none is lost."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dramatiq
import pytest

import fdbqueue
from fdbqueue.dramatiq import FdbQueueBroker
from tests.conftest import SLOW
from tests.support import wait_until

MESSAGES, KILLS = (1_000, 5) if SLOW else (200, 2)
ACTORS = """
import os

import dramatiq

from fdbqueue.dramatiq import FdbQueueBroker

broker = FdbQueueBroker(os.environ["PLACE"], session_ttr_s=1)
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=0)
def note(number):
    broker.database[b"ran/%d/%d" % (number, os.getpid())] = b"1"
"""


@contextmanager
def workers(place: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "dramatiq",
        "actors",
        "--processes",
        "1",
        "--threads",
        "4",
        "--path",
        str(place),
    ]
    process = subprocess.Popen(command, cwd=place, env=os.environ | {"PLACE": url}, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)
def test_no_message_is_lost_by_kills(tmp_path: Path) -> None:
    """A message that ran twice was running at a kill, or its ack had not committed."""
    (tmp_path / "actors.py").write_text(ACTORS)
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        broker = FdbQueueBroker(db)
        broker.declare_queue("default")
        for number in range(MESSAGES):
            broker.enqueue(dramatiq.Message("default", "note", (number,), {}, {}))
        for kill in range(1, KILLS + 1):
            with workers(tmp_path, url):
                wait_until(lambda done=MESSAGES * kill // (KILLS + 1): len(ran(db)) >= done, 300)
        with workers(tmp_path, url):
            broker.join("default", timeout=300_000)
        counts = ran(db)
    assert sorted(counts) == list(range(MESSAGES))
    twice = sum(count - 1 for count in counts.values())
    assert twice <= KILLS * 4 * 2  # the running and the prefetched messages of four threads


def ran(db: fdbqueue.Database) -> Counter[int]:
    """The number of processes in which each message ran."""
    return Counter(int(row.key.split(b"/")[1]) for row in db.get_range(b"ran/", b"ran0"))
