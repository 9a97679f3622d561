"""Sessions: ends, deaths after the ttr, takeovers; temporary queues (section 11)."""

import logging
import re
import threading
from itertools import cycle
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, ElementQueue, Queue, Session, SimpleElementQueue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, UnknownSession
from fdbqueue.core.line.decision import Look, Reason
from fdbqueue.core.line.staging import Outcome, Turn
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions import keeper as keeper_module
from fdbqueue.core.sessions import session as owning
from fdbqueue.core.sessions.ending import count_others, end_the_dead
from fdbqueue.core.sessions.keeper import Keeper
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.source import params_of
from tests.queue_support import registered
from tests.support import (
    PATIENCE_S,
    TIMED_OUT,
    error_code,
    replace_method,
    wait_until,
)
from tests.tasks.support import LONG_S, Bench, MakeBench, Relay, SetLimits, StillClock, keeper
from tests.tasks.test_lasting_threads import Broken, fail_with

KEYS = RootKeys(DEFAULT_ROOT)
GIVE_UP = fail_with(FDBError(TIMED_OUT))


def sweep_dead(b: Bench) -> None:
    end_the_dead(b.db, KEYS)


def test_an_ended_session_releases_its_tasks_in_all_queues(bench: MakeBench) -> None:
    b = bench()
    other = TaskQueue.create(b.db, "other", "fifottl")
    b.queue.put_many(b.db, range(250))
    other.put(b.db, "x")
    with Session(b.db) as session:
        assert len(b.queue.take_many(b.db, 250, session=session)) == 250
        other.take(b.db, 0, session=session)
    assert b.counts("ready", "taken", "release") == (250, 0, 250)
    assert other.statistics(b.db)["calls"]["release"] == 1
    assert b.taken_data() == list(range(250))


def test_a_dead_session_with_a_damaged_heartbeat_is_ended(bench: MakeBench) -> None:
    """A live one writes its heartbeat anew."""
    b = bench()
    b.put("x")
    session = Session(b.db, ttr=10)
    b.queue.take(b.db, 0, session=session)
    b.db[KEYS.heartbeat(session.id)] = b"damaged"
    b.clock.advance(11)
    sweep_dead(b)
    assert b.counts("ready", "taken") == (1, 0)


def test_a_session_beats_after_each_part_of_its_ttr(bench: MakeBench) -> None:
    """A new one would be dead before a later first heartbeat."""
    b = bench()
    session, commits = Session(b.db, ttr=10), b.db.counters.commits
    for beats in range(3):
        for part in (0, 0.6):
            b.clock.advance(part * 10 / limits.BEATS_PER_TTR)
            session.beat_if_due()
            assert b.db.counters.commits == commits + beats
        b.clock.advance(0.6 * 10 / limits.BEATS_PER_TTR)
        session.beat_if_due()


def test_a_session_has_one_entry_however_often_it_beats(bench: MakeBench) -> None:
    """A sweep would meet each entry of an earlier heartbeat at its time."""
    b = bench()
    session = Session(b.db, ttr=10)
    for _ in range(3):
        b.clock.advance(1)
        session.beat()
    due = KEYS.beats_due_until(b.db.runtime.now_us() + 10_000_000)
    assert [KEYS.beat_of(row.key)[1] for row in b.db.get_range(due.start, due.stop)] == [session.id]


def test_an_ended_session_releases_its_task_behind_fifty_others(bench: MakeBench) -> None:
    """One read of 50 taken tasks need not meet it."""
    b = bench()
    first, last = sorted((Session(b.db, ttr=LONG_S) for _ in range(2)), key=lambda session: session.id)
    b.queue.put_many(b.db, range(51))
    b.queue.take_many(b.db, 50, session=first)
    b.queue.take(b.db, 0, session=last)
    last.end()
    assert b.counts("ready", "taken") == (1, 50)


def test_an_ended_session_releases_a_task_behind_lapsed_leases(
    bench: MakeBench, set_limits: SetLimits
) -> None:
    """A batch of those releases nothing, and is not the last one."""
    set_limits(VERB_BATCH=2)
    b = bench("fifottl")
    session = Session(b.db, ttr=LONG_S)
    for ttr_s in (1, 1, LONG_S):
        b.put(ttr=ttr_s)
    b.queue.take_many(b.db, 3, session=session)
    b.clock.advance(2)
    session.end()
    assert b.counts("ready", "taken") == (3, 0)


