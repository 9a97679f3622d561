"""Processes over one directory that commit for each other; each may die or stop at any system call."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.fdberror import FDBError
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.process_checks import BY, COUNT, DONE, NAME, checks

KEYS = [b"key/%d" % number for number in range(3)]
ONE = (1).to_bytes(8, "little")
THREADS_MAX = 2
END_S = 20_000.0
_STAMP = bytes(10)


@workload(clients=3, steps=4)
def processes(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.end_at(END_S)
    threads = [simulation.random.randint(0, THREADS_MAX) for _ in range(size.clients)]
    may_interrupt = simulation.random.random() < 0.5

    def process(number: int, client: Client) -> None:
        beside = [client.thread(partial(work, thread), f"{thread}") for thread in range(threads[number])]
        for step in range(size.steps):
            if may_interrupt and client.random.random() < 0.5:
                after_s = scattered(client.random, 0.0002, 0.1)
                interrupted(client, label(client, "main", step), after_s, is_alone=not beside)
            else:
                tried(client, label(client, "main", step))
            client.pause(0.05)
        for thread in beside:
            thread.join()

    def work(thread: int, client: Client) -> None:
        for step in range(size.steps):
            tried(client, label(client, thread, step))
            client.pause(0.05)

    for number in range(size.clients):
        simulation.process(partial(process, number), f"process-{number}")
    simulation.process(lambda client: tried(client, b"late"), "late-comer")
    if "die" in simulation.faults.active:  # also at a moment without a call, while it waits
        victim = f"process-{simulation.random.randrange(size.clients)}"
        simulation.kill(victim, scattered(simulation.random, 0.005, 0.5))
    return checks(simulation)


def label(client: Client, thread: object, step: int) -> bytes:
    return f"{client.name}.{thread}.{step}".encode()


def tried(client: Client, name: bytes) -> bool:
    """Try one transaction, once."""
    with suppress(FDBError):
        tr = client.db.create_transaction()
        read_version, keys = client.call(NAME, "read", name, lambda: prepared(client, tr, name))
        client.call(NAME, "commit", (name, read_version, keys), lambda: committed(tr))
    return True


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
    seen = {key: value_of(tr, key) for key in random.sample(KEYS, random.randint(0, 2))}
    written = random.sample(KEYS, random.randint(1, 2))
    for key in (*written, BY + name):
        tr[key] = name
    tr.add(COUNT, ONE)
    record = layer.pack((name, read_version, tuple(seen.items()), tuple(written)))
    tr.set_versionstamped_key(DONE + _STAMP + len(DONE).to_bytes(4, "little"), record)
    return read_version, tuple(seen)


def committed(tr: Any) -> tuple[int, int]:
    """Commit; return the version, and the order in its batch."""
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    return tr.get_committed_version(), int.from_bytes(stamp.wait()[8:], "big")


def value_of(tr: Any, key: bytes) -> bytes | None:
    value = tr[key]
    return bytes(value) if value.present() else None
