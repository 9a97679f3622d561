"""Each end of a lease of a fleet is counted in the row of its run, in the transaction that ends the lease."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import Failure, Session, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run as run_in_database
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import RUN_ENDS
from fdbqueue.fleet.status import Run, Tally
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.detached import forget
from fdbqueue.tasks.source import lease_of
from fdbqueue.tasks.stored.records import id_bytes, unpacked
from tests.support import NOT_COMMITTED, ManualClock, commit_code
from tests.tasks.support import Bench, MakeBench, keeper

TTR_S = 10
WORKER_TTR_S = 30
ODD = Failure("ValueError", "odd")
KEYS = RootKeys(DEFAULT_ROOT)


class Member:
    """A worker of a run, in a session of its own."""

    def __init__(self, b: Bench, run: Run) -> None:
        self.b, self.session = b, Session(b.db, ttr=WORKER_TTR_S, run_id=run.id)

    def take(self) -> Any:
        return self.b.queue.take(self.b.db, 0, session=self.session)

    def die(self) -> None:
        """No heartbeat is sent from now on."""
        keeper(self.b.db).forget(self.session)


@pytest.fixture
def b(bench: MakeBench) -> Bench:
    return bench("fifottl", ttr=TTR_S)


@pytest.fixture
def run(b: Bench) -> Run:
    return Run(b.db, DEFAULT_ROOT)


@pytest.fixture
def member(b: Bench, run: Run) -> Member:
    return Member(b, run)


def row(b: Bench, run: Run) -> dict[str, int]:
    """The counters that are not zero."""
    found = unpacked(RUN_ENDS, b.db[KEYS.run(run.id)])
    return {name: count for name, count in found.items() if count}


def rows(b: Bench) -> list[bytes]:
    """The keys of all runs, and of memberships in them."""
    under = (KEYS.run(b"")[:-2], KEYS.membership(b"")[:-2])
    return [key for key, _ in b.stored() if key.startswith(under)]


def lapse(b: Bench, clock: ManualClock, member: Member) -> Any:
    task = member.take()
    clock.advance(TTR_S)
    b.sweep()
    return task


ENDINGS: dict[str, tuple[dict[str, int], Callable[[Bench, Any], Any]]] = {
    "ack": ({"done": 1}, lambda b, task: b.queue.ack(b.db, task)),
    "delete": ({"done": 1}, lambda b, task: b.queue.delete(b.db, task)),
    "failure": ({"failed": 1}, lambda b, task: b.queue.release(b.db, task, failure=ODD)),
    "bury": ({"buried": 1}, lambda b, task: b.queue.bury(b.db, task, failure=ODD)),
    "bury by id": ({"buried": 1}, lambda b, task: b.queue.bury(b.db, task.id)),
    "release": ({"snoozed": 1}, lambda b, task: b.queue.release(b.db, task)),
    "defer": ({"snoozed": 1}, lambda b, task: b.queue.defer(b.db, task, 1)),
    "hand off": ({"snoozed": 1}, lambda b, task: b.queue.hand_off(b.db, task, 60)),
    "delete by id": ({"lost": 1}, lambda b, task: b.queue.delete(b.db, task.id)),
    "give back": ({}, lambda b, task: b.queue.give_back(b.db, task)),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_each_end_of_a_lease_is_counted_once(b: Bench, run: Run, member: Member, how: str) -> None:
    """A task that is given back has not ended. The run is that of the holder, also for an end by its id."""
    counted, end = ENDINGS[how]
    b.put()
    end(b, member.take())
    assert row(b, run) == counted


def test_a_row_has_the_columns_of_a_tally() -> None:
    assert Tally.__match_args__ == RUN_ENDS


def test_the_leases_of_a_dead_worker_are_lost(bench: MakeBench, clock: ManualClock) -> None:
    b = bench("fifo")
    run = Run(b.db, DEFAULT_ROOT)
    b.put()
    member = Member(b, run)
    member.take()
    member.die()
    clock.advance(WORKER_TTR_S + 1)
    b.sweep()
    assert row(b, run) == {"lost": 1}


def test_a_lease_that_a_shared_put_ends_is_counted_once(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    """The put of another caller replaces a task of the same queue, so their change is finished twice."""
    b.put("ends", unique=1, ttl=TTR_S)
    assert member.take().data == "ends"
    b.put("stays", unique=2)
    clock.advance(TTR_S)
    drafts = [b.queue._draft("x", {"unique": n, "on_conflict": "replace"}) for n in (1, 2)]
    put, random = calls_of(b.db, b.queue._shape)._put_in, bytes(limits.RANDOM_SUFFIX_BYTES)
    run_once(b.db, KEYS, lambda tr: put(tr, drafts, random, 0))
    assert row(b, run) == {"lost": 1}


def test_acks_together_count_each_for_its_run(b: Bench, run: Run, member: Member) -> None:
    other = Run(b.db, DEFAULT_ROOT)
    for _ in range(4):
        b.put()
    tasks = [member.take(), member.take(), Member(b, other).take(), b.take()]
    tr = b.db.create_transaction()
    for task in tasks:
        b.queue.ack(tr, task)
    tr.commit().wait()
    assert (row(b, run), row(b, other)) == ({"done": 2}, {"done": 1})


def test_without_a_fleet_no_key_of_a_run_is_written(b: Bench) -> None:
    b.put()
    b.put()
    b.queue.ack(b.db, b.take())
    b.queue.bury(b.db, b.take())
    assert rows(b) == []
    assert len(b.queue.tasks(b.db, "!", 1)) == 1


def test_an_exhausted_task_is_buried_for_the_run_that_lost_it(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    """Another fleet, which has not attempted the task, buries it."""
    other = Run(b.db, DEFAULT_ROOT)
    b.put()
    lapse(b, clock, member)
    assert b.queue.exhaust(b.db, Member(b, other).take(), 1)
    assert (row(b, run), row(b, other)) == ({"lost": 1, "buried": 1}, {})


def test_an_exhausted_task_of_an_ended_run_counts_for_its_taker(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    other = Run(b.db, DEFAULT_ROOT)
    b.put()
    lapse(b, clock, member)
    run.__exit__()
    assert b.queue.exhaust(b.db, Member(b, other).take(), 1)
    assert row(b, other) == {"buried": 1}
    member.session.end()
    other.__exit__()
    b.sweep()


def test_a_burial_counts_for_no_lease_that_a_kick_has_forgiven(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    other = Run(b.db, DEFAULT_ROOT)
    id_ = b.put()
    lapse(b, clock, member)
    b.queue.bury(b.db, id_)
    b.queue.kick(b.db, 1)
    taker = Member(b, other)
    b.queue.release(b.db, taker.take(), failure=ODD)
    assert b.queue.exhaust(b.db, taker.take(), 1)
    assert (row(b, run), row(b, other)) == ({"lost": 1}, {"failed": 1, "buried": 1})
    assert [failure.outcome for failure in b.queue.failures(b.db, id_)] == ["lease_lost", "retried"]


def test_a_burial_that_is_excused_is_taken_back(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    other = Run(b.db, DEFAULT_ROOT)
    b.put()
    lost = lapse(b, clock, member)
    b.queue.exhaust(b.db, Member(b, other).take(), 1)
    b.queue.excuse(b.db, lost)
    assert b.state(lost.id) == "r"
    assert (row(b, run), row(b, other)) == ({"lost": 1}, {})


def test_an_excuse_takes_a_burial_back_from_the_run_of_its_taker(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    other = Run(b.db, DEFAULT_ROOT)
    b.put()
    lost = lapse(b, clock, member)
    run.__exit__()
    member.session.end()
    b.queue.exhaust(b.db, Member(b, other).take(), 1)
    assert row(b, other) == {"buried": 1}
    b.queue.excuse(b.db, lost)
    assert row(b, other) == {}


def test_an_excuse_after_the_end_of_the_run_leaves_no_row(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    b.put()
    task = lapse(b, clock, member)
    taker = Member(b, run)
    assert b.queue.exhaust(b.db, taker.take(), 1)
    run.__exit__()
    for one in (member, taker):
        one.session.end()
    assert rows(b) == []
    assert b.queue.excuse(b.db, task)
    assert rows(b) == []


def test_an_excuse_conflicts_with_the_end_of_its_run(
    b: Bench, run: Run, member: Member, clock: ManualClock
) -> None:
    """It would take a burial back from a row that has gone, and so make it anew for ever."""
    b.put()
    lost, taker = lapse(b, clock, member), Member(b, run)
    b.queue.exhaust(b.db, taker.take(), 1)
    for one in (member, taker):
        one.session.end()
    tr = b.db.create_transaction()
    assert b.queue.excuse(tr, lost)
    run.__exit__()
    assert commit_code(tr) == NOT_COMMITTED
    assert rows(b) == []


def test_the_row_goes_with_the_run(b: Bench, run: Run, member: Member) -> None:
    b.put()
    b.queue.ack(b.db, member.take())
    member.session.end()
    assert rows(b) == [KEYS.run(run.id)]
    run.__exit__()
    assert rows(b) == []


def test_the_row_of_a_dead_supervisor_goes(b: Bench, run: Run, member: Member, clock: ManualClock) -> None:
    b.put()
    b.queue.ack(b.db, member.take())
    keeper(b.db).forget(run._session)
    member.session.end()
    clock.advance(run._session.ttr + 1)
    b.sweep()
    assert rows(b) == []


@pytest.mark.parametrize("cancels", [False, True])
def test_a_task_delivered_to_an_ended_session_makes_no_row(
    b: Bench, run: Run, member: Member, clock: ManualClock, cancels: bool
) -> None:
    """A process of the line may deliver it after the last look of the session's end."""
    b.put()
    lease = lease_of(calls_of(b.db, b.queue._shape)._new_params(member.session))
    run.__exit__()
    member.session.end()

    def deliver(change: Change) -> None:
        edges.take(change, [record for record in change.read([id_bytes(id_)]) if record], lease)

    [id_] = [task.id for task in b.queue.tasks(b.db, "r", 9)]
    run_once(b.db, KEYS, partial(calls_of(b.db, b.queue._shape).parts.within, verb=deliver))
    if cancels:
        b.queue.cancel(b.db, id_)
    clock.advance(TTR_S + 1)
    b.sweep()
    assert (rows(b), b.counts("taken", "ttr", "cancel")) == ([], (0, 1 - cancels, cancels))


