"""Simulated processes: each kill, stop and interrupt of a small scenario, and the kernel that they run on.

CI takes a part of each exploration, another one at each commit; FDBQUEUE_TEST_SLOW=1 explores all of it.
"""

import gc
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from random import Random
from typing import TypeVar

import pytest

from fdbqueue.core.database import run
from fdbqueue.embedded.directory import Directory, LockFile
from fdbqueue.embedded.processes import Pool
from fdbqueue.testing import Checker, Client, Simulation
from fdbqueue.testing.engine import NONE
from tests.commit import first_seed
from tests.simulation.exploring import NAMES, Script, Strike, explored, interrupted_at, killed, stopped
from tests.simulation.planted import Plant, planted
from tests.system.processes import processes_of
from tests.system.workloads.processes import label, tried

SLOT_LOCKS, EPOCH_LOCKS = 1 << 40, 1 << 41  # as in embedded/processes.py

T = TypeVar("T")
Part = Callable[[Iterable[T], int], list[T]]


@pytest.fixture
def part(rounds: Callable[[int | None, int | None], int | None]) -> Part:
    """Return some cases of an exploration, chosen by the commit; with FDBQUEUE_TEST_SLOW=1 all of them."""

    def chosen(cases: Iterable[T], count: int) -> list[T]:
        every, short = list(cases), rounds(count, None)
        return every if short is None else Random(first_seed()).sample(every, min(short, len(every)))

    return chosen


@pytest.mark.parametrize("strike", [killed, stopped])
def test_a_strike_at_any_moment_breaks_no_promise(part: Part, strike: Callable[[str, int], Strike]) -> None:
    """A kill or a stop of each process at each point of several schedules."""
    for seed in part(range(20), 1):
        points = explored(Random(seed)).points
        for name, point in part(((name, point) for name in NAMES for point in range(points)), 100):
            found = explored(Random(seed), strike(name, point)).violations
            assert found == (), (seed, name, point)


def test_two_kills_at_any_moments_break_no_promise(part: Part) -> None:
    """Each pair of moments of two of the processes, under one schedule."""
    seed = first_seed() % 20
    moments = range(explored(Random(seed)).points)
    for first, second in part(((a, b) for a in moments for b in moments), 100):
        found = explored(Random(seed), killed(NAMES[0], first), killed(NAMES[1], second)).violations
        assert found == (), (seed, first, second)


def test_each_schedule_with_two_deviations_is_serial(part: Part) -> None:
    """The deviations of the simplest schedule of two processes: each one, and each pair."""
    script = Script()
    explored(script, processes=2)
    choices = range(1, script.choices + 1)
    pairs = part(combinations(choices, 2), 80)
    for deviations in [*((one,) for one in part(choices, 40)), *pairs]:
        assert explored(Script(deviations), processes=2).violations == (), deviations


def test_a_kill_after_any_deviation_breaks_no_promise(part: Part) -> None:
    script = Script()
    points = explored(script, processes=2).points
    cases = (
        (at, name, point) for at in range(script.choices) for name in NAMES[:2] for point in range(points)
    )
    for at, name, point in part(cases, 80):
        found = explored(Script([at]), killed(name, point), processes=2).violations
        assert found == (), (at, name, point)


@pytest.mark.parametrize("beside", [0, 2], ids=["alone", "of three threads"])
def test_an_interrupt_at_any_moment_is_decided(part: Part, beside: int) -> None:
    """No thread and no other process waits for an interrupted thread, be it a follower that is to lead."""
    for seed in part(range(20), 1):
        for point in part(range(1, 150), 60):
            found = interrupted_at(point, Random(seed), beside=beside).violations
            assert found == (), (seed, point)


def test_the_exploration_finds_a_follower_that_polls() -> None:
    """It does so while a stopped process leads: the seeds of the workload seldom meet that."""
    wait = "self._lock_file.wait_until_free(at)"
    polls = Plant("a follower that polls for the lead", Pool.wait, wait, "return", "processes", 1)
    with planted(polls):
        stops = [explored(Random(3), stopped(NAMES[0], point)) for point in (45, 60)]
    assert any("no end after" in violation for found in stops for violation in found.violations)


