"""Counters of chords: each part of a header counts once, however often its task is delivered.

A part that returns does not conflict with the others: it adds to the counter, and looks at it afterwards. The
last one finds the chord complete, and claims it in the transaction that puts the task of its body.
"""

from fdbqueue.core.database import Database, run
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.integrations.celery import keys

SWEPT = 4
"""Unfinished chords that have ended, which the start of another one removes."""

_ONE = (1).to_bytes(8, "little")


def begin(database: Database, chord: str, size: int, ttl_s: float | None) -> None:
    """Note the number of parts of a chord; some may have returned. All goes after `ttl_s`, None for never."""

    def body(tr: Transaction) -> None:
        under = keys.chord_ends_until(database.runtime.now_us())
        for row in tr.snapshot.get_range(under.start, under.stop, limit=SWEPT).to_list():
            tr.clear(row.key)
            _clear(tr, keys.chord_end_of(row.key))
        tr.set(keys.size(chord), size.to_bytes(8, "little"))
        _note_end(tr, database, chord, ttl_s)

    run(database, body)


def extend(database: Database, chord: str, part: str) -> None:
    """One part more, the task `part`, which a part of the chord has added."""
    run(database, lambda tr: tr.set(keys.added(chord, part), b""))


def returned(database: Database, chord: str, index: int, part: str, ttl_s: float | None) -> None:
    """Count a part. A part that returns twice conflicts; the counter does not, as it is read by snapshot."""

    def body(tr: Transaction) -> None:
        mark, count = tr.get(keys.part(chord, index, part)), tr.snapshot.get(keys.count(chord))
        if mark.present():  # a second delivery, or a commit with an unknown result
            return
        if not count.present():  # the first part; or a late copy of one, after the end of the chord
            _note_end(tr, database, chord, ttl_s)
        tr.set(keys.part(chord, index, part), b"")
        tr.add(keys.count(chord), _ONE)

    run(database, body)


def _note_end(tr: Transaction, database: Database, chord: str, ttl_s: float | None) -> None:
    if ttl_s is not None:
        tr.set(keys.chord_end(database.runtime.now_us() + round(ttl_s * 1_000_000), chord), b"")


def is_complete(database: Database, chord: str) -> bool:
    """True if all parts have returned, and none has claimed the chord."""
    return run(database, lambda tr: _is_complete(tr, chord))


def parts(database: Database, chord: str) -> list[str]:
    """The parts that have returned, in the order of the header."""
    under = keys.parts(chord)
    rows = run(database, lambda tr: tr.get_range(under.start, under.stop).to_list())
    return [keys.part_of(row.key) for row in rows]


def ended(database: Database, chord: str) -> bool:
    """True if this call ends the chord, whatever becomes of the result of its commit."""
    return run_once(database, RootKeys(DEFAULT_ROOT), lambda tr: claim(tr, chord), wrote=bool)


def claim(tr: Transaction, chord: str) -> bool:
    """True if this transaction ends the chord. False if it is not complete, or another one has ended it."""
    if not _is_complete(tr, chord):
        return False
    _clear(tr, chord)
    return True


def _is_complete(tr: Transaction, chord: str) -> bool:
    under = keys.all_added(chord)
    count, size, added = (
        tr.get(keys.count(chord)),
        tr.get(keys.size(chord)),
        tr.get_range(under.start, under.stop),
    )
    return bool(size.present()) and _number(count.value) >= _number(size.value) + len(added.to_list())


def _number(value: bytes | None) -> int:
    return int.from_bytes(bytes(value or b""), "little")


def _clear(tr: Transaction, chord: str) -> None:
    for under in (keys.parts(chord), keys.all_added(chord)):
        tr.clear_range(under.start, under.stop)
    tr.clear(keys.count(chord))
    tr.clear(keys.size(chord))
