"""Corruptions of limits: each is found, and mending ends it."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Flaw, Limit, TaskQueue, verify
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.operate.verify.root import miscounted
from fdbqueue.tasks.limits.rule import Held, LimitKeys, cells_bytes, encode_held
from fdbqueue.tasks.stored.records import id_bytes
from tests.verifying.corruptions import Corruptions, require_found_and_mended, require_one_mending

KEYS = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, "api")
STRANGER = KEYS.holder(1, id_bytes("0" * 31 + "1"))


def held(db: Database) -> bytes:
    [row] = db.get_range(KEYS.holders.start, KEYS.holders.stop)
    return bytes(row.key)


CORRUPTIONS: Corruptions = {
    "a holder is missing": (lambda db: db.clear(held(db)), {Flaw.STATE, Flaw.COUNTER}),
    "a holder has no task": (
        lambda db: db.set(STRANGER, encode_held(Held(3, "q", 0, b"s"))),
        {Flaw.STRAY, Flaw.COUNTER},
    ),
    "a holder is damaged": (lambda db: db.set(STRANGER, b"damaged"), {Flaw.VALUE}),
    "the cells count too many": (lambda db: db.add(KEYS.cells, cells_bytes({7: 2})), {Flaw.COUNTER}),
    "the cells are missing": (lambda db: db.clear(KEYS.cells), {Flaw.COUNTER}),
}


@pytest.fixture
def db() -> Any:
    with fdbqueue.open("memory:") as database:
        Limit.set(database, "api", slots=5)
        queue = TaskQueue.create(database, "q", limits=["api"])
        queue.put_many(database, [1, 2])
        queue.take(database, 0)
        yield database


@pytest.mark.parametrize(("corrupt", "flaws"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_found_and_mended(
    db: Database, corrupt: Callable[[Database], Any], flaws: set[Flaw]
) -> None:
    require_found_and_mended(db, corrupt, flaws, len(flaws))
    assert Limit.open(db, "api").used == 1


def test_a_limit_that_cannot_be_read_is_a_finding(db: Database) -> None:
    db.set(KEYS.row, b"damaged")
    assert [finding.flaw for finding in verify(db).findings] == [Flaw.VALUE]
    Limit.set(db, "api", slots=2)
    assert not verify(db).findings


def test_keys_of_a_limit_that_is_gone_are_findings(db: Database) -> None:
    TaskQueue.open(db, "q").truncate(db)
    db.clear(KEYS.row)
    assert {finding.flaw for finding in verify(db, mend=True).findings} == {Flaw.STRAY}
    assert not verify(db).findings


def test_two_mendings_of_the_cells_conflict(db: Database) -> None:
    """Each adds the difference that it has seen."""
    db.add(KEYS.cells, cells_bytes({7: 2}))
    found = miscounted(db, RootKeys(DEFAULT_ROOT), "api", "")
    assert found is not None
    require_one_mending(db, found)
    assert not verify(db).findings
