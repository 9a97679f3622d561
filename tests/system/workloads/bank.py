"""The engine itself: transfers between accounts, an auditor of their sum, and a relay of watches."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace

NAME = "bank"
ACCOUNTS = [b"account/%d" % number for number in range(3)]
START, BATON = 100, b"baton"


@workload(clients=3, steps=5)
def bank(simulation: Simulation, size: Size) -> Sequence[Checker]:
    def transfer(client: Client) -> None:
        for step in range(size.steps):
            receipt = f"transfer/{client.name}/{step}".encode()
            source, target = client.random.sample(ACCOUNTS, 2)
            client.call(NAME, "transfer", receipt, partial(move, client.db, receipt, source, target))
            client.pause(0.05)

    def audit(client: Client) -> None:
        for _ in range(size.steps):
            client.call(NAME, "audit", None, lambda: run(client.db, lambda tr: (START * 3, total(tr))))
            client.pause(0.05)

    def runner(number: int) -> None:
        simulation.client(lambda client: relay(client, number, size), f"runner-{number}")

    for number in range(size.clients):
        simulation.client(transfer, f"teller-{number}")
        runner(number)
    simulation.client(audit, "auditor")
    dead = "die" in simulation.faults.active
    return [exact_statistics(NAME), once_each, *([] if dead else [passed_on(size)])]


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
        client.call(NAME, "pass on", turn, partial(run, client.db, partial(pass_on, turn)))


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
    for op in trace.of(NAME, "transfer"):
        if op.done and op.argument not in receipts:
            yield f"lost: transfer {op.argument!r}"
    if run(database, total) != START * len(ACCOUNTS):
        yield "the sum of the accounts has changed"


def passed_on(size: Size) -> Checker:
    def check(_: Trace, database: Database) -> Iterator[str]:
        if run(database, baton) != size.clients * size.steps:
            yield "the baton did not reach the end"

    return check
