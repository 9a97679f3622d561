"""Orders: each is stored with the task that confirms it."""

from typing import Any

import fdbqueue
import fdbqueue.integrations.django

from .tasks import confirm

ORDERS = fdbqueue.Subspace(("shop", "orders"))


@fdbqueue.transactional
def place(tr: fdbqueue.Transaction, number: int, name: str) -> Any:
    """Store an order, and enqueue the task about it: both are there, or neither."""
    tr[ORDERS.pack((number,))] = name.encode()
    with fdbqueue.integrations.django.transaction(tr):
        return confirm.enqueue(number, name)
