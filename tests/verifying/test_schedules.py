"""Planted corruptions of schedules: each is found, its cure ends it, and nothing else is changed."""

from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Finding, Flaw, Schedule, TaskQueue, fire_due, list_schedules, verify
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.tasks.firing import state_of

Plant = Callable[[RootKeys, int, Any], object]


def planted(db: Database, space: Subspace, plant: Plant) -> list[Finding]:
    """The findings in a root with two schedules, one of which is damaged."""
    TaskQueue.create(db, "reports", root=space)
    Schedule.create(db, "sound", every=600, queue="reports", root=space)
    Schedule.create(db, "hurt", every=600, queue="reports", root=space)
    keys = RootKeys(space)
    state = state_of(bytes(db[keys.schedule_state("hurt")]))
    assert state is not None
    assert state.at_us is not None
    tr = db.create_transaction()
    plant(keys, state.at_us, tr)
    tr.commit().wait()
    return list(verify(db, root=space).findings)


PLANTS: list[tuple[Flaw, str, Plant]] = [
    (Flaw.VALUE, "state", lambda keys, _, tr: tr.set(keys.schedule_state("hurt"), b"\xc1")),
    (Flaw.TIMER, "no key at the time", lambda keys, at, tr: tr.clear(keys.schedule_due(at, "hurt"))),
    (Flaw.STRAY, "not due then", lambda keys, _, tr: tr.set(keys.schedule_due(5, "hurt"), b"")),
    (Flaw.STRAY, "not due then", lambda keys, _, tr: tr.set(keys.schedule_due(5, "missing"), b"")),
    (Flaw.STRAY, "does not exist", lambda keys, at, tr: only_state(keys, at, tr)),
]


def only_state(keys: RootKeys, at_us: int, tr: Any) -> None:
    tr.clear(keys.schedule("hurt"))
    tr.set(keys.schedule_due(at_us, "hurt"), b"")


@pytest.mark.parametrize(("flaw", "text", "plant"), PLANTS)
def test_a_damaged_schedule_is_found_and_mended(
    db: Database, space: Subspace, flaw: Flaw, text: str, plant: Plant
) -> None:
    found = planted(db, space, plant)
    assert [(one.flaw, text in one.text, "--mend" in one.cure) for one in found] == [(flaw, True, True)]
    verify(db, root=space, mend=True)
    verify(db, root=space, mend=True)  # a state that is made anew leaves the old key of its due time
    assert verify(db, root=space).sound
    assert "sound" in [one.name for one in list_schedules(db, root=space)]
    assert fire_due(db, root=space) == 0


def test_a_lost_state_is_found_and_mended(db: Database, space: Subspace) -> None:
    (found,) = [
        one
        for one in planted(db, space, lambda keys, _, tr: tr.clear(keys.schedule_state("hurt")))
        if one.flaw == Flaw.VALUE
    ]
    assert "missing, or damaged" in found.text
    verify(db, root=space, mend=True)
    verify(db, root=space, mend=True)
    assert verify(db, root=space).sound
    assert Schedule.open(db, "hurt", root=space).status(db).due is not None


def test_a_damaged_record_is_found_and_its_cure_deletes_it(db: Database, space: Subspace) -> None:
    found = planted(db, space, lambda keys, _, tr: tr.set(keys.schedule("hurt"), b"\xc1"))
    assert [one.flaw for one in found] == [Flaw.DEFINITION]
    assert "fdbqueue schedule delete hurt" in found[0].cure


def test_a_key_of_another_shape_is_unknown(db: Database, space: Subspace) -> None:
    found = planted(db, space, lambda keys, _, tr: tr.set(keys.schedule("hurt") + b"\x15\x05", b""))
    assert [one.flaw for one in found] == [Flaw.UNKNOWN]
