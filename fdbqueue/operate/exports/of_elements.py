"""The sections of an element queue: its elements, without their locks."""

from collections.abc import Sequence

from fdbqueue.core import limits
from fdbqueue.core.aside import Aside
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.operate.exports.lines import ElementLine
from fdbqueue.operate.exports.section import Batch, Section, as_they_are, progress, rows_in, set_aside, single
from fdbqueue.queues.elements.keys import ElementKeys


def sections(registry: Registry, definition: Definition) -> list[Section]:
    keys = ElementKeys(registry.contents(definition))
    folders = slice(keys.count + b"\x00", keys.mark)
    return [
        progress(registry.keys, definition.id),
        set_aside(Aside(keys.prefix, keys.aside)),
        Section(keys.elements, _Elements(keys).read),
        as_they_are(folders, keys.prefix),
        as_they_are(single(keys.mark), keys.prefix),
    ]


class _Elements:
    def __init__(self, keys: ElementKeys) -> None:
        self._keys = keys

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        """The next elements. An element does not tell its size: those behind a large one wait for the next
        batch.
        """
        lines, size_bytes, used = list[ElementLine](), 0, 0
        names = [self._keys.name_in(row.key) if self._keys.is_sound(row.key) else None for row in rows]
        asked = [None if name is None else (name, rows_in(tr, self._keys.payload_of(name))) for name in names]
        for one in asked:
            used += 1
            if one is None:
                continue
            name, pieces = one
            lines.append(ElementLine(name, pieces()))
            size_bytes += sum(len(value) for _, value in lines[-1].pieces)
            if size_bytes > limits.EXPORT_BATCH_BYTES:
                break
        unreadable = used - len(lines)
        counts = {"elements": len(lines)}
        return Batch(lines, used, {**counts, "unreadable": unreadable} if unreadable else counts)
