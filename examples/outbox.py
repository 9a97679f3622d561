"""A transactional outbox: a web application stores an order and the e-mail about it in one transaction.

    python examples/outbox.py 8000                              # the web application
    fdbqueue work emails examples.outbox:emails                 # workers, here or on any machine

Both use the database of $FDBQUEUE_URL, or else ./fdbqueue-data. A delivered e-mail is a file in ./mail.
"""

import json
import os
import sys
from collections.abc import Iterable
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import make_server

import fdbqueue
from fdbqueue import Database, Done, TaskQueue, Transaction

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

ORDERS = fdbqueue.Subspace(("shop", "orders"))
emails = fdbqueue.Tasks("emails")
MAIL = Path("mail")
Answer = tuple[str, dict[str, Any]]


class Shop:
    """The web application: PUT and GET of /orders/ID.

    The client chooses the ID. After a lost answer it sends the same PUT again, and nothing happens twice.
    """

    def __init__(self, db: Database, ttr: float = 30) -> None:
        """`ttr`: seconds after which the e-mail of a dead worker goes to another."""
        self._db = db
        TaskQueue.create(db, "emails", "fifottl", ttr=ttr, if_not_exists=True)

    def __call__(self, request: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        status, answer = self._answer(request)
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode() + b"\n"]

    def _answer(self, request: "WSGIEnvironment") -> Answer:
        prefix, _, order = request["PATH_INFO"].rpartition("/")
        if prefix != "/orders" or not order.isalnum():
            return "404 Not Found", {"error": "PUT or GET /orders/ID, with letters and digits as the ID"}
        if request["REQUEST_METHOD"] == "GET":
            return self._show(order)
        return self._put(order, request)

    def _put(self, order: str, request: "WSGIEnvironment") -> Answer:
        try:
            size = int(request.get("CONTENT_LENGTH") or 0)
            customer = str(json.loads(request["wsgi.input"].read(size))["customer"])
        except (ValueError, KeyError, TypeError):
            return "400 Bad Request", {"error": 'the body is {"customer": "NAME@HOST"}'}
        placed = place(self._db, order, customer)
        return ("201 Created" if placed else "200 OK"), {"order": order}

    def _show(self, order: str) -> Answer:
        found = stored(self._db, order)
        if found is None:
            return "404 Not Found", {"error": f"no order {order}"}
        return "200 OK", found


@fdbqueue.transactional
def place(tr: Transaction, order: str, customer: str) -> bool:
    """Store an order and put its e-mail: both, or neither. False if the order is there."""
    if tr[ORDERS[order]].present():
        return False
    tr[ORDERS[order]] = customer.encode()
    send.put(tr, order, customer)
    return True


@fdbqueue.transactional
def stored(tr: Transaction, order: str) -> dict[str, Any] | None:
    """Both reads see the database at one moment."""
    customer, emailed = tr[ORDERS[order]], tr[ORDERS[order]["emailed"]]
    if not customer.present():
        return None
    return {"order": order, "customer": bytes(customer).decode(), "emailed": emailed.present()}


@emails.task
def send(order: str, customer: str) -> None:
    """Deliver one e-mail, then note it in the transaction that acks the task."""
    deliver(order, customer)

    def note(tr: Transaction) -> None:
        tr[ORDERS[order]["emailed"]] = b"yes"

    raise Done(note)


def deliver(order: str, customer: str) -> None:
    """Deliver the e-mail of an order. A second delivery replaces the first, as both have one name.

    With a mail provider, send the Message-ID as its idempotency key instead.
    """
    mail = EmailMessage()
    mail["To"], mail["Subject"], mail["Message-ID"] = customer, f"Order {order}", f"<{order}@shop.example>"
    mail.set_content(f"We have your order {order}.\n")
    MAIL.mkdir(exist_ok=True)
    unfinished = MAIL / f".{order}.{os.getpid()}"
    unfinished.write_bytes(bytes(mail))
    unfinished.replace(MAIL / f"{order}.eml")


def main() -> None:
    port = int(sys.argv[1])
    with fdbqueue.open() as db, make_server("127.0.0.1", port, Shop(db)) as server:
        print(f"http://127.0.0.1:{server.server_port}/orders/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
