"""FairHandle: what every handle of a fair queue has: key function, codec, items and services."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import WHOLE_MAX, checked_prefix, checked_whole
from fdbqueue.core.aside import Aside
from fdbqueue.core.calls.writes import Writes
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import Database, as_database, is_transaction, run, runtime_of
from fdbqueue.core.deferred import checked_function, require_finished
from fdbqueue.core.handle import Handle
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.observing import Call
from fdbqueue.core.registry.registry import Guard, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.queues.fair.items import FairItems
from fdbqueue.tasks.kinds import Draft, key_bytes, packed_weights
from fdbqueue.tasks.records.keys import TaskKeys


class FairHandle(Handle):
    """Key function, codec, keys and services of a fair queue in a subspace."""

    __slots__ = (
        "_aside",
        "_ask_exists",
        "_capacity",
        "_codec",
        "_items",
        "_key",
        "_receipts",
        "_root",
        "_service",
    )

    _aside: Aside
    _ask_exists: Guard

    def __init__(
        self,
        subspace: Any,
        *,
        key: Callable[[Any], Any],
        capacity: int | None = 128,
        weights: Mapping[Any, int] | None = None,
        codec: str = "json",
        type: Any = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """Raises: InvalidArgument, DeferredBody, UnknownCodec; WrongType for the subspace."""
        if capacity is not None:
            checked_whole("capacity", capacity, 0, WHOLE_MAX)
        packed = packed_weights(weights)
        self._key = checked_function("key", key)
        self._capacity = capacity
        self._codec = codec_named(codec, type)
        prefix = checked_prefix("subspace", subspace)
        registry = Registry(root)
        self._root = self._receipts = registry.keys
        self._items = FairItems(registry, TaskKeys(subspace), self._codec, packed)
        self._aside, self._ask_exists = self._items.aside, self._items.guard
        # Calls combine only with calls that would do exactly the same.
        self._service = (
            "fair",
            prefix,
            self._codec.key,
            frozenset((packed or {}).items()),
            self._root.prefix,
        )

    def _shown(self) -> dict[str, Any]:
        return {"prefix": self._service[1], "capacity": self._capacity}

    def _key_of(self, item: Any) -> bytes:
        return key_bytes(require_finished("the key function", self._key(item)))

    def _calls_of(self, target: DatabaseOrTransaction) -> "FairCalls":
        return as_database(target).service(self._service, lambda db: FairCalls(db, self._items, self._root))

    def _call(self, tr: DatabaseOrTransaction, name: str, *, waits: bool = False) -> Call:
        within = is_transaction(tr)
        runtime = runtime_of(tr) if within else as_database(tr).runtime
        return Call(runtime, name, "", within=within, waits=waits)


class FairCalls:
    """The combined calls of one process on one fair queue of one database, and its place in the line."""

    def __init__(self, database: Database, items: FairItems, root: RootKeys) -> None:
        self._database = database
        self._items = items
        self._puts = Writes(database, root, self._put)
        self.takes = Takes(database, root, items.line, items.taker.take_in_turn)

    def close(self) -> None:
        """Does nothing: the database has ended the waits."""

    def require_none_passed(self) -> None:
        """Raises: the error of an item that was passed over, if one is left."""
        if self._items.passed:
            run(self._database, self._items.require_none_passed)

    def is_needed(self) -> bool:
        return False

    def put(self, new: Draft) -> None:
        self._puts.call([new], len(new.payload) + limits.TASK_KEY_COPIES * len(new.key))

    def _put(self, tr: Transaction, items: list[Draft], random: bytes) -> Sequence[Draft]:
        self._items.append(tr, items, random, self._database.runtime.now_us())
        return items
