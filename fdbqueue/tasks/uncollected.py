"""Uncollected: leases that the line has delivered to a request, and that its owner has not collected.

No caller has received such a task. So the death of the session that holds it is no failed attempt.
"""

from collections.abc import Callable

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys, notice_of
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.payloads import delivered_value
from fdbqueue.tasks.records.keys import Record
from fdbqueue.tasks.shape import Shape


def ask_uncollected(tr: Transaction, shape: Shape) -> Callable[[Record], bool]:
    """Ask which leases are not collected. The reply is true for a record whose lease is among them.

    Reads: by snapshot, at most limits.VERB_BATCH notices, and as many results beside them, in each line. A
    collection for a session that has ended gives its tasks back, so it needs no conflict.
    """
    own = _ask_delivered(tr, LineKeys(shape.keys.line))
    if shape.plan is None:
        return lambda record: (record.id, delivered_value(record)) in own()
    shared, place = _ask_delivered(tr, LineKeys(shape.shared.line)), bytes((shape.keys.partition,))
    return lambda record: (
        (record.id, delivered_value(record)) in own()
        or (record.id, delivered_value(record) + place) in shared()
    )


def _ask_delivered(tr: Transaction, line: LineKeys) -> Callable[[], set[tuple[bytes, bytes]]]:
    most = limits.VERB_BATCH
    asked = tr.snapshot.get_range(line.all_notices.start, line.all_notices.stop, limit=most)
    beside = tr.snapshot.get_range(line.all_results.start, line.all_results.stop, limit=most)
    known: set[tuple[bytes, bytes]] = set()

    def reply() -> set[tuple[bytes, bytes]]:
        if not known:
            notices = [notice for row in asked if (notice := notice_of(row.value)) is not None]
            known.update(result for notice in notices for result in notice.results)
            known.update((line.item_id_of(row.key), row.value) for row in beside)
        return known

    return reply
