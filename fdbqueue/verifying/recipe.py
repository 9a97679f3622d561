"""The checks of a recipe queue: its items, their pieces, its floor and its waiting line."""

from collections.abc import Iterable, Iterator

from fdbqueue.line.keys import LineKeys
from fdbqueue.recipe.items import Recipe, floor_of
from fdbqueue.recipe.keys import FLOOR, FORMATS_RESERVED, ITEM, LINE, PIECE, WHOLE, split_sizes
from fdbqueue.verification import Flaw
from fdbqueue.verifying.asking import Ask, Row, Seen, Under, under
from fdbqueue.verifying.cures import FOREIGN, Cures
from fdbqueue.verifying.line import LineChecks, unless_in_line
from fdbqueue.verifying.slices import Suspect

_TAKE = "The dequeue that meets it sets it aside."


class RecipeChecks:
    def __init__(self, recipe: Recipe, cures: Cures) -> None:
        self.recipe = recipe
        self._keys = recipe.keys
        self._mending = cures.mending
        self._line = LineChecks(LineKeys(recipe.keys.line), recipe.aside, cures)

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
            return (self._pieces(suffix),) if row.value[:1] != WHOLE else ()
        return (self._keys.item(suffix),) if column == PIECE else ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, suffix = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.judge(row, seen)
        if column == ITEM:
            return self._judge_item(row, suffix, seen)
        if column == PIECE:
            return self._judge_piece(row, suffix, seen)
        if column is None:
            return [Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)]
        return self._judge_floor(row) if column == FLOOR else ()

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
            excuse = unless_in_line(self._line.keys, suffix)
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._mending, lambda tr: tr.clear(row.key), [excuse])

    def _judge_floor(self, row: Row) -> Iterator[Suspect]:
        if any(row.value) and not floor_of(row.value):
            text = f"The floor of the indexes is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def _pieces(self, suffix: bytes) -> Under:
        return under(self._keys.pieces_of(suffix))
