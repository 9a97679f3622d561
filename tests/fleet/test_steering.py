"""Orders to workers: a pause, a drain, and the answers in their presences."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fdbqueue import Database, HeldTask, Session, TaskQueue, Why, Worker, workers
from fdbqueue.core import limits
from fdbqueue.core.database import run, ticks_of
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.fleet import steering
from fdbqueue.fleet.gate import DRAINING, NONE, PAUSED, Gate, Order, ask_order
from fdbqueue.fleet.status import Presence, Tally
from fdbqueue.fleet.steering import Member, at_work, chosen, left, members, releases
from tests.support import PATIENCE_S, wait_until


@pytest.fixture(autouse=True)
def _orders_are_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDERS_EVERY_S", 0.05)
    monkeypatch.setattr(limits, "PRESENCE_EVERY_S", 0.05)


@pytest.fixture
def keys(space: Any) -> RootKeys:
    return RootKeys(space)


class Held:
    """A handler that runs until the test lets it go."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.may_end = threading.Event()

    def __call__(self, task: HeldTask) -> None:
        self.began.append(task.data)
        self.may_end.wait(PATIENCE_S)


@pytest.fixture
def held() -> Iterator[Held]:
    handler = Held()
    yield handler
    handler.may_end.set()


@pytest.fixture
def hired(
    db: Database, space: Any, queue: TaskQueue, held: Held, keys: RootKeys
) -> Callable[..., tuple[Worker, Member]]:
    def start(**options: Any) -> tuple[Worker, Member]:
        worker = Worker(db, queue, held, root=space, **{"threads": 2, **options})
        worker.start()
        wait_until(lambda: bool(members(db, keys)))
        return worker, members(db, keys)[0]

    return start


def state(db: Database, space: Any) -> list[str]:
    return [worker.state for worker in workers(db, root=space)]


def test_a_drained_worker_ends_after_its_task(
    db: Database, space: Any, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any
) -> None:
    queue.put(db, "first")
    worker, member = hired(grace_s=0.0)
    wait_until(lambda: bool(held.began))
    steering.drain(db, keys, [member])
    wait_until(lambda: state(db, space) == [DRAINING])
    queue.put(db, "second")
    assert not worker.join(0.3)
    assert (held.began, worker.drained, worker.status().running[0].queue) == (["first"], True, "jobs")
    held.may_end.set()
    assert worker.join(PATIENCE_S)
    counts = queue.statistics(db)["tasks"]
    assert (counts["done"], counts["ready"], members(db, keys)) == (1, 1, [])
    assert db[keys.drain(member.session)] is None


def test_a_stop_ends_a_drain_within_its_grace(
    db: Database, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any
) -> None:
    queue.put(db, "first")
    worker, member = hired(grace_s=0.1)
    wait_until(lambda: bool(held.began))
    steering.drain(db, keys, [member])
    wait_until(lambda: worker.drained)
    worker.stop()
    wait_until(lambda: queue.statistics(db)["tasks"]["ready"] == 1)


def test_a_paused_worker_takes_after_the_end_of_the_pause(
    db: Database, space: Any, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any
) -> None:
    _, member = hired()
    order = steering.pause(db, keys)
    assert order == steering.paused(db, keys)
    wait_until(lambda: not at_work(members(db, keys), order))
    queue.put(db, "first")
    [shown] = workers(db, root=space)
    assert (shown.state, shown.pause, "fleet resume" in shown.trouble) == (PAUSED, order.pause, True)
    told = queue.explain(db, queue.tasks(db, "r", 1)[0])
    assert (told.workers, [reason.why for reason in told.reasons]) == (0, [Why.FLEET_PAUSED])
    assert held.began == []
    steering.resume(db, keys)
    wait_until(lambda: bool(held.began))
    assert steering.paused(db, keys) is None
    assert left(members(db, keys), [member])


def test_a_worker_that_begins_in_a_pause_takes_nothing(
    db: Database, space: Any, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any
) -> None:
    queue.put(db, "first")
    steering.pause(db, keys)
    hired()
    wait_until(lambda: state(db, space) == [PAUSED])
    assert held.began == []


def test_a_paused_worker_whose_session_is_lost_resumes(
    db: Database, space: Any, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any
) -> None:
    """It is listed again, with another session, and learns of the end of the pause."""
    worker, member = hired()
    order = steering.pause(db, keys)
    wait_until(lambda: not at_work(members(db, keys), order))
    worker._session.end()
    wait_until(lambda: state(db, space) == [PAUSED])
    assert left(members(db, keys), [member])[0].session != member.session
    steering.resume(db, keys)
    queue.put(db, "first")
    wait_until(lambda: bool(held.began))


def test_no_order_outlives_its_session(db: Database, space: Any, keys: RootKeys) -> None:
    session = Session(db, root=space)
    member = made("a", 1, session.id)
    session.end()
    steering.drain(db, keys, [member])
    assert db[keys.drain(session.id)] is None


def test_a_drain_is_not_taken_back_by_a_lost_session() -> None:
    gate = Gate()
    gate.obey(Order(DRAINING))
    gate.obey(Order(PAUSED, 1.0))
    assert gate.is_drained


