"""The failures that are stored with a task."""

import pytest

from fdbqueue import Failure, Session
from fdbqueue.core import limits
from fdbqueue.core.errors import NotTaken, TaskNotFound, TooMuchForOneTransaction
from fdbqueue.tasks.records.keys import id_bytes

ODD = Failure("ValueError", "odd", "Traceback ...", worker="here")


def fail(b, **how):
    task = b.take()
    b.queue.release(b.db, task, failure=ODD, **how)
    return task


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "fair", "bag"])
def test_a_release_with_a_failure_writes_it_down(bench, clock, kind):
    """In queues of every kind, and there the task may wait before its next attempt."""
    b = bench(kind)
    id_ = b.put()
    fail(b, delay=5)
    assert b.state(id_) == "~"
    [failure] = b.queue.failures(b.db, id_)
    assert (failure.error, failure.message, failure.detail, failure.worker) == (
        "ValueError",
        "odd",
        "Traceback ...",
        "here",
    )
    assert (failure.outcome, failure.attempt, failure.when) == ("retried", 1, clock.now())
    clock.advance(5)
    assert (b.take().failures, b.counts("release")) == (1, (1,))


def test_a_failure_tells_when_its_attempt_began(bench, clock):
    """That of a lease that was over, too. A task that was not taken has begun nothing."""
    b = bench("fifottl", ttr=10)
    id_ = b.put()
    began = [clock.now()]
    task = b.take()
    clock.advance(2)
    b.queue.release(b.db, task, failure=ODD)
    began.append(clock.now())
    b.take()
    clock.advance(11)
    began.append(clock.now())
    b.queue.bury(b.db, b.take(), failure=ODD)
    b.queue.kick(b.db)
    b.queue.bury(b.db, id_, failure=ODD)
    assert [failure.began for failure in b.queue.failures(b.db, id_)] == [*began, None]


def test_a_release_without_a_failure_counts_as_none(bench):
    b = bench()
    id_ = b.put()
    b.queue.release(b.db, b.take())
    assert (b.take().failures, b.queue.failures(b.db, id_)) == (0, [])


def test_only_the_last_failures_are_kept(bench):
    b = bench()
    id_ = b.put()
    for _ in range(limits.FAILURES_KEPT + 3):
        fail(b)
    kept = b.queue.failures(b.db, id_)
    assert [failure.attempt for failure in kept] == list(range(4, limits.FAILURES_KEPT + 4))
    assert b.take().failures == limits.FAILURES_KEPT + 3


def test_texts_are_cut_where_they_matter_least(bench):
    """A message keeps its beginning, a detail its end; a character is kept whole or not at all."""
    b = bench()
    id_ = b.put()
    b.queue.release(b.db, b.take(), failure=Failure("E", "é" * 2000 + "!", "?" + "é" * 8000, ""))
    [failure] = b.queue.failures(b.db, id_)
    assert failure.message == "é" * (limits.FAILURE_MESSAGE_BYTES_MAX // 2)
    assert failure.detail == "é" * (limits.FAILURE_DETAIL_BYTES_MAX // 2)


def test_a_lease_that_ends_on_its_own_is_a_failed_attempt(bench, clock):
    b = bench("fifottl", ttr=2)
    id_ = b.put()
    b.take()
    clock.advance(3)
    b.sweep()
    [failure] = b.queue.failures(b.db, id_)
    assert (failure.error, failure.outcome, failure.attempt) == ("LeaseLost", "lease_lost", 1)


def test_a_session_that_is_ended_leaves_no_failure(bench):
    b = bench()
    id_ = b.put()
    with Session(b.db) as session:
        b.queue.take(b.db, 0, session=session)
    assert (b.state(id_), b.queue.failures(b.db, id_)) == ("r", [])


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


def test_the_failures_of_no_task_are_not_found(bench):
    b = bench()
    id_ = b.put()
    b.queue.ack(b.db, b.take())
    with pytest.raises(TaskNotFound):
        b.queue.failures(b.db, id_)


def test_a_lease_that_is_over_writes_down_nothing_more(bench, clock):
    """The release of a late holder changes nothing, its failure included."""
    b = bench("fifottl", ttr=2)
    id_ = b.put()
    late = b.take()
    clock.advance(3)
    b.sweep()
    for verb in (b.queue.release, b.queue.bury):
        with pytest.raises(NotTaken):
            verb(b.db, late, failure=ODD)
    assert len(b.queue.failures(b.db, id_)) == 1


def test_renewing_holds_for_a_whole_ttr_from_now(bench, clock):
    """The ttr does not change, unlike after a touch; tasks that are not held are left out."""
    b = bench("fifottl", ttr=4)
    b.put()
    b.put()
    first, second = b.take(), b.take()
    clock.advance(3)
    b.queue.ack(b.db, second)
    assert list(b.queue.renew(b.db, [first, second])) == [first.id]
    assert b.queue.peek(b.db, first.id).until == clock.now() + 4
    clock.advance(4)
    assert b.queue.renew(b.db, [first]) == {}


def test_a_renewal_by_an_old_holder_leaves_the_new_lease_alone(bench, clock):
    b = bench("fifottl", ttr=4)
    b.put()
    old = b.take()
    clock.advance(4)
    new = b.take()
    clock.advance(1)
    assert b.queue.renew(b.db, [old]) == {}
    assert b.queue.peek(b.db, new.id).until == new.until
    assert list(b.queue.renew(b.db, [new])) == [new.id]


def test_a_renewal_tells_the_new_end_of_each_lease(bench, clock):
    """It does not outlive the ttl."""
    b = bench("fifottl")
    for ttr, ttl in ((4, None), (8, None), (None, None), (4, 5)):
        b.put(ttr=ttr, ttl=ttl)
    tasks = [b.take() for _ in range(4)]
    clock.advance(3)
    until = [clock.now() + 4, clock.now() + 8, None, clock.now() + 2]
    assert list(b.queue.renew(b.db, tasks).values()) == until


def test_a_lease_for_ever_needs_no_renewing_but_may_be_asked_for(bench):
    b = bench("fifo")
    b.put()
    task = b.take()
    assert b.queue.renew(b.db, [task]) == {task.id: None}
    b.queue.release_all(b.db)
    assert b.queue.renew(b.db, [task]) == {}


def test_one_transaction_renews_a_bounded_number(bench):
    b = bench()
    b.put()
    task = b.take()
    with pytest.raises(TooMuchForOneTransaction):
        b.queue.renew(b.db, [task] * (limits.VERB_BATCH + 1))
