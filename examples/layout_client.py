"""Queues without fdbqueue: a client in the binding's transactions, written from docs/layout.md.

It enqueues and dequeues in recipe queues, and adds elements; layout_tasks.py puts tasks of every kind.
Nothing of fdbqueue is imported: only the tuple layer of the binding, and a msgpack library.

Prove both: `fdbqueue conformance python -m examples.layout_program`.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any

from fdb import tuple as layer
from msgspec import msgpack

NEVER = 2**63 - 1
OPTIONS = {"queue": {"codec", "partitions"}, "elements": {"schema"}, "simple-elements": set[str]()}
OF_TASKS = {"codec", "partitions", "ttl", "ttr", "pri", "capacity", "key_concurrency", "weights", "temporary"}
OF_TASKS |= {"retain_s", "limits", "task_limits", "attempts", "backoff", "chronicle"}
PIECE_BYTES = 90_000
LAYOUT = 1
"""The version of the layout that this client knows; a definition of three parts has version 0."""


class Refused(Exception):
    """The queue, or the call, is none that this client understands."""


class Full(Exception):
    """The queue has no room."""


def read(value: Any) -> bytes | None:
    """The bytes that a read of the binding has found; None if the key is not there."""
    return bytes(value) if value.present() else None


def number(n: int) -> bytes:
    return struct.pack(">I", n)


def time(us: int) -> bytes:
    return struct.pack(">Q", us)


def counters(length: int, **changes: int) -> bytes:
    """The operand of an ADD; the names are those of places: `_0=1` adds 1 to the first counter."""
    total = sum(change << 64 * int(place[1:]) for place, change in changes.items())
    return (total % (1 << 64 * length)).to_bytes(8 * length, "little")


def unpacked(value: bytes | None, place: int = 0) -> int:
    return int.from_bytes((value or b"")[8 * place : 8 * place + 8], "little", signed=True)


def later(us: int, span: int) -> int:
    return min(us + span, NEVER)


def span(*seconds: float | None) -> int:
    """The first of these spans that is given, in microseconds."""
    given = next((one for one in seconds if one is not None), None)
    return NEVER if given is None or given >= 3_153_600_000 else max(1, round(given * 1_000_000))


def require_layout(tr: Any, queue: Any) -> None:
    """Judge the layout beside a queue over a subspace, and rely on it. Raises: Refused."""
    if isinstance(queue, bytes):
        stored = read(tr.get(layer.pack((37,), prefix=queue)))
        found = LAYOUT if stored is None else layer.unpack(stored)[0]
        if found > LAYOUT:
            raise Refused(f"the queue has the key layout {found}, and this client knows {LAYOUT}")


def definition_in(name: str, stored: bytes) -> tuple[int, str, dict[str, Any]]:
    """The id, the kind and the options. Judges the layout first. Raises: Refused."""
    try:
        parts = layer.unpack(stored)
        layout = int(parts[3]) if len(parts) > 3 else 0
        if layout > LAYOUT:
            raise Refused(f"{name} has the key layout {layout}, and this client knows {LAYOUT}")
        id_, kind, options = parts[:3]
        return id_, kind, dict(json.loads(options))
    except (ValueError, TypeError, IndexError, struct.error) as reason:
        raise Refused(f"the definition of {name} cannot be read: {reason}") from reason


class Queue:
    """A queue in one transaction: its definition is read, and the transaction relies on it."""

    def __init__(self, tr: Any, root: bytes, name: str, kinds: Iterable[str]) -> None:
        """Raises: Refused."""
        stored = read(tr.get(layer.pack((0, name), prefix=root)))
        if stored is None:
            raise Refused(f"there is no queue {name}")
        self.tr, self.root, self.name = tr, root, name
        self.id, self.kind, self.options = definition_in(name, stored)
        self.prefix = layer.pack((2, self.id), prefix=root)
        unknown = set(self.options) - OPTIONS.get(self.kind, OF_TASKS)
        if self.kind not in kinds or unknown:
            raise Refused(f"{name} is of kind {self.kind}, with {', '.join(unknown) or 'no unknown options'}")
        self.plan = self.options.get("partitions")
        owner = self.options.get("temporary")
        if owner and read(tr.get(layer.pack((4, bytes.fromhex(owner)), prefix=root))) is None:
            raise Refused(f"the session that owns {name} has gone")

    def shared(self, column: int, rest: bytes = b"") -> bytes:
        packed: bytes = layer.pack((column,), prefix=self.prefix)
        return packed + rest

    def partition(self, p: int) -> bytes:
        return self.shared(28, bytes((p,))) if p else self.prefix

    def flag(self, p: int) -> None:
        """Tell takers that partition p may have something."""
        key = self.shared(24, bytes((p,)))
        there = read(self.tr.snapshot.get(key))
        self.tr.add_read_conflict_key(key)
        if there is None:
            self.tr.set(key, b"")
            self.tr.add(self.shared(25), counters(1, _0=1))


# The recipe queue.


class Items:
    """The keys of the items in S, or in a partition."""

    def __init__(self, prefix: bytes) -> None:
        self.items = layer.pack((0,), prefix=prefix)
        self.pieces = layer.pack((1,), prefix=prefix)
        self.size = layer.pack((2,), prefix=prefix)
        self.line = layer.pack((3,), prefix=prefix)
        self.floor = layer.pack((4,), prefix=prefix)
        self.range = (self.items + b"\x00", self.items + b"\xff")

    def index_of(self, key: bytes) -> int:
        index: int = layer.unpack(key, prefix_len=len(self.items))[0]
        return index

    def store(self, tr: Any, suffix: bytes, payload: bytes) -> None:
        if len(payload) <= PIECE_BYTES:
            tr.set(self.items + suffix, b"\x00" + payload)
            return
        pieces = [payload[at : at + PIECE_BYTES] for at in range(0, len(payload), PIECE_BYTES)]
        for n, piece in enumerate(pieces):
            tr.set(self.pieces + suffix + layer.pack((n,)), piece)
        tr.set(self.items + suffix, b"\x01" + layer.pack((len(pieces), len(payload))))

    def payload(self, tr: Any, key: bytes, value: bytes) -> bytes:
        if value[:1] == b"\x00":
            return value[1:]
        under = self.pieces + key[len(self.items) :]
        return b"".join(bytes(row.value) for row in tr.snapshot.get_range(under, under + b"\xff"))


def enqueue(tr: Any, queue: Queue | bytes, payloads: list[bytes], random: bytes) -> None:
    """Add payloads at the end. `queue`: a named one, or the prefix of a subspace. Raises: Refused."""
    require_layout(tr, queue)
    p = 0
    if isinstance(queue, Queue) and queue.plan:
        p = int.from_bytes(random, "big") % queue.plan[1]
    items = Items(queue.partition(p) if isinstance(queue, Queue) else queue)
    last = list(tr.snapshot.get_range(*items.range, limit=1, reverse=True))
    index = items.index_of(bytes(last[0].key)) + 1 if last else 0
    index = max(index, unpacked(read(tr.snapshot.get(items.floor))))
    for n, payload in enumerate(payloads, index):
        items.store(tr, layer.pack((n, random)), payload)
    tr.add(items.size, counters(1, _0=len(payloads)))
    if isinstance(queue, Queue) and queue.plan:
        queue.flag(p)


def dequeue(tr: Any, queue: Queue | bytes, count: int, now_us: int) -> list[bytes]:
    """Remove the first payloads, up to `count`. The caller may conclude from fewer that there are no more."""
    if isinstance(queue, Queue) and queue.plan:
        raise Refused("this client takes from queues without partitions")
    require_layout(tr, queue)
    items = Items(queue.prefix if isinstance(queue, Queue) else queue)
    rows = list(tr.snapshot.get_range(*items.range, limit=count))
    if not rows and return_overdue(tr, items, now_us):
        rows = list(tr.snapshot.get_range(*items.range, limit=count))
    if rows:
        tr.add_read_conflict_range(items.range[0], bytes(rows[-1].key) + b"\x00")
    if len(rows) < count:
        tr.add_read_conflict_range(*items.range)
    payloads = [items.payload(tr, bytes(row.key), bytes(row.value)) for row in rows]
    for row in rows:
        key = bytes(row.key)
        tr.clear(key)
        if bytes(row.value)[:1] != b"\x00":
            under = items.pieces + key[len(items.items) :]
            tr.clear_range(under, under + b"\xff")
    if rows:
        tr.add(items.size, counters(1, _0=-len(rows)))
    return payloads


def return_overdue(tr: Any, items: Items, now_us: int) -> bool:
    """Return the items that lie ready for requests that are dead."""
    due, notices, results = (layer.pack((n,), prefix=items.line) for n in (1, 2, 3))
    found = False
    for row in tr.snapshot.get_range(due, notices, limit=10):
        rest = bytes(row.key)[len(due) :]
        deadline_us, rid = int.from_bytes(rest[:8], "big"), rest[8:]
        if deadline_us >= now_us:
            break
        notice = read(tr.get(notices + rid))
        if notice is not None and notice[:8] == rest[:8]:
            back = list(results_in(bytes(notice))) or [
                (bytes(one.key)[len(results + rid) :], bytes(one.value))
                for one in tr.get_range(results + rid, results + rid + b"\xff")
            ]
            for suffix, value in back:
                tr.set(items.items + suffix, value)
            tr.add(items.size, counters(1, _0=len(back)))
            tr.clear(notices + rid)
            if len(notice) == 12:
                tr.clear_range(results + rid, results + rid + b"\xff")
        tr.clear(bytes(row.key))
        found = True
    return found


def results_in(notice: bytes) -> Iterable[tuple[bytes, bytes]]:
    at = 12
    while at < len(notice):
        suffix_bytes, value_bytes = struct.unpack_from(">HI", notice, at)
        at += 6
        yield notice[at : at + suffix_bytes], notice[at + suffix_bytes : at + suffix_bytes + value_bytes]
        at += suffix_bytes + value_bytes


def give_back(tr: Any, queue: Queue | bytes, payloads: list[bytes], random: bytes) -> None:
    """Add payloads before the first one. Raises: Refused."""
    require_layout(tr, queue)
    items = Items(queue.prefix if isinstance(queue, Queue) else queue)
    first = list(tr.snapshot.get_range(*items.range, limit=1))
    before = items.index_of(bytes(first[0].key)) if first else unpacked(read(tr.snapshot.get(items.floor)))
    for n, payload in enumerate(payloads):
        items.store(tr, layer.pack((before - 1, random + struct.pack(">H", n))), payload)
    tr.add(items.size, counters(1, _0=len(payloads)))


# Elements.


def add_element(tr: Any, queue: Queue | bytes, pieces: dict[str, bytes], digit: int, now_us: int) -> str:
    """Add an element, and return its name. A simple element has one piece, with an empty name.

    `digit`: the last one of the name, 0 to 15. Raises: Refused.
    """
    require_layout(tr, queue)
    prefix = queue.prefix if isinstance(queue, Queue) else queue
    elements, parts, count = (layer.pack((column,), prefix=prefix) for column in (1, 2, 4))
    minute, at_us = now_us // 60_000_000, now_us
    while read(tr.get(elements + name_of(minute, at_us, digit))) is not None:
        at_us += 1
    name, payload = name_of(minute, at_us, digit), msgpack.encode(pieces)
    for n, at in enumerate(range(0, len(payload), PIECE_BYTES)):
        tr.set(parts + name + number(n), payload[at : at + PIECE_BYTES])
    tr.set(elements + name, b"")
    tr.add(count, counters(1, _0=1))
    return name.decode()


def name_of(minute: int, at_us: int, digit: int) -> bytes:
    seconds, us = divmod(at_us, 1_000_000)
    return f"{60 * minute:08x}/{seconds:08x}{us:05x}{digit:x}".encode()
