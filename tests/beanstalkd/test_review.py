"""What a server must survive, and what must come back: long pipelines, failures, programs beside it."""

import signal
import socket
import subprocess
from pathlib import Path

import fdbqueue
from fdbqueue.core.database import run
from fdbqueue.integrations.beanstalkd.jobs import Jobs
from tests.beanstalkd.client import Client, Served
from tests.beanstalkd.test_addresses import HERE, SERVE, served_at
from tests.beanstalkd.test_hostile import memory_kb
from tests.beanstalkd.test_sharing import shared  # noqa: F401  # a fixture
from tests.support import PATIENCE_S


def tube_of(client: Client) -> str:
    return client.ask("list-tube-used").split()[1].decode()


def test_many_commands_that_are_answered_at_once(client: Client) -> None:
    """Each reserve of a paused tube ends without a transaction: none of them calls the next one."""
    client.put()
    client.ask(f"pause-tube {tube_of(client)} 100")
    client.send(b"put 0 0 1 1\r\nx\r\n" + b"reserve-with-timeout 0\r\n" * 2_000)
    assert client.reply().startswith(b"INSERTED")
    assert {client.reply() for _ in range(2_000)} == {b"TIMED_OUT\r\n"}


def test_pauses_of_one_tube_need_no_more_memory(client: Client, served: Served) -> None:
    before = memory_kb(served.process.pid)
    for _ in range(20):
        client.send(b"pause-tube default 4294967295\r\n" * 500)
        assert {client.reply() for _ in range(500)} == {b"PAUSED\r\n"}
    assert memory_kb(served.process.pid) - before < 3_000
    client.ask("pause-tube default 1")


def test_a_kick_of_buried_jobs_leaves_delayed_ones(client: Client) -> None:
    for _ in range(200):
        client.ask(f"bury {client.put() and client.reserve()[0]} 0")
    client.put(delay=1_000)
    assert client.ask("kick 300") == b"KICKED 200\r\n"
    assert client.ask("kick 300") == b"KICKED 1\r\n"


def test_jobs_of_a_dropped_queue_are_not_found(client: Client, shared) -> None:  # noqa: F811
    db, queue, _ = shared
    number = client.put()
    queue.drop(db)
    for command in ("peek", "stats-job", "kick-job", "reserve-job", "delete"):
        assert client.ask(f"{command} {number}") == b"NOT_FOUND\r\n"
    fresh = client.put()
    assert client.reserve()[0] == fresh


def test_rows_of_a_dropped_queue_are_cleared(client: Client, shared) -> None:  # noqa: F811
    db, queue, root = shared
    number, jobs = client.put(), Jobs(db, root)
    assert jobs.queue(tube_of(client)).name == queue.name
    queue.drop(db)
    run(db, lambda tr: jobs.clear_stale(tr, number - 1, 1))
    assert run(db, lambda tr: jobs.keys.rows(tr, [number])) == [None]


def test_a_second_burial_is_kicked_once(client: Client, shared) -> None:  # noqa: F811
    """A program kicks the task in between, so the row of the first burial stays until the second one."""
    db, queue, root = shared
    number = client.put()
    client.reserve()
    client.ask(f"bury {number} 0")
    queue.kick(db)
    client.reserve()
    client.ask(f"bury {number} 0")
    assert client.ask("kick 10") == b"KICKED 1\r\n"
    assert fdbqueue.verify(db, root=root).findings == ()
    assert client.reserve()[0] == number


def test_kicks_keep_the_order_past_a_stale_burial(client: Client, shared) -> None:  # noqa: F811
    """A program kicks the first job, and the row of its burial stays."""
    db, queue, _ = shared
    numbers = []
    for pri in (0, 5, 0):
        numbers.append(client.put())
        client.reserve()
        client.ask(f"bury {numbers[-1]} {pri}")
        if len(numbers) == 1:
            queue.kick(db)
            assert client.reserve()[0] == numbers[0]
    assert client.ask("kick 1") == b"KICKED 1\r\n"
    assert client.reserve()[0] == numbers[1]


def test_a_delete_clears_the_row_of_a_burial(client: Client, shared) -> None:  # noqa: F811
    """A program kicks the task in between, so the row is still there when the job is deleted."""
    db, queue, root = shared
    at, number = Jobs(db, root).keys.burials(tube_of(client)), client.put()
    client.reserve()
    client.ask(f"bury {number} 0")
    queue.kick(db)
    client.reserve()
    assert len(db.get_range(at.start, at.stop)) == 1
    assert client.ask(f"delete {number}") == b"DELETED\r\n"
    assert list(db.get_range(at.start, at.stop)) == []


def test_all_jobs_of_a_connection_come_back(client: Client, served: Served) -> None:
    numbers, tube = {client.put() for _ in range(450)}, tube_of(client)
    with served.client() as other:
        other.ask(f"watch {tube}")
        assert {other.reserve()[0] for _ in numbers} == numbers
    assert {client.reserve(20)[0] for _ in numbers} == numbers


def test_a_socket_of_a_killed_server_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):
        with served_at(path) as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert path.is_socket()


def test_a_socket_of_a_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served_at(path):
        done = subprocess.run(
            [*SERVE, f"unix:{path}"], cwd=HERE, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.returncode, "in use" in done.stderr) == (2, True)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
