"""The checkers of the workload `elements`, and the reads of its auditor."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.queues.elements.keys import PIECE_NUMBER_BYTES, ElementKeys
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.testing.simulation import Checker, Client
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import SPACE

NAME = "elements"
DONE = b"done/"


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


def no_young_lock_is_lost(lasts_s: float) -> Checker:
    """Check that a lock stays for `lasts_s` after it was acquired or renewed, whichever client has it."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        since: dict[tuple[str, str], float] = {}
        for op in trace.of(NAME, "acquire", "renew", "look"):
            at = (op.argument, op.result) if op.name == "acquire" else op.argument
            if op.done and op.result and op.name != "look":
                since[at] = op.began_s
            elif op.done and not op.result and op.name != "acquire":
                age_s = (op.ended_s or 0) - since[at]
                if age_s < lasts_s:
                    yield f"{op.client} has lost its lock of {at[0]}, {age_s:.4f} s old"

    return check


def all_done_once(trace: Trace, database: Database) -> Iterator[str]:
    effects = {e.key[len(DONE) :].decode(): e.value[0] for e in database.get_range_startswith(DONE)}
    for value, count in effects.items():
        if count != 1:
            yield f"done {count} times: {value!r}"
    for op in trace.of(NAME, "put"):
        if op.done and op.argument not in effects:
            yield f"lost: {op.argument!r}"
