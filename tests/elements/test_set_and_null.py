"""elements.md, sections 8 and 9: several queues browsed as one, and the queue that has nothing."""

from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, ElementQueue, NullQueue, QueueSet
from fdbqueue.core import limits
from fdbqueue.core.errors import QueueError
from tests.elements.support import simple_queue
from tests.support import CANCELLED, ManualClock, error_code

SCHEMA = {"body": "string"}


@pytest.fixture
def queues(space: Subspace) -> list[ElementQueue]:
    return [ElementQueue(space[n], schema=SCHEMA, root=space["root"]) for n in range(4)]


def fill(db: Database, queues: list[ElementQueue], count: int = 12) -> list[tuple[str, str]]:
    """The ids of queues and the names of elements, in order of their adding."""
    chosen = [queues[number * number % len(queues)] for number in range(count)]
    return [(queue.id, queue.add(db, {"body": "x"})) for queue in chosen]


def seen(pairs: Any) -> list[tuple[str, str]]:
    return [(queue.id, name) for queue, name in pairs]


def test_elements_come_in_order_of_time_with_their_queue(db: Database, queues: list[ElementQueue]) -> None:
    added = fill(db, queues)
    for together in (QueueSet(*queues), QueueSet(queues), QueueSet(tuple(queues))):
        assert seen(together.names(db)) == added
        assert together.count(db) == 12


def test_first_and_next(db: Database, queues: list[ElementQueue]) -> None:
    together = QueueSet(queues)
    assert (together.next(db), together.first(db), together.next(db)) == ((None, None),) * 3
    added = fill(db, queues, 3)
    assert seen([together.first(db), together.next(db), together.next(db)]) == added
    assert (together.next(db), together.next(db)) == ((None, None), (None, None))
    assert QueueSet(queues).next(db) == (None, None), "without first() there is no pass"


def test_an_empty_set_has_nothing_and_stops_at_once(db: Database) -> None:
    for empty in (QueueSet(), QueueSet([])):
        assert (empty.first(db), empty.next(db)) == ((None, None), (None, None))
        assert (list(empty.names(db)), empty.count(db)) == ([], 0)


def test_a_loop_that_is_left_goes_on_with_next(db: Database, queues: list[ElementQueue]) -> None:
    added = fill(db, queues, 4)
    together = QueueSet(queues)
    for _ in together.names(db):
        break
    assert seen([together.next(db) for _ in range(3)]) == added[1:]
    assert together.next(db) == (None, None)


def test_cursors_are_its_own(db: Database, queues: list[ElementQueue]) -> None:
    added = fill(db, queues[:1], 3)
    together = QueueSet(queues[0])
    assert queues[0].first(db) == added[0][1]
    assert len(list(together.names(db))) == 3
    assert queues[0].next(db) == added[1][1]


def test_the_returned_queue_locks_for_all(db: Database, queues: list[ElementQueue]) -> None:
    fill(db, queues[:1], 1)
    queue, name = QueueSet(queues).first(db)
    assert queue is not None
    assert queue.lock(db, name)
    assert not queues[0].lock(db, name)
    assert queue.get(db, name) == {"body": "x"}
    queue.remove(db, name)
    assert QueueSet(queues).count(db) == 0


def test_kinds_and_settings_may_be_mixed(db: Database, space: Subspace) -> None:
    """In the reference a queue with more directories sorts behind one with fewer."""
    one = ElementQueue(space["one"], schema=SCHEMA, maxelts=1)
    many = ElementQueue(space["many"], schema=SCHEMA, maxelts=100)
    hours, seconds = simple_queue(space, "h", granularity=3600), simple_queue(space, "s", granularity=0)
    added = []
    for _ in range(5):
        for queue in (one, hours, many, seconds):
            data: Any = "x" if queue in (hours, seconds) else {"body": "x"}
            added.append((queue.id, queue.add(db, data)))
    assert seen(QueueSet(one, many, hours, seconds, NullQueue()).names(db)) == added


def test_elements_of_other_days_come_in_order_of_time(db: Database, queues: list[ElementQueue]) -> None:
    clock = ManualClock(1.5e9)
    added = []
    with Database(db.engine, clock) as clocked:
        for number in range(9):
            added.append((queues[number % 3].id, queues[number % 3].add(clocked, {"body": "x"})))
            clock.advance(3 ** (2 * number))
    assert seen(QueueSet(queues).names(db)) == added


@pytest.mark.parametrize("wrong", [("a",), ([1, 2],), (1,), (None,), ((QueueSet(),),)])
def test_an_object_that_is_no_queue_is_a_type_error(
    queues: list[ElementQueue], wrong: tuple[Any, ...]
) -> None:
    with pytest.raises(TypeError):
        QueueSet(*wrong)
    together = QueueSet(queues[0])
    with pytest.raises(TypeError):
        together.add(*wrong)


