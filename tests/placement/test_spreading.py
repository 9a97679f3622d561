"""Spreading: boundaries, a wait, a look, and nudges, on storage servers that a test decides."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core.rows import below
from fdbqueue.operate.spreading import (
    LOOK_EVERY_S,
    NUDGES_MAX,
    SHOW,
    UNCHANGED_S,
    Spread,
    Spreading,
    StorageServers,
)
from fdbqueue.testing.scheduler import SimulatedRuntime

PREFIXES = [b"q", *(b"q\x15" + bytes([number]) for number in range(1, 6))]
Chooser = Callable[[int], str]


class Clock(SimulatedRuntime):
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Servers(StorageServers):
    """Three servers, one for each team. A new boundary moves its partition where `choose` says."""

    def __init__(self, choose: Chooser, settles: bool = True) -> None:
        self._choose, self._settles = choose, settles
        self.teams = ["a"] * len(PREFIXES)
        self.ranges: list[tuple[bytes, bytes]] = []
        self.moves = 0
        self.runs: list[int] = []

    def addresses(self) -> set[str]:
        return {"a", "b", "c"}

    def are_settled(self) -> bool:
        return self._settles

    def owners(self, _: Sequence[bytes]) -> list[list[str]]:
        return [[team] for team in self.teams]

    def boundaries(self, _begin: bytes, _end: bytes) -> set[bytes]:
        return {begin for begin, _ in self.ranges}

    def run_lines(self, lines: Sequence[str]) -> str:
        if list(lines) == [SHOW]:
            text = [{"begin": b.decode("latin-1"), "end": e.decode("latin-1")} for b, e in self.ranges]
            return json.dumps({"ranges": text})
        self.runs.append(len(lines))
        for line in lines:
            self._set(*map(_key, line.split()[2:4]))
        return ""

    def _set(self, begin: bytes, end: bytes) -> None:
        if begin not in self.boundaries(b"", b""):
            self.ranges.append((begin, end))
            self.teams[PREFIXES.index(begin.rstrip(b"\x00"))] = self._choose(self.moves)
            self.moves += 1


def _key(text: str) -> bytes:
    return bytes(int(byte, 16) for byte in re.findall(r"\\x(..)", text))


def spread(servers: Servers) -> Spread:
    return Spreading(servers, Clock(), PREFIXES, servers.run_lines, lambda _: None, timeout_s=60).run()


def test_an_even_spread_needs_no_nudge() -> None:
    servers = Servers(lambda move: "abc"[move % 3])
    assert spread(servers) == Spread([["a"], ["b"], ["c"]] * 2, [], is_settled=True)
    assert servers.runs == [len(PREFIXES)]


def test_a_second_run_sets_no_boundary_again() -> None:
    """Each change of boundaries restarts the data distributor of the cluster."""
    servers = Servers(lambda move: "abc"[move % 3])
    first = spread(servers)
    assert spread(servers) == first
    assert len(servers.runs) == 1


def test_crowded_partitions_are_nudged() -> None:
    servers = Servers(lambda move: "aaaabc"[move] if move < 6 else "bc"[move % 2])
    assert sorted(spread(servers).teams) == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]
    assert servers.runs == [6, 2]


def test_nudges_end_when_they_do_not_help() -> None:
    servers = Servers(lambda _: "b")
    assert spread(servers) == Spread([["b"]] * 6, [2, 3, 4, 5], is_settled=True)
    assert servers.runs == [6, 4]
    assert len(servers.runs) <= 1 + NUDGES_MAX


def test_a_cluster_that_does_not_settle_is_told() -> None:
    servers = Servers(lambda _: "b", settles=False)
    assert not spread(servers).is_settled
    assert servers.runs == [6]


def test_the_last_boundary_is_the_end_of_the_queue() -> None:
    servers = Servers(lambda move: "abc"[move % 3])
    spread(servers)
    assert servers.ranges[-1][1] == below(PREFIXES[0]).stop


class SlowServers(Servers):
    """They move partitions, and tell boundaries, some looks after these were set."""

    def __init__(
        self, choose: Chooser, *, boundaries_after: int = 0, moves_after: Sequence[int] = ()
    ) -> None:
        super().__init__(choose)
        self._boundaries_after, self._moves_after = boundaries_after, moves_after
        self.looks = 0

    def owners(self, prefixes: Sequence[bytes]) -> list[list[str]]:
        self.looks += bool(self.runs)
        moved = sum(self.looks > after for after in self._moves_after)
        teams = super().owners(prefixes)
        return [*teams[:moved], *[["a"]] * (len(teams) - moved)]

    def boundaries(self, begin: bytes, end: bytes) -> set[bytes]:
        return super().boundaries(begin, end) if self.looks > self._boundaries_after else set()


def test_a_wait_goes_on_until_all_moves_are_over() -> None:
    """Each move comes just before its owners would count as unchanged."""
    apart = round(UNCHANGED_S / LOOK_EVERY_S) - 1
    servers = SlowServers(lambda move: "abc"[move % 3], moves_after=[apart * n for n in (0, 1, 2, 2, 3, 4)])
    assert spread(servers) == Spread([["a"], ["b"], ["c"]] * 2, [], is_settled=True)
    assert servers.runs == [len(PREFIXES)]


def test_a_wait_goes_on_until_its_boundaries_are_there() -> None:
    """Before, the cluster has moved nothing, and is as settled as it was."""
    late = 2 * round(UNCHANGED_S / LOOK_EVERY_S)
    servers = SlowServers(
        lambda move: "abc"[move % 3], boundaries_after=late, moves_after=[late + 1] * len(PREFIXES)
    )
    assert spread(servers).teams == [["a"], ["b"], ["c"]] * 2
    assert servers.runs == [len(PREFIXES)]


def test_each_nudge_of_a_partition_has_a_new_boundary() -> None:
    """One that is set already moves nothing."""
    servers = Servers(lambda move: "aaaaaabbbbcc"[move])
    assert sorted(spread(servers).teams) == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]
    assert servers.runs == [6, 4, 2]


STATUS: dict[str, Any] = {
    "processes": {
        "1": {"address": "1:1", "roles": [{"role": "storage"}, {"role": "log"}]},
        "2": {"address": "2:2", "roles": [{"role": "log"}]},
    },
    "data": {"state": {"healthy": True}, "moving_data": {"in_flight_bytes": 0, "in_queue_bytes": 0}},
}


@pytest.mark.parametrize(
    ("data", "is_settled"),
    [
        ({}, True),
        ({"state": {"healthy": False}}, False),
        ({"moving_data": {"in_flight_bytes": 1, "in_queue_bytes": 0}}, False),
        ({"moving_data": {"in_flight_bytes": 0, "in_queue_bytes": 1}}, False),
    ],
)
def test_a_cluster_with_moves_ahead_is_not_settled(
    monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], is_settled: bool
) -> None:
    status = {"cluster": {**STATUS, "data": STATUS["data"] | data}}
    monkeypatch.setattr("fdbqueue.operate.spreading.see_status", lambda _: status)
    with fdbqueue.open("memory:") as db:
        servers = StorageServers(db)
        assert servers.are_settled() == is_settled
        assert servers.addresses() == {"1:1"}


def test_a_second_run_sets_the_last_boundary_if_it_is_missing() -> None:
    """The begin of the last piece is there already, as the end of the piece before."""
    servers = Servers(lambda move: "abc"[move % 3])
    spread(servers)
    _, end = servers.ranges.pop()
    assert spread(servers).is_settled
    assert servers.ranges[-1][1] == end
