"""A feature in one file: a queue with `count_takes_by` counts its takes by the value of that header.

A put names the value with `counts_as`. tests/test_features.py adds this file to the tables, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdbqueue.core.arguments import checked_text
from fdbqueue.core.columns import text, text_in
from fdbqueue.core.rows import Check, Flaw, OfColumn, Row
from fdbqueue.core.seam import ReadTransaction
from fdbqueue.core.task import Reason, Why
from fdbqueue.core.unreadable import COUNTER, count_in
from fdbqueue.tasks.feature import Feature, Site
from fdbqueue.tasks.rows import FeatureRows, Told
from fdbqueue.tasks.stored.records import Record, S, Statistics

HEADER_BYTES = 64
TAKES = S.column(40, text(1, HEADER_BYTES))  # number of takes; statistics


def asked(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    value = checked_text("counts_as", options["counts_as"], HEADER_BYTES)
    return {"headers": {settings.of_feature("count_takes_by"): value}}


class TakeRows(FeatureRows):
    copied = (TAKES,)

    def columns(self) -> dict[int, OfColumn]:
        return {TAKES: self._number}

    def _number(self, row: Row, rest: bytes) -> Check:
        if len(row.value) != COUNTER.size:
            yield self.found(Flaw.COUNTER, row, f"The takes of {text_in(rest)!r} cannot be read.")

    def ask_statistics(self, tr: ReadTransaction) -> Callable[[], Statistics]:
        under = TAKES.all(self._keys.prefix)
        rows = tr.get_range(under.start, under.stop)
        return lambda: {"takes": {text_in(row.key[len(under.start) :]): count_in(row.value) for row in rows}}

    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:  # noqa: ARG002
        name = self._shape.settings.of_feature("count_takes_by")
        value = record.extra.headers[name] if record.extra is not None else ""
        stored = tr.get(TAKES.key(self._keys.prefix)(value))
        return lambda: Told(
            reasons=[Reason(Why.BEHIND, f"{count_in(stored.value)} tasks of {value!r} were taken.", "Wait.")]
        )


class TakesByHeader(Feature):
    rows = TakeRows
    in_each_part = True

    def __init__(self, settings: Any, *_: Any) -> None:
        self._name = checked_text("count_takes_by", settings.of_feature("count_takes_by"), HEADER_BYTES)

    def started(self, site: Site, records: Sequence[Record], gate: Any) -> Sequence[Record]:  # noqa: ARG002
        for record in records:
            if record.extra is not None and self._name in record.extra.headers:
                key = TAKES.key(site.keys.prefix)(record.extra.headers[self._name])
                site.tr.add(key, COUNTER.pack(1))
        return records

    def cleared(self, site: Site) -> None:
        under = TAKES.all(site.keys.prefix)
        site.tr.clear_range(under.start, under.stop)
