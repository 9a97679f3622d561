"""Finding jobs: the first ones of a tube in each state, and the tube with the best job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from fdbqueue.core import limits
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import BURIED, DELAYED
from fdbqueue.integrations.beanstalkd.keys import JobKeys
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import NUMBER, Record, id_in

URGENT = 1024
"""Jobs of a smaller priority are urgent."""
URGENT_COUNTED_MAX = 1_000
ROWS_LOOKED_AT_MAX = 2_000
_LAST = (inf, 0)


def order(record: Record) -> tuple[float, float]:
    """The place of a ready job among those of several tubes, the smallest first."""
    return record.pri, record.created_us


def best_first(tr: Transaction, tubes: Mapping[str, Parts], now_us: int) -> list[str]:
    """The tubes that may have a ready job, that with the best one first. Round trips: one for all tubes.

    A tube with jobs that have come due is among the last: its take sweeps them.
    """
    asked = [
        (tube, source.shape.discipline.first(tr, 1), edges.ask_due(tr, source.shape.keys, now_us))
        for tube, parts in tubes.items()
        for source in parts.holding()
    ]
    places: dict[str, tuple[float, float]] = {}
    for tube, ready, due in asked:
        first = min(map(order, ready), default=_LAST)
        if first is not _LAST or due.to_list():
            places[tube] = min(first, places.get(tube, _LAST))
    return sorted(places, key=lambda tube: places[tube])


def first_ready(change: Change, count: int) -> list[Record]:
    return list(change.shape.discipline.first(change.tr, count))


def first_delayed(change: Change, count: int) -> list[Record]:
    """The delayed tasks that are due first, among the first ROWS_LOOKED_AT_MAX timers."""
    found: list[Record] = []
    for rows in _pages(change, change.shape.keys.timers, limits.VERB_BATCH):
        found += _in_state(change, [id_in(row.key) for row in rows], DELAYED)
        if len(found) >= count:
            break
    return found[:count]


def first_buried(keys: JobKeys, tube: str, change: Change, count: int) -> list[Record]:
    """The tasks that were buried first, among the first ROWS_LOOKED_AT_MAX burials; behind them, others by
    priority, such as those that a program has buried.

    A row of a task that is not buried any more stays if a program has kicked it. It is cleared here, unless
    partitions share the rows.
    """
    found, at = dict[bytes, Record](), change.shape.keys.buried
    others = change.tr.snapshot.get_range(at.start, at.stop, limit=max(count, 1))
    for rows in _pages(change, keys.burials(tube), count):
        ids = [keys.buried_in(row.key) for row in rows]
        found |= {record.id: record for record in _in_state(change, ids, BURIED)}
        for row, id_ in zip(rows, ids, strict=True):
            if change.plan is None and id_ not in found:
                change.tr.clear(row.key)
        if len(found) >= count:
            break
    if len(found) < count:
        new = [id_ for id_ in (id_in(row.key) for row in others) if id_ not in found]
        found |= {record.id: record for record in _in_state(change, new, BURIED)}
    return list(found.values())[:count]


def _pages(change: Change, at: slice, limit: int) -> Iterator[list[KeyValue]]:
    """The first ROWS_LOOKED_AT_MAX rows, read by snapshot: `limit` of them, then twice as many each time."""
    begin, looked_at = at.start, 0
    while limit and looked_at < ROWS_LOOKED_AT_MAX:
        rows = change.tr.snapshot.get_range(begin, at.stop, limit=limit).to_list()
        yield rows
        if len(rows) < limit:
            break
        begin, looked_at, limit = rows[-1].key + b"\0", looked_at + limit, min(2 * limit, limits.VERB_BATCH)


def _in_state(change: Change, ids: Iterable[bytes], state: str) -> list[Record]:
    """Those of the tasks that are in the state, and have not expired."""
    found = [record for record in change.read(ids) if record is not None]
    return [record for record in found if record.state == state and edges.as_of(record, change.now_us)]


def urgent(changes: Sequence[Change]) -> int:
    """The number of ready jobs that are urgent, up to URGENT_COUNTED_MAX."""
    starts = [change.shape.keys.ready.start for change in changes]
    asked = [
        change.tr.snapshot.get_range(start, start + NUMBER.pack(URGENT), limit=URGENT_COUNTED_MAX)
        for change, start in zip(changes, starts, strict=True)
    ]
    return min(sum(len(rows.to_list()) for rows in asked), URGENT_COUNTED_MAX)
