"""Boundaries between partitions: pure functions over keys.

`rangeconfig` of fdbcli stores options of key ranges, and FoundationDB cuts its shards at the ends of these
ranges. Each piece of a cut shard but the first goes to a team of storage servers that has few bytes. Servers
read no `teamID`. Its only effect: neighbouring ranges with the same options become one range.
"""

import json
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys

_RANGES_OF_QUEUE = 1000
_QUEUES = 1_000_000
_NUDGED = limits.PARTITIONS_MAX + 1
"""Added to the team id by each nudge, so that it differs from those of the neighbours."""


@dataclass(frozen=True)
class Piece:
    """The range of keys from `begin` to `end`, which gets a team of its own."""

    begin: bytes
    end: bytes
    team_id: int


def pieces_of(prefixes: Sequence[bytes]) -> list[Piece]:
    """The range of each partition, given their prefixes in order. That of the first one is the queue's."""
    ends = [*prefixes[1:], end_of(prefixes[0])]
    first = zlib.crc32(prefixes[0]) % _QUEUES * _RANGES_OF_QUEUE
    return [
        Piece(begin, end, first + number)
        for number, (begin, end) in enumerate(zip(prefixes, ends, strict=True), start=1)
    ]


def end_of(prefix: bytes) -> bytes:
    """The first key behind all keys with this prefix."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1])


def nudged(piece: Piece, boundaries: Collection[bytes]) -> Piece:
    """The part of a piece behind all its `boundaries`: a new one, which moves its keys once more. Each nudge
    adds a zero byte. All keys of a partition are behind its prefix and a byte of 2 or more.
    """
    begin, team_id = piece.begin, piece.team_id
    while begin in boundaries or begin == piece.begin:
        begin, team_id = begin + b"\x00", team_id + _NUDGED
    return Piece(begin, piece.end, team_id)


def lines_for(pieces: Iterable[Piece]) -> list[str]:
    """The commands that set these boundaries. Other options of the ranges stay."""
    return [f"rangeconfig update {escaped(p.begin)} {escaped(p.end)} teamID {p.team_id}" for p in pieces]


def lines_to_remove(prefixes: Sequence[bytes]) -> list[str]:
    """The commands that remove every option, and so every boundary, between the partitions."""
    return [f"rangeconfig set {escaped(prefixes[0])} {escaped(end_of(prefixes[0]))} default"]


def escaped(key: bytes) -> str:
    """A key as fdbcli reads it: each byte as an escape, so no byte is special."""
    return "".join(f"\\x{byte:02x}" for byte in key)


def boundaries_shown(text: str) -> set[bytes]:
    """The ends of the ranges that `rangeconfig show` prints."""
    ranges = json.loads(text)["ranges"]
    return {one[end].encode("latin-1") for one in ranges for end in ("begin", "end")}


def dropped(text: str, root: RootKeys, known: Collection[int]) -> list[int]:
    """The ids of queues with options in the output of `rangeconfig show`, without the `known` ones."""
    ranges = json.loads(text)["ranges"]
    # An end of a range may be the prefix of the next id, which no queue has yet.
    begins = (one["begin"].encode("latin-1") for one in ranges)
    ids = {root.id_in(begin) for begin in begins if begin.startswith(root.all_contents.start)}
    return sorted(id_ for id_ in ids if id_ is not None and id_ not in known)


def crowded(teams: Sequence[Collection[str]], servers: int) -> list[int]:
    """The partitions that a fair spread would have elsewhere: on each server, those beyond its even part.
    `teams` has the storage servers of each partition, `servers` is their number.
    """
    even = -(-sum(map(len, teams)) // max(1, servers))
    seen: dict[str, int] = {}
    found = []
    for number, team in enumerate(teams):
        if any(seen.get(server, 0) >= even for server in team):
            found.append(number)
        else:
            seen |= {server: seen.get(server, 0) + 1 for server in team}
    return found


def sharing(teams: Sequence[Collection[str]]) -> list[list[int]]:
    """Groups of partitions that have the same team, without those that have one of their own."""
    groups: dict[frozenset[str], list[int]] = {}
    for number, team in enumerate(teams):
        groups.setdefault(frozenset(team), []).append(number)
    return [group for group in groups.values() if len(group) > 1]
