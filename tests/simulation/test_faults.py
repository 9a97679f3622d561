"""Each fault stays within FoundationDB's contract, and each can be switched off."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from fdbqueue.core.database import Database, conflict_in, run
from fdbqueue.embedded import FDBError
from fdbqueue.testing import Client, Faults, Simulation, Trace
from fdbqueue.testing.engine import KINDS, STALE
from fdbqueue.testing.simulation import Result

KEY = b"key"


Work = Callable[[Client], object]


def simulated(faults: Faults, work: Work, seed: int = 1) -> tuple[Result, bytes | None]:
    """Run `work` as the only client; return the result, and the final value of `KEY`."""
    simulation = Simulation(seed, faults=faults)
    final: list[bytes | None] = []

    def look(_: Trace, db: Database) -> list[str]:
        final.append(db[KEY])
        return []

    simulation.client(work, "client")
    result = simulation.run([look])
    return result, final[0] if final else None


def test_a_conflict_that_a_body_raises_is_told() -> None:
    """Its pause grows as after a refused commit, and no commit tells of it."""
    left = [1, 1]

    def body(tr: Any) -> None:
        if left:
            left.pop()
            raise conflict_in(tr)
        tr[KEY] = b"value"

    result, final = simulated(Faults(), lambda client: run(client.db, body))
    told = [who for _, who, what, _ in result.trace.events if what == STALE]
    assert (told, final) == (["client"] * 2, b"value")
    result, _ = simulated(Faults(not_committed=0.9), lambda client: run(client.db, body))
    assert not any(what == STALE for _, _, what, _ in result.trace.events)


def first_error(faults: Faults) -> tuple[int, bytes | None]:
    """Read and write once; return the error code, and whether the write is stored."""
    codes: list[int] = []

    def attempt(client: Client) -> None:
        tr = client.db.create_transaction()
        try:
            tr[b"other"].wait()
            tr[KEY] = b"value"
            tr.commit().wait()
        except FDBError as error:
            codes.append(error.code)

    _, final = simulated(faults, attempt)
    return codes[0], final


@pytest.mark.parametrize(
    ("fault", "code", "written"),
    [
        ("not_committed", 1020, None),
        ("unknown_not_done", 1021, None),
        ("unknown_done", 1021, b"value"),
        ("too_old", 1007, None),
        ("future_version", 1009, None),
    ],
)
def test_each_fault_of_a_commit_has_its_code_and_effect(fault: str, code: int, written: bytes | None) -> None:
    assert first_error(Faults(**{fault: 1.0})) == (code, written)


def test_a_conflict_may_be_followed_by_an_unknown_result() -> None:
    codes: list[int] = []

    def attempt(client: Client) -> None:
        tr = client.db.create_transaction()
        for _ in range(50):
            tr[KEY] = b"value"
            try:
                tr.commit().wait()
                tr.reset()
            except FDBError as error:
                codes.append(error.code)
                tr.on_error(error).wait()

    simulated(Faults(not_committed=0.5, unknown_after_conflict=1.0), attempt)
    pairs = list(pairwise(codes))
    assert 1020 in codes
    assert [after for code, after in pairs if code == 1020] == [1021] * codes[:-1].count(1020)


def test_a_request_at_batch_priority_may_be_refused() -> None:
    codes: list[int] = []

    def attempt(client: Client) -> None:
        tr = client.db.create_transaction()
        tr.get_read_version().wait()  # at default priority
        tr.reset()
        tr.options.set_priority_batch()
        try:
            tr.get_read_version().wait()
        except FDBError as error:
            codes.append(error.code)
            tr.on_error(error).wait()

    result, _ = simulated(Faults(batch_throttled=1.0), attempt)
    assert (codes, result.violations) == ([1051], ())


def test_a_retry_loop_survives_all_faults() -> None:
    faults = Faults(0.3, 0.2, 0.2, 0.1, 0.1, 0.3)
    for seed in range(20):
        result, final = simulated(faults, lambda client: client.db.set(KEY, b"value"), seed)
        assert (result.violations, final) == ((), b"value")


def test_a_commit_that_writes_nothing_cannot_fail() -> None:
    faults = Faults(not_committed=1.0, unknown_done=1.0)
    result, _ = simulated(faults, lambda client: client.db.get(KEY))
    assert not result.failed


def test_a_transaction_that_stalls_for_long_is_too_old() -> None:
    codes: list[int] = []

    def old(client: Client) -> None:
        tr = client.db.create_transaction()
        tr[KEY].wait()
        client.runtime.sleep(6)
        try:
            tr[KEY].wait()
        except FDBError as error:
            codes.append(error.code)

    simulated(Faults(), old)
    assert codes == [1007]


def woken_after(faults: Faults, change: Work, seed: int) -> float | None:
    """Return the seconds from a change of the key until its watch fires; None if it takes more than a day."""
    simulation = Simulation(seed, faults=faults)
    times: dict[str, float] = {}

    def watcher(client: Client) -> None:
        watch = run(client.db, lambda tr: tr.watch(KEY))
        if client.runtime.wait_any([watch], 86_400):
            times["woken"] = client.runtime.monotonic()

    def changer(client: Client) -> None:
        client.runtime.sleep(100)
        change(client)
        times["changed"] = client.runtime.monotonic()

    simulation.client(watcher, "watcher")
    simulation.client(changer, "changer")
    assert not simulation.run().failed
    return times["woken"] - times["changed"] if "woken" in times else None


def write(client: Client) -> None:
    client.db[KEY] = b"value"


def write_and_undo(client: Client) -> None:
    client.db[KEY] = b"value"
    del client.db[KEY]


def nothing(_: Client) -> None: ...


@pytest.mark.parametrize(
    ("faults", "least_s", "most_s"),
    [
        (Faults(), -0.01, 0.01),
        (Faults(watch_late=1.0), 0.0001, 2.1),
        (Faults(watch_very_late=1.0), 4.9, 60.1),
        (Faults(watch_missed=1.0), 0.0001, 2.1),
        (Faults(watch_spurious=1.0), -95.0, 0.1),
    ],
)
def test_a_watch_of_a_changed_value_fires(faults: Faults, least_s: float, most_s: float) -> None:
    """It may fire late or early, but it always fires."""
    for seed in range(10):
        delay_s = woken_after(faults, write, seed)
        assert delay_s is not None
        assert least_s <= delay_s <= most_s


def test_a_watch_may_miss_a_change_that_was_undone() -> None:
    assert all(woken_after(Faults(watch_missed=1.0), write_and_undo, seed) is None for seed in range(5))
    assert all(woken_after(Faults(), write_and_undo, seed) is not None for seed in range(5))


def test_a_watch_may_fire_for_nothing() -> None:
    assert woken_after(Faults(watch_spurious=1.0), nothing, 1) is not None
    assert woken_after(Faults(), nothing, 1) is None


def test_a_slow_reply_takes_its_time() -> None:
    slow, _ = simulated(Faults(slow_reply=1.0), lambda client: client.db.set(KEY, b"value"))
    swift, _ = simulated(Faults(), lambda client: client.db.set(KEY, b"value"))
    assert slow.trace.virtual_s > swift.trace.virtual_s + 0.002


@pytest.mark.parametrize("name", KINDS)
def test_every_fault_has_a_switch(name: str) -> None:
    everything = Faults(**dict.fromkeys(KINDS, 0.5))
    assert name not in everything.without(name).active
    assert everything.only(name).active == (name,)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(TypeError):
        Faults().without("gremlins")


def test_a_fault_that_is_switched_off_does_not_happen() -> None:
    def work(client: Client) -> None:
        for _ in range(20):
            client.db[KEY] = b"value"

    for name in KINDS[:6]:
        result, _ = simulated(Faults(**dict.fromkeys(KINDS[:6], 0.2)).without(name), work)
        assert result.trace.faults.total() > 0
        assert result.trace.faults[name] == 0
