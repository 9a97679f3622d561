"""A lost lease counts a failure, and an excuse takes it back. Failures are stored with their task."""

from dataclasses import replace

import pytest

from fdbqueue import Failure, Session
from fdbqueue.core import limits
from fdbqueue.core.errors import TooMuchForOneTransaction, UnknownSession
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.stored.records import id_bytes
from fdbqueue.tasks.verbs import DATABASE_AWAY, NOT_RECEIVED
from tests.queue_support import faulty
from tests.support import COMMIT_UNKNOWN
from tests.tasks.support import Relay, SetLimits, keeper

TTR_S = 10
ODD = Failure("ValueError", "odd")


@pytest.fixture
def b(bench):
    return bench("fifottl", ttr=TTR_S)


def lapse(b, clock):
    """Take a task, and let its lease end."""
    task = b.take()
    clock.advance(TTR_S)
    b.sweep()
    return task


def standing(b, id_):
    task = b.queue.peek(b.db, id_)
    return task.state.value, task.attempts, task.failures, task.orphaned


def outcomes(b, id_):
    return [failure.outcome for failure in b.queue.failures(b.db, id_)]


@pytest.mark.parametrize("kind", ["fifottl", "limfifottl", "utubettl", "bag"])
def test_a_failure_that_a_sweep_counted_is_taken_back(bench, clock, kind):
    """The history says that the attempt was made, and does not count. Twice is once."""
    b = bench(kind, ttr=TTR_S)
    id_ = b.put()
    task = lapse(b, clock)
    assert standing(b, id_) == ("r", 1, 1, 1)
    assert b.queue.excuse(b.db, task)
    assert standing(b, id_) == ("r", 1, 0, 0)
    assert outcomes(b, id_) == ["excused"]
    assert not b.queue.excuse(b.db, task)
    again = b.take()
    assert (again.attempts, again.failures, again.orphaned) == (2, 0, 0)
    assert b.counts("ready", "taken", "total") == (0, 1, 1)


def test_a_lease_not_yet_swept_is_released_uncounted(b, clock):
    id_ = b.put()
    task = b.take()
    clock.advance(TTR_S)
    assert b.queue.excuse(b.db, task)
    b.sweep()
    assert standing(b, id_) == ("r", 1, 0, 0)


def test_the_end_of_a_session_is_taken_back_too(bench, clock):
    b = bench("fifo")
    id_ = b.put()
    session = Session(b.db, ttr=5)
    task = b.queue.take(b.db, 0, session=session)
    keeper(b.db).forget(session)
    clock.advance(6)
    b.sweep()
    assert standing(b, id_) == ("r", 1, 1, 1)
    b.queue.excuse(b.db, task)
    assert standing(b, id_) == ("r", 1, 0, 0)


def test_an_excused_failure_tells_its_reason(b, clock):
    b.put()
    task = lapse(b, clock)
    [before] = b.queue.failures(b.db, task.id)
    b.queue.excuse(b.db, task)
    [after] = b.queue.failures(b.db, task.id)
    assert after == replace(before, outcome="excused", message=DATABASE_AWAY)


def test_a_lease_that_another_has_meanwhile_stays(b, clock):
    """Its holder's attempt fails as the first one."""
    id_ = b.put()
    late = lapse(b, clock)
    other = b.take()
    b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("t", 2, 0, 0)
    b.queue.release(b.db, other, failure=ODD)
    assert standing(b, id_) == ("r", 2, 1, 0)
    assert outcomes(b, id_) == ["excused", "retried"]


def test_only_the_lease_in_question_is_taken_back(b, clock):
    """Whatever else has been counted since, or before; in whatever order they are taken back."""
    id_ = b.put()
    b.queue.release(b.db, b.take(), failure=ODD)
    first, second, third = lapse(b, clock), lapse(b, clock), lapse(b, clock)
    assert standing(b, id_) == ("r", 4, 4, 3)
    b.queue.excuse(b.db, third)
    b.queue.excuse(b.db, first)
    assert standing(b, id_) == ("r", 4, 2, 1)
    assert outcomes(b, id_) == ["retried", "excused", "lease_lost", "excused"]
    b.queue.excuse(b.db, second)
    assert standing(b, id_) == ("r", 4, 1, 0)