def test_a_drain_goes_before_a_pause(db: Database, space: Any, keys: RootKeys) -> None:
    with Session(db, root=space) as session:
        steering.pause(db, keys)
        steering.drain(db, keys, [made("a", 1, session.id)])
        assert run(db, lambda tr: ask_order(tr, keys, session.id)()) == Order(DRAINING)


def test_a_drain_reaches_more_workers_than_one_transaction_asks(
    db: Database, space: Any, keys: RootKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOCKS_MAX", 1)
    with Session(db, root=space) as one, Session(db, root=space) as other:
        steering.drain(db, keys, [made("a", 1, one.id), made("a", 2, other.id)])
        assert [db[keys.drain(session.id)] for session in (one, other)] == [b"", b""]


def test_a_pause_is_answered_after_the_takes_of_all_threads() -> None:
    gate, order = Gate(), Order(PAUSED, 1.0)
    assert gate.enter()
    gate.obey(order)
    assert gate.answer() == NONE
    gate.is_idle = lambda: False
    gate.leave()
    assert gate.answer() == NONE
    gate.is_idle = lambda: True
    assert (gate.answer(), gate.enter(), gate.answer()) == (order, False, order)


def test_a_worker_is_known_by_its_process_and_its_begin() -> None:
    """Another worker may have the process id of one that has ended."""
    first, later = made("a", 1, b"1"), made("a", 1, b"2")
    assert left([later], [first]) == [later]
    later = Member(b"2", replace(later.presence, since=1.0))
    assert left([later], [first]) == []


def test_a_damaged_pause_is_a_pause(db: Database, keys: RootKeys) -> None:
    db[keys.pause] = b"\xff\xff"
    assert steering.paused(db, keys) == Order(PAUSED) == steering.pause(db, keys)


def test_a_pause_ends_by_itself(
    db: Database, queue: TaskQueue, keys: RootKeys, held: Held, hired: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ORDERS_EVERY_S", 0.05)
    hired()
    order = steering.pause(db, keys, 1.0)
    wait_until(lambda: not at_work(members(db, keys), order))
    queue.put(db, "first")
    assert db.runtime.now() < order.pause or held.began
    wait_until(lambda: bool(held.began))
    assert db.runtime.now() >= order.pause
    assert steering.paused(db, keys) is None


def test_of_two_pauses_the_later_end_holds(db: Database, keys: RootKeys) -> None:
    first, second = steering.pause(db, keys, 50.0), steering.pause(db, keys, 100.0)
    assert first.pause < second.pause
    assert steering.pause(db, keys, 10.0) == second == steering.paused(db, keys)


def made(host: str, process_id: int, session: bytes = b"", **shown: Any) -> Member:
    given = {"version": "1.0", "state": "working", "since": 0.0, **shown}
    given |= {"queues": ("q",), "handler": "f", "threads": 1, "tally": Tally(), "running": (), "seen": 0.0}
    return Member(session, Presence(host, process_id, **given))


FLEET = [made("a", 1), made("a", 2), made("b", 2), made("7", 3)]


@pytest.mark.parametrize(
    ("target", "places"),
    [("a", ["a:1", "a:2"]), ("1", ["a:1"]), ("a:2", ["a:2"]), ("7", ["7:3"]), ("3", ["7:3"])],
)
def test_a_target_names_a_host_or_a_process(target: str, places: list[str]) -> None:
    assert [one.place for one in chosen(FLEET, target)] == places


@pytest.mark.parametrize(
    ("target", "told"), [("2", "one of a:2, b:2"), ("c", "of a live worker"), ("", "HOST")]
)
def test_a_target_of_no_one_process_is_refused(target: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        chosen(FLEET, target)


def test_a_wrong_clock_shifts_no_age() -> None:
    """Here that of a worker that began a minute ago is an hour behind, or ahead."""
    for wrong_s in (-3600.0, 0.0, 3600.0):
        member = made("a", 1, since=5_000 + wrong_s)
        known = replace(member, seen=5_058 + wrong_s, beat_age_s=2.0)
        assert (known.age_s(5_060.0), known.heartbeat_s(5_060.0)) == (60.0, 2.0)
    unknown = replace(member, seen=5_058.0, presence=replace(member.presence, since=5_000.0))
    assert (unknown.age_s(5_060.0), unknown.heartbeat_s(5_060.0)) == (60.0, 2.0)
    assert member.heartbeat_s(5_060.0) is None


def test_the_age_of_a_heartbeat_is_read(db: Database, hired: Any) -> None:
    _, member = hired()
    assert 0 <= member.beat_age_s < PATIENCE_S
    assert abs(member.age_s(db.runtime.now()) - (db.runtime.now() - member.presence.since)) < PATIENCE_S
    assert 0 < member.presence.ticks <= run(db, ticks_of)


def test_a_pause_waits_for_no_worker_that_is_drained() -> None:
    fleet = [made("a", 2, state=DRAINING), made("c", 1, state=PAUSED, pause=1.0), *FLEET]
    assert at_work(fleet, Order(PAUSED, 1.0)) == FLEET
    assert releases([made("a", 1, version=""), *FLEET]) == {"1.0": 4, "?": 1}
