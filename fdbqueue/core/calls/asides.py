"""The calls of a queue for its values that could not be read."""

from collections.abc import Callable, Iterable

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_id, checked_items, writable
from fdbqueue.core.aside import ID_BYTES, Aside, SetAside
from fdbqueue.core.calls.once import run_in
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import Page, checked_limit, no_place, place_bytes
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction


class KeepsAside:
    """The calls of a queue for its values that were set aside."""

    __slots__ = ()

    _aside: Aside
    _ask_exists: Callable[[Transaction], Callable[[], None]]
    _receipts: RootKeys
    """The root with the receipts of this queue's calls."""

    def aside(self, tr: DatabaseOrTransaction, limit: int, *, after: str | None = None) -> Page[SetAside]:
        """A page of the values that were set aside, the oldest first: up to `limit`,
        limits.BATCH_ITEMS_MAX and limits.BATCH_BYTES_MAX bytes, or one that is larger. Its `next` is the
        `after` of the page that follows, None at the end.

        Reads: by snapshot. Conflicts: none. Raises: InvalidArgument.
        """
        most, place = checked_limit(limit), place_bytes(after) or b""
        if place and len(place) != ID_BYTES:
            raise no_place(after)
        return run(tr, lambda tr: self._there(writable(tr)).page(tr, most, place))

    def remove_aside(self, tr: DatabaseOrTransaction, ids: Iterable[str]) -> int:
        """Remove the entries of at most limits.VERB_BATCH ids, and return their number. An id that is gone
        is no error.

        Reads, writes: their entries. Conflicts: their removal. Raises: InvalidArgument.
        """
        wanted = "ids of what aside() lists"
        known = [checked_id("ids", id_, ID_BYTES, wanted) for id_ in checked_items("ids", ids)]
        if len(known) > limits.VERB_BATCH:
            wanted = f"at most {limits.VERB_BATCH} ids"
            raise InvalidArgument(name="ids", wanted=wanted, got=len(known))

        def body(tr: Transaction) -> int:
            return self._there(tr).remove(tr, known)

        return run_in(tr, self._receipts, body, wrote=bool)

    def unreadable(self, tr: DatabaseOrTransaction) -> int:
        """The number of stored values that are set aside because they could not be read.

        Reads: one key by snapshot. Conflicts: none.
        """
        return run(tr, lambda tr: self._there(writable(tr)).ask_count(tr)())

    def _there(self, tr: Transaction) -> Aside:
        self._ask_exists(tr)()
        return self._aside
