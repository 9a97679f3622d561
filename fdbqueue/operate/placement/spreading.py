"""Spreading: boundaries between the partitions of a queue, a wait for the cluster, and a look at the result.

FoundationDB gives each piece of a cut shard to a team with few stored bytes, and short queues have none. So
several partitions may come to one team. A *nudge* is one more boundary within a partition: its keys move
once more. Nudges end when they no longer help.
"""

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.visible import counted
from fdbqueue.embedded.database import Database as EmbeddedDatabase
from fdbqueue.operate.diagnosis.cluster import see_status
from fdbqueue.operate.placement.boundaries import (
    Piece,
    boundaries_shown,
    crowded,
    end_of,
    lines_for,
    nudged,
    pieces_of,
)


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
        first = self._prefixes[0]
        return set(wanted) <= self._servers.boundaries(first, end_of(first)) and self._servers.are_settled()


def _busiest(teams: Sequence[Collection[str]]) -> int:
    """The largest number of partitions at one storage server."""
    servers = [server for team in teams for server in team]
    return max(map(servers.count, servers), default=0)
