"""Spreading: boundaries, a wait, a look, and nudges, on storage servers that a test decides."""

import json
import re
from collections.abc import Callable, Sequence

from fdbqueue.placement.boundaries import end_of
from fdbqueue.placement.spreading import NUDGES_MAX, SHOW, Spread, Spreading
from fdbqueue.testing.runtime import SimulatedRuntime

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


class Servers:
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
    assert servers.ranges[-1][1] == end_of(PREFIXES[0])
