"""The footprint of a call in the workload `paired`: the keys that its commits see, and those that it changes.

A commit that has seen a key without a conflict, by snapshot or under another key, goes on when another call
changes that key. Of all pairs of calls, only those can have an outcome that no serial order has.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fdbqueue.embedded.writes import KeySet

if TYPE_CHECKING:
    from tests.system.workloads.paired_calls import Call

COLUMN_BYTES = 16
"""The length of a key up to its column, roughly: keys that begin alike are of one kind."""


class Commit(NamedTuple):
    """The keys that one commit has seen, those that it conflicts with, and those that conflict with it."""

    seen: KeySet
    reads: KeySet
    writes: KeySet


class Footprint(NamedTuple):
    """`changed`: the keys with other values after the call."""

    call: "Call"
    commits: Sequence[Commit]
    changed: frozenset[bytes]


class Meeting(NamedTuple):
    """Two calls. The second one changes a key that commit `number` of the first one has seen unguarded."""

    one: "Call"
    other: "Call"
    number: int
    kind: tuple[str, str, frozenset[bytes]]
    """The names of both calls, and the columns of the keys."""


def meetings(footprints: Sequence[Footprint]) -> Iterator[Meeting]:
    for one in footprints:
        for number, commit in enumerate(one.commits):
            for other in footprints:
                columns = _unnoticed(commit, other)
                if columns and other is not one:
                    kind = (_name(one.call), _name(other.call), columns)
                    yield Meeting(one.call, other.call, number, kind)


def _unnoticed(commit: Commit, other: Footprint) -> frozenset[bytes]:
    """The columns of the keys that the commit has seen, and the other call changes without a conflict."""
    if any(commit.reads.meets(its.writes) for its in other.commits):
        return frozenset()
    return frozenset(key[:COLUMN_BYTES] for key in _both(other.changed, commit.seen))


def _both(keys: Iterable[bytes], seen: KeySet) -> Iterator[bytes]:
    return (key for key in keys if key in seen)


def _name(call: "Call") -> str:
    return call.text.split()[0]
