"""Tasks with keys of a limit that a truncate or a drop has removed: their slots are free again."""

import pytest

from fdbqueue import Database, Flaw, Limit, Session, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import LimitInUse, LimitNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limits.rule import LimitKeys
from tests.tasks.support import LONG_S, Bench, StillClock

TENANT = "tenant"


@pytest.fixture
def keyed(still_db: Database, clock: StillClock) -> Bench:
    Limit.set(still_db, TENANT, slots=1, per_key=True)
    return Bench(still_db, clock, "fifottl", task_limits=[TENANT])


def start_each(b: Bench, keys: int) -> None:
    for key in range(keys):
        b.put(key, limits={TENANT: key})
    assert len(b.taken_data()) == keys


def drop_all(b: Bench) -> None:
    """In transactions: the process may end before it has looked at the keys."""
    run(b.db, b.queue.truncate)
    run(b.db, b.queue.drop)


def require_gone(b: Bench) -> None:
    with pytest.raises(LimitNotFound):
        Limit.open(b.db, TENANT)
    assert Limit.set(b.db, TENANT, slots=1, per_key=True).used == 0
    assert verify(b.db).findings == ()


def require_no_keys(b: Bench) -> None:
    assert Limit.open(b.db, TENANT).used == 0
    assert list(Limit.keys(b.db, TENANT)) == []
    assert verify(b.db).findings == ()


@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize("is_dropped", [False, True], ids=["truncate", "drop"])
def test_the_last_queue_of_a_limit_leaves_no_slot_of_a_key(
    keyed: Bench, monkeypatch: pytest.MonkeyPatch, is_dropped: bool, keys: int
) -> None:
    """No sweep comes: the process may end at once, and no other queue names the limit."""
    monkeypatch.setattr(limits, "KEY_ROWS_WALKED", 2)
    start_each(keyed, keys)
    keyed.queue.truncate(keyed.db)
    if is_dropped:
        keyed.queue.drop(keyed.db)
    require_no_keys(keyed)


def test_a_drop_frees_the_slots_that_a_truncate_has_left(keyed: Bench) -> None:
    start_each(keyed, 3)
    run(keyed.db, keyed.queue.truncate)
    keyed.queue.drop(keyed.db)
    require_no_keys(keyed)


def test_keys_that_no_sweep_looks_at_are_found_and_mended(keyed: Bench) -> None:
    start_each(keyed, 3)
    drop_all(keyed)
    (finding,) = verify(keyed.db, mend=True).findings
    assert (finding.flaw, "no queue names the limit 'tenant'" in finding.text) == (Flaw.TIMER, True)
    require_no_keys(keyed)


def test_keys_that_a_sweep_is_to_look_at_are_no_finding(keyed: Bench) -> None:
    TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    start_each(keyed, 1)
    drop_all(keyed)
    assert verify(keyed.db).findings == ()


@pytest.mark.parametrize("keys", [1, 5])
def test_a_limit_without_a_queue_can_be_deleted(
    keyed: Bench, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    """No sweep walks through its keys, however many: no queue names it any more."""
    monkeypatch.setattr(limits, "KEY_ROWS_WALKED", 2)
    start_each(keyed, keys)
    drop_all(keyed)
    Limit.delete(keyed.db, TENANT)
    require_gone(keyed)


def test_a_refused_delete_in_a_transaction_changes_nothing(keyed: Bench) -> None:
    """The transaction may go on, and commit."""
    start_each(keyed, 3)
    drop_all(keyed)
    before = keyed.stored()

    def delete(tr: Transaction) -> None:
        with pytest.raises(LimitInUse, match="3 task"):
            Limit.delete(tr, TENANT)

    run(keyed.db, delete)

    assert keyed.stored() == before
    Limit.delete(keyed.db, TENANT)
    require_gone(keyed)


def test_a_delete_is_refused_for_a_task_of_another_queue(keyed: Bench) -> None:
    other = TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    session = Session(keyed.db, ttr=LONG_S)
    other.put(keyed.db, "y", limits={TENANT: "y"})
    taken = other.take(keyed.db, session=session)
    assert taken is not None
    start_each(keyed, 2)
    drop_all(keyed)

    with pytest.raises(LimitInUse, match="1 task"):
        Limit.delete(keyed.db, TENANT)
    other.ack(keyed.db, taken)
    Limit.delete(keyed.db, TENANT)

    require_gone(keyed)


def test_a_refused_delete_opens_the_lanes_of_free_keys(keyed: Bench) -> None:
    """It has given slots back, as a sweep does, and tasks of another queue wait for them."""
    other = TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    session = Session(keyed.db, ttr=LONG_S)
    start_each(keyed, 2)
    for key in (0, 1, 2):
        other.put(keyed.db, key, limits={TENANT: key})
    drop_all(keyed)
    taken = other.take(keyed.db, session=session)
    assert taken is not None
    assert taken.data == 2

    with pytest.raises(LimitInUse, match="1 task"):
        Limit.delete(keyed.db, TENANT)

    assert [task.data for task in other.take_many(keyed.db, 9, session=session)] == [0, 1]
    assert verify(keyed.db).findings == ()


def test_an_unreadable_limit_without_a_queue_becomes_a_rate(keyed: Bench) -> None:
    start_each(keyed, 1)
    drop_all(keyed)
    keyed.db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, TENANT).row] = b"damaged"
    Limit.set(keyed.db, TENANT, rate=1, per=10, per_key=True)
    assert verify(keyed.db).findings == ()
