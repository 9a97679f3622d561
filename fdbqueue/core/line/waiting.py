"""The calls that wait in the lines of a queue, as people are told of them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.binding import name_of_process
from fdbqueue.core.line.staging import Line, ask_live, request_lasts_us
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import ask_holder
from fdbqueue.core.task import HolderProcess

_SESSION_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A request in the line of a queue: one call, or several of one process. Times are seconds since the
    epoch.
    """

    count: int
    """Items or tasks that it waits for."""
    since: float
    until: float
    """The time at which it counts as dead, unless it renews itself."""
    session: str | None
    """The session for which it takes tasks, in hexadecimal; None in a queue of items."""
    name: str | None
    """The name of the session, if it has one."""
    processes: tuple[HolderProcess, ...]
    """Those of the session, or the one that waits for items."""


def process_params(host: str, process_id: int) -> bytes:
    """What stands in a request for items behind the name of its process."""
    params: bytes = layer.pack((host, process_id))
    return params


def waiting_in(
    tr: Transaction, root: RootKeys | None, lines: Sequence[Line], now_us: int, limit: int
) -> list[WaitingCall]:
    """The first `limit` calls in these lines, by their order. `root`: of a queue of tasks.

    Reads: by snapshot.
    Round trips: 1; of tasks 2.
    """
    asked = [ask_live(tr.snapshot, line.keys, now_us, limit) for line in lines]
    live = sorted((one for reply in asked for one in reply()), key=lambda one: one[0].stamp)[:limit]
    ids = {ticket.params[:_SESSION_BYTES] for ticket, _, _ in live}
    holders = {} if root is None else {id_: ask_holder(tr.snapshot, root, id_) for id_ in ids}
    skipped = len(name_of_process(tr.db))
    found = []
    for ticket, first_us, deadline_us in live:
        holder = holders[ticket.params[:_SESSION_BYTES]]() if holders else None
        found.append(
            WaitingCall(
                count=ticket.count,
                since=(first_us - request_lasts_us()) / 1_000_000,
                until=deadline_us / 1_000_000,
                session=None if holder is None else holder.session,
                name=None if holder is None else holder.name,
                processes=_process_in(ticket.params[skipped:]) if holder is None else holder.processes,
            )
        )
    return found


def _process_in(params: bytes) -> tuple[HolderProcess, ...]:
    """Empty for the request of a program that tells nothing of itself."""
    try:
        parts: tuple[Any, ...] = layer.unpack(params)
    except (ValueError, IndexError, struct.error):
        return ()
    return (HolderProcess(*parts),) if list(map(type, parts)) == [str, int] else ()
