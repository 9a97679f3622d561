"""The bindings of exchanges to queues, which all processes share, and the queues that go with a connection.

A queue with `auto_delete` or `exclusive` belongs to the session of the connection that declared it. After the
death of that session no message is routed to it, and the next declaration of such a queue removes it.
"""

from collections.abc import Sequence

from fdbqueue import limits
from fdbqueue.celery import keys
from fdbqueue.database import run
from fdbqueue.registry.registry import Registry
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import AnyDatabase, DatabaseOrTransaction, Transaction

Binding = tuple[str, str]
"""A routing key and a queue."""


def own(db: AnyDatabase, queue: str, owner: bytes) -> None:
    """Note that `queue` goes with the session `owner`."""
    run(db, lambda tr: tr.set(keys.owned(queue), owner))


def bind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    """Route messages of `exchange` with `routing_key` to `queue`.

    Reads: the owner of the queue.
    """

    def body(tr: Transaction) -> None:
        tr.set(keys.binding(exchange, routing_key, queue), tr.get(keys.owned(queue)).value or b"")

    run(target, body)


def unbind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    run(target, lambda tr: tr.clear(keys.binding(exchange, routing_key, queue)))


def bound(target: DatabaseOrTransaction, exchange: str) -> list[Binding]:
    """The bindings of `exchange`, without those of queues with a dead session.

    Reads: the bindings, and the sessions of their owners.
    """
    return run(target, lambda tr: _bound(tr, exchange))


def _bound(tr: Transaction, exchange: str) -> list[Binding]:
    under, roots = keys.bindings(exchange), RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [(row.key, tr.get(roots.session(row.value)) if row.value else None) for row in rows]
    return [keys.binding_of(key)[1:] for key, owner in asked if owner is None or owner.present()]


def forget_exchange(db: AnyDatabase, exchange: str) -> None:
    under = keys.bindings(exchange)
    run(db, lambda tr: tr.clear_range(under.start, under.stop))


def drop_queue(db: AnyDatabase, registry: Registry, queue: str) -> None:
    """Remove the queue with its messages and bindings. Does nothing without a queue of that name."""
    registry.write(db, lambda tr: _drop(tr, registry, [queue]))


def drop_dead(db: AnyDatabase, registry: Registry) -> None:
    """Remove some queues with a dead session. Their number has a bound for each call."""
    if run(db, _dead):
        # Looked at again in the transaction that removes them: another process may have declared one of them.
        registry.write(db, lambda tr: _drop(tr, registry, _dead(tr)))


def _dead(tr: Transaction) -> list[str]:
    under, roots = keys.all_owned(), RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [(row.key, tr.get(roots.session(row.value))) for row in rows]
    return [keys.owned_of(key) for key, owner in asked if not owner.present()][: limits.DEAD_QUEUES_DROPPED]


def _drop(tr: Transaction, registry: Registry, queues: Sequence[str]) -> None:
    under = keys.all_bindings()
    for row in tr.snapshot.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX):
        if keys.binding_of(row.key)[2] in queues:
            tr.clear(row.key)
    for queue in queues:
        tr.clear(keys.owned(queue))
        if registry.look(tr, queue) is not None:
            registry.drop(tr, queue)
