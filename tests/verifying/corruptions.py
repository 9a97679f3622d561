"""The proof that a corruption is found and mended, and those that all queues with partitions may have."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from fdbqueue import Database, Flaw, Verification, verify
from fdbqueue.core.database import run
from fdbqueue.core.line.decision import LineKeys, Ticket, renewal_value
from fdbqueue.core.rows import Suspect
from fdbqueue.core.seam import engine_errors
from tests.partitions.support import PARTITIONS

MEND = "--mend"
BEYOND = PARTITIONS + 2
_TICKET = Ticket(b"s" * 10, b"r" * 12, 1)

Corruptions = dict[str, tuple[Callable[[Database], Any], set[Flaw]]]
"""By name: a function that corrupts a sound database, and the flaws that follow."""


def require_found_and_mended(
    db: Database, corrupt: Callable[[Database], Any], flaws: set[Flaw], mendings: int = 1
) -> None:
    """`mendings`: their number, as the end of one contradiction may show another."""
    assert not verify(db).findings
    corrupt(db)

    assert {finding.flaw for finding in verify(db).findings} == flaws
    for _ in range(mendings):
        verify(db, mend=True)

    assert not verify(db).findings


def require_one_mending(db: Database, found: Suspect, other: Suspect | None = None) -> None:
    """Of two mendings at once, of one contradiction or of two, the second conflicts."""
    first, second = db.create_transaction(), db.create_transaction()
    for tr, suspect in ((first, found), (second, other or found)):
        assert suspect.mend is not None
        suspect.mend(tr)
    first.commit().wait()
    with pytest.raises(engine_errors()):
        second.commit().wait()


class Place(Protocol):
    """A queue with partitions, and its keys."""

    @property
    def db(self) -> Database: ...
    @property
    def shared(self) -> Any: ...
    def keys(self, partition: int, /) -> Any: ...
    def verify(self, mend: bool = False) -> Verification: ...


Plants = dict[str, tuple[Callable[[Any, Any], object], Flaw, str]]
"""By name: a function that corrupts a place in a transaction, a flaw that follows, and a part of its cure."""

OF_ALL_PARTITIONS: Plants = {
    "no flag": (lambda at, tr: tr.clear(at.shared.flag(1)), Flaw.STATE, MEND),
    "no flag of partition 0": (lambda at, tr: tr.clear(at.shared.flag(0)), Flaw.STATE, MEND),
    "a flag of no partition": (lambda at, tr: tr.set(at.shared.flag(BEYOND), b""), Flaw.STRAY, MEND),
    "a bell": (lambda at, tr: tr.set(at.shared.bell, b"x"), Flaw.VALUE, MEND),
    "a renewal in the line of all": (
        lambda at, tr: tr.set(LineKeys(at.shared.line).renewal(_TICKET), renewal_value(2**60)),
        Flaw.STRAY,
        MEND,
    ),
    "no number of a partition": (
        lambda at, tr: tr.set(at.shared.partitions.start + b"\x00\x15\x01", b""),
        Flaw.UNKNOWN,
        "Another program",
    ),
    "a flag within a partition": (
        lambda at, tr: tr.set(at.keys(1).prefix + b"\x15\x18\x00", b""),
        Flaw.UNKNOWN,
        "Another program",
    ),
}


def require_found_and_ended(place: Place, plant: Callable[[Any, Any], object], flaw: Flaw, cure: str) -> None:
    """Only mending has to end the flaw here: other cures are those of an operator."""
    run(place.db, lambda tr: plant(place, tr))
    found = place.verify().findings
    assert flaw in {one.flaw for one in found}
    assert any(cure in one.cure for one in found if one.flaw == flaw)
    if cure == MEND:
        assert place.verify(mend=True).sound
        assert place.verify().findings == ()
