"""The calls that wait in a line, counted for a reader that is none of them."""

from collections.abc import Callable

from fdbqueue.line.keys import LineKeys, Ticket, deadline_of
from fdbqueue.seam import EXACT, ReadTransaction


def ask_waiting(tr: ReadTransaction, keys: LineKeys, now_us: int, limit: int) -> Callable[[], int]:
    """Ask for the number of live requests, among the first `limit`."""
    found = ask_live(tr, keys, now_us, limit)
    return lambda: len(found())


def ask_live(
    tr: ReadTransaction, keys: LineKeys, now_us: int, limit: int
) -> Callable[[], list[tuple[Ticket, int]]]:
    """Ask for the live requests among the first `limit`, in order, each with its deadline in microseconds.
    Those past their deadlines are dead.
    """
    rows, late = keys.requests, keys.all_renewals
    requests = tr.get_range(rows.start, rows.stop, limit=limit, streaming_mode=EXACT)
    renewals = tr.get_range(late.start, late.stop, limit=limit, streaming_mode=EXACT)

    def live() -> list[tuple[Ticket, int]]:
        renewed = {bytes(row.key)[len(late.start) :]: deadline_of(row.value) for row in renewals.to_list()}
        found = [_with_deadline(keys, row.key, row.value, renewed) for row in requests.to_list()]
        return [(ticket, deadline_us) for ticket, deadline_us in found if deadline_us > now_us]

    return live


def _with_deadline(keys: LineKeys, key: bytes, value: bytes, renewed: dict[bytes, int]) -> tuple[Ticket, int]:
    ticket, deadline_us = keys.ticket_of(bytes(key), bytes(value))
    return ticket, max(deadline_us, renewed.get(ticket.stamp + ticket.rid, 0))
