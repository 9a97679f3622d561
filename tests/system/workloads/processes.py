"""Processes over one directory that commit for each other; each may die or stop at any system call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.database import Database
from fdbqueue.core.seam import MAYBE_COMMITTED, FDBError
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.processes import PowerCut, processes_of
from tests.system.workloads.process_checks import BY, COUNT, DONE, LATE, NAME, checks, survives_power_cuts

PREFIX = b"key/"
KEYS = [PREFIX + b"%d" % number for number in range(3)]
ONE, _STAMP = (1).to_bytes(8, "little"), bytes(10)
THREADS_MAX = 2
END_S = 20_000.0
POINTS_MAX = 30_000  # ten times those of a long run: a process that polls makes more
UNFLUSHED_CUTS_MAX = 6
WRITERS_KILLED, BEHIND_MAX, STOP_S = 2, 2, 30.0
FAILS_P = 0.3  # of the runs
CUTS_MAX, CUT_S = 2, (0.005, 0.5)
STRIKE_S, NEAR_S = (0.005, 0.1), 0.02


@workload(clients=3, steps=4, never=("slow_reply",))
def processes(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Processes over one directory that commit for each other; each may die or stop at any system call."""
    simulation.end_at(END_S)
    simulation.scheduler.points_max = POINTS_MAX
    threads = [simulation.random.randint(0, THREADS_MAX) for _ in range(size.clients)]
    is_pausing = simulation.random.random() < 0.3
    may_interrupt = simulation.random.random() < 0.5

    def process(number: int, client: Client) -> None:
        beside = [client.thread(partial(work, thread), f"{thread}") for thread in range(threads[number])]
        for step in range(size.steps):
            if may_interrupt and client.random.random() < 0.5:
                after_s = scattered(client.random, 0.0002, 0.1)
                interrupted(client, label(client, "main", step), after_s, is_alone=not beside)
            else:
                tried(client, label(client, "main", step), is_pausing=is_pausing)
            client.pause(0.05)
        for thread in beside:
            thread.join()

    def work(thread: int, client: Client) -> None:
        for step in range(size.steps):
            tried(client, label(client, thread, step), is_pausing=is_pausing)
            client.pause(0.05)

    for number in range(size.clients):
        processes_of(simulation).add(partial(process, number), f"process-{number}")
    processes_of(simulation).add(lambda client: tried(client, b"late"), "late-comer")
    fails = strike_near_commits(simulation)
    cuts = cut_near_commits(simulation)
    known = [] if fails or may_interrupt else [no_result_unknown]
    return [*checks(simulation), one_leader, survives_power_cuts(simulation, cuts), *known]


def label(client: Client, thread: object, step: int) -> bytes:
    return f"{client.name}.{thread}.{step}".encode()


def tried(client: Client, name: bytes, *, is_pausing: bool = False) -> bool:
    """Try one transaction, once; it may pause between its reads and its commit."""
    with in_doubt(client, name):
        tr = client.db.create_transaction()
        if name.endswith(LATE):
            tr.options.set_durability_risky()
        read_version, keys = client.call(NAME, "read", name, lambda: prepared(client, tr, name))
        if is_pausing:
            client.pause(0.02)
        client.call(NAME, "commit", (name, read_version, keys), lambda: committed(tr))
    return True


@contextmanager
def in_doubt(client: Client, name: bytes) -> Iterator[None]:
    """Survive an error, and record an unknown result."""
    try:
        yield
    except FDBError as error:
        if error.code in MAYBE_COMMITTED:
            client.call(NAME, "doubt", name, bool)


