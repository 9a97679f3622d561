"""The key layout of a queue over a subspace, which has no definition: S[37], beside the queue.

    S[37]    layout    (layout, *more); missing: the layout of this release            each call

This release reads the key and never writes it. A release of a newer layout sets it before it changes any
other key. Each call relies on the key, with its first
reads: it meets that change, or raises LayoutNewer.
"""

from collections.abc import Callable

from fdb import tuple as layer

from fdbqueue.core.registry.definition import require_known_layout
from fdbqueue.core.registry.registry import IsOurs, Occupancy
from fdbqueue.core.seam import Transaction

LAYOUT_COLUMN = 37
_COLUMN = layer.pack((LAYOUT_COLUMN,))


class SubspaceGuard:
    """The guards of a queue that is not registered: its layout is known, and its keys are its own."""

    def __init__(self, prefix: bytes, is_ours: IsOurs, root: bytes | None = None) -> None:
        """`root` is the prefix of receipts and sessions, which may lie in the subspace."""
        self._name = repr(prefix)
        self._key = key = prefix + _COLUMN
        self._occupancy = Occupancy(prefix, lambda found: found == key or is_ours(found), root)

    def ask(self, tr: Transaction) -> Callable[[], None]:
        """The reply raises LayoutNewer, DefinitionUnreadable, SubspaceInUse.

        Reads: the layout, serialisably; one key at each end of the subspace, by snapshot.
        """
        return self._judged(tr, self._occupancy.ask(tr))

    def ask_until_known(self, tr: Transaction) -> Callable[[], None]:
        """Like `ask`. Once a key of ours was seen in the database of `tr`, only the layout is read."""
        return self._judged(tr, self._occupancy.ask_until_known(tr))

    def _judged(self, tr: Transaction, require_ours: Callable[[], None]) -> Callable[[], None]:
        found = tr.get(self._key)

        def judge() -> None:
            if found.present():
                require_known_layout(self._name, bytes(found.value))
            require_ours()

        return judge
