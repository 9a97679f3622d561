"""The checks of an element queue: its elements, their payloads and locks."""

from collections.abc import Iterable, Iterator

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under, under
from fdbqueue.operate.verify.cures import FOREIGN, Cures
from fdbqueue.operate.verify.line import AsideChecks
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.queues.elements import keys as columns
from fdbqueue.queues.elements.keys import FOLDER_BYTES, PIECE_NUMBER_BYTES
from fdbqueue.queues.elements.store import Elements, is_readable

_SINCE_BYTES = 8
_ELEMENT_BYTES = limits.BATCH_BYTES_MAX // 20
"""The payloads of elements are read with them, and their sizes are unknown: a slice has at most 20."""


class ElementChecks:
    def __init__(self, elements: Elements, cures: Cures) -> None:
        self.keys = self._keys = elements.keys
        self._elements = elements
        self._mending = cures.mending
        self._aside = AsideChecks(elements.aside, cures)

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == columns.ASIDE:
            return self._aside.weight(row)
        return _ELEMENT_BYTES if column == columns.ELEMENT else 0

    def asks(self, row: Row) -> Iterable[Ask]:
        column, rest = self._keys.parts_of(row.key)
        if column == columns.ASIDE:
            return self._aside.asks(row)
        if not self._has_shape(column, rest):
            return ()
        if column == columns.ELEMENT:
            return (self._payload(row.key),)
        if column in (columns.PAYLOAD, columns.LOCK):
            return (self._keys.element(self._name(column, rest)),)
        return ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, rest = self._keys.parts_of(row.key)
        if column == columns.ASIDE:
            return self._aside.judge(row, seen)
        if not self._has_shape(column, rest):
            return [Suspect(Flaw.UNKNOWN, row.key, "No key of an element queue has this shape.", FOREIGN)]
        if column == columns.ELEMENT:
            return self._judge_element(row, rest, seen)
        if column in (columns.PAYLOAD, columns.LOCK):
            return self._judge_owned(row, column, rest, seen)
        return ()

    def note(self, row: Row) -> None:
        """Counts nothing."""

    def _has_shape(self, column: int, rest: bytes) -> bool:
        if column in (columns.ELEMENT, columns.LOCK):
            return self._keys.is_sound(self._keys.element("") + rest)
        if column == columns.PAYLOAD:
            return self._keys.is_sound(self._keys.element("") + rest[:-PIECE_NUMBER_BYTES])
        if column in (columns.ARRIVAL, columns.DEPARTURE):
            return self._keys.is_sound(self._keys.element("") + rest[FOLDER_BYTES:])
        return column in (columns.COUNT, columns.MARK) and not rest

    def _judge_element(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        payload = b"".join(piece.value for piece in seen.rows(self._payload(row.key)))
        if not is_readable(payload):
            name = rest.decode()
            text = f"The element {name} cannot be read: it has {len(payload)} bytes."

            def mend(tr: Transaction) -> None:
                self._elements.set_aside(tr, name)

            yield Suspect(Flaw.RECORD, row.key, text, self._mending, mend)

    def _judge_owned(self, row: Row, column: int, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._keys.element(self._name(column, rest))) is None:
            told = "A lock" if column == columns.LOCK else "A piece of a payload"
            text = f"{told} belongs to the element {self._name(column, rest)}, which is missing."
            flaw = Flaw.STRAY if column == columns.LOCK else Flaw.PAYLOAD
            yield Suspect(flaw, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif column == columns.LOCK and len(row.value) < _SINCE_BYTES:
            text = f"The lock of the element {self._name(column, rest)} is damaged: it counts as old."
            yield Suspect(Flaw.VALUE, row.key, text, "A purge breaks it.")

    def _name(self, column: int, rest: bytes) -> str:
        return (rest[:-PIECE_NUMBER_BYTES] if column == columns.PAYLOAD else rest).decode()

    def _payload(self, element_key: bytes) -> Under:
        return under(self._keys.payload_of(self._keys.name_in(element_key)))
