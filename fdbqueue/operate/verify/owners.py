"""The checks of the owners of a persistent queue: a session is enrolled for an owner that has claimed it."""

from collections.abc import Iterator

from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.cures import FOREIGN
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.queues.persistent.owners import claim_of


class OwnerChecks:
    def __init__(self, prefix: bytes, mending: str) -> None:
        self._prefix = prefix
        self._mending = mending

    def asks(self, row: Row) -> Iterator[Ask]:
        claim = claim_of(self._prefix, row.key)
        if claim is not None:
            yield claim

    def judge(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        claim = claim_of(self._prefix, row.key)
        if claim is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)
        elif seen.value(claim) is None:
            text = "A session is enrolled for an owner that has claimed nothing."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
