"""Element queues: workers that hold locks for too long, or renew them, while others purge, add and look."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import ElementNotLocked, QueueLockError
from fdbqueue.core.runtime import Runtime
from fdbqueue.queues.elements.base import LockToken
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.elements.store import PIECE_NUMBER_BYTES, ElementKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import bounded_transactions, exact_statistics, no_key_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, sound
from tests.system.workloads.common import KEY_BYTES, SPACE, checker, cramped, values_of
from tests.system.workloads.stage import play

HELD_MAX = 3
Desks = Mapping[str, deque[tuple[str, LockToken]]]
"""The locks that were handed over to each worker, by its name; without workers, none is handed over."""
NAME = "elements"
DONE = b"done/"


class Colliding(ElementQueue):
    """Tries the same name first for all elements of one second."""

    def _new_name(self, runtime: Runtime) -> str:
        return f"{super()._new_name(runtime)[:17]}000007"


@workload(clients=2, steps=4)
def elements(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    kind = simulation.random.choice((Colliding, ElementQueue))
    # The life of a lock in virtual time, mostly about that of a call. The skew of the clocks is added below.
    lasts_s = simulation.random.choice((0.002, 0.005, 0.02, 1))
    maxlock_s = lasts_s + simulation.faults.clock_skew_s

    desks = desks_of(simulation.seed, [f"worker-{number}" for number in range(size.clients)])

    def opened() -> ElementQueue:
        return kind(SPACE[NAME], {"body": "string"}, maxelts=3)

    def produce(client: Client) -> None:
        q = opened()
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(q.add, client.db, {"body": value}))
            client.pause(client.random.choice((0.01, 0.5)))

    def work(client: Client) -> None:
        q = opened()
        for _ in range(2 * size.steps):
            hold(client, q, maxlock_s, desks)
            if client.random.random() < 0.3:
                at_once(client, q, q.first(client.db))

    def purge(client: Client) -> None:
        q = opened()
        for _ in range(4 * size.steps):
            q.purge(client.db, maxlock=maxlock_s)
            client.runtime.sleep(client.random.choice((0, 0, maxlock_s / 2, maxlock_s)))

    def survive(client: Client) -> None:
        q = opened()
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted, q)))
        client.runtime.sleep(maxlock_s + 2 * limits.CLOCK_SKEW_S)
        q.purge(client.db, maxlock=maxlock_s)
        for name in q.names(client.db):
            at_once(client, q, name)

    def audit(client: Client) -> None:
        look(client, opened(), size.steps)

    roles = {"producer-": produce, "worker-": work, "purger": purge, "auditor": audit}
    play(simulation, size, roles, {"survivor": survive})
    keys_max = 3 * limits.BATCH_ITEMS_MAX + 8
    return [
        all_done_once,
        no_young_lock_is_lost(lasts_s),
        nothing_is_missed,
        exact_statistics(NAME),
        sound(opened()),
        no_key_left_behind(SPACE[NAME].key(), lambda _, value: not any(value)),  # the count, zero
        bounded_transactions(keys_max, keys_max, limits.BATCH_BYTES_MAX + keys_max * KEY_BYTES),
    ]


def desks_of(seed: int, workers: Sequence[str]) -> Desks:
    """A desk for each of the workers; in half of the runs none, so that no lock is handed over."""
    hands_over = Random(f"{seed} hands over").random() < 0.5
    return {name: deque() for name in workers} if hands_over else {}


def hold(client: Client, q: ElementQueue, maxlock_s: float, desks: Desks) -> None:
    """Lock some elements, work for a while, renew their locks or not, and finish those still held."""
    held, does_one = handed_to(client, desks), [keep, keep, renew, renew, renew, finish, put_back]
    if desks:
        does_one += [partial(hand_over, desks)] * 2
    for name in q.names(client.db):
        token = client.call(NAME, "acquire", name, partial(q.acquire, client.db, name))
        if token is not None:
            held[name] = token
        if len(held) >= HELD_MAX:
            break
    if not held:
        client.runtime.sleep(0.002)
    for _ in range(3 if held else 0):
        client.runtime.sleep(client.random.choice((0, maxlock_s / 2, maxlock_s, maxlock_s)))
        for name, token in list(held.items()):
            if not client.random.choice(does_one)(client, q, name, token):
                del held[name]


def handed_to(client: Client, desks: Desks) -> dict[str, LockToken]:
    desk = desks.get(client.name, deque())
    held = dict(desk)
    desk.clear()
    return held


def hand_over(desks: Desks, client: Client, _: ElementQueue, name: str, token: LockToken) -> bool:
    """Let another worker, or this one later, go on under the lock."""
    to = client.random.choice(list(desks))
    client.hand_over(token, to)
    desks[to].append((name, token))
    return False


def keep(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    return client.call(NAME, "look", (name, token), partial(holds, client, q, name, token))


def renew(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    if not client.call(NAME, "renew", (name, token), partial(renewed, client, q, name, token)):
        return False
    return keep(client, q, name, token)


def put_back(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    q.unlock(client.db, name, permissive=True, token=token)
    return False


def holds(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    try:
        q.get(client.db, name, token=token)
    except ElementNotLocked:
        return False
    return True


def renewed(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    def body(tr: Any) -> None:
        q.get(tr, name, token=token)
        q.touch(tr, name)

    try:
        run(client.db, body)
    except ElementNotLocked:
        return False
    return True


def finish(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    def body(tr: Any) -> None:
        done(tr, q.get(tr, name, token=token))
        q.remove(tr, name, token=token)

    try:
        run(client.db, body)
    except ElementNotLocked:
        client.pause(0.1)  # too late, or done by a commit with an unknown result
    return False


def at_once(client: Client, q: ElementQueue, name: str) -> None:
    if not name:
        return
    try:
        run(client.db, lambda tr: done(tr, q.dequeue(tr, name)))
    except QueueLockError:
        client.pause(0.01)


def done(tr: Any, data: dict[str, Any]) -> None:
    tr.add(DONE + data["body"].encode(), b"\x01")


# Checkers.


def counted(q: ElementQueue, tr: Any) -> tuple[int, int]:
    return q.count(tr), len(present(tr))


def present(tr: Any) -> dict[str, bytes]:
    """Return each element's name and data, since a new element may have the name of a removed one."""
    keys = ElementKeys(SPACE[NAME])
    elements, payloads = keys.elements, keys.payloads
    found = {keys.name_in(e.key): b"" for e in tr.snapshot.get_range(elements.start, elements.stop)}
    for piece in tr.snapshot.get_range(payloads.start, payloads.stop):
        found[keys.name_in(piece.key[:-PIECE_NUMBER_BYTES])] += piece.value
    return found


