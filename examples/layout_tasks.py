"""Puts of tasks of every kind without fdbqueue, written from docs/layout.md, over layout_client.py."""

import hashlib
import struct
from typing import Any

from fdb import tuple as layer
from msgspec import msgpack

from examples.layout_client import (
    NEVER,
    PIECE_BYTES,
    Full,
    Queue,
    Refused,
    counters,
    later,
    number,
    read,
    require_layout,
    span,
    time,
    unpacked,
)

KINDS: dict[str, set[str]] = {
    "fifo": set(),
    "fifottl": {"pri", "times"},
    "limfifottl": {"pri", "times"},
    "bag": {"times"},
    "utube": {"key"},
    "utubettl": {"key", "pri", "times"},
    "fair": {"key", "times", "cost"},
}
RECORD_PAYLOAD_BYTES, SEATS = 256, 4_096
NO_STATE = [b"", b"", 0, 0, 0, False]


class FairQueue(Queue):
    """A fair queue over a subspace: no definition, no counters of calls, and a floor."""

    def __init__(self, tr: Any, prefix: bytes, capacity: int | None, weights: dict[str, int]) -> None:
        """`weights`: as in a definition, by the task key in hexadecimal. Raises: Refused."""
        require_layout(tr, prefix)
        self.tr, self.prefix, self.name, self.kind, self.plan = tr, prefix, "", "fair", None
        self.options = {"capacity": capacity, "weights": weights}


class Tasks:
    """The keys of a partition of tasks."""

    def __init__(self, queue: Queue, p: int) -> None:
        self.prefix = queue.partition(p)
        self.first = p << 48
        self.task, self.counters = self.column(1), self.column(9)

    def column(self, n: int, rest: bytes = b"") -> bytes:
        packed: bytes = layer.pack((n,), prefix=self.prefix)
        return packed + rest

    def next_index(self, tr: Any) -> int:
        begin, end = (at.to_bytes(8, "big") for at in (self.first, self.first + (1 << 48)))
        last = list(tr.snapshot.get_range(self.task + begin, self.task + end, limit=1, reverse=True))
        found = bytes(last[0].key)[len(self.task) :][:8] if last else None
        return self.first if found is None else int.from_bytes(found, "big") + 1


def put(
    tr: Any, queue: Queue, payloads: list[bytes], random: bytes, now_us: int, turn: int = 0, **asked: Any
) -> list[bytes]:
    """Put tasks with the same options. Returns their ids; none if another task has the unique key.

    Raises: Refused, Full.
    """
    require(queue, asked, len(payloads))
    key = layer.pack((asked.get("key"),)) if "key" in KINDS[queue.kind] else b""
    p = place_of(queue, key, turn)
    tasks = Tasks(queue, p)
    extra, entry = extra_of(tr, queue, now_us, asked)
    if entry is not None and is_taken(tr, queue, entry, now_us):
        return []
    admit(tr, queue, len(payloads), random)
    first = tasks.next_index(tr)
    if isinstance(queue, FairQueue):
        first = max(first, unpacked(read(tr.snapshot.get(tasks.column(8, b"\x07")))))
    ids = [index.to_bytes(8, "big") + random for index in range(first, first + len(payloads))]
    records = [
        record(queue, id_, payload, key, now_us, extra, asked)
        for id_, payload in zip(ids, payloads, strict=True)
    ]
    delayed = records[0][1] == "~"
    for each, payload in zip(records, payloads, strict=True):
        store(tr, tasks, each, payload)
    if key:
        follow_key(tr, queue, tasks, key, records, delayed)
    elif not delayed:
        for each in records:
            file_(tr, queue, tasks, each, asked)
    calls = 0 if isinstance(queue, FairQueue) else len(ids)
    tr.add(tasks.counters, counters(18, **{"_3" if delayed else "_0": len(ids)}, _4=calls))
    if queue.plan and not delayed:
        queue.flag(p)
    if entry is not None:
        enter(tr, queue, entry, ids[0])
    if extra is not None and extra[5]:
        join(tr, queue, extra[5][0], ids)
    return ids