def run_processes(*processes: Callable[[Client], object], checks: Sequence[Checker] = ()) -> Simulation:
    """Run processes named p0, p1 ... without faults, and fail at any violation."""
    simulation = Simulation(1, faults=NONE)
    for number, process in enumerate(processes):
        processes_of(simulation).add(process, f"p{number}")
    result = simulation.run(checks)
    assert result.violations == ()
    return simulation


def write(client: Client, key: bytes) -> None:
    client.db[key] = client.name.encode()


def test_processes_see_each_others_commits() -> None:
    def second(client: Client) -> None:
        while client.db[b"first"] is None:
            client.runtime.sleep(0.1)
        write(client, b"second")

    run_processes(lambda client: write(client, b"first"), second, checks=[holds(b"first", b"second")])


def holds(*keys: bytes) -> Checker:
    return lambda _, database: [f"{key!r} is missing" for key in keys if database[key] is None]


def test_the_transaction_of_a_killed_process_is_aborted() -> None:
    """Its lock of writers ends, too: another process commits."""

    def victim(client: Client) -> None:
        with client.db.engine.lmdb_store.begin(write=True) as txn:
            txn.put(b"\x02victim", b"1")
            client.runtime.sleep(100)

    def survivor(client: Client) -> None:
        client.runtime.sleep(1)
        write(client, b"survivor")

    simulation = Simulation(1, faults=NONE)
    processes_of(simulation).add(victim, "victim")
    processes_of(simulation).add(survivor, "survivor")
    simulation.kill("victim", 2)
    result = simulation.run([holds(b"survivor"), lambda _, db: [] if db[b"victim"] is None else ["it wrote"]])
    assert result.violations == ()
    assert result.trace.virtual_s < 10


def test_closed_processes_keep_no_lock() -> None:
    """Neither in the file of commits nor on the board: no slot, and no lead."""
    closed: list[str] = []
    taken: list[bool] = []

    def process(client: Client) -> None:
        store = client.db.engine.lmdb_store
        watched = run(client.db, lambda tr: tr.watch(b"watched"))
        for step in range(3):
            tried(client, label(client, "main", step))
        directory = Directory.open(store.path)
        client.db.close()
        del watched
        closed.append(client.name)
        if len(closed) == len(NAMES):
            taken.extend(locks_in(directory, "commits.1", SLOT_LOCKS, EPOCH_LOCKS))
            taken.extend(locks_in(directory.subdirectory("doorbells"), "board", 0))

    simulation = Simulation(1, faults=NONE)
    for name in NAMES:
        processes_of(simulation).add(process, name)
    assert simulation.run().violations == ()
    assert taken
    assert not any(taken)


def locks_in(directory: Directory, name: str, *begins: int) -> list[bool]:
    """Return for some bytes from each of `begins` on whether they are locked."""
    file = LockFile(directory, name)
    found = [file.is_locked(begin + number) for begin in begins for number in range(50)]
    file.close()
    return found


def test_a_run_leaves_no_open_file() -> None:
    """Whether its processes end or die."""
    before = os.listdir("/proc/self/fd")
    for point in (5, 15, 25, 35, 45):
        explored(Random(point), killed(NAMES[0], point))
    gc.collect()  # the store of a recovery is in a cycle
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_stopped_process_keeps_its_locks() -> None:
    """Others wait until it goes on."""
    ended_s: list[float] = []

    def holder(client: Client) -> None:
        with client.db.engine.lmdb_store.begin(write=True):
            client.runtime.sleep(1)

    def waiting(client: Client) -> None:
        client.runtime.sleep(0.5)
        write(client, b"key")
        ended_s.append(client.runtime.monotonic())

    simulation = Simulation(1, faults=NONE)
    processes_of(simulation).add(holder, "holder")
    processes_of(simulation).add(waiting, "waiting")
    simulation.stop("holder", 0.7, 50)
    assert simulation.run().violations == ()
    assert ended_s[0] > 50


def test_a_run_that_goes_on_after_its_end_is_a_failure() -> None:
    def endless(client: Client) -> None:
        while client.db[b"key"] is None:
            client.runtime.sleep(1)

    simulation = Simulation(1, faults=NONE)
    simulation.end_at(5)
    processes_of(simulation).add(endless, "endless")
    (violation,) = simulation.run().violations
    assert violation.endswith("endless did not end")
