"""Gate: lets the takes of one worker through, unless the fleet is paused or the worker is drained.

A pause is one key of the root, for all its workers, later ones too, with the time of its end. A worker that
reads it later than that works on. A drain is a key beside the presence of one worker, which is cleared with
it. A worker reads both before its first take, and then with its presence. So they cost a task nothing, and
programs without a worker nothing at all.

The answer of a worker stands in its presence. It is given when no take is under way, and none can begin.
"""

from collections.abc import Callable
from typing import NamedTuple

from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import ReadTransaction
from fdbqueue.core.sessions.workers import ask_pause_end

WORKING, PAUSED, DRAINING = "working", "paused", "draining"


class Order(NamedTuple):
    state: str
    """WORKING, PAUSED or DRAINING."""
    pause: float = 0.0
    """The time of its end, which tells a pause from another one; 0 for other states."""


NONE = Order(WORKING)
REASONS = {
    WORKING: "",
    PAUSED: "the fleet is paused: fdbqueue fleet resume",
    DRAINING: "it is drained: it ends after its last task",
}


def ask_order(tr: ReadTransaction, keys: RootKeys, session: bytes) -> Callable[[], Order]:
    """Ask for the order to a worker. Reads: two keys. Conflicts: none, given a snapshot."""
    paused, drained = ask_pause(tr, keys), tr.get(keys.drain(session))
    return lambda: Order(DRAINING) if drained.present() else paused()


def ask_pause(tr: ReadTransaction, keys: RootKeys) -> Callable[[], Order]:
    """Ask for the pause of the fleet that is in force. Reads: one key."""
    end = ask_pause_end(tr, keys)
    return lambda: NONE if (ends := end()) is None else Order(PAUSED, ends)


class Gate:
    """Takes of the thread that feeds `enter` and `leave`; others look at `order`, and `is_idle` sees them.

    The heartbeat gives orders, and then looks for takes. A take is told first, and then looks for orders. So
    one of them sees the other.
    """

    def __init__(self) -> None:
        self.order = NONE
        self.is_open = True
        """True if takes may begin."""
        self.is_idle: Callable[[], bool] = lambda: True
        """True if no take of another thread is under way."""
        self._is_inside = False

    def obey(self, order: Order) -> None:
        """Take an order. A drain is for ever, also if its key has gone with a lost session."""
        if not self.is_drained:
            self.order, self.is_open = order, order.state == WORKING

    @property
    def is_drained(self) -> bool:
        return self.order.state == DRAINING

    def enter(self) -> bool:
        """True if a take may begin."""
        self._is_inside = True
        self._is_inside = self.is_open
        return self._is_inside

    def leave(self) -> None:
        self._is_inside = False

    def answer(self) -> Order:
        """The order, as soon as it holds."""
        return self.order if self.is_settled() else NONE

    def is_settled(self) -> bool:
        """False while an order waits for the end of a take."""
        return self.is_open or (not self._is_inside and self.is_idle())
