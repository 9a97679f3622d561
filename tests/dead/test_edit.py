"""A buried task can be given other data, and be kicked by itself."""

import pytest

from fdbqueue import DeadLetters, Unreadable
from fdbqueue.core import limits
from fdbqueue.core.errors import PayloadTooLarge, RecordUnreadable
from fdbqueue.tasks.stored.records import TaskKeys, id_bytes
from tests.dead.conftest import Grave

LARGE = "x" * (limits.RECORD_PAYLOAD_BYTES_MAX + 1)
HUGE = "x" * (2 * limits.PAYLOAD_PIECE_BYTES_MAX + 1)


@pytest.mark.parametrize("old", ["small", LARGE, HUGE])
@pytest.mark.parametrize("new", ["other", LARGE + "y", HUGE + "y"])
def test_an_edited_task_has_its_new_data_and_nothing_else(grave: Grave, old: str, new: str) -> None:
    id_ = grave.bury("A", data=old, pri=3)
    before = grave.queue.peek(grave.db, id_)
    edited = grave.letters.edit(grave.db, before, new)
    assert (edited.data, edited.id, edited.pri, edited.state) == (new, id_, 3, "!")
    after = grave.queue.peek(grave.db, before)
    assert (after.data, after.failures, after.attempts) == (new, 1, 0)
    assert (grave.counted(), len(grave.queue.failures(grave.db, id_))) == ({"A": 1}, 1)
    grave.queue.kick(grave.db)
    task = grave.queue.take(grave.db, 0)
    assert task.data == new
    grave.queue.ack(grave.db, task)
    keys = TaskKeys(grave.queue.contents)
    under = keys.payloads_of(b"")
    assert list(grave.db.get_range(under.start, under.stop)) == []


def test_a_task_read_before_an_edit_ends_with_its_new_data(grave: Grave) -> None:
    id_ = grave.bury("A", data="old")
    before = grave.queue.peek(grave.db, id_)
    grave.letters.edit(grave.db, id_, "new")
    assert grave.queue.bury(grave.db, before).data == "new"
    assert grave.queue.delete(grave.db, before).data == "new"


def test_an_unreadable_payload_can_be_mended(grave: Grave) -> None:
    """A take buries a task with a damaged payload. An edit needs no payload."""
    grave.queue.put(grave.db, LARGE)
    keys = TaskKeys(grave.queue.contents)
    under = keys.payloads_of(b"")
    [row] = grave.db.get_range(under.start, under.stop)
    grave.db[row.key] = b"\xff" * len(row.value)
    assert grave.queue.take(grave.db, 0) is None
    [letter] = grave.letters.tasks(grave.db, 9, error="PayloadUnreadable")
    assert isinstance(letter.task.data, Unreadable)
    grave.letters.edit(grave.db, letter.task, "mended", kick=True)
    assert grave.queue.take(grave.db, 0).data == "mended"


def test_data_that_the_codec_refuses_change_nothing(grave: Grave) -> None:
    id_ = grave.bury("A", data=1)
    with pytest.raises(TypeError):
        grave.letters.edit(grave.db, id_, object())
    with pytest.raises(PayloadTooLarge):
        grave.letters.edit(grave.db, id_, "x" * limits.PAYLOAD_BYTES_MAX)
    assert grave.queue.peek(grave.db, id_).data == 1


def test_a_typed_handle_refuses_data_of_another_type(grave: Grave) -> None:
    id_ = grave.bury("A", data=1)
    typed = DeadLetters.open(grave.db, "grave", type=int, root=grave.root)
    with pytest.raises(TypeError):
        typed.edit(grave.db, id_, "text")
    assert typed.edit(grave.db, id_, 2).data == 2


def test_a_task_with_a_damaged_record_is_named_as_such(grave: Grave) -> None:
    """It is not missing: a later call mends its record, or sets it aside."""
    id_ = grave.bury("A", data=1)
    grave.db[TaskKeys(grave.queue.contents).task(id_bytes(id_))] = b"damaged"
    with pytest.raises(RecordUnreadable):
        grave.letters.kick(grave.db, id_)
    with pytest.raises(RecordUnreadable):
        grave.letters.edit(grave.db, id_, 2)
