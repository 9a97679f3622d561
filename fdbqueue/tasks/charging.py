"""Charging: with `charge="time"`, the end of a lease charges its task key with its time (stored/charged.py).

Each end counts: ack, release, burial, delete, the end of the lease or of its session. A hand-off ends the
run, as no worker waits for the outside. A detached lease goes on. Takes count their tasks in the discipline.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.seam import KeyValue, ReadTransaction
from fdbqueue.core.task import Reason, TaskState, Why
from fdbqueue.tasks.feature import REMOVED, End, Feature, Site
from fdbqueue.tasks.rows import FeatureRows, Told, span
from fdbqueue.tasks.stored.charged import Charged, debt_to_bytes, end_us, units_of
from fdbqueue.tasks.stored.key_counts import ROUND_MAX, key_of, readable_state
from fdbqueue.tasks.stored.records import HANDED_OFF, LIVE_NAMES, Record, unpacked


class ChargeRows(FeatureRows):
    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:  # noqa: ARG002
        charged = self._shape.discipline
        if record.state != TaskState.READY or not isinstance(charged, Charged):
            return Told
        asked = charged.ask_ahead_s(tr, record.key)

        def reply() -> Told:
            text = f"The tasks of its key have run {span(asked())} beyond their share."
            return Told(reasons=[Reason(Why.BEHIND, text, "Other keys come first.")] if asked() > 0 else ())

        return reply


class Charging(Feature):
    rows = ChargeRows
    in_each_part = True

    def __init__(self, *_: Any) -> None:
        self._next_us: dict[int, int] = {}
        """By partition, the time of the next look for keys that owe nothing."""
        self._after: dict[int, bytes] = {}
        """By partition, the key with which the next look begins. It is advice: any other one is right."""

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        self.gone(site, [old for old, new in zip(olds, news, strict=True) if not _runs(new)])
        return news

    def gone(self, site: Site, records: Sequence[Record], end: End = REMOVED) -> None:  # noqa: ARG002
        for record in filter(_runs, records):
            debt = debt_to_bytes(-1, end_us(record, site.now_us))
            site.tr.add(_charged(site).debt_key(record.key), debt)

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        return lambda: self._next_us.get(site.keys.partition, 0)

    def sweep(self, site: Site) -> bool:
        """Clear the rounds and debts of keys without a task that are not ahead of others.

        Reads: a batch of states, by snapshot; the debts of keys that may go, serialisably.
        Conflicts: a put into a key that goes.
        """
        number, tr, keys, charged = site.keys.partition, site.tr, site.keys, _charged(site)
        if site.now_us < self._next_us.get(number, 0):
            return False
        start, stop = self._after.pop(number, charged.states.start), charged.states.stop
        rows = tr.snapshot.get_range(start, stop, limit=limits.VERB_BATCH)
        used = [tr.snapshot.get_range(one.start, one.stop, limit=1) for one in (keys.ready, keys.taken)]
        current, found = charged.ask_now(tr), rows.to_list()
        now = current() if any(one.to_list() for one in used) else ROUND_MAX
        cleared = [clear() for clear in [_ask_cleared(site, charged, row, now) for row in found]]
        if len(found) == limits.VERB_BATCH:
            self._after[number] = found[-1].key + b"\x00"
        if not any(cleared):
            self._next_us[number] = site.now_us + round(limits.DEBTS_SWEPT_EVERY_S * 1_000_000)
        return any(cleared)


def _charged(site: Site) -> Charged:
    return Charged(site.keys, {"weights": {}})  # neither a charge nor a sweep needs them


def _runs(record: Record) -> bool:
    return record.state == TaskState.TAKEN and record.session != HANDED_OFF


def _ask_cleared(site: Site, charged: Charged, row: KeyValue, now: int) -> Callable[[], bool]:
    """Ask for the debt of a key with this state. The reply clears both, if the key is not ahead of `now`."""
    tr, state, slug = site.tr, readable_state(row.value), row.key[len(charged.states.start) :]
    if state is None or state.pointer or state.held or state.round > now:
        return lambda: False
    ahead, debt_key = state.round - now, charged.debt_key(key_of(slug))
    tr.add_read_conflict_key(row.key)
    debt, counts = tr.get(debt_key), tr.snapshot.get(charged.counts.counts_key(slug))

    def reply() -> bool:
        if unpacked(LIVE_NAMES, counts.value)["taken"] or ahead + units_of(debt.value, site.now_us) > 0:
            return False
        tr.clear(row.key)
        tr.clear(debt_key)
        return True

    return reply
