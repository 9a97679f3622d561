"""A detached lease belongs to no process: whoever has its text acts under it, until its own time is over."""

from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Limit, TaskQueue, aio, verify
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, NotTaken
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import Failure, TaskState
from fdbqueue.tasks.detached import forget
from fdbqueue.tasks.options import kind_names
from tests.aio.support import on_memory
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, StillClock


def detached(b: Bench, ttr: float | None = 60, **options: Any) -> str:
    b.put("x", **options)
    return b.queue.detach(b.db, b.take(), ttr)


@pytest.mark.parametrize("kind", kind_names())
def test_it_outlives_its_process_and_ends_by_its_own_time(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    token = detached(b)
    b.session.end()
    b.clock.advance(59)
    b.sweep()
    assert b.queue.leased(b.db, token).data == "x"
    b.clock.advance(2)
    b.sweep()
    with pytest.raises(NotTaken):
        b.queue.leased(b.db, token)
    again = b.queue.take(b.db, 0)
    assert (again.data, again.attempts, again.orphaned) == ("x", 2, 1)


def test_it_ends_without_any_sweep(bench: MakeBench) -> None:
    """A machine has slept, and no process of the queue has run since."""
    b = bench()
    token = detached(b)
    task = b.queue.leased(b.db, token)
    b.clock.advance(1_000_000)
    with pytest.raises(NotTaken):
        b.queue.ack(b.db, task)


@pytest.mark.parametrize("verb", ["ack", "release", "defer", "bury", "progress", "step", "touch"])
def test_each_verb_acts_under_it(bench: MakeBench, verb: str) -> None:
    b = bench("fifottl")
    token = detached(b)
    beside = {"defer": (5,), "progress": (0.5,), "step": ("s", lambda: 1), "touch": (5,)}.get(verb, ())
    task = b.queue.leased(b.db, token)
    getattr(b.queue, verb)(b.db, task, *beside)
    assert verify(b.db).findings == ()


def test_a_second_call_lengthens_it(bench: MakeBench) -> None:
    b = bench()
    token = detached(b, 10)
    b.clock.advance(9)
    assert b.queue.detach(b.db, b.queue.leased(b.db, token), 100) == token
    b.clock.advance(99)
    b.sweep()
    assert b.queue.leased(b.db, token).state == TaskState.TAKEN
    b.clock.advance(2)
    b.sweep()
    assert b.counts("ready", "taken") == (1, 0)


def test_a_second_call_may_shorten_it(bench: MakeBench) -> None:
    b = bench()
    token = detached(b, 100)
    b.queue.detach(b.db, b.queue.leased(b.db, token), 1)
    b.clock.advance(2)
    b.sweep()
    assert b.counts("ready", "taken") == (1, 0)


@pytest.mark.parametrize(("kind", "options", "usual_s"), [("fifo", {}, 60), ("fifottl", {"ttr": 7}, 7)])
def test_without_a_ttr_it_has_that_of_the_task(
    bench: MakeBench, kind: str, options: dict[str, Any], usual_s: int
) -> None:
    b = bench(kind, **options)
    until = b.queue.leased(b.db, detached(b, None)).until
    assert until == pytest.approx(b.clock.now() + usual_s)


def test_an_old_text_is_refused_when_the_task_has_another_holder(bench: MakeBench) -> None:
    b = bench()
    old = detached(b, 1)
    b.clock.advance(2)
    b.sweep()
    new = b.queue.detach(b.db, b.take(), 60)
    assert old.partition("-")[0] == new.partition("-")[0]
    with pytest.raises(NotTaken):
        b.queue.leased(b.db, old)
    assert b.queue.leased(b.db, new).attempts == 2


def test_the_text_of_another_queue_is_refused(bench: MakeBench) -> None:
    b = bench()
    token, other = detached(b), TaskQueue.create(b.db, "other")
    other.put(b.db, "y")
    with pytest.raises(NotTaken):
        other.leased(b.db, token)


def test_a_text_that_is_none_is_refused(bench: MakeBench) -> None:
    b = bench()
    token = detached(b)
    id_, _, rest = token.partition("-")
    cut = [rest, id_, f"{id_}-", f"{id_}-ab", ""]
    longer = [f"{token}0", f"{token}z", f" {token}", f"{id_}-{'ab' * 200}"]
    others = [f"{id_}-{rest[:-2]} 0", token.replace("-", "_"), f"{id_}-{'AB' * 12}", None, 7, b"x"]
    for text in [*cut, *longer, *others]:
        with pytest.raises(InvalidArgument, match="token must be the text of a detached lease"):
            b.queue.leased(b.db, text)


@pytest.mark.parametrize("ttr", [0, -1, float("inf"), float("nan"), "60", True])
def test_a_refused_ttr_writes_nothing(bench: MakeBench, ttr: Any) -> None:
    b = bench()
    b.put("x")
    task, before = b.take(), b.stored()
    with pytest.raises(InvalidArgument, match="ttr must be more than 0 seconds"):
        b.queue.detach(b.db, task, ttr)
    for process_id in (0, "7"):
        with pytest.raises(InvalidArgument, match="process_id"):
            b.queue.detach(b.db, task, 1, process_id=process_id)
    assert b.stored() == before


def test_a_task_that_is_not_held_is_refused(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    task = b.take()
    b.queue.release(b.db, task)
    before = b.stored()
    with pytest.raises(NotTaken):
        b.queue.detach(b.db, task, 60)
    assert b.stored() == before


def test_in_a_transaction_it_is_detached_with_its_commit(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    tr = b.db.create_transaction()
    token = b.queue.detach(tr, b.queue.take(tr, session=b.session), 60)
    assert b.counts("ready") == (1,)
    tr.commit().wait()
    b.session.end()
    b.queue.ack(b.db, b.queue.leased(b.db, token))
    assert b.counts("ready", "taken", "done") == (0, 0, 1)


def test_its_holder_is_the_process_that_is_told(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    token = b.queue.detach(b.db, b.take(), 60, process_id=4711)
    holder = b.queue.holder(b.db, b.queue.leased(b.db, token))
    assert [one.process_id for one in holder.processes] == [4711]
    assert holder.dies == pytest.approx(b.clock.now() + 60)


def test_its_slot_has_the_new_holder(bench: MakeBench, still_db: Database) -> None:
    """A look at the limit finds a session that lives."""
    Limit.set(still_db, "api", slots=1)
    b = bench(limits=["api"])
    token = detached(b)
    b.put("y")
    b.session.end()
    task = b.queue.leased(b.db, token)
    [reached] = b.queue.explain(b.db, b.queue.tasks(b.db, "r", 1)[0].id).reached
    assert [one.session for one in reached.holders] == [task.session]
    assert verify(still_db).findings == ()
    b.queue.ack(b.db, task)
    assert b.queue.take(b.db, 0).data == "y"


def test_it_holds_its_task_key(bench: MakeBench) -> None:
    b = bench("utube")
    token = detached(b, key="k")
    b.put("y", key="k")
    assert b.take() is None
    b.queue.ack(b.db, b.queue.leased(b.db, token))
    assert b.take().data == "y"


def test_a_cancelled_task_tells_it(bench: MakeBench) -> None:
    b = bench()
    token = detached(b, 5)
    b.queue.cancel(b.db, token.partition("-")[0])
    assert b.queue.leased(b.db, token).cancel_asked is not None
    b.clock.advance(6)
    b.sweep()
    assert b.counts("ready", "taken", "done") == (0, 0, 1)


def test_its_session_goes_at_its_time_or_when_it_is_forgotten(bench: MakeBench) -> None:
    b = bench()

    def other_sessions() -> int:
        under = RootKeys(DEFAULT_ROOT).beats_due
        return sum(1 for _ in b.db.get_range(under.start, under.stop)) - 1

    first, second = (b.queue.leased(b.db, detached(b, 60)) for _ in range(2))
    b.queue.ack(b.db, first)
    b.queue.release(b.db, second, failure=Failure("Odd"))
    assert other_sessions() == 2
    run(b.db, lambda tr: forget(tr, RootKeys(DEFAULT_ROOT), first.token or b""))
    assert (other_sessions(), verify(b.db).findings) == (1, ())
    b.clock.advance(61)
    b.sweep()
    assert (other_sessions(), verify(b.db).findings) == (0, ())
    assert b.counts("ready") == (1,)


def test_release_all_and_a_truncate_end_it(bench: MakeBench) -> None:
    b = bench()
    token = detached(b)
    b.queue.release_all(b.db)
    with pytest.raises(NotTaken):
        b.queue.leased(b.db, token)
    token = b.queue.detach(b.db, b.take(), 60)
    b.queue.truncate(b.db)
    with pytest.raises(NotTaken):
        b.queue.leased(b.db, token)


def test_a_grant_of_a_consumer_has_both_verbs(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    consumer = b.queue.consumer()
    token = consumer.detach(b.db, consumer.take(b.db, 0), 60)
    consumer.ack(b.db, consumer.leased(b.db, token))
    assert b.counts("done") == (1,)


def test_with_partitions_it_finds_its_task(parted: MakeParted, clock: StillClock) -> None:
    b = parted("fifottl", partitions=4)
    b.put_each(range(8))
    tokens = {b.queue.detach(b.db, task, 60): task.data for task in iter(b.take, None)}
    assert len(tokens) == 8
    b.session.end()
    b.repartition(2)
    for token, data in tokens.items():
        task = b.queue.leased(b.db, token)
        assert task.data == data
        b.queue.ack(b.db, task)
    clock.advance(61)
    b.settle()
    assert verify(b.db, root=b.root).findings == ()


@on_memory
async def test_awaited(db: aio.Database) -> None:
    queue = await aio.TaskQueue.create(db, "q")
    await queue.put(db, "x")
    token = await queue.detach(db, await queue.take(db, 0), 60)
    acked = await queue.ack(db, await queue.leased(db, token))
    assert (acked.data, await queue.waiting(db, 1)) == ("x", [])


def test_on_each_engine_another_database_acts_under_it(db: Database, url: str, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    queue.put(db, "x")
    task = queue.take(db, 0)
    assert task is not None
    token = queue.detach(db, task, 60)
    if url == "memory:":
        queue.ack(db, queue.leased(db, token))
    else:
        with fdbqueue.open(url) as other:
            same = TaskQueue.open(other, "q", root=space)
            same.ack(other, same.leased(other, token))
    assert queue.statistics(db)["tasks"]["done"] == 1


def test_explain_tells_that_no_process_holds_it(bench: MakeBench) -> None:
    b = bench()
    detached(b, 50)
    [task] = b.queue.tasks(b.db, TaskState.TAKEN, 1)
    b.clock.advance(20)
    reason = b.queue.explain(b.db, task).reasons[0]
    assert reason.text.startswith("A detached lease that ")
    assert reason.cure == "Its token ends the lease. Otherwise it comes back in 30 s."