def test_a_take_of_an_ended_session_fails_in_a_crowd_too(bench: MakeBench) -> None:
    """The line serves a request without a check of its session; the take must not register repeatedly."""
    b = bench()
    b.put(1)
    session = Session(b.db)
    calls_of(b.db, b.queue._shape)._takes.of(session, 0)._memory.note(
        Turn(Outcome.SERVED, [1], crowd=limits.CROWD_MIN)
    )
    b.clock.advance(limits.STAGED_HINT_S / 2)
    b.db.clear(RootKeys(DEFAULT_ROOT).session(session.id))
    with pytest.raises(UnknownSession):
        b.queue.take(b.db, 0, session=session)
    assert b.counts("ready") == (1,)


def test_a_heartbeat_does_not_revive_a_session_being_ended(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench().session
    beat = session._beat

    def beat_as_it_ends(tr: Any) -> bool:
        session.lost = True  # with which an end begins, in another thread
        return beat(tr)

    monkeypatch.setattr(Session, "_beat", lambda _, tr: beat_as_it_ends(tr))
    session.beat()
    assert session.lost


class Rounds:
    """Replaces the event on which a keeper sleeps: `rounds` sleeps of ten seconds each."""

    def __init__(self, clock: StillClock, rounds: int) -> None:
        self._clock = clock
        self._rounds = rounds

    def wait(self, _: float) -> bool:
        self._clock.advance(10)
        self._rounds -= 1
        return self._rounds < 0

    def set(self) -> None: ...


def test_a_failing_keeper_logs_once_a_minute_with_a_count(
    bench: MakeBench, clock: StillClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    swept = keeper(bench().db)
    outcomes = cycle([UnknownSession(session="ff"), None])

    def tick() -> None:
        error = next(outcomes)
        if error is not None:
            raise error

    monkeypatch.setattr(swept, "tick", tick)
    monkeypatch.setattr(swept, "_stop", Rounds(clock, rounds=14))
    with caplog.at_level(logging.WARNING, logger="fdbqueue"):
        swept._run()
    told = [record.getMessage() for record in caplog.records]
    assert [bool(record.exc_text) for record in caplog.records] == [True, False, False]
    assert [re.findall(r"\((\d+) more times\)", message) for message in told] == [[], ["3"], ["3"]]
    assert all(str(UnknownSession(session="ff")) in message for message in told)


def test_a_silence_ends_with_the_next_tick_of_the_keeper(
    bench: MakeBench, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an outage of a moment would excuse each lease that this process loses later."""
    swept = keeper(bench().db)
    questions = iter([GIVE_UP])

    def tick() -> None:
        for question in questions:
            swept.silence.ask(swept, question)

    monkeypatch.setattr(swept, "tick", tick)
    monkeypatch.setattr(swept, "_stop", Rounds(clock, rounds=5))
    began = clock.now()
    swept._run()
    assert (clock.now() - began, swept.silence.longest_s(since=began)) == (60, 10)


def test_the_process_opens_another_session_when_its_own_was_lost(bench: MakeBench) -> None:
    b = bench()
    b.queue.put_many(b.db, [1, 2])
    assert b.queue.take(b.db, 0).data == 1
    b.clock.advance(1_000)
    sweep_dead(b)
    assert b.queue.take(b.db, 0).data == 1


def test_an_end_that_was_interrupted_is_finished_by_a_sweeper(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.put(1)
    session = Session(b.db, name="n")
    b.queue.take(b.db, 0, session=session)
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.ending._enders", lambda: [fail_with(KeyboardInterrupt())])
        with pytest.raises(KeyboardInterrupt):
            session.end()
    assert b.counts("taken") == (1,)
    sweep_dead(b)
    assert b.counts("ready", "release") == (1, 1)
    sweep_dead(b)
    assert b.counts("release") == (1,)


@pytest.mark.parametrize("make", [ElementQueue.named, SimpleElementQueue.named, Queue.named])
def test_nothing_is_left_of_a_session_whatever_else_there_is(bench: MakeBench, make: Any) -> None:
    b = bench()
    make(b.db, "of another kind")
    beats = KEYS.beats_due
    before = b.stored()
    Session(b.db).end()
    left = [row for row in b.stored() if row not in before]
    assert [key for key, _ in left if beats.start <= key < beats.stop] == []


def test_an_unreadable_payload_stops_no_sweep(bench: MakeBench) -> None:
    """The task expires, and a callback is told of it."""
    b, told = bench("fifottl"), list[object]()
    b.queue.on_task_change(lambda task, _: told.append(task.data))
    large = "x" * limits.RECORD_PAYLOAD_BYTES_MAX
    b.put(large, ttl=1)
    [payload] = [key for key, value in b.stored() if value == b'"%b"' % large.encode()]
    b.db[payload] = b"not json"
    b.clock.advance(2)
    b.sweep()
    assert b.counts("ready", "done") == (0, 1)
    wait_until(lambda: any(isinstance(data, Unreadable) for data in told))


def test_queues_of_an_unknown_kind_keep_no_dead_session(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(DEAD_SESSIONS_MAX=2)
    b = bench()
    Registry().create(b.db, "of tomorrow", "of-tomorrow", {})
    for _ in range(3):  # more than one sweep ends
        Session(b.db).end()
    b.put("a")
    with Session(b.db, ttr=5) as session:
        b.queue.take(b.db, 0, session=session)
        b.clock.advance(6)
        for _ in range(3):
            sweep_dead(b)
        assert b.counts("ready", "taken") == (1, 0)


def test_closing_the_database_ends_the_sessions_of_the_process(tmp_path: object) -> None:
    with (
        fdbqueue.open(f"embedded:{tmp_path}/data") as first,
        fdbqueue.open(f"embedded:{tmp_path}/data") as second,
    ):
        queue = TaskQueue.create(first, "q")
        queue.put(first, 1)
        assert queue.take(first, 0) is not None
        assert queue.take(second, 0) is None
        first.close()
        task = queue.take(second, 5)
        assert task.attempts == 2


def test_collecting_a_result_rings_no_doorbell(bench: Any) -> None:
    """No task becomes available by it: the first request of the line need not look."""
    b = bench()
    relay, doorbell = Relay(b), calls_of(b.db, b.queue._shape).source.doorbell
    b.queue.put_many(b.db, ["taken", "delivered"])
    relay.serve()
    before = bytes(b.db.get(doorbell))
    assert relay.collect() == ["delivered"]
    assert bytes(b.db.get(doorbell)) == before


def test_a_result_of_a_dead_caller_returns_beside_other_tasks(bench: MakeBench) -> None:
    """A plain take sees that the result is overdue, even while the queue has other tasks."""
    b = bench()
    relay = Relay(b)
    b.queue.put_many(b.db, [2, "first", 3, 4])
    relay.serve()
    b.clock.advance(limits.REQUEST_DEADLINE_S + 1)
    assert b.taken_data() == ["first", 3, 4]


def test_a_take_looks_behind_overdue_results_of_gone_tasks(bench: MakeBench) -> None:
    b = bench()
    dead = limits.RESULTS_RETURNED_MAX + 1
    source = calls_of(b.db, b.queue._shape).source
    params = params_of(Lease(b.session.id, b"the dead one"))
    now_us = round(b.clock.now() * 1e6)
    server = registered(b.db, source.line, b"0", now_us, params=params)
    for number in range(dead):
        registered(b.db, source.line, b"%02d" % number, now_us, params=params)
    b.queue.put_many(b.db, range(dead + 1))
    run(b.db, lambda tr: source.line.look(tr, server, Look(now_us, reason=Reason.SIGNAL)))
    *gone, last = b.queue.tasks(b.db, "t", dead + 1)
    for task in gone:
        b.queue.delete(b.db, task.id)
    b.clock.advance(limits.REQUEST_DEADLINE_S + 1)
    [back] = run(b.db, lambda tr: b.queue.take_many(tr, 1, session=b.session))
    assert back.id == last.id


@pytest.mark.parametrize(
    ("sessions", "own", "others"), [(3, 1, 2), (limits.SWEEPERS_MAX + 3, 2, limits.SWEEPERS_MAX - 1)]
)
def test_the_sessions_of_others_are_counted_up_to_a_bound(
    bench: MakeBench, sessions: int, own: int, others: int
) -> None:
    b = bench()
    ids = sorted(Session(b.db).id for _ in range(sessions))
    mine, now_us = [b.session.id, *ids[:own]], b.db.runtime.now_us()
    assert run(b.db, lambda tr: count_others(tr, KEYS, mine, now_us)) == others


class Chore:
    name = "a chore"

    def __init__(self, fails: bool = False) -> None:
        self.done, self._fails = 0, fails

    def do(self, _: object) -> None:
        self.done += 1
        if self._fails:
            raise ValueError


def test_a_chore_that_fails_stops_no_other(bench: MakeBench) -> None:
    b = bench()
    chores = [Chore(fails=True), Chore(), Chore()]
    keeper(b.db)._chores = chores
    keeper(b.db).tick()
    assert [chore.done for chore in chores] == [1, 1, 1]


def test_a_keeper_shares_its_sweeps_with_those_of_others(bench: MakeBench) -> None:
    """The more there are, the longer is its pause between two sweeps."""
    b = bench()
    other = fdbqueue.Database(b.db.engine, b.clock)
    for _ in range(2):
        Session(other)
    keeper(b.db).tick()
    assert keeper(b.db).sharers == 3


def test_a_question_of_a_keeper_does_not_wait_for_ever(bench: MakeBench) -> None:
    b = bench()

    def body(tr: fdbqueue.Transaction) -> object:
        b.clock.advance(limits.CLOSE_TIMEOUT_S + 1)
        return tr.get(b"x").wait()

    assert error_code(lambda: keeper(b.db).ask(body)) == TIMED_OUT


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "1"])
def test_a_refused_end_leaves_the_session_alive(bench: MakeBench, timeout_s: Any) -> None:
    b = bench()
    session = Session(b.db, ttr=10)
    with pytest.raises(InvalidArgument, match="timeout_s"):
        session.end_within(timeout_s)
    b.clock.advance(9)
    b.sweep()
    b.clock.advance(9)
    end_the_dead(Database(b.db.engine, b.clock), KEYS)
    run(b.db, lambda tr: session.ask(tr)())
    assert not session.lost


def test_a_close_goes_on_behind_a_session_it_cannot_end(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    process = Database(b.db.engine, b.clock)
    sessions = [Session(process) for _ in range(3)]

    replace_method(monkeypatch, sessions[0], "end_within", GIVE_UP)
    process.close()
    assert [b.db[KEYS.session(session.id)] is None for session in sessions] == [False, True, True]


def test_two_first_takes_at_once_open_one_session(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two sessions, no thread could ack a task of the other."""
    b = bench()
    own, came, found = own_session_of(b.db, KEYS), threading.Event(), list[Session]()
    second = threading.Thread(target=lambda: found.append(own.get()))
    lock = own._opening

    def come() -> None:
        if threading.current_thread() is second:
            came.set()

    class Noted:
        def __enter__(self) -> None:
            come()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def open_late(*arguments: Any, **options: Any) -> Session:
        come()
        if not second.ident:
            second.start()
            assert came.wait(PATIENCE_S)
        return Session(*arguments, **options)

    monkeypatch.setattr(own, "_opening", Noted())
    monkeypatch.setattr(owning, "Session", open_late)
    first = own.get()
    second.join(PATIENCE_S)
    assert found == [first]


def test_a_slow_queue_keeps_no_dead_session(bench: MakeBench) -> None:
    b, slow, chore = bench(), Broken("tidy", FDBError(TIMED_OUT)), Chore()
    b.put(1)
    b.queue.take(b.db, 0, session=Session(b.db, ttr=5))
    b.clock.advance(6)
    other = Keeper(Database(b.db.engine, b.clock), KEYS)
    other._chores = [chore]
    other.look_after(slow)
    with pytest.raises(FDBError):
        other.tick()
    assert (b.counts("ready", "taken"), chore.done) == ((1, 0), 1)


def test_an_end_that_fails_stops_no_chore(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    b, chore = bench(), Chore()
    keeper(b.db)._chores = [chore]
    monkeypatch.setattr(keeper_module, "end_the_dead", GIVE_UP)
    with pytest.raises(FDBError):
        keeper(b.db).tick()
    assert chore.done == 1


def test_a_drop_by_another_process_ends_no_sweep_of_others(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put(1, delay=3)
    dropped, other = TaskQueue.create(b.db, "dropped", "fifottl"), Database(b.db.engine, b.clock)
    assert dropped.take(b.db, 0) is None
    TaskQueue.open(other, "dropped").drop(other)
    b.sweep()
    b.clock.advance(4)
    b.sweep()
    assert b.counts("ready", "delayed") == (1, 0)


def test_a_heartbeat_mends_a_damaged_record(bench: MakeBench) -> None:
    """Else the end of the session would not know its name, and would leave it."""
    b = bench()
    session = Session(b.db, name="worker", ttr=10)
    b.db[KEYS.session(session.id)] = b"damaged"
    session.beat()
    session.end()
    assert b.db[KEYS.session_named("worker")] is None


def test_all_sessions_that_are_not_wanted_end_together(bench: MakeBench) -> None:
    b = bench()
    unwanted = [Session(b.db, ttr=LONG_S, wanted=lambda: False) for _ in range(3)]
    keeper(b.db).end_unwanted()
    assert [session.lost for session in unwanted] == [True] * 3


def test_a_session_that_could_not_be_ended_in_time_dies(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing renews it, though its process goes on."""
    b = bench()
    session = Session(b.db, ttr=2)
    b.put("x")
    assert b.queue.take(b.db, 0, session=session) is not None

    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.session.end_session", GIVE_UP)
        with pytest.raises(FDBError):
            session.end_within(0.1)
    for _ in range(4):
        b.clock.advance(1)
        b.sweep()
    b.clock.advance(limits.CLOCK_SKEW_S)
    b.sweep()
    assert b.counts("ready", "taken") == (1, 0)
