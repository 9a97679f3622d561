"""Cancelling: a waiting task ends at once, a taken one with its lease, and no attempt begins afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Group, Session
from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Look, Reason
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import RUN_ENDS
from fdbqueue.core.task import Failure
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.records import TaskKeys, unpacked
from tests.queue_support import registered
from tests.tasks.support import Bench, MakeBench

End = Callable[[Bench, Any], Any]

ENDED_BY: dict[str, End] = {
    "release": lambda b, task: b.queue.release(b.db, task),
    "a release with a failure": lambda b, task: b.queue.release(b.db, task, failure=Failure("odd")),
    "defer": lambda b, task: b.queue.defer(b.db, task, 5),
    "a take without a caller": lambda b, task: calls_of(b.db, b.queue._shape)._undo_take([task]),
    "give back": lambda b, task: b.queue.give_back(b.db, task, 5),
    "bury": lambda b, task: b.queue.bury(b.db, task),
    "bury by id": lambda b, task: b.queue.bury(b.db, task.id, failure=Failure("odd")),
    "release all": lambda b, _: b.queue.release_all(b.db),
    "the end of its session": lambda b, _: b.session.end(),
    "excuse": lambda b, task: b.queue.excuse(b.db, task),
    "the end of its time": lambda b, _: (b.clock.advance(61), b.sweep()),
}


def is_gone(b: Bench) -> bool:
    """True if no key of a task is left below the queue."""
    keys = TaskKeys(b.queue.contents)
    left = [key for key, _ in b.stored() if key.startswith(keys.prefix)]
    of_tasks = [key for key in left if key < keys.beside or keys.failures.start <= key]
    return not of_tasks and b.counts("total") == (0,)


def test_a_task_cancelled_on_its_way_to_a_call_does_not_begin(bench: MakeBench) -> None:
    """It has been delivered to a waiting call, which has not collected it yet."""
    b = bench()
    id_, now_us = b.put("x"), b.db.runtime.now_us()
    calls = calls_of(b.db, b.queue._shape)
    params, line = calls._new_params(b.session), calls.source.line
    owner, server = (
        registered(b.db, line, rid, now_us, params=params) for rid in (b"the-owner-00", b"the-server-0")
    )
    run(b.db, lambda tr: line.look(tr, server, Look(now_us, Reason.NEGLECT)))
    assert b.state(id_) == "t"
    b.queue.cancel(b.db, id_)
    assert not run(b.db, lambda tr: line.look(tr, owner, Look(now_us, Reason.NOTICE))).answers
    run(b.db, lambda tr: line.withdraw(tr, server))
    assert is_gone(b)
    assert b.counts("take", "cancel") == (0, 1)


def test_a_member_on_its_way_to_a_call_ends_with_its_group(bench: MakeBench) -> None:
    """No sweep has reached it between the cancel and the collection."""
    b = bench()
    of, now_us = Group.create(b.db), b.db.runtime.now_us()
    of.put(b.db, b.queue, "x")
    calls = calls_of(b.db, b.queue._shape)
    params, line = calls._new_params(b.session), calls.source.line
    owner, server = (
        registered(b.db, line, rid, now_us, params=params) for rid in (b"the-owner-00", b"the-server-0")
    )
    run(b.db, lambda tr: line.look(tr, server, Look(now_us, Reason.NEGLECT)))
    of.cancel(b.db)
    assert not run(b.db, lambda tr: line.look(tr, owner, Look(now_us, Reason.NOTICE))).answers
    assert b.counts("taken", "take", "cancel") == (0, 0, 1)
    assert of.progress(b.db).failed == 1


@pytest.mark.parametrize("by", ENDED_BY)
@pytest.mark.parametrize("kind", ["fifottl", "utubettl", "fair"])
def test_each_end_of_the_lease_ends_a_cancelled_task(bench: MakeBench, kind: str, by: str) -> None:
    b = bench(kind, ttr=60)
    b.put("x")
    task = b.take()
    b.queue.cancel(b.db, task.id)
    ENDED_BY[by](b, task)
    assert is_gone(b)
    assert b.counts("cancel", "done", "release", "bury", "ttr") == (1, 1, 0, 0, 0)


def test_the_run_of_a_lease_counts_its_cancel(bench: MakeBench) -> None:
    b = bench("fifottl")
    run = bytes(16)
    session = Session(b.db, ttr=1e9, run_id=run)
    b.put("x")
    task = b.queue.take(b.db, 0, session=session)
    b.queue.cancel(b.db, task.id)
    b.queue.release(b.db, task, failure=Failure("odd"))
    counted = unpacked(RUN_ENDS, b.db[RootKeys(DEFAULT_ROOT).run(run)])
    assert counted == dict.fromkeys(RUN_ENDS, 0) | {"cancelled": 1}
