"""The calls that wait in a line, counted for a reader that is none of them."""

from collections.abc import Callable

from fdbqueue.line.keys import LineKeys, deadline_of
from fdbqueue.seam import EXACT, ReadTransaction


def ask_waiting(tr: ReadTransaction, keys: LineKeys, now_us: int, limit: int) -> Callable[[], int]:
    """Ask for the number of live requests, among the first `limit`. Those past their deadlines are dead."""
    rows, late = keys.requests, keys.all_renewals
    requests = tr.get_range(rows.start, rows.stop, limit=limit, streaming_mode=EXACT)
    renewals = tr.get_range(late.start, late.stop, limit=limit, streaming_mode=EXACT)

    def waiting() -> int:
        renewed = {bytes(row.key)[len(late.start) :]: deadline_of(row.value) for row in renewals.to_list()}
        return sum(_lives_until(keys, row.key, row.value, renewed) > now_us for row in requests.to_list())

    return waiting


def _lives_until(keys: LineKeys, key: bytes, value: bytes, renewed: dict[bytes, int]) -> int:
    ticket, deadline_us = keys.ticket_of(bytes(key), bytes(value))
    return max(deadline_us, renewed.get(ticket.stamp + ticket.rid, 0))
