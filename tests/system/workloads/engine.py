"""The engine itself: transfers between accounts, and processes that watch keys."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import FDBError
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.processes import processes_of
from tests.system.workloads.common import checker

BANK = "bank"
ACCOUNTS = [b"account/%d" % number for number in range(3)]
START, BATON = 100, b"baton"
RINGS, KEYS, BALL = "rings", [b"bell/%d" % number for number in range(2)], b"ball"
BUCKETS = 1023
TWINS = [
    key
    for key in (b"twin/%d" % number for number in range(8 * BUCKETS))
    if crc32(key) % BUCKETS == crc32(BALL) % BUCKETS
]
"""Keys that share their mark on the board of doorbells with the ball."""
CROWD = 70
"""Watched keys of a process that then reads the commit log to see which have changed."""
PATIENCE_S = 30.0
END_S = 20_000.0
_SECOND_LOOKS = 5
_CALM_P = 0.5  # only without faults a lost ring shows
# Without a ring, a process looks once a second. After a death, its doorbell may be rung in vain.
PROMPT_S, PROMPT_AFTER_A_DEATH_S = 0.1, 1.5


@workload(clients=3, steps=5)
def bank(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """The engine itself: transfers between accounts, an auditor of their sum, and a relay of watches."""

    def transfer(client: Client) -> None:
        for step in range(size.steps):
            receipt = f"transfer/{client.name}/{step}".encode()
            source, target = client.random.sample(ACCOUNTS, 2)
            client.call(BANK, "transfer", receipt, partial(move, client.db, receipt, source, target))
            client.pause(0.05)

    def audit(client: Client) -> None:
        for _ in range(size.steps):
            client.call(BANK, "audit", None, lambda: run(client.db, lambda tr: (START * 3, total(tr))))
            client.pause(0.05)

    def runner(number: int) -> None:
        simulation.client(lambda client: relay(client, number, size), f"runner-{number}")

    for number in range(size.clients):
        simulation.client(transfer, f"teller-{number}")
        runner(number)
    simulation.client(audit, "auditor")
    dead = "die" in simulation.faults.active
    return [exact_statistics(BANK), once_each, *([] if dead else [passed_on(size)])]


def balance(tr: Any, account: bytes) -> int:
    value = tr[account]
    return int(bytes(value)) if value.present() else START


def total(tr: Any) -> int:
    return sum(balance(tr, account) for account in ACCOUNTS)


def move(db: Database, receipt: bytes, source: bytes, target: bytes) -> None:
    """Move one coin, once: the receipt tells a retry after 1021 that it has happened."""

    def body(tr: Any) -> None:
        if not tr[receipt].present():
            tr[receipt] = b""
            for account, change in ((source, -1), (target, 1)):
                tr[account] = b"%d" % (balance(tr, account) + change)
            tr.add(b"moved", (1).to_bytes(8, "little"))

    run(db, body)


def relay(client: Client, number: int, size: Size) -> None:
    """Runners hand on a baton; each waits for its turn by a watch only, so a lost watch stops all of them."""
    patience_s = 24 * 3600.0  # a runner before this one has died
    for lap in range(size.steps):
        turn = lap * size.clients + number
        while True:
            laps, watch = run(client.db, look)
            if laps >= turn:
                break
            if not client.runtime.wait_any([watch], patience_s):
                return
        client.call(BANK, "pass on", turn, partial(run, client.db, partial(pass_on, turn)))


def look(tr: Any) -> tuple[int, Any]:
    return baton(tr), tr.watch(BATON)


def pass_on(turn: int, tr: Any) -> None:
    if baton(tr) == turn:
        tr[BATON] = b"%d" % (turn + 1)


def baton(tr: Any) -> int:
    value = tr[BATON]
    return int(bytes(value)) if value.present() else 0


def once_each(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each transfer that returned happened once, and no other transfer happened."""
    receipts = {entry.key for entry in database.get_range_startswith(b"transfer/")}
    moved = int.from_bytes(database[b"moved"] or b"", "little")
    if moved != len(receipts):
        yield f"{len(receipts)} transfers left receipts, {moved} coins were moved"
    for op in trace.of(BANK, "transfer"):
        if op.done and op.argument not in receipts:
            yield f"lost: transfer {op.argument!r}"
    if run(database, total) != START * len(ACCOUNTS):
        yield "the sum of the accounts has changed"


@checker
def passed_on(_: Trace, database: Database, size: Size) -> Iterator[str]:
    if run(database, baton) != size.clients * size.steps:
        yield "the baton did not reach the end"


