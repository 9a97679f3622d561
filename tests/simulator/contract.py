"""A workload about the engine itself: each method of the seam gives in the simulator what a program expects.

The fake of the C interface and the simulator both run it.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from fdb.tuple import Versionstamp, pack_with_versionstamp, unpack

from fdbqueue.core.database import run
from fdbqueue.core.sessions.session import Session
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation

KEYS = [b"contract/%d" % number for number in range(8)]
UNDER, BEHIND = b"contract/", b"contract0"
_CONFLICT = 1020
_TRIES = 5
"""Some transactions meet a conflict by chance."""


@workload(clients=1, steps=1, never=("die", "stall", "clock_skew_s"))
def contract(simulation: Simulation, size: Size) -> Sequence[Checker]:  # noqa: ARG001
    """One client that calls each method of the seam, and looks at the answer."""

    def body(client: Client) -> None:
        for check in CHECKS:
            client.call("contract", check.__name__, None, partial(check, client))

    simulation.client(body, "client")
    return []


@workload(clients=1, steps=1, never=("die", "stall"))
def failing(simulation: Simulation, size: Size) -> Sequence[Checker]:  # noqa: ARG001
    """A client that fails, and leaves a session with its thread behind."""

    def fail(client: Client) -> None:
        Session(client.db, ttr=1)
        raise NotImplementedError

    simulation.client(fail, "client")
    simulation.afterwards(lambda client: client.runtime.sleep(10), "later")
    return []


def _filled(tr: Any) -> None:
    tr.clear_range(UNDER, BEHIND)
    for key in KEYS:
        tr[key] = key[-1:]


def values(client: Client) -> None:
    run(client.db, _filled)

    def look(tr: Any) -> None:
        assert tr.get(KEYS[1]).value == b"1"
        assert tr[KEYS[2]].present()
        assert not tr.get(b"contract/none").present()
        tr.set(KEYS[1], b"own")
        del tr[KEYS[2]]
        assert (tr.get(KEYS[1]).value, tr.get(KEYS[2]).value) == (b"own", None)
        assert tr.snapshot.get(KEYS[3]).value == b"3"

    run(client.db, look)
    assert client.db.get(KEYS[2]) is None


def ranges(client: Client) -> None:
    run(client.db, _filled)
    selector = import_module("fdb.impl").KeySelector

    def look(tr: Any) -> None:
        assert [row.key for row in tr.get_range(UNDER, BEHIND)] == KEYS
        assert [row.key for row in tr.get_range(UNDER, BEHIND, 5).to_list()] == KEYS[:5]
        assert [row.key for row in tr.snapshot.get_range(UNDER, BEHIND, 4, reverse=True)] == KEYS[:3:-1]
        assert [row.value for row in tr.get_range_startswith(UNDER, streaming_mode=-2)][-1] == b"7"
        assert bytes(tr.get_key(selector.first_greater_than(KEYS[1]))) == KEYS[2]
        assert bytes(tr.get_key(selector.last_less_than(KEYS[1]))) == KEYS[0]

    run(client.db, look)


def operations(client: Client) -> None:
    run(client.db, _filled)

    def change(tr: Any) -> None:
        tr.set(KEYS[0], struct.pack("<q", 5))
        tr.add(KEYS[0], struct.pack("<q", 2))
        tr.byte_max(KEYS[1], b"z")
        tr.bit_or(KEYS[2], b"\x01")
        tr.compare_and_clear(KEYS[3], b"3")
        tr.clear_range(KEYS[4], KEYS[6])

    run(client.db, change)
    found = {row.key: row.value for row in client.db.get_range(UNDER, BEHIND)}
    assert found == {
        KEYS[0]: struct.pack("<q", 7),
        KEYS[1]: b"z",
        KEYS[2]: bytes([ord("2") | 1]),
        KEYS[6]: b"6",
        KEYS[7]: b"7",
    }


def versions(client: Client) -> None:
    tr = _committed(client, lambda tr: tr.set_versionstamped_key(_stamped(b"key"), b""))
    stamp, version = tr.stamp.wait(), tr.get_committed_version()
    assert struct.unpack(">Q", bytes(stamp)[:8]) == (version,)
    (row,) = client.db.get_range_startswith(b"\x01key")
    assert unpack(row.key)[1].tr_version == bytes(stamp)

    def later(tr: Any) -> int:
        tr.clear_range(b"\x01key", b"\x01kez")
        read: int = tr.get_read_version().wait()
        return read

    assert run(client.db, later) >= version


def _stamped(name: bytes) -> bytes:
    key: bytes = pack_with_versionstamp((name, Versionstamp()))
    return key


def _committed(client: Client, change: Callable[[Any], object]) -> Any:
    """A transaction of the engine that has certainly committed, with its stamp."""
    tr: Any = client.db.create_transaction()
    while True:
        try:
            tr.clear_range(b"\x01key", b"\x01kez")
            change(tr)
            tr.stamp = tr.get_versionstamp()
            tr.commit().wait()
            return tr
        except Exception as error:
            tr.on_error(error).wait()


def conflicts(client: Client) -> None:
    """A read conflicts with a write in between, a snapshot read does not, and a declared range does."""
    reads: dict[Callable[[Any], object], bool] = {
        lambda tr: tr.get(KEYS[0]).value: True,
        lambda tr: tr.snapshot.get(KEYS[0]).value: False,
        lambda tr: tr.add_read_conflict_range(UNDER, BEHIND): True,
        lambda tr: tr.add_read_conflict_key(KEYS[0]): True,
    }
    for read, conflicts in reads.items():
        assert all(_meets_conflict(client, read) for _ in range(_TRIES)) == conflicts


def _meets_conflict(client: Client, read: Callable[[Any], object]) -> bool:
    """True if a transaction fails that reads before another one writes; other errors do not count."""
    tr: Any = client.db.create_transaction()
    while True:
        try:
            tr.get_read_version().wait()
            read(tr)
            run(client.db, lambda other: other.set(KEYS[0], b"changed"))
            tr.set(b"contract/other", b"")
            tr.commit().wait()
            return False
        except Exception as error:
            if getattr(error, "code", None) == _CONFLICT:
                return True
            tr.on_error(error).wait()


def watches(client: Client) -> None:
    """A watch fires after a change, in another thread's transaction."""
    run(client.db, _filled)
    watch = run(client.db, lambda tr: tr.watch(KEYS[0]))
    assert not watch.is_ready()
    run(client.db, lambda tr: tr.set(KEYS[0], b"rung"))
    assert client.runtime.wait_any([watch], 60.0)
    dropped = run(client.db, lambda tr: tr.watch(KEYS[0]))
    dropped.cancel()


def time(client: Client) -> None:
    """A sleep takes its time by the simulator's clock, and a thread of the client goes on in it."""
    began, seen = client.runtime.monotonic(), []
    thread = client.thread(lambda client: seen.append(client.runtime.monotonic()), "second")
    client.runtime.sleep(1.5)
    assert client.runtime.monotonic() - began >= 1.5
    thread.join()
    assert seen[0] - began < 1.5
    assert not client.runtime.event().wait(0.1)


def limits(client: Client) -> None:
    """Options reach the library, and an error that is not retryable is raised."""

    def body(tr: Any) -> None:
        tr.options.set_timeout(60_000)
        tr.options.set_retry_limit(1_000)
        tr.set(KEYS[0], b"x")
        assert tr.get_approximate_size().wait() > 0

    run(client.db, body)


CHECKS = (values, ranges, operations, versions, conflicts, watches, time, limits)
