"""The task queues of a broker, by the names of Celery's queues: `fdbqueue tasks celery` shows one.

All processes share the bindings of exchanges to queues. A queue with `auto_delete` or `exclusive` belongs to
the session of the connection that declared it. After the death of that session no message is routed to it,
and the next declaration of such a queue removes it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import QueueKindMismatch
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.task import Task, TaskState
from fdbqueue.integrations.celery import keys
from fdbqueue.integrations.celery.databases import current
from fdbqueue.integrations.common.queue_map import KIND, PRIORITY_MAX, QueueMap
from fdbqueue.tasks.queue import TaskQueue

_MS = 1000


def put_options(message: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """`pri`, `delay` and `ttl` of a message: its priority, the `eta` of its task, and its expiration."""
    properties, headers = message["properties"], message["headers"]
    delay_s = delay_of(headers.get("eta"), now_s)
    options: dict[str, Any] = {"pri": PRIORITY_MAX - priority_of(properties.get("priority"))}
    if delay_s > 0:
        options["delay"] = delay_s
    expiration_ms = properties.get("expiration")
    if expiration_ms is not None:
        # The life of a message begins with its publication, that of a task at the end of its delay.
        options["ttl"] = max(1 / _MS, float(expiration_ms) / _MS - delay_s)
    return options


def priority_of(given: Any) -> int:
    """The priority within its bounds; 0 for none."""
    with suppress(TypeError, ValueError):
        return max(0, min(int(given), PRIORITY_MAX))
    return 0


def delay_of(eta: Any, now_s: float) -> float:
    """Seconds until the `eta` of a task; 0 for none, and for one without a time zone. The worker holds such a
    task itself, as it knows the time zone of the application.
    """
    with suppress(TypeError, ValueError):
        due = datetime.fromisoformat(eta)
        return 0.0 if due.tzinfo is None else max(0.0, due.timestamp() - now_s)
    return 0.0


def is_message(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("properties"), dict) and "body" in data


def delivered(queue: str, task: Task) -> dict[str, Any]:
    """The message of a taken task, with a delivery tag that no other delivery has."""
    properties = dict(task.data["properties"])
    delivery = dict(properties.get("delivery_info") or {})
    if task.attempts > 1:
        delivery["redelivered"] = True
    properties |= {"delivery_info": delivery, "delivery_tag": tag_of(queue, task)}
    return {**task.data, "properties": properties}


def tag_of(queue: str, task: Task) -> str:
    return f"{queue}/{task.id}/{task.attempts}"


_KINDS = (KIND, "limfifottl")
"""Kinds with the options of a message: priority, delay and expiration."""


def _require_kind(queue: TaskQueue) -> None:
    if queue.kind not in _KINDS:
        raise QueueKindMismatch(name=queue.name, found=queue.kind, wanted=" or ".join(_KINDS))


class Queues(QueueMap):
    """The queues of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__(lambda: database, require=_require_kind)
        self.registry = Registry(DEFAULT_ROOT)

    def get(self, name: str) -> TaskQueue:
        """Raises: QueueKindMismatch for a queue that cannot carry messages."""
        return self.made(name, current())

    def declare_owned(self, name: str, owner: bytes) -> None:
        """Make a queue that goes with the session `owner`."""
        drop_dead(self.database(), self.registry)
        self.forget(name)
        self.get(name)
        run(self.database(), lambda tr: tr.set(keys.owned(name), owner))

    def put(self, names: list[str], message: Mapping[str, Any]) -> None:
        """In the transaction of the program if there is one."""
        options = put_options(message, self.database().runtime.now())
        target = current() or self.database()
        for name in names:
            self.use(name, lambda queue: queue.put(target, dict(message), **options), current())

    def size(self, name: str) -> int:
        return self.use(name, lambda queue: queue.statistics(self.database())["tasks"]["ready"])

    def purge(self, name: str) -> int:
        """Remove the messages that are not held, in bounded transactions. Return their number."""
        removed = 0
        while more := self.use(name, self._purge_some):
            removed += more
        return removed

    def _purge_some(self, queue: TaskQueue) -> int:
        return self.registry.write(self.database(), lambda tr: _purge_some(tr, queue))

    def exists(self, name: str) -> bool:
        return self.registry.look(self.database(), name) is not None

    def drop(self, name: str) -> None:
        """Remove the queue with its messages and bindings. Does nothing without a queue of that name."""
        self.forget(name)
        self.registry.write(self.database(), lambda tr: _drop(tr, self.registry, [name]))


def _purge_some(tr: Transaction, queue: TaskQueue) -> int:
    """Remove a page of ready or delayed messages. Return their number, 0 if there are none."""
    for state in (TaskState.READY, TaskState.DELAYED):
        after: str | None = None
        while True:
            page = queue.tasks(tr, state, limits.VERB_BATCH, after=after)
            for task in page:
                queue.delete(tr, task.id)
            if page or page.next is None:
                break
            after = page.next
        if page:
            return len(page)
    return 0


Binding = tuple[str, str]
"""A routing key and a queue."""


def bind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    """Route messages of `exchange` with `routing_key` to `queue`. Reads: the owner of the queue."""

    def body(tr: Transaction) -> None:
        tr.set(keys.binding(exchange, routing_key, queue), tr.get(keys.owned(queue)).value or b"")

    run(target, body)


def unbind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    run(target, lambda tr: tr.clear(keys.binding(exchange, routing_key, queue)))


def bound(target: DatabaseOrTransaction, exchange: str) -> list[Binding]:
    """The bindings of `exchange`, without those of queues with a dead session."""
    return run(target, lambda tr: _bound(tr, exchange))


def _bound(tr: Transaction, exchange: str) -> list[Binding]:
    under, roots = keys.bindings(exchange), RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [
        (keys.binding_of(row.key), tr.get(roots.session(row.value)) if row.value else None) for row in rows
    ]
    return [found[1:] for found, owner in asked if found and (owner is None or owner.present())]


def forget_exchange(db: AnyDatabase, exchange: str) -> None:
    under = keys.bindings(exchange)
    run(db, lambda tr: tr.clear_range(under.start, under.stop))


def drop_dead(db: AnyDatabase, registry: Registry) -> None:
    """Remove some queues with a dead session. Their number has a bound for each call."""
    if run(db, _dead):
        # Looked at again in the transaction that removes them: another process may have declared one of them.
        registry.write(db, lambda tr: _drop(tr, registry, _dead(tr)))


def _dead(tr: Transaction) -> list[str]:
    under, roots = keys.all_owned, RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [(row.key, tr.get(roots.session(row.value))) for row in rows]
    return [keys.owned_of(key) for key, owner in asked if not owner.present()][: limits.DEAD_QUEUES_DROPPED]


def _drop(tr: Transaction, registry: Registry, queues: Sequence[str]) -> None:
    under = keys.all_bindings
    for row in tr.snapshot.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX):
        if keys.bound_queue_of(row.key) in queues:
            tr.clear(row.key)
    for queue in queues:
        tr.clear(keys.owned(queue))
        if registry.look(tr, queue) is not None:
            registry.drop(tr, queue)