@workload(clients=2, steps=4, never=("slow_reply",))
def rings(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Processes over one directory that watch keys and ring each other's doorbells; each may die or stop."""
    simulation.end_at(END_S)
    if simulation.random.random() < _CALM_P:
        simulation.faults = NONE
    is_crowded = simulation.random.random() < 0.25
    is_late = simulation.random.random() < 0.5

    def watcher(client: Client) -> None:
        if is_late:
            client.pause(1.0)
        crowd = run(client.db, watch_crowd) if is_crowded else []
        key = client.random.choice(KEYS)
        for _ in range(size.steps):
            seen, watch = run(client.db, lambda tr: (number_of(tr, key), tr.watch(key)))
            client.call(RINGS, "wait", (key, seen), partial(waited, client, key, seen, watch))
            del watch
        del crowd

    def writer(client: Client) -> None:
        for _ in range(2 * size.steps):
            key = client.random.choice(KEYS)
            with suppress(FDBError):
                client.call(RINGS, "write", key, lambda key=key: run(client.db, partial(increment, key)))  # type: ignore[misc]
            client.pause(0.3)

    def player(number: int, client: Client) -> None:
        """Play a ball to the other player. No other process writes it, so a lost ring stops the game."""
        found, seen, crowd = 0, -1, run(client.db, watch_crowd) if is_crowded else []
        while found < 2 * size.steps and found != seen:
            seen, watch = run(client.db, lambda tr: (number_of(tr, BALL), tr.watch(BALL)))
            if is_crowded:  # a watch in the same bucket ends, and the one of the ball goes on
                twin = run(client.db, lambda tr: tr.watch(TWINS[number]))
                run(client.db, partial(increment, TWINS[number]))
                del twin
            if seen % 2 == number:
                client.call(RINGS, "write", BALL, lambda: run(client.db, partial(increment, BALL)))
                found = seen + 1
            else:
                _, found = client.call(
                    RINGS, "wait", (BALL, seen), partial(waited, client, BALL, seen, watch)
                )
        del crowd

    for number in range(2):
        processes_of(simulation).add(partial(player, number), f"player-{number}")
    for number in range(size.clients):
        processes_of(simulation).add(watcher, f"watcher-{number}")
        processes_of(simulation).add(writer, f"writer-{number}")
    active = set(simulation.faults.active)
    late_s = PROMPT_AFTER_A_DEATH_S if "die" in active else PROMPT_S
    return [no_change_missed, *([] if "stall" in active else [rung_in_time(late_s)])]


def watch_crowd(tr: Any) -> list[Any]:
    return [tr.watch(b"crowd/%d" % number) for number in range(CROWD)]


def waited(client: Client, key: bytes, seen: int, watch: Any) -> tuple[bool, int]:
    """Wait for the watch, and read its key; return whether it fired, and the number found.

    A change may come as the wait ends, or in a stop: then the watch has some more time to fire.
    """
    client.runtime.wait_any([watch], PATIENCE_S)
    for _ in range(_SECOND_LOOKS):
        found = run(client.db, lambda tr: number_of(tr, key))
        if found == seen or client.runtime.wait_any([watch], PATIENCE_S):
            break
    return watch.is_ready(), found


def increment(key: bytes, tr: Any) -> int:
    number = number_of(tr, key) + 1
    tr[key] = b"%d" % number
    return number


def number_of(tr: Any, key: bytes) -> int:
    value = tr[key]
    return int(bytes(value)) if value.present() else 0


def no_change_missed(trace: Trace, _: Database) -> Iterator[str]:
    for op in trace.of(RINGS, "wait"):
        if op.done:
            (key, seen), (fired, found) = op.argument, op.result
            if fired < (found != seen):
                yield f"a watch of {key!r} at {seen} did not fire, and {found} is there"


@checker
def rung_in_time(trace: Trace, _: Database, late_s: float) -> Iterator[str]:
    """Make a checker: a watch fires within `late_s` after the commit that changes its key."""
    written_s = {(op.argument, op.result): op.ended_s for op in trace.of(RINGS, "write") if op.done}
    for op in trace.of(RINGS, "wait"):
        key, seen = op.argument
        changed_s = written_s.get((key, seen + 1))
        if op.ended_s is not None and changed_s is not None:
            took_s = op.ended_s - max(op.began_s, changed_s)
            if took_s > late_s:
                yield f"a watch of {key!r} at {seen} fired {took_s:.2f} s late"
