"""Buried tasks are counted and listed by the class of their last failure."""

import pytest

from fdbqueue import DeadLetters, Failure, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, QueueNotFound, TooMuchForOneTransaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks import dead_letters
from fdbqueue.tasks.stored.records import TaskKeys
from tests.dead.conftest import Grave


def test_classes_have_exact_numbers_largest_first(grave: Grave) -> None:
    first, *_ = grave.bury_each("KeyError", "ValueError", "ValueError")
    found = grave.letters.classes(grave.db)
    assert [(one.error, one.tasks) for one in found] == [("ValueError", 2), ("KeyError", 1)]
    assert found[1].first == first
    assert (found[1].failure.error, found[1].failure.detail) == ("KeyError", "Traceback ...")
    assert grave.letters.classes(grave.db, 1) == found[:1]


def test_a_task_buried_without_a_failure_has_an_empty_class(grave: Grave) -> None:
    id_ = grave.bury(None)
    [found] = grave.letters.classes(grave.db)
    assert (found.error, found.tasks, found.first, found.failure) == ("", 1, id_, None)
    assert grave.listed(error="") == [id_]


def test_the_class_is_that_of_the_last_failure(grave: Grave) -> None:
    grave.queue.put(grave.db, 1)
    for error in ("OSError", "KeyError"):
        task = grave.queue.take(grave.db, 0)
        grave.queue.release(grave.db, task, failure=Failure(error))
    grave.queue.bury(grave.db, task.id)
    assert grave.counted() == {"KeyError": 1}


def test_failures_before_a_kick_give_no_class(grave: Grave) -> None:
    id_ = grave.bury("KeyError")
    grave.letters.kick(grave.db, id_)
    grave.queue.bury(grave.db, id_)
    assert grave.counted() == {"": 1}


def test_lost_leases_that_bury_a_task_are_a_class(still: Grave, clock) -> None:
    still.queue.put(still.db, 1, ttr=1)
    task = still.queue.take(still.db, 0)
    clock.advance(2)
    task = still.queue.take(still.db, 0)
    assert still.queue.exhaust(still.db, task, 1)
    assert still.counted() == {"LeaseLost": 1}


def test_an_expired_task_leaves_its_class(still: Grave, clock) -> None:
    still.bury("A", ttl=5)
    clock.advance(6)
    assert still.listed() == still.listed(error="A") == []
    assert still.letters.kick_matching(still.db, error="A") == 0
    assert still.counted() == {}


def test_tasks_are_listed_by_class_and_by_text(grave: Grave) -> None:
    odd = grave.bury("ValueError", "odd number 7")
    even = grave.bury("ValueError", "even number 8")
    missing = grave.bury("KeyError", "number 7")
    assert grave.listed() == [odd, even, missing]
    assert grave.listed(error="ValueError") == [odd, even]
    assert grave.listed(text="number 7") == [odd, missing]
    assert grave.listed(error="KeyError", text="Traceback") == [missing]
    assert grave.listed(text="nothing says so") == grave.listed(error="OSError") == []


def test_a_task_of_the_last_priority_is_in_its_class(grave: Grave) -> None:
    id_ = grave.bury("Timeout", pri=limits.PRIORITY_MAX)
    [found] = grave.letters.classes(grave.db)
    assert (found.first, grave.listed(error="Timeout")) == (id_, [id_])
    assert grave.letters.kick_matching(grave.db, error="Timeout") == 1


def test_a_letter_has_its_task_its_class_and_its_failure(grave: Grave) -> None:
    id_ = grave.bury("ValueError", "odd", {"to": "ada"}, pri=3)
    [letter] = grave.letters.tasks(grave.db, 9)
    assert (letter.task.id, letter.task.data, letter.task.pri) == (id_, {"to": "ada"}, 3)
    assert (letter.task.state, letter.error, letter.failure.message) == ("!", "ValueError", "odd")


def test_pages_list_each_task_once(grave: Grave) -> None:
    ids = [grave.bury("E", f"number {n % 3}") for n in range(10)]
    for matching in ({}, {"error": "E"}, {"text": "number"}):
        assert paged(grave, 3, **matching) == ids


def test_a_page_of_another_class_is_refused(grave: Grave) -> None:
    grave.bury_each("A", "A")
    place = grave.letters.tasks(grave.db, 1, error="A").next
    with pytest.raises(InvalidArgument, match="after"):
        grave.letters.tasks(grave.db, 1, error="B", after=place)


