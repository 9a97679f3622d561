"""Processes over one directory that watch keys and ring each other's doorbells; each may die or stop."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

from fdbqueue.core.database import Database, run
from fdbqueue.core.fdberror import FDBError
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.processes import processes_of

NAME, KEYS, BALL = "rings", [b"bell/%d" % number for number in range(2)], b"ball"
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


@workload(clients=2, steps=4, never=("slow_reply",))
def rings(simulation: Simulation, size: Size) -> Sequence[Checker]:
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
            client.call(NAME, "wait", (key, seen), partial(waited, client, key, seen, watch))
            del watch
        del crowd

    def writer(client: Client) -> None:
        for _ in range(2 * size.steps):
            key = client.random.choice(KEYS)
            with suppress(FDBError):
                client.call(NAME, "write", key, lambda key=key: run(client.db, partial(increment, key)))  # type: ignore[misc]
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
                client.call(NAME, "write", BALL, lambda: run(client.db, partial(increment, BALL)))
                found = seen + 1
            else:
                _, found = client.call(NAME, "wait", (BALL, seen), partial(waited, client, BALL, seen, watch))
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
    """Check that a watch fires for a change."""
    for op in trace.of(NAME, "wait"):
        if op.done:
            (key, seen), (fired, found) = op.argument, op.result
            if fired < (found != seen):
                yield f"a watch of {key!r} at {seen} did not fire, and {found} is there"


def rung_in_time(late_s: float) -> Checker:
    """Make a checker: a watch fires within `late_s` after the commit that changes its key."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        written_s = {(op.argument, op.result): op.ended_s for op in trace.of(NAME, "write") if op.done}
        for op in trace.of(NAME, "wait"):
            key, seen = op.argument
            changed_s = written_s.get((key, seen + 1))
            if op.ended_s is not None and changed_s is not None:
                took_s = op.ended_s - max(op.began_s, changed_s)
                if took_s > late_s:
                    yield f"a watch of {key!r} at {seen} fired {took_s:.2f} s late"

    return check
