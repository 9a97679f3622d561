"""Limits of tasks that are gone have free slots again; one that cannot be read limits nothing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import (
    Database,
    Flaw,
    Limit,
    LimitUnreadable,
    Overview,
    Session,
    Severity,
    TaskQueue,
    Why,
    diagnose,
    verify,
)
from fdbqueue.core.database import run
from fdbqueue.core.errors import LimitInUse, LimitNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limits.rule import LimitKeys
from tests.tasks.support import LONG_S, Bench, SetLimits, StillClock

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
    keyed: Bench, set_limits: SetLimits, is_dropped: bool, keys: int
) -> None:
    """No sweep comes: the process may end at once, and no other queue names the limit."""
    set_limits(KEY_ROWS_WALKED=2)
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
def test_a_limit_without_a_queue_can_be_deleted(keyed: Bench, set_limits: SetLimits, keys: int) -> None:
    """No sweep walks through its keys, however many: no queue names it any more."""
    set_limits(KEY_ROWS_WALKED=2)
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


API, MAILS = "api", "mails"


def damage(db: Database, name: str = API, value: bytes = b"damaged") -> None:
    db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, name).row] = value


@pytest.fixture
def damaged(still_db: Database) -> Database:
    """A database with the unreadable limit `api`, and the sound one `mails`."""
    for name in (API, MAILS):
        Limit.set(still_db, name, slots=2, per_key=True)
    damage(still_db)
    return still_db


@pytest.mark.parametrize(
    "call",
    [
        lambda db: Limit.open(db, API),
        lambda db: Limit.open_key(db, API, "a"),
        lambda db: Limit.keys(db, API),
        lambda db: TaskQueue.create(db, "q", limits=[API]),
        lambda db: TaskQueue.create(db, "q", task_limits=[API]),
    ],
)
def test_calls_that_need_a_limit_refuse_an_unreadable_one(
    damaged: Database, call: Callable[[Database], Any]
) -> None:
    with pytest.raises(LimitUnreadable, match=r"'api' cannot be read \(.+\), and limits nothing") as told:
        call(damaged)
    assert told.value.name == API


def test_a_limit_of_a_rate_without_a_span_is_unreadable(still_db: Database) -> None:
    Limit.set(still_db, API, rate=1, per=1)
    damage(still_db, value=b"\x94\x00\x01\x00\x01")
    with pytest.raises(LimitUnreadable, match="no span of time"):
        Limit.open(still_db, API)


def test_a_list_of_limits_has_unreadable_ones(damaged: Database) -> None:
    unreadable, sound = Limit.list(damaged)
    assert (unreadable.name, unreadable.slots, unreadable.rate, unreadable.free) == (API, None, None, 0)
    assert "'api' cannot be read" in str(unreadable.error)
    assert (sound.name, sound.error) == (MAILS, None)


@pytest.mark.parametrize("names", [(), ("orders", "refunds")])
def test_figures_tell_an_unreadable_limit(still_db: Database, names: tuple[str, ...]) -> None:
    Limit.set(still_db, API, slots=2)
    for name in names:
        TaskQueue.create(still_db, name, limits=[API])
    damage(still_db)
    [found] = Overview().figures(still_db).limits
    assert (found.name, found.free, found.slots, found.queues) == (API, None, None, names)
    assert "'api' cannot be read" in str(found.error)


def test_doctor_tells_an_unreadable_limit(still_db: Database) -> None:
    Limit.set(still_db, API, slots=2)
    TaskQueue.create(still_db, "orders", limits=[API])
    damage(still_db)
    [found] = [one for one in diagnose(still_db, watch_s=0).checks if one.name == "limits"]
    assert found.severity == Severity.WARNING
    assert found.text == "the limit api cannot be read, so tasks of orders run without it"
    assert found.cure == "fdbqueue limit set api --slots N"
    assert "'api' cannot be read" in json.loads(json.dumps(dict(found.data)))["error"]


@pytest.mark.parametrize("numbers", [{"slots": 1}, {"rate": 1, "per": 600}])
def test_an_explanation_tells_a_key_of_an_unreadable_limit(
    still_db: Database, numbers: dict[str, Any]
) -> None:
    """Its lane stays parked until a task of the key ends, or a token comes."""
    Limit.set(still_db, API, **numbers, per_key=True)
    queue = TaskQueue.create(still_db, "q", "fifottl", task_limits=[API])
    _, waits = queue.put_many(still_db, list("ab"), limits={API: "acme"})
    other = queue.put(still_db, "c", limits={API: "brown"})
    assert queue.take(still_db, 0).data == "a"  # type: ignore[union-attr]
    damage(still_db)

    [reached] = queue.explain(still_db, waits).reached
    assert (reached.name, reached.key, "cannot be read" in str(reached.error)) == (API, "acme", True)
    told = queue.explain(still_db, waits).reasons[0]
    assert told.why == Why.LIMIT_REACHED
    assert told.text == "The limit 'api' cannot be read, and tasks of the key 'acme' have waited for it."
    assert told.cure == "fdbqueue limit set api sets it anew."
    assert queue.explain(still_db, other).reached == ()
    assert queue.take(still_db, 0).data == "c"  # type: ignore[union-attr]

    Limit.set(still_db, API, **numbers, per_key=True)
    assert [one.error for one in queue.explain(still_db, waits).reached] == [None]


def test_a_set_makes_an_unreadable_limit_anew(damaged: Database) -> None:
    assert Limit.set(damaged, API, slots=3).error is None
    assert Limit.open(damaged, API).slots == 3
