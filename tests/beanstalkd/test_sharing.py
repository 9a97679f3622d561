"""Programs with the library share tubes with clients, and the checks of the library hold."""

from collections.abc import Iterator

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.root_keys import BEANSTALKD
from fdbqueue.integrations.beanstalkd.jobs import Jobs
from tests.beanstalkd.client import Client


@pytest.fixture
def shared(place: tuple[str, str], client: Client) -> Iterator[tuple[fdbqueue.Database, TaskQueue, Subspace]]:
    """The queue of the tube of the client."""
    url, root = place[0], Subspace(tuple(place[1].split("/")))
    if url == "memory:":
        pytest.skip("one process alone has it")
    tube = client.ask("list-tube-used").split()[1].decode()
    client.ask("peek-ready")  # makes the queue
    with fdbqueue.open(url) as db:
        yield db, TaskQueue.open(db, f"beanstalkd/{tube}", root=root), root


def test_a_task_of_a_program_gets_a_number(client: Client, shared) -> None:
    db, queue, root = shared
    queue.put(db, b"theirs", pri=3)
    number, body = client.reserve()
    assert body == b"theirs"
    assert client.ask(f"release {number} 0 0") == b"RELEASED\r\n"
    assert client.reserve()[0] == number
    assert client.ask(f"bury {number} 0") == b"BURIED\r\n"
    assert fdbqueue.verify(db, root=root).findings == ()
    assert queue.kick(db) == 1
    assert client.ask("peek-buried") == b"NOT_FOUND\r\n"
    assert client.ask(f"delete {number}") == b"DELETED\r\n"


def test_a_program_takes_the_job_of_a_client(client: Client, shared) -> None:
    db, queue, root = shared
    number = client.put(b"ours")
    task = queue.take(db, 0)
    assert task.data == b"ours"
    assert client.ask(f"delete {number}") == b"NOT_FOUND\r\n"
    queue.ack(db, task)
    assert client.ask(f"peek {number}") == b"NOT_FOUND\r\n"
    assert fdbqueue.verify(db, root=root).findings == ()
    jobs = Jobs(db, root)
    assert run(db, lambda tr: jobs.clear_stale(tr, 0, 200)) == 0
    rows = db.get_range_startswith(root.pack((BEANSTALKD,)))
    assert len(rows) == 1, "the next number is all that is left"
