"""Processes over one directory that commit for each other; each may die or stop at any system call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.database import Database
from fdbqueue.core.fdberror import MAYBE_COMMITTED, FDBError
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.processes import processes_of
from tests.system.workloads.power_checks import survives_power_cuts
from tests.system.workloads.process_checks import BY, COUNT, DONE, LATE, NAME, checks
from tests.system.workloads.process_strikes import cut_near_commits, strike_near_commits

PREFIX = b"key/"
KEYS = [PREFIX + b"%d" % number for number in range(3)]
ONE, _STAMP = (1).to_bytes(8, "little"), bytes(10)
THREADS_MAX = 2
END_S = 20_000.0
POINTS_MAX = 30_000  # ten times those of a long run: a process that polls makes more


@workload(clients=3, steps=4, never=("slow_reply",))
def processes(simulation: Simulation, size: Size) -> Sequence[Checker]:
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