def test_a_long_class_is_cut_and_still_found(grave: Grave) -> None:
    name = "é" * limits.FAILURE_CLASS_BYTES_MAX
    id_ = grave.bury(name)
    assert grave.listed(error=name) == [id_]
    assert grave.counted() == {"é" * (limits.FAILURE_CLASS_BYTES_MAX // 2): 1}


def test_no_class_is_a_prefix_of_another(grave: Grave) -> None:
    ids = grave.bury_each("A", "AB", "", "\x01A")
    assert [grave.listed(error=error) for error in ("A", "AB", "", "\x01A")] == [[id_] for id_ in ids]


@pytest.mark.parametrize("wanted", [{"error": 1}, {"text": ""}, {"text": "x" * 2_000}, {"error": "\ud800"}])
def test_what_is_no_class_and_no_text_is_refused(grave: Grave, wanted) -> None:
    with pytest.raises(InvalidArgument):
        grave.letters.tasks(grave.db, 1, **wanted)


def test_kick_matching_kicks_those_and_no_others(grave: Grave) -> None:
    grave.bury("A", "one"), grave.bury("A", "two"), grave.bury("B", "two")
    assert grave.letters.kick_matching(grave.db, error="A", text="two") == 1
    assert grave.counted() == {"A": 1, "B": 1}
    assert grave.letters.kick_matching(grave.db, text="two") == 1
    assert grave.letters.kick_matching(grave.db) == 1
    assert (grave.tasks("ready"), grave.tasks("buried")) == (3, 0)


def test_kick_matching_goes_on_behind_large_payloads(grave: Grave, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MOVED_BYTES_MAX", 1_000)
    for n in range(5):
        grave.bury("A", data=f"{n}" * 400)
    assert grave.letters.kick_matching(grave.db) == 5


def test_kick_matching_goes_on_behind_a_full_batch(grave: Grave, monkeypatch) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    ids = [grave.bury("A", "odd" if n % 2 else "even") for n in range(7)]
    assert grave.letters.kick_matching(grave.db, text="odd") == 3
    assert grave.listed() == ids[::2]


@pytest.mark.parametrize("error", [None, "A"])
def test_a_place_of_one_partition_hides_no_task_of_another(db, space, monkeypatch, error) -> None:
    """Each partition has an order of its own, in which tasks of a smaller priority come first."""
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    grave = Grave(db, space, partitions=3)
    ids = [grave.bury("A", pri=n % 2) for n in range(9)]
    assert sorted(paged(grave, 2, error=error)) == sorted(ids)
    assert grave.letters.begin_redrive(db, error=error).left == len(ids)
    assert grave.letters.kick_matching(db, error=error) == len(ids)


def paged(grave: Grave, limit: int, **matching) -> list[str]:
    """The ids of all letters, by pages of at most that number."""
    found, after = [], None
    for _ in range(30):
        page = grave.letters.tasks(grave.db, limit, after=after, **matching)
        found += [letter.task.id for letter in page]
        if (after := page.next) is None:
            return found
    raise AssertionError("the pages never end")


def test_an_empty_page_hides_no_task_behind_it(grave: Grave, monkeypatch) -> None:
    monkeypatch.setattr(dead_letters, "ROWS_MAX", 2)
    for _ in range(5):
        grave.bury("A", "odd")
    id_ = grave.bury("A", "seven")
    assert paged(grave, 9, text="seven") == [id_]


def test_a_transaction_kicks_a_class_that_fits(grave: Grave, monkeypatch) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    grave.bury_each("A", "A", "B", "B", "B")

    @transactional(parameter="tr")
    def kick(tr, error: str) -> int:
        return grave.letters.kick_matching(tr, error=error)

    assert kick(grave.db, "A") == 2
    with pytest.raises(TooMuchForOneTransaction):
        kick(grave.db, "B")
    assert grave.counted() == {"B": 3}


@pytest.mark.parametrize("error", [None, "A"])
def test_a_buried_task_with_a_lost_record_leaves_its_class(grave: Grave, error: str | None) -> None:
    id_, _ = grave.bury_each("A", "A")
    keys = TaskKeys(grave.queue.contents)
    [row, _] = grave.db.get_range(keys.tasks.start, keys.tasks.stop)
    del grave.db[row.key]
    assert id_ not in grave.listed(error="A")
    assert grave.letters.kick_matching(grave.db, error=error) == 1
    assert (grave.counted(), grave.tasks("ready")) == ({}, 1)


def test_an_entry_of_a_class_without_its_task_goes(grave: Grave) -> None:
    """Neither its record nor its place among the buried tasks is there."""
    grave.bury_each("A", "A")
    keys = TaskKeys(grave.queue.contents)
    for under in (keys.tasks, keys.buried):
        [row, _] = grave.db.get_range(under.start, under.stop)
        del grave.db[row.key]
    assert grave.letters.kick_matching(grave.db, error="A") == 1
    assert "A" not in grave.counted()


def test_a_damaged_record_is_set_aside_and_leaves_its_class(grave: Grave) -> None:
    grave.bury_each("A", "A")
    keys = TaskKeys(grave.queue.contents)
    [row, _] = grave.db.get_range(keys.tasks.start, keys.tasks.stop)
    grave.db[row.key] = b"\xc1"
    assert grave.queue.kick(grave.db, 2) == 1
    assert (grave.counted(), grave.queue.unreadable(grave.db)) == ({}, 1)


def test_an_unknown_queue_has_no_dead_letters(grave: Grave) -> None:
    with pytest.raises(QueueNotFound):
        DeadLetters.open(grave.db, "nowhere", root=grave.root)


def test_a_task_that_is_not_buried_has_no_class(grave: Grave) -> None:
    keys = TaskKeys(grave.queue.contents)
    grave.queue.put(grave.db, 1)
    task = grave.queue.take(grave.db, 0)
    assert task.state == TaskState.TAKEN
    grave.queue.ack(grave.db, task)
    assert list(grave.db.get_range(keys.classed.start, keys.classed.stop)) == []


def test_a_class_shows_the_last_failure_of_its_first_task(grave: Grave) -> None:
    id_ = grave.bury("A", "first")
    grave.letters.kick(grave.db, id_)
    grave.queue.bury(grave.db, id_, failure=Failure("A", "second"))
    grave.bury("A", "of another")
    [found] = grave.letters.classes(grave.db)
    assert (found.first, found.failure.message) == (id_, "second")


def test_no_more_classes_are_told_than_asked_for(grave: Grave, monkeypatch) -> None:
    """Classes beyond those that are read have a line of their own, if there is room."""
    monkeypatch.setattr(limits, "CLASSES_READ_MAX", 2)
    grave.bury_each("A", "A", "B", "C")
    told = [[found.error for found in grave.letters.classes(grave.db, limit)] for limit in (2, 3)]
    assert told == [["A", "B"], ["A", "B", None]]