def no_result_unknown(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each process that lives learns the result: the log has the answers of dead leaders."""
    yield from (f"the result of {op.argument!r} stayed unknown" for op in trace.of(NAME, "doubt"))


def one_leader(trace: Trace, _: Database) -> Iterator[str]:
    """Check that only the leader of the current epoch commits."""
    yield from (f"{name} {what}" for _, name, what, _ in trace.events if what == "commits without the lead")


def interrupted(client: Client, name: bytes, after_s: float, *, is_alone: bool) -> None:
    """Interrupt one transaction after a time, and look whether it has happened: later it may not happen.

    In a process of several threads it may: another thread may be committing it.
    """
    if client.interrupted(after_s, lambda: tried(client, name)) is None and is_alone:
        client.call(NAME, "look", name, lambda: client.db[BY + name] is not None)


def prepared(client: Client, tr: Any, name: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Read some keys, and ask for writes; return the read version and the keys that were read."""
    random = client.random
    read_version = tr.get_read_version().wait()
    seen = seen_in(tr, random.sample(KEYS, random.randint(0, 2)), by_range=random.random() < 0.2)
    cleared = KEYS if random.random() < 0.2 else []
    written = random.sample(KEYS, random.randint(0 if cleared else 1, 2))
    if cleared:
        tr.clear_range_startswith(PREFIX)
    for key in (*written, BY + name):
        tr[key] = name
    tr.add(COUNT, ONE)
    record = layer.pack((name, read_version, tuple(seen.items()), tuple(written), tuple(cleared)))
    tr.set_versionstamped_key(DONE + _STAMP + len(DONE).to_bytes(4, "little"), record)
    return read_version, tuple(seen)


def committed(tr: Any) -> tuple[int, int]:
    """Commit; return the version, and the order in its batch."""
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    return tr.get_committed_version(), int.from_bytes(stamp.wait()[8:], "big")


def seen_in(tr: Any, keys: list[bytes], *, by_range: bool) -> dict[bytes, bytes | None]:
    """Return the values of some keys, or of all if they are read as a range."""
    if by_range:
        found = {bytes(entry.key): bytes(entry.value) for entry in tr.get_range_startswith(PREFIX)}
        return {key: found.get(key) for key in KEYS}
    return {key: value_of(tr, key) for key in keys}


def value_of(tr: Any, key: bytes) -> bytes | None:
    value = tr[key]
    return bytes(value) if value.present() else None


@workload(clients=3, steps=4, never=("slow_reply",))
def unflushed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Commits that wait for no flush beside durable ones; the power is cut as a commit returns."""
    simulation.end_at(END_S)
    simulation.scheduler.points_max = POINTS_MAX
    random, cuts = Random(f"{simulation.seed} power"), list[PowerCut]()
    late_p, cut_p = random.random(), random.choice((0.1, 0.5))

    def process(number: int, client: Client) -> None:
        for step in range(size.steps):
            is_late = client.random.random() < late_p
            tried(client, label(client, number, step) + (LATE if is_late else b""))
            if len(cuts) < UNFLUSHED_CUTS_MAX and client.random.random() < cut_p:
                cuts.append(processes_of(simulation).power_cut(random))
            client.pause(0.05)

    names = [f"process-{number}" for number in range(size.clients)]
    for number, name in enumerate(names):
        processes_of(simulation).add(partial(process, number), name)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return [*checks(simulation), survives_power_cuts(simulation, cuts, () if fails else names)]


def strike_near_commits(simulation: Simulation) -> bool:
    """Kill and stop processes while they commit or just after it, and one while it waits, in some runs.

    Return True if the disk fails too: then some results are unknown.
    """
    random = simulation.random
    active = set(simulation.faults.active) if random.random() < 0.5 else set()
    if "die" in active:
        simulation.kill("process-0", scattered(random, *STRIKE_S))
        for _ in range(WRITERS_KILLED):
            processes_of(simulation).kill_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S))
        behind = Random(f"{simulation.seed} behind")
        for _ in range(behind.randint(0, BEHIND_MAX)):
            processes_of(simulation).kill_behind_commit(scattered(behind, *STRIKE_S))
    if "stall" in active:
        processes_of(simulation).stop_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S), STOP_S)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return fails


def cut_near_commits(simulation: Simulation) -> list[PowerCut]:
    """Cut the power at some moments, beside the one at the end; return the cuts as they come."""
    random = Random(f"{simulation.seed} power")
    cuts: list[PowerCut] = []
    for _ in range(random.randint(0, CUTS_MAX)):
        at_s = scattered(random, *CUT_S)
        simulation.scheduler.call_at(at_s, lambda: cuts.append(processes_of(simulation).power_cut(random)))
    return cuts
