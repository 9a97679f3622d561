"""The metrics server answers each request with a page and a status, whatever the database does."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.open import is_local_name
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.prometheus.serving import MetricsServer, Pages, registry_of, server_of
from tests.support import PATIENCE_S

Get = Callable[..., tuple[int, str]]


@pytest.fixture
def memory() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        TaskQueue.create(database, "mails").put(database, "x")
        yield database


@pytest.fixture
def server(memory: Database) -> Iterator[MetricsServer]:
    with serving(memory) as found:
        yield found


@contextmanager
def serving(database: Database, host: str = "127.0.0.1") -> Iterator[MetricsServer]:
    with server_of(database, registry_of(database, (), 10, DEFAULT_ROOT), host, 0) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join(PATIENCE_S)


def get(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=PATIENCE_S)  # type: ignore[arg-type]
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_pages_of_a_database_that_answers(server: MetricsServer) -> None:
    status, page = get(server, "/metrics")
    assert (status, 'fdbqueue_tasks{queue="mails",state="ready"} 1.0' in page) == (200, True)
    assert get(server, "/metrics?debug=1")[0] == 200
    assert (get(server, "/healthz"), get(server, "/readyz")) == ((200, "ok\n"), (200, "ok\n"))
    assert "/metrics" in get(server, "/")[1]
    assert get(server, "/favicon.ico") == (404, "there is no such page; / lists the pages\n")


def test_a_head_has_the_status_and_no_page(server: MetricsServer) -> None:
    assert get(server, "/healthz", "HEAD") == (200, "")


def test_other_methods_are_refused(server: MetricsServer) -> None:
    assert get(server, "/metrics", "POST")[0] == 501


def test_a_database_that_is_gone_gives_pages(memory: Database, server: MetricsServer) -> None:
    memory.close()
    status, page = get(server, "/metrics")
    assert (status, "fdbqueue_up 0.0" in page, "mails" in page) == (200, True, False)
    status, page = get(server, "/readyz")
    assert (status, page.startswith("the database does not answer: "), page.count("\n")) == (503, True, 1)
    assert get(server, "/healthz") == (200, "ok\n")


def test_the_reason_of_the_database_is_one_visible_line(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise fdbqueue.FdbQueueError("no\nanswer \x1b[2J")

    monkeypatch.setattr("fdbqueue.integrations.prometheus.serving.run", away)
    assert get(server, "/readyz") == (503, "the database does not answer: no\\nanswer \\x1b[2J\n")


def test_a_page_that_fails_tells_it_in_the_log(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> bytes:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("fdbqueue.integrations.prometheus.serving.generate_latest", broken)
    status, page = get(server, "/metrics")
    assert (status, "unforeseen" in page) == (500, False)
    assert "unforeseen" in caplog.text
    assert get(server, "/healthz") == (200, "ok\n")


def test_a_scrape_that_fails_lets_the_next_one_run(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> bytes:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(limits, "SCRAPE_WAIT_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.integrations.prometheus.serving.generate_latest", broken)
        assert get(server, "/metrics")[0] == 500
    assert get(server, "/metrics")[0] == 200


def test_one_scrape_runs_at_a_time(memory: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRAPE_WAIT_S", 0.01)
    began, end = threading.Event(), threading.Event()

    def slow(_: Any) -> bytes:
        began.set()
        assert end.wait(PATIENCE_S)
        return b"first"

    monkeypatch.setattr("fdbqueue.integrations.prometheus.serving.generate_latest", slow)
    pages = Pages(memory, registry_of(memory, (), 10, DEFAULT_ROOT))
    answers: list[bytes] = []
    first = threading.Thread(target=lambda: answers.append(pages.get("/metrics").body))
    first.start()
    assert began.wait(PATIENCE_S)
    assert pages.get("/metrics").status == 503
    assert pages.get("/healthz").status == 200
    end.set()
    first.join(PATIENCE_S)
    assert answers == [b"first"]


def test_names_of_other_machines_are_refused(server: MetricsServer) -> None:
    assert get(server, "/metrics", Host="rebound.example")[0] == 403
    assert get(server, "/metrics", Host="localhost:9464")[0] == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("localhost:9464", True),
        ("127.0.0.1:80", True),
        ("127.1.2.3", True),
        ("[::1]:9464", True),
        ("example.org", False),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host: str, local: bool) -> None:
    assert is_local_name(host) == local


def test_a_server_of_all_addresses_has_any_name(memory: Database) -> None:
    with serving(memory, "0.0.0.0") as server:
        assert get(server, "/healthz", Host="queues.example")[0] == 200


def test_idle_clients_are_bounded(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    with connected(server), connected(server), connected(server) as third, suppress(OSError):
        assert third.recv(1) == b""  # it is closed at once, or reset


def test_a_client_that_has_gone_leaves_room(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    assert [until_there_is_room(server) for _ in range(4)] == [200] * 4


def test_a_thread_that_cannot_begin_leaves_room(
    memory: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the process is at a bound of the system, and the client is told by the end of its connection."""
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    refused = iter(range(3))

    def process_request(*given: Any) -> None:
        if next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        begin(*given)

    begin = ThreadingMixIn.process_request
    monkeypatch.setattr(ThreadingMixIn, "process_request", process_request)
    with serving(memory) as server:
        for _ in range(3):
            with pytest.raises((OSError, http.client.HTTPException)):
                get(server, "/healthz")
        assert get(server, "/healthz") == (200, "ok\n")
    assert "can't start new thread" in caplog.text


def until_there_is_room(server: MetricsServer) -> int:
    """The status of a request. The thread of the one before may still be about to end."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return get(server, "/healthz")[0]
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline


def connected(server: MetricsServer) -> socket.socket:
    host, port = server.server_address[:2]
    return socket.create_connection((str(host), port), PATIENCE_S)


def test_a_client_that_talks_nonsense_is_left(
    server: MetricsServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for line in (b"\r\n\r\n", b"GARBAGE\r\n\r\n", b"GET " + b"x" * 70_000, b"GET / HTTP/9.9\r\n\r\n"):
        with connected(server) as one, suppress(OSError):
            one.sendall(line)
    assert get(server, "/healthz") == (200, "ok\n")
    assert (capfd.readouterr().err, caplog.text) == ("", "")
