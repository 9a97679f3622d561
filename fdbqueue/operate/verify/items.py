"""The checks of a recipe queue and of an element queue: items or elements, pieces, locks.

A partition of a recipe queue is verified like a queue of its own. Beside that, each partition with an item
has a flag.
"""

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.rows import FOREIGN, Check, Checks, Flaw, Row, Suspect, under
from fdbqueue.operate.verify.line import AsideChecks, LineChecks, unless_in_line
from fdbqueue.operate.verify.partitions import Partitioned, SharedChecks, flagged
from fdbqueue.operate.verify.values import Cures
from fdbqueue.queues.elements import store
from fdbqueue.queues.elements.store import FOLDER_BYTES, PIECE_NUMBER_BYTES, Elements, is_readable
from fdbqueue.queues.recipe.items import (
    FLOOR,
    FORMATS_RESERVED,
    ITEM,
    LINE,
    PIECE,
    WHOLE,
    Recipe,
    floor_of,
    split_sizes,
)

_TAKE = "The dequeue that meets it sets it aside."
_SINCE_BYTES = 8
_ELEMENT_BYTES = limits.BATCH_BYTES_MAX // 20
"""The payloads of elements are read with them, and their sizes are unknown: a slice has at most 20."""


class RecipeChecks(Checks):
    def __init__(
        self, recipe: Recipe, cures: Cures, queue: Partitioned | None = None, *, has_flags: bool = False
    ) -> None:
        """`queue`: that of this partition, or this; None for one without a name, which cannot have any. With
        `has_flags`, an item needs the flag of its partition.
        """
        super().__init__(cures.mending)
        self.recipe = recipe
        self._keys = recipe.keys
        self._line = LineChecks(LineKeys(recipe.keys.line), recipe.aside, cures)
        self._lines = [self._line.keys]
        self._shared = None
        if queue is not None and not recipe.partition:
            self._shared = SharedChecks(queue, recipe.keys.prefix, cures)
        self._flags = queue.keys if queue is not None and has_flags else None
        if self._flags is not None:
            self._lines.append(LineKeys(self._flags.line))

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.weight(row)
        return split_sizes(row.value)[1] if column == ITEM else 0

    def check(self, row: Row) -> Check:
        column, suffix = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.check(row)
        if column == ITEM:
            return self.together([self._item(row, suffix), self._flag(row)])
        if column == PIECE:
            return self._piece(row, suffix)
        if column is None:
            if self._shared is not None and self._shared.is_key(row.key):
                return self._shared.check(row)
            return self.unknown(row, "No key of a queue has this shape.")
        return self._floor(row) if column == FLOOR else self.nothing()

    def _item(self, row: Row, suffix: bytes) -> Check:
        pieces, is_whole = under(self._keys.pieces_of(suffix)), row.value[:1] == WHOLE
        seen = yield [] if is_whole else [pieces]
        if self._keys.index_in(suffix) is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "The index of an item is beyond every index.", FOREIGN)
        if is_whole:
            return
        (count, size_bytes), stored = split_sizes(row.value), seen.size_bytes(pieces)
        if not count:
            newer = row.value and row.value[0] < FORMATS_RESERVED
            text = "A newer release wrote an item." if newer else "The value of an item cannot be read."
            yield Suspect(Flaw.RECORD, row.key, text, _TAKE)
        elif stored != size_bytes:
            text = f"An item has {stored} bytes of its payload, and should have {size_bytes}."
            yield Suspect(Flaw.PAYLOAD, row.key, text, _TAKE)

    def _flag(self, row: Row) -> Check:
        if self._flags is None:
            return self.nothing()
        return flagged(row, self._keys.items, self._flags, self.recipe.partition, "items", self.mending)

    def _piece(self, row: Row, suffix: bytes) -> Check:
        key = self._keys.item(suffix)
        item = (yield [key]).value(key)
        if item is None or item[:1] == WHOLE:
            excuses = [unless_in_line(line, suffix) for line in self._lines]
            text = "A piece of a payload belongs to no item."
            yield self.found(Flaw.PAYLOAD, row, text, excuses=excuses)

    def _floor(self, row: Row) -> Check:
        if any(row.value) and not floor_of(row.value):
            yield self.found(Flaw.VALUE, row, f"The floor of the indexes is damaged: {row.value.hex()}.")


class ElementChecks(Checks):
    def __init__(self, elements: Elements, cures: Cures) -> None:
        super().__init__(cures.mending)
        self.keys = self._keys = elements.keys
        self._elements = elements
        self._aside = AsideChecks(elements.aside, cures)

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == store.ASIDE:
            return self._aside.weight(row)
        return _ELEMENT_BYTES if column == store.ELEMENT else 0

    def check(self, row: Row) -> Check:
        column, rest = self._keys.parts_of(row.key)
        if column == store.ASIDE:
            return self._aside.check(row)
        if not self._has_shape(column, rest):
            return self.unknown(row, "No key of an element queue has this shape.")
        if column == store.ELEMENT:
            return self._element(row, rest.decode())
        if column == store.PAYLOAD:
            return self._piece(row, rest[:-PIECE_NUMBER_BYTES].decode())
        return self._lock(row, rest.decode()) if column == store.LOCK else self.nothing()

    def _has_shape(self, column: int, rest: bytes) -> bool:
        parts: dict[int, bytes] = {
            store.ELEMENT: rest,
            store.LOCK: rest,
            store.PAYLOAD: rest[:-PIECE_NUMBER_BYTES],
            store.ARRIVAL: rest[FOLDER_BYTES:],
            store.DEPARTURE: rest[FOLDER_BYTES:],
        }
        if column in parts:
            return self._keys.is_sound(self._keys.element("") + parts[column])
        return column in (store.COUNT, store.MARK) and not rest

    def _element(self, row: Row, name: str) -> Check:
        pieces = under(self._keys.payload_of(name))
        payload = b"".join(piece.value for piece in (yield [pieces]).rows(pieces))
        if not is_readable(payload):
            text = f"The element {name} cannot be read: it has {len(payload)} bytes."
            yield self.found(Flaw.RECORD, row, text, lambda tr: self._elements.set_aside(tr, name))

    def _piece(self, row: Row, name: str) -> Check:
        if not (yield [self._keys.element(name)]).has(self._keys.element(name)):
            text = f"A piece of a payload belongs to the element {name}, which is missing."
            yield self.found(Flaw.PAYLOAD, row, text)

    def _lock(self, row: Row, name: str) -> Check:
        if not (yield [self._keys.element(name)]).has(self._keys.element(name)):
            yield self.found(Flaw.STRAY, row, f"A lock belongs to the element {name}, which is missing.")
        elif len(row.value) < _SINCE_BYTES:
            text = f"The lock of the element {name} is damaged: it counts as old."
            yield Suspect(Flaw.VALUE, row.key, text, "A purge breaks it.")
