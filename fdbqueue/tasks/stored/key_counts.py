"""Numbers of tasks by task key and state, and an index of the task keys with the most ready tasks.

Atomic adds change the counters, which are cleared at zero. A key with many ready tasks also has an entry in
an index by the magnitude of their number, so that the busiest are found among millions. Under `beside`,
with the slug of a task key; the last column names the readers:

    4, slug                counts  tasks in each state    key_statistics; their changes, by snapshot
    5, 255 - level, slug   busy    empty                  key_statistics, by snapshot
    6, slug                level   one byte               changes of the number of ready tasks, by snapshot
    6, slug, level         gate    never written          conflict keys of moves of the level

`level` is the binary logarithm of the number of ready tasks, or one more, and at least limits.KEY_LEVEL_MIN.
A change that sees, by snapshot, that the number has left the level moves the entry: once while it doubles.
To move a key to level L, a transaction reads the gates of all other levels and writes gate L. Two movers
conflict only if they choose different levels. So a key has one entry.

A key without ready tasks has none. Takes of one key conflict with each other (keyed.py), so the last take
knows the exact number and clears the entry, unless a later put sees it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.seam import EXACT, ReadTransaction, Transaction, Value
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.stored.records import LIVE_NAMES, Count, packed, unpacked

# A later round is damage: it does not fit into a key. A thousand years of rounds end far below.
ROUND_MAX = 2**60
Round = Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]


class KeyState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a task key. A key that is as a new one has no state stored."""

    pointer: bytes = b""
    """The place of its pointer among `ready`; b"" if no task can be taken."""
    head: bytes = b""
    """The place of the task that the pointer holds."""
    taken: Count = 0
    round: Round = 0
    """The last round in which tasks of the key were taken."""
    used: Count = 0
    """Units of quota used in `round`."""
    held: bool = False
    """True while tasks of the key are ready or taken in the partition that it is leaving."""


IDLE = KeyState()

state_to_bytes = msgspec.msgpack.Encoder().encode
state_of = msgspec.msgpack.Decoder(KeyState).decode
"""Decode a state. Raises one of aside.DAMAGED for damaged bytes."""


def readable_state(value: bytes | None) -> KeyState | None:
    """The state of a task key, as new if none is stored; None for a damaged one."""
    try:
        return IDLE if value is None else state_of(value)
    except DAMAGED:
        return None


_COUNTS, _BUSY, _LEVEL, _END = b"\x04", b"\x05", b"\x06", b"\x07"
_LEVEL_MAX = 255
SLUG_BYTES = 2
_NONE = bytes(8 * len(LIVE_NAMES))

Numbers = dict[str, int]


@dataclass(frozen=True)
class Standing:
    counts: Value
    level: Value


class Busy(NamedTuple):
    """A task key with ready tasks; `is_exact` is False for a number that is a lower bound."""

    key: bytes
    ready: int
    is_exact: bool
    taken: int = 0


