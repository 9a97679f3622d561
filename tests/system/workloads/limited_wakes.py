"""Wakes across queues: a take that waits in one queue hears of a slot that comes back in the other one."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from fdbqueue.testing.trace import Trace
from tests.system.workloads.limited_checks import LAST_TAKE, NAMES, SLOTS, WAIT_S

WOKEN = "woken by the other queue"
PROMPT_S = 1.0
"""Less than limits.LOOK_EVERY_S, after which a take looks again by itself."""


def wake_across(client: Client, holding: TaskQueue, waiting: TaskQueue, named: Any, *, per_key: bool) -> None:
    """Let a task of one queue hold the only slot, a take of the other wait for it, and then give it back.

    `named`: the limits that both tasks name. Nothing else happens in the second queue meanwhile.
    """
    client.calm()
    db = client.db
    Limit.set(db, SLOTS, slots=1, per_key=per_key)
    with Session(db, ttr=1e6) as session:
        holding.put(db, "holds", limits=named, ttr=1e6)
        hold = partial(holding.take, db, WAIT_S, session=session)
        held = client.call(holding.name, LAST_TAKE, None, hold)  # none_is_stuck judges it
        waiting.put(db, "waits", limits=named, ttr=1e6)
        take = partial(waiting.take, db, WAIT_S, session=session)
        taker = client.thread(lambda other: other.call(waiting.name, WOKEN, None, take), "taker")
        client.runtime.sleep(0.4)
        if held is not None:
            client.call(waiting.name, "give back", None, partial(holding.ack, db, held))
        taker.join()
    for q in (holding, waiting):
        q.truncate(db)


def wakes_reach_other_queues(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each of these takes ended promptly after the slot came back."""
    for name in NAMES:
        backs = [op.ended_s for op in trace.of(name, "give back") if op.done]
        for back_s, op in zip(backs, trace.of(name, WOKEN), strict=False):
            if back_s is not None and op.done and (op.ended_s or 0.0) > back_s + PROMPT_S:
                late_s = (op.ended_s or 0.0) - back_s
                yield f"a take of {name!r} heard of a free slot of the other queue after {late_s:.1f} s"
