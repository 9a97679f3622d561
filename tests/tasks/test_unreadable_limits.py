"""A limit that cannot be read limits nothing: looks, and new queues, tell of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Database, Limit, LimitUnreadable, Overview, Severity, TaskQueue, Why, diagnose
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.rule import LimitKeys

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
