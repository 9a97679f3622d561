"""Finding jobs: the first ones of a tube in each state, and the tube with the best job."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import BURIED, DELAYED
from fdbqueue.integrations.beanstalkd.keys import JobKeys
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import NUMBER, Record, id_in

URGENT = 1024
"""Jobs of a smaller priority are urgent."""
URGENT_COUNTED_MAX = 1_000
TIMERS_LOOKED_AT_MAX = 2_000
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
    """The delayed tasks that are due first, among the first TIMERS_LOOKED_AT_MAX timers."""
    found: list[Record] = []
    begin, end = change.shape.keys.timers.start, change.shape.keys.timers.stop
    for _ in range(TIMERS_LOOKED_AT_MAX // limits.VERB_BATCH):
        rows = change.tr.snapshot.get_range(begin, end, limit=limits.VERB_BATCH).to_list()
        found += _in_state(change, [id_in(row.key) for row in rows], DELAYED)
        if len(found) >= count or len(rows) < limits.VERB_BATCH:
            break
        begin = rows[-1].key + b"\0"
    return found[:count]


def first_buried(keys: JobKeys, tube: str, change: Change, count: int) -> list[Record]:
    """The tasks that were buried first; behind them, those that a program has buried, by priority.

    Rows of tasks that are not buried any more are cleared, unless partitions share them.
    """
    under, beside = keys.burials(tube), change.shape.keys.buried
    asked = [change.tr.snapshot.get_range(at.start, at.stop, limit=count) for at in (under, beside)]
    rows, others = (found.to_list() for found in asked)
    ids = [keys.buried_in(row.key) for row in rows]
    found = _in_state(change, dict.fromkeys([*ids, *(id_in(row.key) for row in others)]), BURIED)
    known = {record.id for record in found}
    for row, id_ in zip(rows, ids, strict=True):
        if change.plan is None and id_ not in known:
            change.tr.clear(row.key)
    return found[:count]


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
