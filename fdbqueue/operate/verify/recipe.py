"""The checks of a recipe queue: its items, their pieces, its floor and its waiting line.

A partition is verified like a queue of its own. Beside that, each partition with an item has a flag.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.partitions.keys import SharedKeys, ring
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under, under
from fdbqueue.operate.verify.cures import FOREIGN, Cures
from fdbqueue.operate.verify.line import LineChecks, unless_in_line
from fdbqueue.operate.verify.shared import Partitioned, SharedChecks, clearing
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.queues.recipe.items import Recipe, floor_of
from fdbqueue.queues.recipe.keys import FLOOR, FORMATS_RESERVED, ITEM, LINE, PIECE, WHOLE, split_sizes

_TAKE = "The dequeue that meets it sets it aside."


class RecipeChecks:
    def __init__(self, recipe: Recipe, cures: Cures, queue: Partitioned | None, has_flags: bool) -> None:
        """`queue`: that of this partition, or this; None for one without a name, which cannot have any. With
        `has_flags`, an item needs the flag of its partition.
        """
        self.recipe = recipe
        self._keys = recipe.keys
        self._mending = cures.mending
        self._line = LineChecks(LineKeys(recipe.keys.line), recipe.aside, cures)
        self._lines = [self._line.keys]
        self._shared: SharedChecks | None = None
        self._flag: FlagChecks | None = None
        if queue is not None and not recipe.partition:
            self._shared = SharedChecks(queue, recipe.keys.prefix, cures)
        if queue is not None and has_flags:
            self._flag = FlagChecks(recipe, queue.keys, cures.mending)
            self._lines.append(LineKeys(queue.keys.line))

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.weight(row)
        return split_sizes(row.value)[1] if column == ITEM else 0

    def asks(self, row: Row) -> Iterable[Ask]:
        column, suffix = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.asks(row)
        if column == ITEM:
            pieces = (self._pieces(suffix),) if row.value[:1] != WHOLE else ()
            return pieces if self._flag is None else (*pieces, *self._flag.asks())
        if column is None:
            return () if self._shared is None else self._shared.asks(row)
        return (self._keys.item(suffix),) if column == PIECE else ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, suffix = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.judge(row, seen)
        if column == ITEM:
            flags = () if self._flag is None else self._flag.judge(row, seen)
            return chain(self._judge_item(row, suffix, seen), flags)
        if column == PIECE:
            return self._judge_piece(row, suffix, seen)
        if column is None:
            return self._judge_other(row, seen)
        return self._judge_floor(row) if column == FLOOR else ()

    def _judge_other(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        if self._shared is None or not self._shared.is_key(row.key):
            return [Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)]
        return self._shared.judge(row, seen)

    def note(self, row: Row) -> None:
        """Counts nothing."""

    def _judge_item(self, row: Row, suffix: bytes, seen: Seen) -> Iterator[Suspect]:
        if self._keys.index_in(suffix) is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "The index of an item is beyond every index.", FOREIGN)
        if row.value[:1] == WHOLE:
            return
        count, size_bytes = split_sizes(row.value)
        pieces = seen.rows(self._pieces(suffix))
        if not count:
            newer = row.value and row.value[0] < FORMATS_RESERVED
            text = "A newer release wrote an item." if newer else "The value of an item cannot be read."
            yield Suspect(Flaw.RECORD, row.key, text, _TAKE)
        elif sum(len(piece.value) for piece in pieces) != size_bytes:
            stored = sum(len(piece.value) for piece in pieces)
            text = f"An item has {stored} bytes of its payload, and should have {size_bytes}."
            yield Suspect(Flaw.PAYLOAD, row.key, text, _TAKE)

    def _judge_piece(self, row: Row, suffix: bytes, seen: Seen) -> Iterator[Suspect]:
        item = seen.value(self._keys.item(suffix))
        if item is None or item[:1] == WHOLE:
            text = "A piece of a payload belongs to no item."
            excuses = [unless_in_line(line, suffix) for line in self._lines]
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._mending, clearing(row.key), excuses)

    def _judge_floor(self, row: Row) -> Iterator[Suspect]:
        if any(row.value) and not floor_of(row.value):
            text = f"The floor of the indexes is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def _pieces(self, suffix: bytes) -> Under:
        return under(self._keys.pieces_of(suffix))


class FlagChecks:
    """A partition with an item has a flag."""

    def __init__(self, recipe: Recipe, shared: SharedKeys, mending: str) -> None:
        self._partition = recipe.partition
        self._shared = shared
        self._flag = shared.flag(recipe.partition)
        self._first = under(recipe.keys.items, limit=1)
        self._mending = mending

    def asks(self) -> Iterable[Ask]:
        return (self._flag, self._first)

    def judge(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        if seen.rows(self._first)[0].key == row.key and seen.value(self._flag) is None:
            text = f"The partition {self._partition} has items and no flag: few takes look there."
            yield Suspect(Flaw.STATE, self._flag, text, self._mending, self._raise)

    def _raise(self, tr: Transaction) -> None:
        tr.set(self._flag, b"")
        ring(tr, self._shared)
