"""Spreading: boundaries between the partitions of a queue, a wait for the cluster, and a look at the result.

FoundationDB gives each piece of a cut shard to a team with few stored bytes, and short queues have none. So
several partitions may come to one team. A *nudge* is one more boundary within a partition: its keys move
once more. Nudges end when they no longer help.

Boundaries between partitions: pure functions over keys.

`rangeconfig` of fdbcli stores options of key ranges, and FoundationDB cuts its shards at the ends of these
ranges. Each piece of a cut shard but the first goes to a team of storage servers that has few bytes. Servers
read no `teamID`. Its only effect: neighbouring ranges with the same options become one range.
"""

import importlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import below
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.visible import counted
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.operate.checks import see_status

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
    ends = [*prefixes[1:], below(prefixes[0]).stop]
    first = zlib.crc32(prefixes[0]) % _QUEUES * _RANGES_OF_QUEUE
    return [
        Piece(begin, end, first + number)
        for number, (begin, end) in enumerate(zip(prefixes, ends, strict=True), start=1)
    ]


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
    return [f"rangeconfig set {escaped(prefixes[0])} {escaped(below(prefixes[0]).stop)} default"]


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


def is_cluster(database: Database) -> bool:
    """True if storage servers have the data; False for a directory."""
    return not isinstance(database.engine, EmbeddedDatabase)


def inside(prefix: bytes) -> bytes:
    """A key of a partition, or of a part of the receipts, behind all boundaries of `spread` in it."""
    return prefix + b"\x02"


def owners_of_partitions(database: Database, prefixes: Sequence[bytes]) -> list[list[str] | None]:
    """The addresses that have the keys of each partition, in order; None for each on a directory.

    Reads: the map of shards, by snapshot.
    Round trips: 3.
    """
    if not is_cluster(database):
        return [None for _ in prefixes]

    def body(tr: Any) -> list[list[str] | None]:
        asked = [locality().get_addresses_for_key(tr, inside(prefix)) for prefix in prefixes]
        return [sorted(address.decode() for address in found.wait()) for found in asked]

    return run(database, body)


def boundaries_in(database: Database, begin: bytes, end: bytes) -> list[bytes]:
    """The first key of each shard that begins in this range. Needs a cluster."""
    return [bytes(key) for key in locality().get_boundary_keys(database.engine, begin, end)]


def locality() -> Any:
    """The binding's module of that name, which needs the client library when it is imported."""
    return importlib.import_module("fdb.locality")


SHOW = "rangeconfig show"
NUDGES_MAX = 3
LOOK_EVERY_S = 1.0
UNCHANGED_S = 10.0
"""The owners stay this long before the moves count as over: a new data distributor moves shards in steps."""


class StorageServers:
    """The storage servers of the cluster of `database`, by its status and its map of shards."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def addresses(self) -> set[str]:
        processes = self._cluster().get("processes", {}).values()
        return {
            one["address"]
            for one in processes
            if any(role.get("role") == "storage" for role in one.get("roles", []))
        }

    def are_settled(self) -> bool:
        """True if the cluster says that its data are healthy, and that none are moving."""
        data = self._cluster().get("data", {})
        moving = data.get("moving_data", {})
        is_moving = moving.get("in_flight_bytes") or moving.get("in_queue_bytes")
        return data.get("state", {}).get("healthy") is True and not is_moving

    def owners(self, prefixes: Sequence[bytes]) -> list[list[str]]:
        return [team or [] for team in owners_of_partitions(self._database, prefixes)]

    def boundaries(self, begin: bytes, end: bytes) -> set[bytes]:
        return set(boundaries_in(self._database, begin, end))

    def _cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = see_status(self._database).get("cluster", {})
        return cluster


@dataclass(frozen=True)
class Spread:
    teams: list[list[str]]
    crowded: list[int]
    """Partitions beyond the even part of a storage server."""
    is_settled: bool
    """False if the time was over before the cluster had moved everything."""


class Spreading:
    def __init__(
        self,
        servers: StorageServers,
        runtime: Runtime,
        prefixes: Sequence[bytes],
        run_lines: Callable[[Sequence[str]], str],
        tell: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        """`run_lines` runs commands of fdbcli, and returns their output. `tell` shows the progress."""
        self._servers, self._runtime = servers, runtime
        self._prefixes, self._pieces = prefixes, pieces_of(prefixes)
        self._run_lines, self._tell = run_lines, tell
        self._timeout_s = timeout_s

    def run(self) -> Spread:
        """Set missing boundaries, and nudge partitions while that helps. Any process can repeat this."""
        there = boundaries_shown(self._run_lines([SHOW]))
        is_settled = self._set([one for one in self._pieces if not {one.begin, one.end} <= there])
        teams = self._servers.owners(self._prefixes)
        for _ in range(NUDGES_MAX):
            numbers = self._crowded(teams)
            if not is_settled or not numbers:
                break
            busiest = _busiest(teams)
            is_settled = self._nudge(numbers)
            teams = self._servers.owners(self._prefixes)
            if _busiest(teams) >= busiest:
                break
        return Spread(teams, self._crowded(teams), is_settled)

    def _crowded(self, teams: Sequence[Collection[str]]) -> list[int]:
        return crowded(teams, len(self._servers.addresses()))

    def _nudge(self, numbers: Collection[int]) -> bool:
        there = boundaries_shown(self._run_lines([SHOW]))
        self._tell(f"on busy storage servers: {counted(len(numbers), 'partition')}, to be moved again")
        return self._set([nudged(self._pieces[number], there) for number in numbers])

    def _set(self, pieces: Sequence[Piece]) -> bool:
        """Set the boundaries, and wait for the moves. False if the time is over."""
        if not pieces:
            return True
        self._tell(f"{len(pieces)} boundaries set: FoundationDB takes a minute or more to move the pieces")
        self._run_lines(lines_for(pieces))
        return self._wait({one.begin for one in pieces})

    def _wait(self, wanted: Collection[bytes]) -> bool:
        monotonic = self._runtime.monotonic
        began_s = since_s = monotonic()
        seen: list[list[str]] = []
        while monotonic() - began_s < self._timeout_s:
            self._runtime.sleep(LOOK_EVERY_S)
            teams = self._servers.owners(self._prefixes)
            if teams != seen or not self._is_done(wanted):
                seen, since_s = teams, monotonic()
            elif monotonic() - since_s >= UNCHANGED_S:
                return True
        return False

    def _is_done(self, wanted: Collection[bytes]) -> bool:
        there = self._servers.boundaries(*below(self._prefixes[0])[:2])
        return set(wanted) <= there and self._servers.are_settled()


def _busiest(teams: Sequence[Collection[str]]) -> int:
    """The largest number of partitions at one storage server."""
    servers = [server for team in teams for server in team]
    return max(map(servers.count, servers), default=0)