def test_a_queue_beside_another_object_is_not_added(db: Database, queues: list[ElementQueue]) -> None:
    with pytest.raises(TypeError):
        QueueSet((queues[0], "a"))
    together = QueueSet()
    with pytest.raises(TypeError):
        together.add(queues[0], "a")
    fill(db, queues[:1], 1)
    assert together.count(db) == 0


def test_add_and_remove(db: Database, queues: list[ElementQueue]) -> None:
    """The reference's own test: [q1, q2]; add(q3); remove(q1); add(q1, q4); add([q1]) is refused."""
    added = fill(db, queues)
    one, two, three, four = queues
    together = QueueSet([one, two])
    together.add(three)
    together.remove(one)
    together.add(one, four)
    with pytest.raises(QueueError, match="queue already in the set"):
        together.add([one])
    assert (together.count(db), seen(together.names(db))) == (12, added)


@pytest.mark.parametrize("twice", [lambda q: QueueSet(q, q), lambda q: QueueSet([q, q.copy()])])
def test_a_queue_comes_once_in_either_form(queues: list[ElementQueue], twice: Any) -> None:
    with pytest.raises(QueueError, match="queue already in the set"):
        twice(queues[0])
    together = QueueSet(queues[0])
    for again in (queues[0], [queues[0]], (queues[1], queues[0])):
        with pytest.raises(QueueError):
            together.add(again)


def test_remove_in_the_middle_of_a_pass(db: Database, queues: list[ElementQueue]) -> None:
    added = fill(db, queues)
    together = QueueSet(queues)
    assert seen([together.first(db)]) == added[:1]
    together.remove(queues[1])
    together.remove(queues[1])
    rest = [pair for pair in added[1:] if pair[0] != queues[1].id]
    assert seen([together.next(db) for _ in rest]) == rest
    assert together.next(db) == (None, None)
    for wrong in ("a", None, [queues[0]]):
        with pytest.raises(TypeError):
            together.remove(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("has_ended", [False, True])
def test_adding_begins_a_new_pass(db: Database, queues: list[ElementQueue], has_ended: bool) -> None:
    """Whether or not there was one."""
    added = fill(db, queues[:2], 4)
    together = QueueSet(queues[0])
    if has_ended:
        list(together.names(db))
    together.add(queues[1])
    assert seen([together.next(db)]) == added[:1]


def test_a_refused_add_begins_no_new_pass(db: Database, queues: list[ElementQueue]) -> None:
    added = fill(db, queues[:1], 2)
    together = QueueSet(queues[0])
    found = [together.first(db)]
    with pytest.raises(QueueError):
        together.add(queues[1], queues[0])
    assert seen([*found, together.next(db)]) == added


def test_an_error_costs_a_set_no_element(
    db: Database, queues: list[ElementQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NAMES_READ_FIRST", 1)
    added = fill(db, queues, 6)
    together = QueueSet(queues)
    found = [together.first(db)]
    cancelled = db.create_transaction()
    cancelled.cancel()
    assert error_code(lambda: together.next(cancelled)) == CANCELLED
    assert seen(found + [together.next(db) for _ in added[1:]]) == added


def test_in_a_transaction(db: Database, queues: list[ElementQueue]) -> None:
    together = QueueSet(queues)
    tr = db.create_transaction()
    name = queues[2].add(tr, {"body": "x"})
    assert seen(together.names(tr)) == [(queues[2].id, name)]
    assert (together.count(tr), together.count(db)) == (1, 0)


# -- the null queue -------------------------------------------------------------------------------------


def test_a_null_queue_takes_everything_and_has_nothing(db: Database) -> None:
    q = NullQueue()
    for add in (q.add, q.add_ref, q.enqueue):
        assert add(db, "data") == ""
    assert (q.count(db), q.purge(db), q.purge(db, 1, 2), q.touch(db, "x")) == (0, None, None, None)
    assert (q.first(db), q.next(db), list(q.names(db)), q.copy().first(db)) == ("", "", [], "")


def test_a_null_queue_deletes_files(db: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert NullQueue().add_path(db, tmp_path / "file") == ""
    assert not (tmp_path / "file").exists()
    with pytest.raises(FileNotFoundError):
        NullQueue().add_path(db, tmp_path / "file")


@pytest.mark.parametrize("verb", ["get", "get_ref", "get_path", "lock", "unlock", "remove", "acquire"])
def test_a_null_queue_supports_nothing_else(db: Database, verb: str) -> None:
    message = f"unsupported method: {verb.removesuffix('_ref')}()"
    with pytest.raises(NotImplementedError) as raised:
        getattr(NullQueue(), verb)(db, "name")
    assert str(raised.value) == message


def test_a_null_queue_takes_no_argument() -> None:
    with pytest.raises(TypeError):
        NullQueue("x")  # type: ignore[call-arg]
