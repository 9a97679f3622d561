"""The web service with a real server and real clients: an order, its e-mail, and the websocket that waits."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import fdbqueue
from examples import orders
from fdbqueue import TaskQueue, Worker
from tests.support import wait_until


@contextmanager
def served() -> Iterator[str]:
    """The service on a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(orders.app, log_level="warning", lifespan="on"))
        serving = threading.Thread(target=server.run, args=([listening],))
        serving.start()
        wait_until(lambda: server.started or not serving.is_alive())
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            serving.join()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FDBQUEUE_URL", "embedded:data")
    return "embedded:data"


@pytest.fixture
def address(url: str) -> Iterator[str]:  # noqa: ARG001  # the service opens it
    with served() as address:
        yield address


def put(address: str, order: str) -> int:
    body = json.dumps({"customer": "ada@example.com"})
    return httpx2.put(f"http://{address}/orders/{order}", content=body, timeout=60).status_code


def work(url: str) -> None:
    with fdbqueue.open(url) as db:
        Worker(db, "emails", orders.send).run(until_empty=True)


def test_an_order_that_is_sent_twice_gives_one_mail(url: str, address: str) -> None:
    assert [put(address, "7"), put(address, "7")] == [201, 200]
    with fdbqueue.open(url) as db:
        assert TaskQueue.open(db, "emails").statistics(db)["tasks"]["ready"] == 1
    work(url)

    assert [path.name for path in orders.MAIL.iterdir()] == ["7.eml"]


def test_a_websocket_is_told_when_the_mail_was_sent(url: str, address: str) -> None:
    put(address, "7")
    with connect(f"ws://{address}/orders/7", proxy=None) as following:
        assert json.loads(following.recv(60))["emailed"] is False
        work(url)
        assert json.loads(following.recv(60))["emailed"] is True
        with pytest.raises(ConnectionClosed):
            following.recv(60)


def test_an_unknown_order_closes_its_websocket(address: str) -> None:
    with (
        connect(f"ws://{address}/orders/8", proxy=None) as following,
        pytest.raises(ConnectionClosed) as closed,
    ):
        following.recv(60)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == orders.NOT_FOUND


def test_a_server_stops_although_websockets_wait(address: str) -> None:
    put(address, "7")
    with connect(f"ws://{address}/orders/7", proxy=None) as following:
        following.recv(60)


def test_a_body_without_a_customer_is_refused(address: str) -> None:
    assert httpx2.put(f"http://{address}/orders/7", content="{}", timeout=60).status_code == 400