def test_a_row_of_lost_leases_that_has_ended_since_stays_ended(b, clock):
    id_ = b.put()
    late = lapse(b, clock)
    b.queue.release(b.db, b.take(), failure=ODD)
    lapse(b, clock)
    assert standing(b, id_) == ("r", 3, 3, 1)
    b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("r", 3, 2, 1)


def test_a_task_buried_for_an_excused_failure_comes_back(b, clock):
    """Its counts are as before: the next taker may begin it."""
    id_ = b.put()
    late = lapse(b, clock)
    assert b.queue.exhaust(b.db, b.take(), 1)
    assert (standing(b, id_), outcomes(b, id_)) == (("!", 2, 1, 1), ["exhausted"])
    b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("r", 2, 0, 0)
    assert not b.queue.exhaust(b.db, b.take(), 1)


def test_a_failure_excused_since_the_take_buries_nothing(b, clock):
    """The taker still has the count of its take."""
    id_ = b.put()
    late = lapse(b, clock)
    task = b.take()
    assert task.failures == 1
    b.queue.excuse(b.db, late)
    assert not b.queue.exhaust(b.db, task, task.failures)
    assert standing(b, id_) == ("t", 2, 0, 0)


def test_a_cancelled_task_is_not_buried_for_its_failures(b, clock):
    """It ends with its lease; a burial would keep it."""
    id_ = b.put()
    lapse(b, clock)
    task = b.take()
    b.queue.cancel(b.db, id_)
    assert not b.queue.exhaust(b.db, task, 1)
    b.queue.release(b.db, task)
    assert b.counts("total") == (0,)


def test_a_burial_after_several_failures_is_undone_by_any_excuse(b, clock):
    id_ = b.put()
    first, second = lapse(b, clock), lapse(b, clock)
    b.queue.exhaust(b.db, b.take(), 2)
    b.queue.excuse(b.db, first)
    assert (standing(b, id_), outcomes(b, id_)) == (("r", 3, 1, 1), ["excused", "lease_lost"])
    b.queue.excuse(b.db, second)
    assert standing(b, id_) == ("r", 3, 0, 0)


def test_a_task_buried_by_a_user_stays_buried(b, clock):
    id_ = b.put()
    late = lapse(b, clock)
    b.queue.bury(b.db, id_)
    b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("!", 1, 0, 0)


def test_failures_before_a_kick_do_not_count_anyhow(b, clock):
    id_ = b.put()
    late = lapse(b, clock)
    b.queue.bury(b.db, id_)
    b.queue.kick(b.db)
    lapse(b, clock)
    assert not b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("r", 2, 1, 1)


def test_a_kick_resets_the_excused_failures(b, clock):
    id_ = b.put()
    b.queue.excuse(b.db, lapse(b, clock))
    b.queue.bury(b.db, id_)
    b.queue.kick(b.db)
    lapse(b, clock)
    assert standing(b, id_) == ("r", 2, 1, 1)


def test_what_its_holder_has_ended_is_left_alone(b):
    """Acked, released, failed: there is nothing to excuse."""
    for end in (b.queue.ack, b.queue.release, lambda db, task: b.queue.release(db, task, failure=ODD)):
        b.put()
        task = b.take()
        end(b.db, task)
        before = b.contents()
        assert not b.queue.excuse(b.db, task)
        assert b.contents() == before
        b.queue.truncate(b.db)


