"""The checks of a waiting line: requests, notices, results and their deadlines; and of values set aside."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.columns import UNKNOWN
from fdbqueue.core.line import decision
from fdbqueue.core.line.decision import Due, LineKeys, Notice, Ticket, notice_of
from fdbqueue.core.rows import Check, Checks, Excuse, Flaw, OfColumn, Row, Suspect, Under
from fdbqueue.core.seam import Transaction
from fdbqueue.core.unreadable import COUNT, ENTRY, PART, Aside, aside_text, entry_in
from fdbqueue.core.unreadable import ID_BYTES as ASIDE_ID_BYTES
from fdbqueue.operate.verify.values import Cures

RID_BYTES = limits.RANDOM_SUFFIX_BYTES
_DEADLINE_BYTES = 8
_NEXT_LOOK = "The next look at the line removes it."
_UNKNOWN = "No key of a waiting line has this shape."


class LineChecks(Checks):
    def __init__(self, keys: LineKeys, aside: Aside, cures: Cures) -> None:
        super().__init__(cures.mending)
        self.keys = keys
        self._aside = AsideChecks(aside, cures)
        self._checks: dict[int, OfColumn] = {
            decision.REQUEST: self._request,
            decision.DUE: self._due,
            decision.NOTICE: self._notice,
            decision.RESULT: self._result,
            decision.RENEWAL: self._renewal,
        }

    def weight(self, row: Row) -> int:
        return self._aside.weight(row)

    def check(self, row: Row) -> Check:
        column, rest = self.keys.parts_of(row.key)
        if column == UNKNOWN:
            return self._aside.check(row)
        return (
            self._checks[column](row, rest) if self.keys.has_shape(row.key) else self.unknown(row, _UNKNOWN)
        )

    def _request(self, row: Row, _: bytes) -> Check:
        if self.keys.ticket_of(row.key, row.value)[0].count == 0:
            text = "A request of the line is damaged: it counts as dead."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)

    def _due(self, row: Row, rest: bytes) -> Check:
        notice = self.keys.notice(rest[_DEADLINE_BYTES:])
        if not (yield [notice]).has(notice):
            text = "The results of a call were lost: their deadline is there, and no notice."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)

    def _notice(self, row: Row, rest: bytes) -> Check:
        notice = notice_of(row.value)
        if notice is None:
            text = "A notice of the line cannot be read."
            yield Suspect(Flaw.LINE, row.key, text, "At its deadline, a look at the line sets it aside.")
            return
        due = self.keys.due_key(Due(notice.deadline_us, rest))
        if not (yield [due]).has(due):
            text = "A notice has no deadline: if its caller is dead, its results never return."
            yield self.found(Flaw.LINE, row, text, {due: b""})

    def _result(self, row: Row, rest: bytes) -> Check:
        rid = rest[:RID_BYTES]
        if not (yield [self.keys.notice(rid)]).has(self.keys.notice(rid)):
            text = "A result of the line belongs to no notice: no call collects it, and it never returns."
            yield self.found(Flaw.LINE, row, text, partial(self._return, rid))

    def _return(self, rid: bytes, tr: Transaction) -> None:
        """Write a notice that is overdue: the next look at the line returns its results."""
        notice = Notice(deadline_us=1, crowd=0)
        tr.set(self.keys.notice(rid), decision.notice_value(notice))
        tr.set(self.keys.due_key(Due(notice.deadline_us, rid)), b"")

    def _renewal(self, row: Row, rest: bytes) -> Check:
        request = self.keys.request(Ticket(rest[: decision.STAMP_BYTES], rest[decision.STAMP_BYTES :], 0))
        if not (yield [request]).has(request):
            yield self.found(Flaw.STRAY, row, "A renewal belongs to no request.")
        elif not decision.deadline_of(row.value):
            text = "The renewal of a request is damaged: the request counts as dead."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)


class AsideChecks(Checks):
    def __init__(self, aside: Aside, cures: Cures) -> None:
        super().__init__(cures.mending)
        self._aside = aside
        self._cures = cures

    def weight(self, row: Row) -> int:
        column, _ = self._aside.parts_of(row.key)
        entry = entry_in(row.value) if column == ENTRY else None
        return 0 if entry is None else sum(entry.sizes)

    def check(self, row: Row) -> Check:
        column, rest = self._aside.parts_of(row.key)
        if column == ENTRY:
            return self._entry(row, rest)
        if column == PART:
            return self._part(row, self._aside.entry(rest[:ASIDE_ID_BYTES]))
        return self.nothing() if column == COUNT and not rest else self.unknown(row, _UNKNOWN)

    def _entry(self, row: Row, id_: bytes) -> Check:
        entry, start = entry_in(row.value), self._aside.part(id_)
        parts = Under(start, start + b"\xff" * 5)
        stored = [len(part.value) for part in (yield [parts]).rows(parts)]
        if entry is None:
            text = "The entry of a value set aside cannot be read. Nothing restores it."
        elif stored != list(entry.sizes):
            text = "A value set aside has lost bytes since. Nothing restores it."
        else:
            return
        yield Suspect(Flaw.SET_ASIDE, row.key, text, self._cures.removing(aside_text(id_)))

    def _part(self, row: Row, entry: bytes) -> Check:
        if not (yield [entry]).has(entry):
            text = "A part of a value set aside has no entry: no listing shows it."
            yield self.found(Flaw.SET_ASIDE, row, text)


def unless_in_line(keys: LineKeys, id_: bytes) -> Excuse:
    """True while the item lies in a notice or result, for a caller that has not collected it yet."""

    def explains(rows: Sequence[Row]) -> bool:
        return any(id_ in row.key or id_ in row.value for row in rows)

    return Excuse(Under(keys.all_notices.start, keys.all_results.stop), explains)
