"""Workers of Dramatiq, killed with SIGKILL in the middle of their messages: none is lost."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dramatiq
import pytest

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.dramatiq import FdbQueueBroker
from tests.conftest import CLUSTER_FILE, SLOW
from tests.support import wait_until

pytestmark = pytest.mark.in_turn(4)

MESSAGES, KILLS = (1_000, 5) if SLOW else (200, 2)
ACTORS = """
import os

import dramatiq

from fdbqueue.integrations.dramatiq import FdbQueueBroker
from fdbqueue.core.root_keys import DEFAULT_ROOT

broker = FdbQueueBroker(os.environ["PLACE"], session_ttr_s=1)
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=0, queue_name=os.environ["QUEUE"])
def note(number):
    broker.database[DEFAULT_ROOT.pack(("ran", os.environ["QUEUE"], number, os.getpid()))] = b"1"
"""


@pytest.fixture(params=["embedded", "fdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path}/data"
    if CLUSTER_FILE is None:
        pytest.skip("FDB_CLUSTER_FILE names no cluster")
    return f"fdb:{CLUSTER_FILE}"


@contextmanager
def workers(place: Path, url: str, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--processes", "1", "--threads", "4", "--path", str(place)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dramatiq", "actors", *options],
        cwd=place,
        env=os.environ | {"PLACE": url, "QUEUE": queue},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)
def test_no_message_is_lost_by_kills(tmp_path: Path, url: str) -> None:
    """A message that ran twice was running at a kill, or its ack had not committed."""
    (tmp_path / "actors.py").write_text(ACTORS)
    queue = f"kills-{os.urandom(4).hex()}"
    with fdbqueue.open(url) as db:
        broker = FdbQueueBroker(db)
        broker.declare_queue(queue)
        for number in range(MESSAGES):
            broker.enqueue(dramatiq.Message(queue, "note", (number,), {}, {}))
        for kill in range(1, KILLS + 1):
            with workers(tmp_path, url, queue):
                wait_until(lambda done=MESSAGES * kill // (KILLS + 1): len(ran(db, queue)) >= done, 300)
        with workers(tmp_path, url, queue):
            broker.join(queue, timeout=300_000)
        counts = ran(db, queue)
    assert sorted(counts) == list(range(MESSAGES))
    twice = sum(count - 1 for count in counts.values())
    assert twice <= KILLS * 4 * 2  # the running and the prefetched messages of four threads


def ran(db: fdbqueue.Database, queue: str) -> Counter[int]:
    """The number of processes in which each message ran."""
    under = DEFAULT_ROOT.range(("ran", queue))
    return Counter(int(DEFAULT_ROOT.unpack(row.key)[2]) for row in db.get_range(under.start, under.stop))


def test_a_worker_ends_when_its_directory_is_replaced(tmp_path: Path) -> None:
    """With status 2: its consumers would try again for ever, also when a good database is there."""
    (tmp_path / "actors.py").write_text(ACTORS)
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        broker = FdbQueueBroker(db)
        broker.declare_queue("mails")
        broker.enqueue(dramatiq.Message("mails", "note", (1,), {}, {}))
        with workers(tmp_path, url, "mails") as process:
            wait_until(lambda: bool(ran(db, "mails")), 120)
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            assert process.wait(120) == 2
