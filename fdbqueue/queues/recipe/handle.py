"""The handle of a recipe queue: its options, and how its verbs reach a transaction."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core.arguments import (
    checked_instance,
    checked_prefix,
)
from fdbqueue.core.aside import Aside
from fdbqueue.core.codec import codec_named, stored_codec
from fdbqueue.core.database import Database, as_database, is_transaction, runtime_of
from fdbqueue.core.deferred import checked_function
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.handle import Handle
from fdbqueue.core.observing import Call
from fdbqueue.core.partitions.current import Current
from fdbqueue.core.partitions.keys import SharedKeys, prefix_of
from fdbqueue.core.registry.registry import Guard, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.recipe.calls import QueueCalls, SimpleCalls
from fdbqueue.queues.recipe.items import Recipe
from fdbqueue.queues.recipe.keys import QueueKeys
from fdbqueue.queues.recipe.parts import RecipeParts

Calls = QueueCalls | SimpleCalls
"""The calls of a queue given a database. One instance per process and database, shared by its threads."""
CALLS: dict[str, Callable[[Database, RecipeParts, RootKeys], Calls]] = {
    "staged": QueueCalls,
    "simple": SimpleCalls,
}


class QueueHandle(Handle):
    """Codec, keys and services of a queue in a subspace."""

    __slots__ = (
        "_aside",
        "_ask_exists",
        "_calls",
        "_codec",
        "_current",
        "_guard",
        "_keys",
        "_name",
        "_receipts",
        "_recipe",
        "_root",
        "_service",
        "_shared",
        "_subspace",
    )

    _aside: Aside
    _ask_exists: Guard

    def __init__(
        self,
        subspace: Any,
        *,
        codec: str = "json",
        type: Any = None,
        contended: str = "staged",
        root: Any = DEFAULT_ROOT,
        guard: Guard | None = None,
        name: str = "",
        current: Current | None = None,
    ) -> None:
        """`name` is for messages and observers. `current`: the plan of a named queue, which may have
        partitions.

        Raises: UnknownCodec; InvalidArgument for `contended` or `type`; WrongType for the subspace, `guard`
        or `current`.
        """
        require_contended(contended)
        prefix = checked_prefix("subspace", subspace)
        if guard is not None:
            checked_function("guard", guard)
        if current is not None:
            checked_instance("current", current, Current)
        # The definition of a named queue may name a codec that this process has not registered.
        self._codec = codec_named(codec, type) if guard is None else stored_codec(codec, type)
        self._root = self._receipts = RootKeys(root)
        self._name = name
        self._shared = SharedKeys(subspace)
        self._subspace, self._keys = subspace, QueueKeys(subspace)
        self._guard = guard
        self._current = current
        self._recipe = self._new_parts(current)
        self._aside = self._recipe.aside
        self._ask_exists = self._recipe.guard if current is None else current.exists
        self._calls = CALLS[contended]
        # Calls combine only with calls that would do exactly the same.
        self._service = ("queue", prefix, self._codec.key, contended, self._root.prefix, guard is None)

    def _shown(self) -> dict[str, Any]:
        return {"name": self._name} if self._name else {"prefix": self._subspace.key()}

    def _registry(self) -> Registry:
        return Registry(self._root)

    def _recipe_of(self, target: DatabaseOrTransaction) -> RecipeParts:
        """The items, by the plan of the database of `target`: calls on several may be given."""
        return self._recipe if self._current is None else self._calls_of(target).recipe

    def _new_parts(self, current: Current | None) -> RecipeParts:
        return RecipeParts(partial(self._new_recipe, current), current, self._shared)

    def _new_recipe(self, current: Current | None, number: int) -> Recipe:
        zero = self._keys
        return Recipe(
            QueueKeys(Subspace((), prefix_of(self._subspace, number))),
            self._codec,
            self._guard if current is None else current.guard,
            self._root.prefix,
            self._name,
            number,
            current,
            self._shared,
            Aside(zero.prefix, zero.line),
        )

    def _calls_of(self, target: DatabaseOrTransaction) -> Calls:
        database = as_database(target.db if is_transaction(target) else target)
        return database.service(self._service, self._new_calls)

    def _observed(self, target: DatabaseOrTransaction, name: str, count: int, *, waits: bool = False) -> Call:
        within = is_transaction(target)
        runtime = runtime_of(target) if within else as_database(target).runtime
        return Call(runtime, name, self._name, within=within, waits=waits, count=count)

    def _new_calls(self, database: Database) -> Calls:
        current, recipe = self._current, self._recipe
        if current is not None:
            recipe = self._new_parts(Current(self._registry(), current.definition))
        return self._calls(database, recipe, self._root)


def require_contended(contended: Any) -> None:
    if not isinstance(contended, str) or contended not in CALLS:
        raise InvalidArgument(name="contended", wanted='"staged" or "simple"', got=contended)
