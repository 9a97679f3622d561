"""The web application and its worker: one order, one e-mail, whatever is sent again or dies."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

import fdbqueue
from examples import outbox
from fdbqueue import Database, TaskQueue, Worker


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.chdir(tmp_path)
    with fdbqueue.open("memory:") as database:
        yield database


def request(shop: outbox.Shop, method: str, path: str, body: str = "") -> tuple[str, Any]:
    environment: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
    setup_testing_defaults(environment)
    environment |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body.encode())}
    statuses: list[str] = []
    answer = b"".join(shop(environment, lambda status, _: statuses.append(status)))  # type: ignore[arg-type]
    return statuses[0], json.loads(answer)


def mails() -> list[str]:
    return sorted(path.name for path in outbox.MAIL.iterdir())


def test_an_order_that_is_sent_twice_gives_one_mail(db: Database) -> None:
    shop = outbox.Shop(db)
    body = '{"customer": "ada@example.com"}'
    statuses = [request(shop, "PUT", "/orders/7", body)[0] for _ in range(2)]
    assert statuses == ["201 Created", "200 OK"]
    assert not request(shop, "GET", "/orders/7")[1]["emailed"]
    Worker(db, "emails", outbox.emails).run(until_empty=True)
    order = {"order": "7", "customer": "ada@example.com", "emailed": True}
    assert request(shop, "GET", "/orders/7") == ("200 OK", order)
    assert mails() == ["7.eml"]
    assert "Message-ID: <7@shop.example>" in (outbox.MAIL / "7.eml").read_text()


def test_a_mail_of_a_dead_worker_is_there_once(db: Database) -> None:
    """It dies between the delivery and the ack: another worker delivers again, in the same place."""
    shop = outbox.Shop(db, ttr=0.2)
    request(shop, "PUT", "/orders/8", '{"customer": "bob@example.com"}')
    task = TaskQueue.open(db, "emails").take(db)
    assert task is not None
    outbox.deliver(*task.data["args"])
    Worker(db, "emails", outbox.emails).run(until_empty=True)
    assert mails() == ["8.eml"]
    assert request(shop, "GET", "/orders/8")[1]["emailed"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/orders/9", "", "404 Not Found"),
        ("GET", "/", "", "404 Not Found"),
        ("PUT", "/orders/9", "customer=ada", "400 Bad Request"),
        ("PUT", "/orders/9", "[]", "400 Bad Request"),
        ("PUT", "/orders/../9", "{}", "404 Not Found"),
    ],
)
def test_a_bad_request_stores_nothing(db: Database, method: str, path: str, body: str, status: str) -> None:
    shop = outbox.Shop(db)
    assert request(shop, method, path, body)[0] == status
    assert TaskQueue.open(db, "emails").statistics(db)["tasks"]["total"] == 0