class KeyCounts:
    def __init__(self, beside: bytes) -> None:
        self._counts = beside + _COUNTS
        self._busy = beside + _BUSY
        self._level = beside + _LEVEL
        self._counts_end = beside + _BUSY
        self.all_counts = slice(self._counts, self._counts_end)
        self._busy_end = beside + _LEVEL
        self._level_end = beside + _END

    def ask(self, tr: Transaction, slug: bytes) -> Standing:
        """Ask, by snapshot, for the values that `add` needs if the number of ready tasks changes."""
        snapshot = tr.snapshot
        return Standing(snapshot.get(self._counts + slug), snapshot.get(self._level + slug))

    def add(self, tr: Transaction, slug: bytes, changes: Numbers, standing: Standing | None) -> None:
        """Add `changes` to the key's counters. Conflicts: a move of the key to another level."""
        if standing is not None:
            self._move(tr, slug, standing, changes["ready"])
        tr.add(self._counts + slug, packed(LIVE_NAMES, changes))
        if sum(changes.values()) < 0:
            tr.compare_and_clear(self._counts + slug, _NONE)

    def numbers(self, tr: Transaction, slug: bytes) -> Numbers:
        return unpacked(LIVE_NAMES, tr.snapshot.get(self._counts + slug).value)

    def index(
        self, tr: ReadTransaction, limit: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """The entries of the index, and the stored levels: both (level, key), sorted, and equal if sound."""
        busy = tr.get_range(self._busy, self._busy_end, limit=limit)
        levels = tr.get_range(self._level, self._level_end, limit=limit)
        entries = [
            (_LEVEL_MAX - row.key[len(self._busy)], key_of(row.key[len(self._busy) + 1 :])) for row in busy
        ]
        stand = [(row.value[0], key_of(row.key[len(self._level) :])) for row in levels]
        return sorted(entries), sorted(stand)

    def busiest(self, tr: ReadTransaction, limit: int) -> list[tuple[bytes, Numbers]]:
        """At most `limit` task keys with the most ready tasks, and their counters.

        Reads: limits.KEYS_LOOKED_AT_MAX counters and, beyond that number of keys, the top of the index.
        """
        looked_at = limits.KEYS_LOOKED_AT_MAX
        first = tr.get_range(self._counts, self._counts_end, limit=looked_at)
        busy = tr.get_range(self._busy, self._busy_end, limit=looked_at)
        found = {row.key[len(self._counts) :]: row.value for row in first}
        if len(found) == looked_at:
            slugs = [row.key[len(self._busy) + 1 :] for row in busy]
            asked = {slug: tr.get(self._counts + slug) for slug in slugs if slug not in found}
            found |= {slug: numbers.value for slug, numbers in asked.items()}
        numbers = [(key_of(slug), unpacked(LIVE_NAMES, value)) for slug, value in found.items()]
        waiting = [(key, number) for key, number in numbers if number["ready"]]
        return sorted(waiting, key=lambda entry: (-entry[1]["ready"], entry[0]))[:limit]

    def ask_busiest(
        self, tr: ReadTransaction, limit: int, known: Collection[bytes]
    ) -> Callable[[], tuple[list[Busy], list[bytes]]]:
        """Ask for the `limit` task keys with the most ready tasks, in one round trip.

        Reads: limits.FIGURES_KEYS_READ counters, those of the slugs `known`, the top of the index.
        A key of the top with a counter that was not read gets the lower bound of its level. The second part
        of the reply is the slugs of the top, for `known` of the next call.
        """
        few = limits.FIGURES_KEYS_READ
        first = tr.get_range(self._counts, self._counts_end, limit=few, streaming_mode=EXACT)
        top = tr.get_range(self._busy, self._busy_end, limit=limit, streaming_mode=EXACT)
        asked = {slug: tr.get(self._counts + slug) for slug in known}

        def busiest() -> tuple[list[Busy], list[bytes]]:
            rows = {bytes(row.key)[len(self._counts) :]: bytes(row.value) for row in first.to_list()}
            entries = [bytes(row.key)[len(self._busy) :] for row in top.to_list()]
            levels = (
                {entry[1:]: _LEVEL_MAX - entry[0] for entry in entries if entry} if len(rows) == few else {}
            )
            further = {slug: value.value for slug, value in asked.items() if slug not in rows}
            exact = {slug: unpacked(LIVE_NAMES, value) for slug, value in (rows | further).items()}
            found = [
                Busy(key_of(slug), of["ready"], True, of["taken"])
                for slug, of in exact.items()
                if of["ready"]
            ]
            found += [
                Busy(key_of(slug), 1 << max(level - 1, 0), False)
                for slug, level in levels.items()
                if slug not in exact
            ]
            best = sorted(found, key=lambda busy: (-busy.ready, busy.key))[:limit]
            return best, [slug for slug in levels if slug not in rows]

        return busiest

    def _move(self, tr: Transaction, slug: bytes, standing: Standing, change: int) -> None:
        old = (standing.level.value or b"\x00")[0]
        new = level_of(unpacked(LIVE_NAMES, standing.counts.value)["ready"] + change, old)
        if new == old:
            return
        self._pass_the_gates(tr, self._level + slug, new)
        if old:
            tr.clear(self.busy_key(old, slug))
        if new:
            tr.set(self.busy_key(new, slug), b"")
            tr.set(self._level + slug, bytes([new]))
        else:
            tr.clear(self._level + slug)

    def _pass_the_gates(self, tr: Transaction, gates: bytes, new: int) -> None:
        mine = gates + bytes([new])
        tr.add_read_conflict_range(gates + b"\x00", mine)
        tr.add_read_conflict_range(mine + b"\x00", gates + b"\xff\xff")
        tr.add_write_conflict_key(mine)

    def counts_key(self, slug: bytes) -> bytes:
        return self._counts + slug

    def level_key(self, slug: bytes) -> bytes:
        return self._level + slug

    def busy_key(self, level: int, slug: bytes) -> bytes:
        return self._busy + bytes([_LEVEL_MAX - level]) + slug


def level_of(waiting: int, level: int) -> int:
    """The level of a key with `waiting` ready tasks that had `level` before; 0 is none."""
    exact = waiting.bit_length() - 1
    stays = level - 1 <= exact <= level if level else exact <= limits.KEY_LEVEL_MIN
    if stays:
        return level
    return exact if exact >= limits.KEY_LEVEL_MIN else 0


def level_in(busy_rest: bytes) -> int:
    """The level in the part of a busy key behind its column."""
    return _LEVEL_MAX - busy_rest[0]


def slug_of(key: bytes) -> bytes:
    """The task key with its length in front: no task key is then a prefix of another."""
    return len(key).to_bytes(SLUG_BYTES, "big") + key


def key_of(slug: bytes) -> bytes:
    return slug[SLUG_BYTES:]
