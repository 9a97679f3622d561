"""The interface between a waiting line and the queue that it serves."""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from msgspec import Struct

from fdbqueue.core.aside import Aside
from fdbqueue.core.line.decision import Offer
from fdbqueue.core.seam import Transaction

Ask = Callable[[Transaction], Callable[[], None]]
"""Asks whether a take may go on; the reply raises if not."""


class Swept(IntEnum):
    """The effect of a sweep. It is true if the sweep wrote anything."""

    NOTHING = 0
    LEASES = 1
    """Leases have ended, and their tasks are ready. A power cut may undo that: another sweep repeats it."""
    MORE = 2
    """Tasks have come due, have expired, or have been mended, too."""


class Delivery(Struct, frozen=True):
    """An item that has been handed to a request: its identity, and the value that its owner collects."""

    id: bytes
    value: bytes


class Source(Protocol):
    """The items of one queue.

    A recipe queue moves an item to its request. A task queue takes the lease for the request's session.
    """

    name: str
    aside: Aside
    """The place for damaged values of the queue."""

    ready: slice
    """Keys of the available items. An answer of nothing relies on them in a transaction of the caller."""
    hands_out_leases: bool
    """True if an item stays in the queue until its holder ends it: then a power cut may undo a delivery."""
    comes_due: bool
    """False if `ask_tidy` never has anything to do."""

    def guard(self, tr: Transaction) -> Callable[[], None]:
        """Ask whether the queue exists; the reply raises if it does not."""

    def doorbells(self) -> Sequence[bytes]:
        """Keys of which one changes whenever an item may have become available."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        """Ask, by snapshot, for items that have come due. The reply makes a batch of them available."""

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the next item comes due; the reply is in microseconds."""

    def available(self, tr: Transaction, limit: int, now_us: int) -> Iterable[Offer]:
        """Ask, by snapshot, for the first `limit` available items. The iteration waits for the reply."""

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        """Add a read-conflict key for each key that the delivery of `offers` will change."""

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        """Move `offers` from the available items to a request with `params`."""

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        """Values for the owner of `deliveries`, which leave the queue for good."""

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Deliver and collect `offers` in one step, for an owner that runs this transaction."""

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        """Make uncollected deliveries available again, in their old places."""

    def require_none_passed(self, tr: Transaction) -> None:
        """Raise the error of the first available item that this process cannot read."""

    def is_paused(self, tr: Transaction) -> bool:
        """True if takes get nothing, whatever is there."""


class Untimed:
    """Base of a source without timers and leases: its items never come due, and leave as they are taken."""

    hands_out_leases = comes_due = False
    limit_bells: Sequence[bytes] = ()
    """Doorbells of the limits of the queue: it has none."""

    def ask_gate(self, tr: Transaction, now_us: int) -> None:
        """None: it has no limits."""

    def rely_on_limits(self, tr: Transaction) -> None:
        """Nothing: it has no limits."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:  # noqa: ARG002  # the line's interface
        return lambda: Swept.NOTHING

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:  # noqa: ARG002  # the line's interface
        return lambda: None

    def is_paused(self, tr: Transaction) -> bool:  # noqa: ARG002  # the line's interface
        return False
