"""Tasks that name limits wait in lanes of their own: a task over its limit holds up no other one."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Limit, TaskQueue
from fdbqueue.core.errors import InvalidArgument, LimitNotFound, UnsupportedOption
from fdbqueue.tasks.options import kind_names
from tests.support import begin, commit_code
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock
from tests.tasks.test_limits import API, sound, used

MAILS = "mails"
ORDERED = ["fifo", "fifottl", "limfifottl"]


@pytest.fixture
def named(still_db: Database, clock: StillClock) -> MakeBench:
    """A bench of a queue with tasks that may name limits of these slots: `named("fifottl", api=2)`."""

    def make(kind: str = "fifo", slots: dict[str, int] | None = None, **options: Any) -> Bench:
        for name, count in (slots or {API: 1, MAILS: 1}).items():
            Limit.set(still_db, name, slots=count)
        return Bench(still_db, clock, kind, task_limits=[*(slots or (API, MAILS))], **options)

    return make


@pytest.mark.parametrize("kind", ORDERED)
def test_a_task_over_its_limit_holds_up_no_other(named: MakeBench, kind: str) -> None:
    b = named(kind)
    for data, names in (("a1", [API]), ("a2", [API]), ("a3", [API]), ("m", [MAILS]), ("free", None)):
        b.put(data, limits=names)

    taken = b.queue.take_many(b.db, 9, session=b.session)

    assert [task.data for task in taken] == ["a1", "m", "free"]
    assert [dict(task.limits) for task in taken] == [{API: None}, {MAILS: None}, {}]
    assert b.take() is None
    assert sound(b.db)
    b.queue.ack(b.db, taken[0])
    assert b.taken_data() == ["a2"]


def test_tasks_of_a_closed_group_name_limits(named: MakeBench) -> None:
    b = named()
    parent = b.put("parent", limits=[API])
    b.put("child", limits=[API], after=parent)
    b.queue.ack(b.db, b.take())
    b.sweep()

    assert b.take().data == "child"
    assert used(b.db) == 1


def test_a_listing_has_the_tasks_of_all_lanes(named: MakeBench) -> None:
    b = named("fifottl")
    put = {b.put(number, limits=names) for number, names in enumerate((None, [API], [MAILS], [API]))}

    assert {task.id for task in b.queue.tasks(b.db, "r", 9)} == put
    pages, after = list[Any](), None
    while not pages or after is not None:
        page = b.queue.tasks(b.db, "r", 1, after=after)
        pages, after = [*pages, *page], page.next
    assert {task.id for task in pages} == put


def test_each_of_many_lanes_has_its_turn(named: MakeBench, set_limits: SetLimits) -> None:
    """A take reads few lanes together, and looks at all before it finds nothing."""
    set_limits(LANES_READ_MAX=2, LANES_KEPT=3)
    names = [f"limit {number}" for number in range(5)]
    b = named(slots=dict.fromkeys(names, 99))
    for bits in range(32):
        b.put(bits, limits=[name for at, name in enumerate(names) if bits >> at & 1])

    taken = [b.take() for _ in range(32)]

    assert sorted(task.data for task in taken) == [*range(32)]
    assert b.take() is None
    assert sound(b.db)


def test_takes_close_empty_lanes_among_many(named: MakeBench, set_limits: SetLimits) -> None:
    set_limits(LANES_KEPT=0)
    b = named(slots={API: 9, MAILS: 9})
    lanes = b.queue._shape.discipline
    for names in ([API], [MAILS], [API, MAILS]):
        b.put("x", limits=names)
    for _ in range(3):
        b.take()
    b.put("free")
    b.put("free")
    assert b.taken_data() == ["free", "free"]

    assert list(b.db.get_range(lanes.open.start, lanes.open.stop)) == []
    b.put("again", limits=[API])
    assert b.taken_data() == ["again"]


def test_a_take_does_not_conflict_with_puts_into_other_lanes(named: MakeBench) -> None:
    b = named(slots={API: 9, MAILS: 9})
    b.put("first", limits=[API])
    tr = begin(b.db)
    assert b.queue.take(tr, session=b.session).data == "first"
    for names in ([MAILS], [API, MAILS], None):
        b.put("beside", limits=names)
    assert commit_code(tr) == 0


def test_tasks_keep_their_lanes_when_partitions_change(parted: MakeParted) -> None:
    b = parted("fifo")
    Limit.set(b.db, API, slots=9, root=b.root)
    b.queue = TaskQueue.create(b.db, "named", "fifottl", task_limits=[API], partitions=3, root=b.root)
    for number in range(9):
        b.put(number, limits=[API])

    b.repartition(1)
    b.settle()

    assert sorted(b.taken_data()) == [*range(9)]
    assert sound(b.db, b.root)


@pytest.mark.parametrize("kind", sorted({*kind_names()} - {*ORDERED}))
def test_kinds_without_one_order_of_tasks_have_no_lanes(still_db: Database, kind: str) -> None:
    Limit.set(still_db, API, slots=1)
    with pytest.raises(UnsupportedOption, match="task_limits"):
        TaskQueue.create(still_db, "q", kind, task_limits=[API])


@pytest.mark.parametrize("names", [API, [MAILS], ["none"], [""], [1], [*map(str, range(9))], 5], ids=repr)
def test_a_task_names_limits_of_its_queue_only(named: MakeBench, names: Any) -> None:
    b = named(slots={API: 1})
    with pytest.raises(InvalidArgument, match="limit"):
        b.queue.put(b.db, "x", limits=names)
    with pytest.raises(InvalidArgument, match="limit"):
        b.queue.put_many(b.db, ["x"], limits=names)
    assert b.contents() == []


@pytest.mark.parametrize(
    ("of_all", "names"), [([API], [API]), ([], ["none"]), ([], API), ([], ["x" * 400, "y" * 400, "z" * 400])]
)
def test_a_queue_needs_other_limits_for_its_tasks(still_db: Database, of_all: Any, names: Any) -> None:
    for name in (API, "x" * 400, "y" * 400, "z" * 400):
        Limit.set(still_db, name, slots=1)
    with pytest.raises((InvalidArgument, LimitNotFound)):
        TaskQueue.create(still_db, "q", limits=of_all, task_limits=names)
    assert [*fdbqueue.list_queues(still_db)] == []


def test_a_queue_tells_the_limits_of_its_tasks(named: MakeBench) -> None:
    assert named().queue.options["task_limits"] == sorted([API, MAILS])


def test_a_put_conflicts_with_a_take_that_closes_its_lane(named: MakeBench, set_limits: SetLimits) -> None:
    set_limits(LANES_KEPT=0)
    b = named(slots={API: 9})
    b.put("first", limits=[API])
    b.take()
    b.put("free")
    b.put("free")
    b.take()  # its read of lane 0 and of the first lane is full before the lane
    tr = b.db.create_transaction()
    assert b.queue.take(tr, session=b.session).data == "free"

    b.put("x", limits=[API])

    with pytest.raises(fdbqueue.embedded.FDBError):
        tr.commit().wait()
    assert b.taken_data() == ["free", "x"]
