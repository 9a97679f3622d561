"""explain() names every reason why a task is not running, and the cure of each."""

import os
import platform
import shlex
from threading import Thread
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Explanation, HeldKey, Limit, Session, TaskPlace, TaskQueue, Why
from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys, Ticket, renewal_value, request_value
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import Failure
from fdbqueue.fleet import steering
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.stored.discipline import Fifo
from fdbqueue.tasks.stored.records import id_bytes, sound_record
from tests.partitions.support import key_in, moving_key
from tests.support import wait_until
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock

KEYS = RootKeys(DEFAULT_ROOT)
HERE = f"{platform.node()}:{os.getpid()}"


def whys(b: Bench, id_: str) -> list[Why]:
    return [reason.why for reason in explained(b, id_).reasons]


def explained(b: Bench, id_: str) -> Explanation:
    return b.queue.explain(b.db, id_)


def test_the_next_task_of_a_queue_without_workers_has_one_reason(bench: MakeBench) -> None:
    b = bench()
    found = explained(b, b.put("x"))
    [reason] = found.reasons
    assert (reason.why, reason.cure) == (Why.NO_WORKER, "fdbqueue work bench MODULE:FUNCTION")
    assert (found.place, found.waiting, found.workers, found.tasks) == (TaskPlace(), 0, 0, 1)
    assert found.task == b.queue.peek(b.db, found.task)