def test_what_waits_in_the_line_of_a_key_stays_in_its_place(bench, clock):
    b = bench("utubettl", ttr=TTR_S)
    ids = [b.put(n, key="k") for n in range(3)]
    late = lapse(b, clock)
    b.queue.excuse(b.db, late)
    assert b.taken_data() == [0]
    b.queue.ack(b.db, ids[0], session=b.session)
    assert b.taken_data() == [1]


def test_an_uncollected_lease_is_forgiven_by_its_owner(b, clock):
    """The lease had run out before its owner collected it: no handler has begun the attempt."""
    relay = Relay(b)
    _, missed = b.put(), b.put()
    relay.serve()
    clock.advance(TTR_S)
    b.sweep()
    assert standing(b, missed) == ("r", 1, 1, 1)
    assert relay.collect() == []
    assert standing(b, missed) == ("r", 1, 0, 0)


def test_a_lease_that_is_over_is_not_collected(b, clock):
    """Its task is ready, though no process has swept it."""
    relay = Relay(b)
    _, late = b.put(), b.put()
    relay.serve()
    clock.advance(TTR_S)
    assert relay.collect() == []
    assert standing(b, late) == ("r", 0, 0, 0)


@pytest.mark.parametrize("end", ["delete", "cancel", "truncate"])
def test_a_task_that_ends_on_its_way_counts_no_take(b, end):
    """No caller has received it."""
    relay = Relay(b)
    b.put()
    delivered = b.put()
    relay.serve()
    assert b.queue.statistics(b.db)["calls"]["take"] == 2
    getattr(b.queue, end)(b.db, *([] if end == "truncate" else [delivered]))
    assert relay.collect() == []
    assert b.queue.statistics(b.db)["calls"]["take"] == 1


@pytest.mark.parametrize("acked_first", [True, False])
def test_a_lease_that_lapses_on_its_way_counts_no_take(b, clock, acked_first):
    """No caller has received it, whether its task is acked under the next lease before or after that."""
    relay = Relay(b)
    first, _ = b.put(), b.put()
    relay.serve()
    b.queue.ack(b.db, first, session=b.session)
    clock.advance(TTR_S)
    b.sweep()
    again = b.take()
    if acked_first:
        b.queue.ack(b.db, again)
    assert relay.collect() == []
    assert b.queue.statistics(b.db)["calls"]["take"] == 2


@pytest.mark.parametrize("notice_bytes", [limits.NOTICE_BYTES_MAX, 0])
def test_a_death_of_a_session_fails_attempts_that_began_only(
    bench, clock, set_limits: SetLimits, notice_bytes
):
    """A dead worker may leave a request in the line, which is served until its deadline. Its results are in
    the notice, or beside it.
    """
    set_limits(NOTICE_BYTES_MAX=notice_bytes)
    b = bench("fifo")
    mine, begun = Session(b.db, ttr=5), b.put()
    b.queue.take(b.db, 0, session=mine)
    relay = Relay(b, mine)
    _, delivered = b.put(), b.put()
    relay.serve()
    assert [standing(b, id_) for id_ in (begun, delivered)] == [("t", 1, 0, 0), ("t", 1, 0, 0)]
    keeper(b.db).forget(mine)
    clock.advance(6)
    b.sweep()
    assert [standing(b, id_) for id_ in (begun, delivered)] == [("r", 1, 1, 1), ("r", 1, 0, 0)]


def test_an_exhaustion_before_a_kick_undoes_no_later_burial(b, clock):
    """A user has buried the task since."""
    id_ = b.put()
    lapse(b, clock)
    assert b.queue.exhaust(b.db, b.take(), 1)
    b.queue.kick(b.db)
    late = lapse(b, clock)
    b.queue.bury(b.db, id_)
    assert b.queue.excuse(b.db, late)
    assert standing(b, id_) == ("!", 3, 0, 0)