def require(queue: Queue, asked: dict[str, Any], count: int) -> None:
    """Raises: Refused for an option that the kind has not, or that this client leaves to fdbqueue."""
    has = KINDS[queue.kind]
    wants = {"pri": "pri", "ttl": "times", "ttr": "times", "delay": "times", "key": "key", "cost": "cost"}
    known = {*wants, "headers", "result_ttl", "unique", "scope", "group", "limits"}
    if not set(asked) <= known or isinstance(asked.get("limits"), dict):
        raise Refused(f"this client has no {', '.join(set(asked) - known) or 'limits with keys'}")
    lacking = [name for name, option in wants.items() if name in asked and option not in has]
    if lacking or not set(asked.get("limits", ())) <= set(queue.options.get("task_limits", ())):
        raise Refused(f"a queue of kind {queue.kind} has no {', '.join(lacking) or 'such limits'}")
    if "unique" in asked and (asked.get("group") or count > 1):
        raise Refused("a put with a unique key is of one task, and of no group")
    if queue.plan and queue.plan[2] and "key" in has:
        raise Refused("a repartition is under way: try again later")


def place_of(queue: Queue, key: bytes, turn: int) -> int:
    if not queue.plan:
        return 0
    count: int = queue.plan[1]
    if not key:
        return turn % count
    scores = struct.unpack(f">{count}I", hashlib.shake_128(key).digest(4 * count))
    return scores.index(max(scores))


def record(
    queue: Queue, id_: bytes, payload: bytes, key: bytes, now_us: int, extra: Any, asked: dict[str, Any]
) -> list[Any]:
    options, delay_us = queue.options, round(asked.get("delay", 0) * 1_000_000)
    ttl_us = span(asked.get("ttl"), options.get("ttl"))
    ttr_us = span(asked.get("ttr"), options.get("ttr"), options.get("ttl"))
    head = [id_, "~" if delay_us else "r", asked.get("pri", options.get("pri", 0)), now_us]
    head += [later(later(now_us, ttl_us), delay_us), ttr_us, len(payload), key, 0]
    head += [later(now_us, delay_us) if delay_us else NEVER, b"", b"", asked.get("cost", 1), 0, 0, 0, 0]
    held = payload if len(payload) <= RECORD_PAYLOAD_BYTES else b""
    return [*head, held, 0, b"", 0, None, None, 0, extra]


def store(tr: Any, tasks: Tasks, each: list[Any], payload: bytes) -> None:
    """Write the record, a large payload, the timer, and the entry of a delayed task."""
    id_, state, key = each[0], each[1], each[7]
    tr.set(tasks.task + id_, msgpack.encode(each))
    if len(payload) > RECORD_PAYLOAD_BYTES:
        for n, at in enumerate(range(0, len(payload), PIECE_BYTES)):
            tr.set(tasks.column(2, id_ + number(n)), payload[at : at + PIECE_BYTES])
    timer_us = each[9] if state == "~" else each[4]
    if timer_us != NEVER:
        tr.set(tasks.column(7, time(timer_us) + id_), b"")
    if state == "~":
        tr.set(tasks.column(5, id_), key)


def file_(tr: Any, queue: Queue, tasks: Tasks, each: list[Any], asked: dict[str, Any]) -> None:
    """Make a ready task available, in a kind without task keys."""
    place = each[0]
    if "pri" in KINDS[queue.kind]:
        place = number(each[2]) + place
    if queue.kind == "bag":
        place = hashlib.blake2b(each[0] + bytes(9), digest_size=8).digest() + place
    names = queue.options.get("task_limits")
    if names:
        lane = sum(1 << at for at, name in enumerate(names) if name in asked.get("limits", ()))
        place = bytes((lane,)) + place
        if lane:
            tr.set(tasks.column(8, b"\x01" + bytes((lane,))), b"")
    tr.set(tasks.column(3, place), msgpack.encode(each))


# Task keys.


