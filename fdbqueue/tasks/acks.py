"""Acks of one process combine: one thread acks the tasks of all threads that ack at once.

Up to limits.ACKS_APART_MAX acks at a time each have a transaction of their own, so a single thread waits for
no other. Above that an ack joins a batch, and the leader (calls/combine.py) acks all tasks of the batch in
one transaction. Each caller gets its own result: a stale lease fails its own caller only.

A batch that fails as a whole is taken apart, and each ack gets a transaction of its own. This happens after
limits.ATTEMPTS_TOGETHER_MAX lost conflicts, or after an error that one of the acks causes. So an ack that
always conflicts (with a sweep, a heartbeat, another process at the same task key) does not hold up the
others.

Only acks join. The other verbs that end a lease are rarer, and have arguments of their own: a delay, a
failure. Heartbeats are batches already (`TaskQueue.renew`).
"""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.calls import Call, Combiner
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.once import LostConflict, run_once, write_claimed
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.verbs import UNKNOWN, Target

Ended = Task | NotTaken | None
"""The result of an ack in a batch: the task, an error, or None if the ack needs a transaction of its own."""


class Acks:
    def __init__(self, database: Database, parts: Parts, callbacks: Callbacks) -> None:
        self._database = database
        self._parts = parts
        self._root = parts.shape.root
        self._callbacks = callbacks
        self._crew = Combiner(database.runtime, self._ack_for)
        # append, pop and len are atomic: no lock for each call. A count that is too high only chooses the
        # batch, which is right as well.
        self._under_way: list[bytes] = []

    def ack(self, target: Target) -> Task:
        """Ack the task, alone or in a batch. Raises: NotTaken."""
        self._under_way.append(target.id)
        try:
            # A batch is bounded in tasks, but not in bytes: a payload that has to be read joins none.
            may_join = target.data is not UNKNOWN and self._callbacks.callback is None
            if len(self._under_way) > limits.ACKS_APART_MAX and may_join:
                [ended] = self._crew.call([target]).answer
                if isinstance(ended, NotTaken):
                    raise ended
                if ended is not None:
                    return ended  # type: ignore[no-any-return]  # the answer of `verbs.ack_each`
            body = partial(self._parts.within, verb=partial(verbs.ack, target=target), id_=target.id)
            return run_once(self._database, self._root, body)
        finally:
            self._under_way.pop()

    def _ack_for(self, crew: Combiner, leader: Call) -> None:
        for _attempt in range(limits.ATTEMPTS_TOGETHER_MAX):
            try:
                self._ack_all(crew, leader)
            except LostConflict:
                continue
            except engine_errors():
                raise  # the result of the last commit may be unknown: another attempt could ack twice
            except Exception:
                break  # the call that causes it meets it again alone
            else:
                return
        crew.deal([None] * limits.VERB_BATCH, to_all=True)

    def _ack_all(self, crew: Combiner, leader: Call) -> None:
        """Ack the tasks of all claimed calls, or raise LostConflict and change nothing."""

        def ack_each(tr: Transaction, items: list[Target], random: bytes) -> Sequence[Ended]:  # noqa: ARG001
            return self._parts.each(tr, items, verbs.ack_each)

        write_claimed(
            self._database,
            self._root,
            ack_each,
            crew,
            leader,
            count_max=limits.VERB_BATCH,
            wrote=lambda ended: any(isinstance(one, Task) for one in ended),
            yield_to_conflict=True,
        )
