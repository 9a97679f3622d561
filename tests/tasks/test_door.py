"""The door of a task queue asks the guard for every verb, so no verb can forget it."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueDropped, TaskNotFound
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from tests.tasks.support import MakeBench

KEY = b"a key of no queue"


def reads(change: Change) -> Any:
    """Read past the records of tasks, and ask no guard."""
    return change.tr.get(KEY).value


def writes(change: Change) -> None:
    """Write blindly, and ask no guard."""
    change.tr.set(KEY, b"written")


def refuses(change: Change) -> None:
    """Find no task, and ask no guard."""
    raise TaskNotFound(id="a task", name=change.shape.name)


@pytest.mark.parametrize("verb", [reads, writes, refuses])
@pytest.mark.parametrize("door", ["look", "within"])
def test_a_verb_that_asks_no_guard_is_refused(bench: MakeBench, verb: Callable[[Change], Any], door: str):
    b = bench()
    source = calls_of(b.db, b.queue._shape).source
    b.queue.drop(b.db)
    with pytest.raises(QueueDropped):
        run(b.db, lambda tr: getattr(source, door)(tr, verb))
    assert b.db[KEY] is None


def test_a_verb_of_a_queue_that_is_there_is_answered(bench: MakeBench) -> None:
    b = bench()
    source = calls_of(b.db, b.queue._shape).source
    run(b.db, lambda tr: source.within(tr, writes))
    assert run(b.db, lambda tr: source.look(tr, reads)) == b"written"
    with pytest.raises(TaskNotFound):
        run(b.db, lambda tr: source.look(tr, refuses))


def test_the_guard_is_asked_before_the_first_read(bench: MakeBench) -> None:
    """Its read shares the round trip of the verb's first reads."""
    b = bench()
    source = calls_of(b.db, b.queue._shape).source
    steps = []
    ask = source.shape.guard

    def guard(tr: Any) -> Callable[[], None]:
        steps.append("asked")
        check = ask(tr)
        return lambda: steps.append("checked") or check()

    def verb(change: Change) -> None:
        steps.append("read")
        change.read([])

    source.shape.guard = guard
    run(b.db, lambda tr: source.look(tr, verb))
    assert steps == ["asked", "read", "checked"]


def test_a_lease_is_judged_by_the_time_before_its_read(bench: MakeBench) -> None:
    """A slow first read must not make a lease seem over that another transaction has renewed meanwhile."""
    b = bench("fifottl", ttr=2)
    b.put()
    task = b.take()
    source = calls_of(b.db, b.queue._shape).source
    ask, slow_reads = source.shape.guard, [True]

    def guard(tr: Any) -> Callable[[], None]:
        check = ask(tr)
        if slow_reads:
            slow_reads.clear()
            b.clock.advance(1.5)
            b.queue.renew(b.db, [task])
            b.clock.advance(1.5)
        return check

    source.shape.guard = guard
    b.queue.ack(b.db, task)
    assert b.counts("taken", "done") == (0, 1)
