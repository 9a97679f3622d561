"""Writes of several callers in one transaction, which happens once (once.py).

The callers hand in items. The leader (combine.py) writes the items of all callers that it claims.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

from fdbqueue.core import limits
from fdbqueue.core.calls.combine import Call, Combiner
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction

_items = attrgetter("payload")


class Write(Protocol):
    """Writes items in a transaction. Returns one answer for each item, in order."""

    def __call__(self, tr: Transaction, items: list[Any], random: bytes) -> Sequence[Any]:
        """`random` has limits.RANDOM_SUFFIX_BYTES bytes; it is made once, and not again for a retry."""


def writes(database: Database, root: RootKeys, write: Write) -> Combiner:
    """The writes of one kind, with equal options, of one process on one queue.

    The payload of a call is a sequence of items, which come into one transaction. Its answer is theirs.
    """
    return Combiner(database.runtime, partial(write_claimed, database, root, write))


def write_claimed(
    database: Database,
    root: RootKeys,
    write: Write,
    combiner: Combiner,
    _: Call,
    *,
    count_max: int = limits.BATCH_ITEMS_MAX,
    wrote: Callable[[Any], bool] | None = None,
    yield_to_conflict: bool = False,
) -> None:
    """Write the items of claimed calls in one transaction, and deal out the answers. As run_once."""
    calls = combiner.claim(count_max, limits.BATCH_BYTES_MAX)
    items = list(chain.from_iterable(map(_items, calls)))
    random = database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
    run_once(
        database,
        root,
        partial(write, items=items, random=random),
        wrote=wrote,
        keep=partial(combiner.deal, to_all=True),
        doubt=combiner.fail,
        yield_to_conflict=yield_to_conflict,
    )