def test_a_lease_lost_while_its_run_ends_leaves_no_row(
    b: Bench, run: Run, member: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has read that the run is alive, and the run ends before the commit of the sweep."""
    b.put()
    lease = lease_of(calls_of(b.db, b.queue._shape)._new_params(member.session))
    member.session.end()

    def deliver(change: Change) -> None:
        edges.take(change, [record for record in change.read([id_bytes(id_)]) if record], lease)

    def ask(*args: Any) -> Callable[[], bool]:
        counted = asked(*args)

        def end_meanwhile() -> bool:
            answers.append(counted())
            if len(answers) == 1:
                run.__exit__()
            return answers[-1]

        return end_meanwhile

    asked, answers = edges.ask_run_counted, list[bool]()
    monkeypatch.setattr(edges, "ask_run_counted", ask)
    [id_] = [task.id for task in b.queue.tasks(b.db, "r", 9)]
    run_once(b.db, KEYS, partial(calls_of(b.db, b.queue._shape).parts.within, verb=deliver))
    clock.advance(TTR_S + 1)
    b.sweep()
    assert (answers, rows(b), b.state(id_)) == ([True, False], [], "r")


@pytest.mark.parametrize("dies", [False, True])
def test_a_lease_that_outlives_its_run_leaves_no_row(
    b: Bench, run: Run, member: Member, clock: ManualClock, dies: bool
) -> None:
    """The ack comes after the run has ended, or the lease is swept with its holder."""
    b.put()
    task = member.take()
    run.__exit__()
    if dies:
        member.die()
        clock.advance(WORKER_TTR_S + 1)
    else:
        b.queue.ack(b.db, task)
        member.session.end()
    b.sweep()
    assert rows(b) == []
    assert b.counts("taken") == (0,)


@pytest.mark.parametrize("forgets", [True, False])
def test_a_detached_lease_outlives_its_run_and_leaves_no_row(
    b: Bench, run: Run, member: Member, clock: ManualClock, forgets: bool
) -> None:
    """`fdbqueue ack` clears the session of such a lease; otherwise its time ends it."""
    b.put()
    token = b.queue.detach(b.db, member.take(), 1_000)
    member.session.end()
    run.__exit__()
    task = b.queue.leased(b.db, token)
    b.queue.ack(b.db, task)
    if forgets:
        run_in_database(b.db, lambda tr: forget(tr, KEYS, task.token))
    clock.advance(1_001)
    b.sweep()
    assert rows(b) == []
    assert verify(b.db).findings == ()
