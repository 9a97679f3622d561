"""Acks of one process combine: of many threads that end tasks of one queue at once, one ends those of all.

A few at a time go each by itself: nobody waits for another's commit, and a thread that is alone pays for
nothing. Beyond limits.ACKS_APART_MAX an ack joins, and whoever leads (calls/combine.py) does all that have
joined in one transaction. What a caller is told is its own: who holds its task no longer fails nobody else.

What befalls a batch as a whole befalls nobody in it: after limits.ATTEMPTS_TOGETHER_MAX lost conflicts, or an
error that one of them has brought along, each goes by itself. So no ack that always meets somebody (a
sweeper, a heartbeat, another process at the same key) holds the others up for longer than that.

Only acks join. What else ends a lease is for when something went wrong, and has arguments of its own (a
delay, a failure); heartbeats are batches already (`TaskQueue.renew`).
"""

from functools import partial

from fdbqueue import limits
from fdbqueue.calls.combine import Call, Combiner
from fdbqueue.calls.once import LostConflict, run_once
from fdbqueue.calls.writes import write_claimed
from fdbqueue.database import Database, engine_errors
from fdbqueue.errors import NotTaken
from fdbqueue.seam import Transaction
from fdbqueue.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.verbs import UNKNOWN, Target

Ended = Task | NotTaken | None
"""What came of an ack in a batch; None, if it is to go by itself."""


class Acks:
    """The acks of one process in one queue, given a database."""

    def __init__(self, database: Database, source: TaskSource) -> None:
        self._database = database
        self._source = source
        self._crew = Combiner(database.runtime, self._ack_for)
        # append, pop and len are atomic: no lock on the way of every call. Whoever counts too many goes the
        # other way, which is as right.
        self._under_way: list[bytes] = []

    def ack(self, target: Target) -> Task:
        """Raises NotTaken."""
        self._under_way.append(target.id)
        try:
            if len(self._under_way) <= limits.ACKS_APART_MAX or not self._may_join(target):
                return self._ack_alone(target)
            return self._ack_together(target)
        finally:
            self._under_way.pop()

    def _may_join(self, target: Target) -> bool:
        """Not if a payload must be read: a batch is bounded in tasks, and would not be in bytes."""
        return target.data is not UNKNOWN and not self._source.tells

    def _ack_alone(self, target: Target) -> Task:
        body = partial(self._source.within, verb=partial(verbs.ack, target=target))
        return run_once(self._database, self._source.shape.root, body)

    def _ack_together(self, target: Target) -> Task:
        [ended] = self._crew.call([target]).answer
        if isinstance(ended, NotTaken):
            raise ended
        return self._ack_alone(target) if ended is None else ended

    def _ack_for(self, crew: Combiner, _: Call) -> None:
        for _attempt in range(limits.ATTEMPTS_TOGETHER_MAX):
            try:
                self._ack_all(crew)
            except LostConflict:
                continue
            except engine_errors():
                raise  # what has become of the last commit may be unknown: nobody is to try again
            except Exception:
                break  # whoever has brought it along meets it again
            else:
                return
        crew.deal([None] * limits.VERB_BATCH, to_all=True)

    def _ack_all(self, crew: Combiner) -> None:
        """Raises LostConflict, having changed nothing."""

        def ack_each(tr: Transaction, items: list[Target], random: bytes) -> list[Task | NotTaken]:  # noqa: ARG001
            return self._source.within(tr, partial(verbs.ack_each, targets=items))

        write_claimed(
            self._database,
            self._source.shape.root,
            crew,
            ack_each,
            count_max=limits.VERB_BATCH,
            wrote=lambda ended: any(isinstance(one, Task) for one in ended),
            yield_to_conflict=True,
        )