def test_a_pause_comes_before_every_other_reason(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    ids = [b.put("x", delay=5), b.put("y")]
    b.queue.pause(b.db)
    for id_, other in zip(ids, (Why.DELAYED, Why.NO_WORKER), strict=True):
        first, second = explained(b, id_).reasons
        assert (first.why, first.cure, second.why) == (Why.PAUSED, "fdbqueue resume bench", other)


def test_a_pause_of_the_fleet_is_a_reason_of_its_own(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    steering.pause(b.db, b.queue._shape.root)
    [reason] = explained(b, id_).reasons
    assert (reason.why, reason.cure) == (Why.FLEET_PAUSED, "fdbqueue fleet resume")
    steering.resume(b.db, b.queue._shape.root)
    assert Why.FLEET_PAUSED not in [reason.why for reason in explained(b, id_).reasons]


@pytest.mark.parametrize("kind", ["fifo", "utube", "fair", "bag"])
def test_a_task_whose_key_in_the_line_is_lost_is_told(bench: MakeBench, kind: str) -> None:
    b = bench(kind=kind)
    options = {"key": "k"} if kind in ("utube", "fair") else {}
    kept, lost = b.put("x", **options), b.put("y", **options)
    shape = b.queue._shape
    record = sound_record(b.db[shape.keys.task(id_bytes(lost))], id_bytes(lost))
    assert record is not None
    del b.db[shape.discipline.filed(record)]
    [first, *_] = explained(b, lost).reasons
    assert (first.why, first.cure) == (Why.NOT_IN_LINE, "fdbqueue verify --mend bench")
    assert Why.NOT_IN_LINE not in whys(b, kept)
    assert verify(b.db, "bench", mend=True).findings
    assert Why.NOT_IN_LINE not in whys(b, lost)


def test_places_are_counted_up_to_a_bound(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(EXPLAINED_MAX=3)
    b = bench()
    ids = [b.put(n) for n in range(6)]
    assert explained(b, ids[2]).reasons[0].text == "There are 2 tasks before it."
    assert explained(b, ids[5]).reasons[0].text == "There are 3 or more tasks before it."


def test_a_delay_ends_at_its_time(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    id_ = b.put("x", delay=30)
    b.clock.advance(10)
    [reason] = explained(b, id_).reasons
    assert (reason.why, reason.cure) == (Why.DELAYED, "It is due in 20 s.")
    assert reason.at == b.clock.now() + 20


def test_a_retry_names_the_failure_before_it(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=60)
    id_ = b.put("x")
    b.queue.release(b.db, b.take(), delay=5, failure=Failure("ValueError", "odd"))
    found = explained(b, id_)
    assert found.reasons[0].text == "It is delayed after ValueError: odd."
    assert found.last_failure.message == "odd"


def test_a_delay_that_nothing_has_swept_is_told(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    id_ = b.put("x", delay=5)
    b.clock.advance(5)
    found = explained(b, id_)
    assert (found.task.state, found.swept) == ("r", False)
    assert [reason.why for reason in found.reasons] == [Why.UNSWEPT, Why.NO_WORKER]
    b.sweep()
    assert whys(b, id_) == [Why.NO_WORKER]


def test_a_taken_task_names_its_process_and_the_end_of_its_lease(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=60)
    id_ = b.put("x")
    b.take()
    b.clock.advance(15)
    found = explained(b, id_)
    [reason] = found.reasons
    assert (reason.why, reason.text) == (Why.TAKEN, f"{HERE} has held it for 15 s.")
    assert reason.cure == "Its handler ends. Without a renewal it comes back in 45 s."
    assert reason.at == b.clock.now() + 45
    assert found.holder == b.queue.holder(b.db, id_)


def test_a_session_may_die_before_its_lease_ends(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=600)
    id_ = b.put("x")
    b.queue.take(b.db, 0, session=Session(b.db, ttr=30))
    assert explained(b, id_).reasons[0].at == b.clock.now() + 30


def test_the_cure_of_a_buried_task_kicks_that_task_only(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    ids = [b.put(n) for n in range(3)]
    for id_ in ids:
        b.queue.bury(b.db, id_, failure=Failure("ValueError", "odd"))
    [reason] = explained(b, ids[1]).reasons
    assert (reason.why, reason.cure) == (Why.BURIED, f"fdbqueue dead kick bench {ids[1]}")
    assert reason.text == "It is buried after ValueError: odd."


def test_a_task_of_a_session_that_has_ended_comes_back_by_a_take(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    b.take()
    for key in (KEYS.session(b.session.id), KEYS.heartbeat(b.session.id)):
        del b.db[key]
    b.clock.advance(4)
    [reason] = explained(b, id_).reasons
    assert reason.why == Why.HOLDER_ENDED
    assert reason.at == b.clock.now() + limits.REQUEST_DEADLINE_S - 4


@pytest.mark.parametrize("kind", ["utube", "utubettl"])
def test_a_busy_key_names_its_holder(bench: MakeBench, kind: str) -> None:
    b = bench(kind=kind, **({"ttr": 60} if kind == "utubettl" else {}))
    taken, id_, third = (b.put(n, key="a") for n in range(3))
    b.put("other", key="b")
    b.take()
    found = explained(b, id_)
    assert found.reasons[0].why == Why.KEY_BUSY
    assert found.reasons[0].text == f"Its key is busy: {HERE}."
    holder = b.queue.holder(b.db, taken)
    assert found.reasons[0].at == (b.clock.now() + 60 if kind == "utubettl" else holder.dies)
    assert [one.task for one in found.key_holders] == [taken]
    behind = [reason.why for reason in explained(b, third).reasons]
    assert behind[:2] == [Why.KEY_BUSY, Why.KEY_BEHIND]


def test_keys_with_an_earlier_turn_come_first(bench: MakeBench) -> None:
    b = bench(kind="utube")
    for key in "abc":
        b.put(key, key=key)
    id_, second = b.put("x", key="d"), b.put("y", key="d")
    assert explained(b, id_).place == TaskPlace(3, by_key=True)
    assert explained(b, id_).reasons[0].text == "There are 3 keys before it."
    assert explained(b, second).place == TaskPlace(3, 1, by_key=True)


def test_a_fair_queue_tells_the_round_of_a_task(bench: MakeBench) -> None:
    b = bench(kind="fair")
    for n in range(4):
        b.put(n, key="a")
    last = b.put("z", key="a")
    other = b.put("x", key="b")
    b.take()
    place = explained(b, last).place
    assert place.round is not None
    assert place.current_round is not None
    assert (place.ahead_in_key, place.round - place.current_round) == (3, 4)
    assert explained(b, other).place == TaskPlace(0, 0, True, True, place.current_round, place.current_round)


def test_a_lease_that_has_ended_by_time_names_its_process(bench: MakeBench) -> None:
    """A sweep reads no session, so it stores none: until then the task names it, and then `doctor`."""
    b = bench(kind="fifottl", ttr=20)
    id_ = b.put("x")
    session = Session(b.db, ttr=30)
    b.queue.take(b.db, 0, session=session)
    b.clock.advance(21)
    found = explained(b, id_)
    assert (found.task.state, found.holder.session) == ("r", session.id.hex())
    assert found.reasons[0].why == Why.UNSWEPT
    assert found.reasons[0].text == (
        f"It has become ready, and no process has swept it. {HERE} held it, and has not beaten for 21 s."
    )
    b.sweep()
    assert explained(b, id_).reasons[-1].text == (
        "No worker takes from the queue, and no call waits. Its last lease ended by its time:"
        " `fdbqueue doctor` names processes that are silent."
    )


def test_an_overdue_holder_counts_as_ended(bench: MakeBench) -> None:
    """Nothing has swept it yet: that is when an operator looks."""
    b = bench()
    id_ = b.put("x")
    b.queue.take(b.db, 0, session=Session(b.db, ttr=30))
    b.clock.advance(100)
    [reason] = explained(b, id_).reasons
    assert (reason.why, reason.at) == (Why.HOLDER_ENDED, b.clock.now())
    assert reason.cure == "The next sweep or take gives it back."


def test_no_number_of_workers_helps_behind_a_key(bench: MakeBench) -> None:
    b = bench(kind="utube")
    _, second = b.put("x", key="a"), b.put("y", key="a")
    assert explained(b, second).reasons[0].cure == "The tasks of its key before it end."


def test_the_place_of_a_busy_key_is_the_one_that_it_will_have(bench: MakeBench) -> None:
    b = bench(kind="utube")
    first = b.put("first", key="a")
    b.take()
    for key in "bcd":
        b.put(key, key=key)
    waits = b.put("x", key="a")
    busy = explained(b, waits).place
    assert busy == TaskPlace(3, 0, by_key=True, key_is_open=False)
    b.queue.ack(b.db, first, session=b.session)
    assert explained(b, waits).place == TaskPlace(3, 0, by_key=True)


def test_a_task_that_is_due_has_no_place_before_a_sweep(bench: MakeBench) -> None:
    b = bench(kind="utubettl", ttr=60)
    id_ = b.put("x", key="a")
    b.take()
    b.clock.advance(60)
    found = explained(b, id_)
    assert (found.place, found.key_holders) == (None, ())
    assert [reason.why for reason in found.reasons] == [Why.UNSWEPT, Why.NO_WORKER]


def test_the_turn_in_a_fair_queue_is_told_at_the_front_too(bench: MakeBench) -> None:
    b = bench(kind="fair")
    ids = [b.put(n, key="a") for n in range(9)]
    b.put("x", key="b")
    last = explained(b, ids[-1])
    assert last.reasons[1].text == "There are 0 keys before it. Its turn is in round 9; now is 0."


@pytest.mark.parametrize("name", ["my q; echo hi", "-odd"])
def test_a_cure_can_be_pasted_into_a_shell(still_db: Database, name: str) -> None:
    queue = TaskQueue.create(still_db, name, "fifottl")
    id_ = queue.put(still_db, "x").id
    queue.pause(still_db)
    queue.bury(still_db, id_)
    commands = [shlex.split(reason.cure) for reason in queue.explain(still_db, id_).reasons]
    names = ["--", name] if name.startswith("-") else [name]
    assert commands[0] == ["fdbqueue", "resume", *names]
    assert commands[1] == ["fdbqueue", "dead", "kick", *names, id_]


def test_a_damaged_state_of_a_key_conflicts_with_nothing(bench: MakeBench) -> None:
    b = bench(kind="utube")
    id_ = b.put("x", key="a")
    state = b.queue._shape.discipline.state_key(layer.pack(("a",)))  # type: ignore[attr-defined]
    b.db[state] = b"junk"
    tr = b.db.create_transaction()
    b.queue.explain(tr, id_)
    tr[b"other"] = b""
    b.db[state] = b"more junk"
    tr.commit().wait()


def test_a_failure_is_told_in_one_visible_line(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    id_ = b.put("x")
    b.queue.bury(b.db, id_, failure=Failure("ValueError", "odd\x1b[31m\n" + 900 * "x"))
    text = explained(b, id_).reasons[0].text
    assert text.startswith("It is buried after ValueError: odd\\x1b[31m x")
    assert len(text) < 300


def stand_in_line(db: Database, queue: TaskQueue, deadline_us: int, renewed_us: int = 0) -> None:
    """Write a request, and its renewal, as a waiting call does."""
    line, ticket = LineKeys(queue._shape.keys.line), Ticket(bytes(10), bytes(limits.RANDOM_SUFFIX_BYTES), 1)
    db[line.request(ticket)] = request_value(1, deadline_us, b"")
    if renewed_us:
        db[line.renewal(ticket)] = renewal_value(renewed_us)


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl", "fair", "bag"])
@pytest.mark.parametrize("renewed", [False, True])
def test_a_call_that_waits_is_told(still_db: Database, kind: str, clock: StillClock, renewed: bool) -> None:
    queue = TaskQueue.create(still_db, "bench", kind)
    id_ = queue.put(still_db, "x", **({"key": "a"} if kind not in ("fifo", "fifottl", "bag") else {})).id
    now_us = clock.now_us()
    stand_in_line(still_db, queue, now_us if renewed else now_us + 1, now_us + 1 if renewed else 0)
    found: Any = queue.explain(still_db, id_)
    assert found.waiting == 1
    assert [(reason.why, reason.at) for reason in found.reasons] == [(Why.NEXT, clock.now())]


def test_a_call_that_waits_takes_no_task_over_its_limit(still_db: Database, clock: StillClock) -> None:
    Limit.set(still_db, "api", slots=1)
    queue = TaskQueue.create(still_db, "bench", "fifo", limits=["api"])
    queue.put(still_db, "runs")
    assert queue.take(still_db, 0, session=Session(still_db, ttr=60)) is not None
    id_ = queue.put(still_db, "waits").id
    stand_in_line(still_db, queue, clock.now_us() + 1, 0)
    reached, waiting = queue.explain(still_db, id_).reasons
    assert (reached.why, waiting.why) == (Why.LIMIT_REACHED, Why.NEXT)
    assert (waiting.cure, waiting.at) == ("Its turn comes.", None)


def test_a_call_that_has_died_waits_no_more(still_db: Database, clock: StillClock) -> None:
    queue = TaskQueue.create(still_db, "bench", "fifo")
    id_ = queue.put(still_db, "x").id
    stand_in_line(still_db, queue, clock.now_us(), clock.now_us())
    found = queue.explain(still_db, id_)
    assert (found.waiting, [reason.why for reason in found.reasons]) == (0, [Why.NO_WORKER])


@pytest.mark.parametrize(
    ("queues", "live", "counted"), [('["bench"]', 1, 1), ('["bench"]', 0, 0), ('["b"]', 1, 0)]
)
def test_live_workers_of_the_queue_are_counted(
    still_db: Database, clock: StillClock, queues: str, live: int, counted: int
) -> None:
    queue = TaskQueue.create(still_db, "bench", "fifo")
    id_ = queue.put(still_db, "x").id
    session = bytes(16)
    still_db[KEYS.presence(session)] = f'{{"queues": {queues}}}'.encode()
    still_db[KEYS.presence(bytes(15))] = b"damaged"
    still_db[KEYS.heartbeat(session)] = layer.pack((clock.now_us() + live,))
    found = queue.explain(still_db, id_)
    assert found.workers == counted
    assert found.reasons[-1].why == (Why.WORKERS_BUSY if counted else Why.NO_WORKER)


def test_a_worker_with_a_damaged_heartbeat_counts_as_dead(still_db: Database) -> None:
    queue = TaskQueue.create(still_db, "bench", "fifo")
    id_ = queue.put(still_db, "x").id
    still_db[KEYS.presence(bytes(16))] = b'{"queues": ["bench"]}'
    still_db[KEYS.heartbeat(bytes(16))] = b"damaged"
    assert queue.explain(still_db, id_).workers == 0


def test_a_kind_with_an_order_of_its_own_has_no_place(still_db: Database) -> None:
    class Other:
        def __init__(self, keys: Any, options: Any) -> None:
            self._fifo = Fifo(keys, options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fifo, name)

    fdbqueue.register_kind("an order of its own", Other, {"ttr"})  # type: ignore[arg-type]
    queue = TaskQueue.create(still_db, "bench", "an order of its own")
    ids = [queue.put(still_db, n).id for n in range(3)]
    found = queue.explain(still_db, ids[2])
    assert (found.place, [reason.why for reason in found.reasons]) == (None, [Why.NO_WORKER])


def test_a_held_task_key_names_its_old_partition(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key), queue.put(db, "old", key=key)
    queue.repartition(db, 4)
    found = queue.explain(db, queue.put(db, "new", key=key))
    assert found.held == HeldKey(partition=0, tasks=2, before=2, partitions=4)
    assert found.reasons[0].why == Why.KEY_HELD
    assert found.reasons[0].text == (
        "Its key waits for 2 tasks of it in partition 0, since a repartition from 2 to 4."
    )
    other = queue.explain(db, queue.put(db, "other", key=key_in(0, 4)))
    assert other.held is None


def test_a_held_task_key_waits_for_taken_tasks_too(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key)
    assert queue.take(db, 0) is not None
    queue.repartition(db, 4)
    found = queue.explain(db, queue.put(db, "new", key=key))
    assert found.held == HeldKey(partition=0, tasks=1, before=2, partitions=4)


def test_a_call_that_waits_for_all_partitions_counts(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space, partitions=2)
    id_ = queue.put(db, "later", delay=600).id
    taker = Thread(target=lambda: queue.take(db, 60))
    taker.start()
    wait_until(lambda: queue.explain(db, id_).waiting == 1)
    queue.put(db, "now")
    taker.join(30)
    assert not taker.is_alive()


def test_the_number_of_tasks_is_that_of_the_queue(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space, partitions=4)
    tasks = [queue.put(db, number) for number in range(8)]
    assert queue.explain(db, tasks[0]).tasks == 8


def test_a_call_that_waits_takes_no_held_task(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space, partitions=2)
    key = moving_key(0, 2, 4)
    queue.put(db, "old", key=key)
    old = queue.take(db, 0)
    assert old is not None
    queue.repartition(db, 4)
    id_ = queue.put(db, "new", key=key).id
    taker = Thread(target=lambda: queue.take(db, 60))
    taker.start()
    wait_until(lambda: queue.explain(db, id_).waiting == 1)
    last = queue.explain(db, id_).reasons[-1]
    queue.ack(db, old)
    taker.join(30)
    assert not taker.is_alive()
    assert (last.why, last.cure) == (Why.NEXT, "Its turn comes.")
