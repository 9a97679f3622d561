"""The sections of a plain queue (its items, and those that lie ready in a line), and of an element queue."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys, notice_of
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.rows import Batch, Pair, Section, as_they_are, rows_in, single
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.exports.lines import ElementLine, ItemLine, progress, set_aside
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys, payload_bytes

_HELD = 1
"""Bytes behind an item that lies in the line of all partitions: the number of its partition."""


def partitions_of(registry: Registry, definition: Definition) -> list[QueueKeys]:
    contents, plan = registry.contents(definition), plan_of(definition)
    numbers = range(1 if plan is None else plan.high)
    return [QueueKeys(Subspace((), prefix_of(contents, number))) for number in numbers]


def sections(registry: Registry, definition: Definition) -> list[Section]:
    parts = partitions_of(registry, definition)
    zero, shared = parts[0], SharedKeys(registry.contents(definition))
    found = [progress(registry.keys, definition.id), set_aside(Aside(zero.prefix, zero.line))]
    found.append(_lying(LineKeys(shared.line), lambda value: (value[:-_HELD], value[-1]), parts))
    for number, keys in enumerate(parts):
        found.append(_lying(LineKeys(keys.line), partial(_of_one, number), parts))
    for number, keys in enumerate(parts):
        found.append(Section(keys.items, _Items(keys, number).read))
        found.append(as_they_are(single(keys.floor), keys.prefix, number))
    return found


def _of_one(partition: int, value: bytes) -> tuple[bytes, int]:
    return value, partition


class _Items:
    def __init__(self, keys: QueueKeys, partition: int) -> None:
        self._keys = keys
        self._partition = partition

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        asked: list[Callable[[], ItemLine]] = []
        size_bytes = 0
        for row in rows:
            value = bytes(row.value)
            size_bytes += payload_bytes(value)
            if asked and size_bytes > limits.EXPORT_BATCH_BYTES:
                break
            asked.append(ask_item(tr, self._keys, self._partition, self._keys.suffix_of(row.key), value))
        lines = [line() for line in asked]
        return Batch(lines, len(lines), {"items": len(lines)})


def ask_item(
    tr: Transaction, keys: QueueKeys, partition: int, suffix: bytes, value: bytes
) -> Callable[[], ItemLine]:
    """Ask for the pieces of an item. The reply is its line."""
    is_whole = len(value) - 1 == payload_bytes(value)
    pieces: Callable[[], list[Pair]] = list if is_whole else rows_in(tr, keys.pieces_of(suffix))
    return lambda: ItemLine(partition, suffix, value, pieces())


def _lying(
    line: LineKeys, parted: Callable[[bytes], tuple[bytes, int]], parts: Sequence[QueueKeys]
) -> Section:
    """The items that lie ready in a line. `parted`: the value of an item there, and its partition."""

    def items(tr: Transaction, notice: KeyValue) -> Iterator[Pair]:
        found = notice_of(bytes(notice.value))
        if found is None:
            return
        if found.results:
            yield from found.results
            return
        rid = bytes(notice.key[len(line.all_notices.start) :])
        under = line.results(rid)
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.SERVE_MAX)
        yield from ((line.item_id_of(bytes(row.key)), bytes(row.value)) for row in rows)

    def read(tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        found = [(id_, *parted(value)) for row in rows[:1] for id_, value in items(tr, row)]
        asked = [
            ask_item(tr, parts[number], number, id_, value)
            for id_, value, number in found
            if number < len(parts)
        ]
        lines = [one() for one in asked]
        return Batch(lines, 1, {"items": len(lines), "lying": len(lines)} if lines else {})

    return Section(line.all_notices, read)


def sections_of_elements(registry: Registry, definition: Definition) -> list[Section]:
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
        """No element tells its size, so those behind a large one wait for the next batch."""
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
