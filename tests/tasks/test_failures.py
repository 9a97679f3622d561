"""The failures that are stored with a task."""

import pytest

from fdbqueue import Failure
from fdbqueue.core import limits
from fdbqueue.core.errors import TooMuchForOneTransaction
from fdbqueue.tasks.stored.records import id_bytes

ODD = Failure("ValueError", "odd", "Traceback ...", worker="here")


def fail(b, **how):
    task = b.take()
    b.queue.release(b.db, task, failure=ODD, **how)
    return task


def test_texts_are_cut_where_they_matter_least(bench):
    """A message keeps its beginning, a detail its end; a character is kept whole or not at all."""
    b = bench()
    id_ = b.put()
    b.queue.release(b.db, b.take(), failure=Failure("E", "é" * 2000 + "!", "?" + "é" * 8000, ""))
    [failure] = b.queue.failures(b.db, id_)
    assert failure.message == "é" * (limits.FAILURE_MESSAGE_BYTES_MAX // 2)
    assert failure.detail == "é" * (limits.FAILURE_DETAIL_BYTES_MAX // 2)


@pytest.mark.parametrize("end", ["ack", "delete", "truncate"])
def test_the_failures_go_with_the_task(bench, end):
    """Nothing of it stays in the queue."""
    b = bench()
    b.put()
    fail(b)
    under = b.queue._shape.keys.failures
    assert any(under.start <= key < under.stop for key, _ in b.stored())
    if end == "truncate":
        b.queue.truncate(b.db)
    else:
        getattr(b.queue, end)(b.db, b.take())
    assert not any(under.start <= key < under.stop for key, _ in b.stored())


def test_an_unreadable_task_takes_its_failures_with_it(bench):
    """Its delete counts."""
    b = bench()
    id_ = b.put()
    fail(b)
    b.db[b.queue._shape.keys.task(id_bytes(id_))] = b"no record"
    b.queue.delete(b.db, id_)
    under = b.queue._shape.keys.failures
    assert not any(under.start <= key < under.stop for key, _ in b.stored())
    assert b.counts("delete", "done", "total") == (1, 1, 0)


def test_one_transaction_renews_a_bounded_number(bench):
    b = bench()
    b.put()
    task = b.take()
    with pytest.raises(TooMuchForOneTransaction):
        b.queue.renew(b.db, [task] * (limits.VERB_BATCH + 1))
