"""A Celery application without a server: its broker, its results and its orders are in one database.

    celery --app examples.celery_app worker         # in one terminal
    python -m examples.celery_app 10                # in another: ten orders, their invoices, and the total

An order and the task about it are stored in one transaction. The database is ./celery-data, or that of
$BROKER.
"""

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery, chord

import fdbqueue
import fdbqueue.integrations.celery
from fdbqueue import Transaction

BROKER = os.environ.get("BROKER", f"fdbqueue+embedded://{Path('celery-data').absolute()}")
ORDERS, INVOICES = fdbqueue.Subspace(("shop", "orders")), fdbqueue.Subspace(("shop", "invoices"))

app: Any = Celery("examples.celery_app", broker=BROKER, backend=BROKER)
app.conf.task_acks_late = True  # a task comes back if its worker dies


@fdbqueue.transactional
def order(tr: Transaction, number: int, cents: int) -> None:
    """Store an order, and the task that writes its invoice: both are there, or neither."""
    tr[ORDERS.pack((number,))] = b"%d" % cents
    with fdbqueue.integrations.celery.transaction(tr):
        write_invoice.delay(number)


@app.task
def write_invoice(number: int) -> None:
    _write_invoice(fdbqueue.integrations.celery.database(BROKER), number)


@fdbqueue.transactional
def _write_invoice(tr: Transaction, number: int) -> None:
    tr[INVOICES.pack((number,))] = b"order %d: %s cents" % (number, bytes(tr[ORDERS.pack((number,))]))


@app.task
def cents_of(number: int) -> int:
    return int(bytes(fdbqueue.integrations.celery.database(BROKER)[ORDERS.pack((number,))]))


@app.task
def total(cents: list[int]) -> int:
    return sum(cents)


def main(count: int) -> None:
    db = fdbqueue.integrations.celery.database(BROKER)
    for number in range(count):
        order(db, number, cents=100 + number)
    print(chord([cents_of.s(number) for number in range(count)], total.s())().get(timeout=60), "cents")


if __name__ == "__main__":
    main(int(sys.argv[1]))
