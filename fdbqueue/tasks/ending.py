"""What the end of a session does to task queues: its leases are over, its temporary queues are empty."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.elements.queue import KIND as ELEMENTS
from fdbqueue.elements.simple import KIND as SIMPLE_ELEMENTS
from fdbqueue.errors import QueueNotFound
from fdbqueue.recipe.queue import KIND as PLAIN
from fdbqueue.registry import Registry
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.sessions.ending import register_ender
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.shape import Shape

_WITHOUT_SESSIONS = frozenset({PLAIN, ELEMENTS, SIMPLE_ELEMENTS})


@register_ender
def end_in_all_queues(database: Database, keys: RootKeys, session: bytes, died: bool) -> bool:
    """Bounded transactions, each safe to repeat; False if queues of an unknown kind were left out.

    If it `died`, its attempts have failed.
    """
    registry = Registry(Subspace((), keys.prefix))
    complete, after = True, ""
    while found := registry.names(database, after, limits.QUEUES_PER_TRANSACTION):
        after = found[-1].name
        complete &= all(is_kind(queue.kind) or queue.kind in _WITHOUT_SESSIONS for queue in found)
        shapes = [Shape(registry, queue) for queue in found if is_kind(queue.kind)]
        for shape in run(database, partial(_concerned, shapes, session)):
            with suppress(QueueNotFound):
                end_in(database, shape, session, died)
    return complete


def _concerned(shapes: Sequence[Shape], session: bytes, tr: Transaction) -> list[Shape]:
    under = [shape.keys.all_taken_by(session) for shape in shapes]
    asked = [tr.snapshot.get_range(taken.start, taken.stop, limit=1) for taken in under]
    held = [bool(taken.to_list()) for taken in asked]
    return [shape for shape, holds in zip(shapes, held, strict=True) if holds or shape.owner == session]


def end_in(database: Database, shape: Shape, session: bytes, died: bool) -> None:
    """The same in one queue. Bounded transactions, each safe to repeat."""
    calls = calls_of(database, shape)
    if shape.owner == session:
        run(database, lambda tr: calls.within(tr, verbs.truncate))

    def release(change: Change) -> int:
        return verbs.release_taken(change, shape.keys.all_taken_by(session), limits.VERB_BATCH, died)

    while run(database, lambda tr: calls.within(tr, release)):
        pass