def follow_key(
    tr: Any, queue: Queue, tasks: Tasks, key: bytes, records: list[list[Any]], delayed: bool
) -> None:
    slug = struct.pack(">H", len(key)) + key
    state_key, counts_key = tasks.column(8, b"\x02" + slug), tasks.column(8, b"\x04" + slug)
    if delayed:
        tr.add(counts_key, counters(4, _3=len(records)))
        return
    stored, counts = read(tr.snapshot.get(state_key)), read(tr.snapshot.get(counts_key))
    level = read(tr.snapshot.get(tasks.column(8, b"\x06" + slug)))
    state = [*NO_STATE] if stored is None else msgpack.decode(bytes(stored))
    places = [(b"" if queue.kind == "fair" else number(each[2])) + each[0] for each in records]
    for place, each in zip(places, records, strict=True):
        tr.add_read_conflict_key(tasks.column(8, b"\x01" + slug + place))
        tr.set(tasks.column(8, b"\x01" + slug + place), msgpack.encode(each))
    is_open = queue.kind == "fair" or state[2] < queue.options.get("key_concurrency", 1)
    leads = not state[5] and is_open and (not state[1] or places[0] < state[1])
    if leads:
        tr.add_read_conflict_key(state_key)
        lead(tr, queue, tasks, key, state, places[0], records[0])
        tr.set(state_key, msgpack.encode(state))
    old = (level or b"\x00")[0]
    new = level_of(unpacked(counts) + len(records), old)
    if new != old:
        move(tr, tasks, slug, old, new)
    tr.add(counts_key, counters(4, _0=len(records)))