def missed(client: Client, q: ElementQueue) -> tuple[list[str], list[str]]:
    """Return the names that a pass missed, though present before and after it; and those that it showed."""
    before = run(client.db, present)
    shown = list(q.names(client.db))
    after = run(client.db, present)
    return [n for n, data in before.items() if after.get(n) == data and n not in shown], shown


def look(client: Client, q: ElementQueue, steps: int) -> None:
    """Count the elements and list their names, again and again."""
    for _ in range(steps):
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted, q)))
        client.call(NAME, "pass", None, partial(missed, client, q))
        client.pause(0.3)


def nothing_is_missed(trace: Trace, _: Database) -> Iterator[str]:
    for op in trace.of(NAME, "pass"):
        missing, shown = op.result or ((), [])
        if missing or shown != sorted(set(shown)):
            yield f"a pass showed {shown}, and not {missing}"


@checker
def no_young_lock_is_lost(trace: Trace, _: Database, lasts_s: float) -> Iterator[str]:
    """Check that a lock stays for `lasts_s` after it was acquired or renewed, whichever client has it."""
    since: dict[tuple[str, str], float] = {}
    for op in trace.of(NAME, "acquire", "renew", "look"):
        at = (op.argument, op.result) if op.name == "acquire" else op.argument
        if op.done and op.result and op.name != "look":
            since[at] = op.began_s
        elif op.done and not op.result and op.name != "acquire":
            age_s = (op.ended_s or 0) - since[at]
            if age_s < lasts_s:
                yield f"{op.client} has lost its lock of {at[0]}, {age_s:.4f} s old"


def all_done_once(trace: Trace, database: Database) -> Iterator[str]:
    effects = {e.key[len(DONE) :].decode(): e.value[0] for e in database.get_range_startswith(DONE)}
    for value, count in effects.items():
        if count != 1:
            yield f"done {count} times: {value!r}"
    for op in trace.of(NAME, "put"):
        if op.done and op.argument not in effects:
            yield f"lost: {op.argument!r}"
