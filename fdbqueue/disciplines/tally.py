"""Tally: how many tasks each key has in each state, and which keys have the most waiting.

Counters change by atomic adds, and are gone when they are zero. A key with many tasks waiting also stands in
an index by the magnitude of their number, so that the busiest are found among millions. Under `beside`:

    4, slug                counts  tasks in each state    key_statistics; who changes them, by snapshot
    5, 255 - level, slug   busy    empty                  key_statistics, by snapshot
    6, slug                level   one byte               who changes how many wait, by snapshot
    6, slug, level         gate    never written          conflict keys of those who move the level

`level` is the binary logarithm of how many wait, or one more. It is moved by whoever sees, by snapshot, that
the number has left it: once while the number doubles, and never below limits.KEY_LEVEL_MIN. Whoever moves it
reads the gates of all levels but its own and writes its own: two meet only if they move it apart. So a key
has one entry; and none when nothing waits, because those who take from what waits meet each other
(keyed.py), and so the last of them knows the number, or a put comes after it that will.
"""

from dataclasses import dataclass

from fdbqueue import limits
from fdbqueue.records.statistics import LIVE, packed, unpacked
from fdbqueue.seam import ReadTransaction, Transaction, Value

_COUNTS, _BUSY, _LEVEL, _END = b"\x04", b"\x05", b"\x06", b"\x07"
_LEVEL_MAX = 255
SLUG_BYTES = 2
_NONE = bytes(8 * len(LIVE))

Numbers = dict[str, int]


@dataclass(frozen=True)
class Standing:
    """What is known of a key before its numbers change."""

    counts: Value
    level: Value


class Tally:
    def __init__(self, beside: bytes) -> None:
        self._counts = beside + _COUNTS
        self._busy = beside + _BUSY
        self._level = beside + _LEVEL
        self._counts_end = beside + _BUSY
        self._busy_end = beside + _LEVEL
        self._level_end = beside + _END

    def ask(self, tr: Transaction, slug: bytes) -> Standing:
        """Ask, by snapshot, what `add` must know if the number of those that wait changes."""
        snapshot = tr.snapshot
        return Standing(snapshot.get(self._counts + slug), snapshot.get(self._level + slug))

    def add(self, tr: Transaction, slug: bytes, changes: Numbers, standing: Standing | None) -> None:
        """Add to the key's numbers: atomically, and conflict-free but for moves of its level apart."""
        if standing is not None:
            self._move(tr, slug, standing, changes["ready"])
        tr.add(self._counts + slug, packed(LIVE, changes))
        if sum(changes.values()) < 0:
            tr.compare_and_clear(self._counts + slug, _NONE)

    def numbers(self, tr: Transaction, slug: bytes) -> Numbers:
        """The numbers of a key. Reads them by snapshot."""
        return unpacked(LIVE, tr.snapshot.get(self._counts + slug).value)

    def index(
        self, tr: ReadTransaction, limit: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """The index as it is, and as the levels of the keys have it: (level, key), sorted, the same."""
        busy = tr.get_range(self._busy, self._busy_end, limit=limit)
        levels = tr.get_range(self._level, self._level_end, limit=limit)
        entries = [
            (_LEVEL_MAX - row.key[len(self._busy)], key_of(row.key[len(self._busy) + 1 :])) for row in busy
        ]
        stand = [(row.value[0], key_of(row.key[len(self._level) :])) for row in levels]
        return sorted(entries), sorted(stand)

    def busiest(self, tr: ReadTransaction, limit: int) -> list[tuple[bytes, Numbers]]:
        """The keys of which most tasks wait, up to `limit`, and their numbers.

        Reads the numbers of the first keys and, in case there are more, the top of the index; all of them if
        there are up to limits.KEYS_LOOKED_AT_MAX keys.
        """
        looked_at = limits.KEYS_LOOKED_AT_MAX
        first = tr.get_range(self._counts, self._counts_end, limit=looked_at)
        busy = tr.get_range(self._busy, self._busy_end, limit=looked_at)
        found = {row.key[len(self._counts) :]: row.value for row in first}
        if len(found) == looked_at:
            slugs = [row.key[len(self._busy) + 1 :] for row in busy]
            asked = {slug: tr.get(self._counts + slug) for slug in slugs if slug not in found}
            found |= {slug: numbers.value for slug, numbers in asked.items()}
        numbers = [(key_of(slug), unpacked(LIVE, value)) for slug, value in found.items()]
        waiting = [(key, number) for key, number in numbers if number["ready"]]
        return sorted(waiting, key=lambda entry: (-entry[1]["ready"], entry[0]))[:limit]

    def _move(self, tr: Transaction, slug: bytes, standing: Standing, change: int) -> None:
        old = (standing.level.value or b"\x00")[0]
        new = level_of(unpacked(LIVE, standing.counts.value)["ready"] + change, old)
        if new == old:
            return
        self._pass_the_gates(tr, self._level + slug, new)
        if old:
            tr.clear(self._busy_key(old, slug))
        if new:
            tr.set(self._busy_key(new, slug), b"")
            tr.set(self._level + slug, bytes([new]))
        else:
            tr.clear(self._level + slug)

    def _pass_the_gates(self, tr: Transaction, gates: bytes, new: int) -> None:
        mine = gates + bytes([new])
        tr.add_read_conflict_range(gates + b"\x00", mine)
        tr.add_read_conflict_range(mine + b"\x00", gates + b"\xff\xff")
        tr.add_write_conflict_key(mine)

    def _busy_key(self, level: int, slug: bytes) -> bytes:
        return self._busy + bytes([_LEVEL_MAX - level]) + slug


def level_of(waiting: int, level: int) -> int:
    """Where a key belongs that stood at `level`, 0 for none, when so many of its tasks are waiting."""
    exact = waiting.bit_length() - 1
    stays = level - 1 <= exact <= level if level else exact <= limits.KEY_LEVEL_MIN
    if stays:
        return level
    return exact if exact >= limits.KEY_LEVEL_MIN else 0


def slug_of(key: bytes) -> bytes:
    """The key as part of a longer one. The length in front: no key's line begins with another's."""
    return len(key).to_bytes(SLUG_BYTES, "big") + key


def key_of(slug: bytes) -> bytes:
    return slug[SLUG_BYTES:]
