"""Input of hostile clients, and servers that are killed: nothing is lost, and memory stays bounded."""

import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from tests.beanstalkd.client import Client, Served, serving
from tests.support import wait_until


def memory_kb(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_a_line_without_an_end_is_passed_over(client: Client, served: Served) -> None:
    before = memory_kb(served.process.pid)
    for _ in range(100):
        client.send(b"x" * 1_000_000)
    client.send(b"\r\n")
    assert client.reply() == b"BAD_FORMAT\r\n"
    assert client.ask("list-tube-used").startswith(b"USING ")
    assert memory_kb(served.process.pid) - before < 50_000


def test_a_body_that_is_too_big_is_passed_over(client: Client, served: Served) -> None:
    before = memory_kb(served.process.pid)
    client.send(b"put 0 0 1 %d\r\n" % 50_000_000)
    for _ in range(50):
        client.send(b"x" * 1_000_000)
    client.send(b"\r\n")
    assert client.reply() == b"JOB_TOO_BIG\r\n"
    assert memory_kb(served.process.pid) - before < 50_000


@pytest.mark.parametrize(
    "data", [b"\0" * 500, os.urandom(5_000), b"\r\n" * 500, b"\n" * 500, b"put 0 0 1 5\r\nab"]
)
def test_binary_input_harms_no_other_connection(client: Client, served: Served, data: bytes) -> None:
    with served.client() as other:
        other.send(data)
    number = client.put()
    assert client.reserve()[0] == number


def test_a_client_that_reads_no_reply_is_not_served(client: Client, served: Served) -> None:
    """Its commands stay in its socket: the server holds no more than a few replies."""
    client.put(b"x" * 65_000)
    client.socket.settimeout(1)
    before = memory_kb(served.process.pid)
    with pytest.raises(TimeoutError):
        client.send(b"peek-ready\r\n" * 10_000_000)
    with served.client() as other:
        assert other.ask("list-tube-used") == b"USING default\r\n"
    assert memory_kb(served.process.pid) - before < 50_000


def test_a_closed_half_has_the_replies_to_its_commands(served: Served) -> None:
    with served.client() as client:
        client.send(b"use half\r\nput 0 0 9 1\r\na\r\nwatch half\r\nreserve-with-timeout 5\r\nreserve\r\n")
        client.socket.shutdown(socket.SHUT_WR)
        replies = [client.reply().split()[0] for _ in range(5)]
        assert replies == [b"USING", b"INSERTED", b"WATCHING", b"RESERVED", b"TIMED_OUT"]
        assert client.reply() == b""


def test_a_drained_server_takes_no_job(place: tuple[str, str]) -> None:
    with serving(*place) as server, server.client() as client:
        server.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: client.figures("stats")["draining"] == "true")
        assert client.ask("put 0 0 1 1", b"x") == b"DRAINING\r\n"


def test_a_server_ends_by_a_signal(place: tuple[str, str]) -> None:
    with serving(*place) as server, server.client() as client:
        client.send(b"reserve\r\n")
        assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert server.process.stderr.read() == ""


def test_a_killed_server_loses_no_job(place: tuple[str, str]) -> None:
    """Jobs that were held come back with their numbers; the statistics tell of a failed attempt."""
    if place[0] == "memory:":
        pytest.skip("the jobs of memory: end with their process")
    with serving(*place) as server, server.client() as client:
        numbers = [client.put(b"%d" % index, pri=index) for index in range(20)]
        held = [client.reserve()[0] for _ in range(10)]
        assert held == numbers[:10]
        server.end(signal.SIGKILL)
    with serving(*place) as server, server.client() as client:
        got = [client.reserve(60)[0] for _ in numbers]
        assert sorted(got) == numbers
        assert client.put() > max(numbers)
        for number in numbers:
            assert client.ask(f"delete {number}") == b"DELETED\r\n"


@pytest.mark.slow
def test_ten_thousand_connections_are_held(served: Served) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    count, before = min(10_000, limits[1] - 200), memory_kb(served.process.pid)
    idle = [served.client() for _ in range(count)]
    with served.client() as client:
        assert client.ask("list-tube-used") == b"USING default\r\n"
    assert memory_kb(served.process.pid) - before < 20 * count
    for client in idle:
        client.close()