def test_a_burial_for_a_lease_that_no_call_received_is_undone(b, clock):
    """Its owner collects it after another taker has buried the task for that lease."""
    relay = Relay(b)
    first, missed = b.put(), b.put()
    relay.serve()
    b.queue.ack(b.db, first, session=b.session)
    clock.advance(TTR_S)
    b.sweep()
    assert b.queue.exhaust(b.db, b.take(), 1)
    assert relay.collect() == []
    assert standing(b, missed) == ("r", 2, 0, 0)


def test_an_excused_burial_of_an_expired_task_ends_it(b, clock):
    """Its ttl is over at this moment, and no process has swept it."""
    b.put(ttl=3 * TTR_S)
    late = lapse(b, clock)
    assert b.queue.exhaust(b.db, b.take(), 1)
    clock.advance(2 * TTR_S)
    assert b.queue.excuse(b.db, late)
    assert b.counts("total", "ttl") == (0, 1)


def test_texts_are_cut_where_they_matter_least(bench):
    """A message keeps its beginning, a detail its end; a character is kept whole or not at all."""
    b = bench()
    id_ = b.put()
    b.queue.release(b.db, b.take(), failure=Failure("E", "é" * 2000 + "!", "?" + "é" * 8000, ""))
    [failure] = b.queue.failures(b.db, id_)
    assert failure.message == "é" * (limits.FAILURE_MESSAGE_BYTES_MAX // 2)
    assert failure.detail == "é" * (limits.FAILURE_DETAIL_BYTES_MAX // 2)


def test_an_unreadable_task_takes_its_failures_with_it(bench):
    """Its delete counts."""
    b = bench()
    id_ = b.put()
    b.queue.release(b.db, b.take(), failure=ODD)
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


@pytest.fixture
def in_doubt(b, clock):
    """Call a function with a database whose next commit has an unknown result, and do `meanwhile` then."""

    def called(function, meanwhile, has_committed=True):
        db, engine = faulty(b.db, FDBError, clock)
        fates, error = iter([(COMMIT_UNKNOWN, has_committed)]), engine.error

        def told(code):
            meanwhile()
            return error(code)

        engine.error, engine.fate = told, lambda _: next(fates, (0, True))
        return function(db)

    return called


@pytest.mark.parametrize("is_swept", [True, False])
def test_a_lease_that_ends_in_doubt_counts_nothing(b, clock, in_doubt, is_swept):
    """The result of its take was unknown, and it had ended before the retry looked."""
    id_ = b.put()

    def lapse():
        clock.advance(TTR_S)
        if is_swept:
            b.sweep()

    task = in_doubt(lambda db: b.queue.take(db, 0, session=b.session), lapse)
    assert (task.failures, task.orphaned) == (0, 0)
    assert standing(b, id_) == ("t", 1 + is_swept, 0, 0)
    assert [f.message for f in b.queue.failures(b.db, id_)] == [NOT_RECEIVED] * is_swept


def test_a_session_that_dies_with_a_take_in_doubt_counts_nothing(b, clock, in_doubt):
    """A task that another worker has buried for that is ready again."""
    id_ = b.put()
    session = Session(b.db, ttr=5)
    keeper(b.db).forget(session)

    def die():
        clock.advance(TTR_S)
        b.sweep()
        assert b.queue.exhaust(b.db, b.take(), 1)

    with pytest.raises(UnknownSession):
        in_doubt(lambda db: b.queue.take(db, 0, session=session), die)
    assert standing(b, id_) == ("r", 2, 0, 0)
    assert outcomes(b, id_) == ["excused"]


def test_a_take_that_was_not_made_takes_no_count_back(b, clock, in_doubt):
    """The lost lease of another taker has the number that its attempt would have had."""
    id_ = b.put()
    clock.advance(1)

    def lose():
        clock.advance(1)
        lapse(b, clock)

    task = in_doubt(lambda db: b.queue.take(db, 0, session=b.session), lose, has_committed=False)
    assert (task.attempts, task.failures, outcomes(b, id_)) == (2, 1, ["lease_lost"])