def lead(
    tr: Any, queue: Queue, tasks: Tasks, key: bytes, state: list[Any], place: bytes, each: list[Any]
) -> None:
    """Let the pointer of a task key show its new first task."""
    old, pointer = state[0], place
    if queue.kind == "fair":
        if not state[1]:
            current = unpacked(read(tr.snapshot.get(tasks.column(8, b"\x03"))))
            state[3], state[4] = current + 1, 0
        weight = (queue.options.get("weights") or {}).get(key.hex(), 1)
        pointer = time(state[3] + (state[4] + each[12] - 1) // weight) + place
    if old and old != pointer:
        tr.clear(tasks.column(3, old))
    tr.set(tasks.column(3, pointer), msgpack.encode(each))
    state[0], state[1] = pointer, place


def level_of(n: int, old: int) -> int:
    exact = n.bit_length() - 1
    stays = old - 1 <= exact <= old if old else exact <= 5
    if stays:
        return old
    return exact if exact >= 5 else 0


def move(tr: Any, tasks: Tasks, slug: bytes, old: int, new: int) -> None:
    """Move a task key among the busy ones, through the gates of the other levels; 0 is none."""
    gates = tasks.column(8, b"\x06" + slug)
    mine = gates + bytes((new,))
    tr.add_read_conflict_range(gates + b"\x00", mine)
    tr.add_read_conflict_range(mine + b"\x00", gates + b"\xff\xff")
    tr.add_write_conflict_key(mine)
    if old:
        tr.clear(tasks.column(8, b"\x05" + bytes((255 - old,)) + slug))
    if new:
        tr.set(tasks.column(8, b"\x05" + bytes((255 - new,)) + slug), b"")
        tr.set(gates, bytes((new,)))
    else:
        tr.clear(gates)


# A bound, unique keys, groups.


def admit(tr: Any, queue: Queue, wanted: int, random: bytes) -> None:
    """Raises: Full."""
    capacity = queue.options.get("capacity")
    if not capacity:
        return
    parts = range(queue.plan[3]) if queue.plan else range(1)
    rows = [read(tr.snapshot.get(Tasks(queue, p).counters)) for p in parts]
    size = sum(unpacked(row, place) for row in rows for place in range(4))
    if size + wanted > capacity:
        raise Full(f"{queue.name} has {size} tasks")
    seats, gate = min(SEATS, capacity // 2), queue.shared(13)
    if wanted <= seats and size + wanted + seats <= capacity:
        tr.add_read_conflict_key(gate)
        for n in range(wanted):
            seat = queue.shared(12, number((int.from_bytes(random[:8], "big") + n) % seats))
            tr.add_read_conflict_key(seat)
            tr.add_write_conflict_key(seat)
    else:
        tr.add_read_conflict_range(queue.shared(12), gate)
        tr.add_read_conflict_key(gate)
        tr.add_write_conflict_key(gate)


def extra_of(
    tr: Any, queue: Queue, now_us: int, asked: dict[str, Any]
) -> tuple[list[Any] | None, list[Any] | None]:
    """The last value of the record; and its unique key, if it has one. Raises: Refused for a group."""
    entry: list[Any] | None = None
    if "unique" in asked:
        scope = asked.get("scope", "unfinished")
        until_us = 0 if isinstance(scope, str) else now_us + round(scope * 1_000_000)
        entry = [layer.pack((asked["unique"],)), scope == "queued", until_us]
    groups = [member_of(tr, queue, asked["group"])] if asked.get("group") else []
    if not any(asked.get(name) for name in ("headers", "result_ttl", "unique", "group", "limits")):
        return None, None
    ttl_us = span(asked["result_ttl"]) if "result_ttl" in asked else 0
    named = sorted(set(asked.get("limits", ())))
    parts = [asked.get("headers", {}), ttl_us, entry, 0, 0, groups, b"", {}, named, {}, []]
    return parts, entry


def is_taken(tr: Any, queue: Queue, entry: list[Any], now_us: int) -> bool:
    """True if a task has the unique key. Clears a window that is over."""
    unique = entry[0]
    stored = read(tr.get(queue.shared(29, unique)))
    if stored is None:
        return False
    id_, p = bytes(stored[:20]), 0
    if queue.plan:
        moved = read(tr.get(queue.shared(27, id_))) if queue.plan[0] else None
        p = min(id_[1] if moved is None else moved[0], queue.plan[3] - 1)
    if len(stored) == 28:
        if now_us < int.from_bytes(stored[20:], "big"):
            return True
        tr.clear(queue.shared(30, bytes(stored[20:]) + unique))
        return False
    task = Tasks(queue, p).task + id_
    found = has_key(read(tr.snapshot.get(task)), unique, now_us)
    return found or has_key(read(tr.get(task)), unique, now_us)


def has_key(stored: bytes | None, unique: bytes, now_us: int) -> bool:
    """Raises: Refused for a task that has expired, which only a sweep may end."""
    each: list[Any] = [] if stored is None else msgpack.decode(bytes(stored))
    mine: list[Any] | None = each[24][2] if len(each) > 24 and each[24] else None
    if mine is None or mine[0] != unique or (mine[1] and each[1] not in "r~"):
        return False
    if has_expired(each, now_us):
        raise Refused("the task with that unique key has expired, and no sweep has ended it: try again later")
    return True


def has_expired(each: list[Any], now_us: int) -> bool:
    waits = each[1] in "t~"
    timer_us = each[9] if waits else each[4]
    return timer_us <= now_us and not (waits and not each[20] and each[4] > now_us)


def enter(tr: Any, queue: Queue, entry: list[Any], id_: bytes) -> None:
    unique, _, until_us = entry
    tr.set(queue.shared(29, unique), id_ + time(until_us) if until_us else id_)
    if until_us:
        tr.set(queue.shared(30, time(until_us) + unique), id_)


def member_of(tr: Any, queue: Queue, group: str) -> list[Any]:
    """Raises: Refused unless the group is open."""
    id_ = bytes.fromhex(group)
    row = read(tr.get(layer.pack((14, id_), prefix=queue.root)))
    cancelled = read(tr.get(layer.pack((14, id_, 1), prefix=queue.root)))
    epoch = int.from_bytes(read(tr.get(queue.shared(36))) or b"", "big")
    found = None if row is None else msgpack.decode(bytes(row))
    if found is None or not found[2] or cancelled is not None:
        raise Refused(f"the group {group} is missing or closed")
    return [id_, epoch, found[1], False]


def join(tr: Any, queue: Queue, member: list[Any], ids: list[bytes]) -> None:
    group, epoch = member[:2]
    tr.add(layer.pack((14, group, 0), prefix=queue.root), counters(5, _0=len(ids)))
    tr.add(queue.shared(34, time(epoch) + group), counters(3, _0=len(ids)))
    for id_ in ids:
        tr.set(queue.shared(35, group + id_), b"")
    tr.set(layer.pack((14, group, 2, queue.id), prefix=queue.root), queue.name.encode())
