"""The checks of a waiting line: requests, notices, results and their deadlines; and of values set aside."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.aside import COUNT, ENTRY, PART, Aside, aside_text, entry_in
from fdbqueue.core.aside import ID_BYTES as ASIDE_ID_BYTES
from fdbqueue.core.columns import UNKNOWN
from fdbqueue.core.line.keys import (
    DUE,
    NOTICE,
    RENEWAL,
    REQUEST,
    RESULT,
    STAMP_BYTES,
    Due,
    LineKeys,
    Notice,
    Ticket,
    deadline_of,
    notice_of,
    notice_value,
)
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under
from fdbqueue.operate.verify.cures import FOREIGN, Cures
from fdbqueue.operate.verify.slices import Excuse, Suspect
from fdbqueue.operate.verify.values import Flaw

RID_BYTES = limits.RANDOM_SUFFIX_BYTES
_DEADLINE_BYTES = 8
_NEXT_LOOK = "The next look at the line removes it."


class LineChecks:
    def __init__(self, keys: LineKeys, aside: Aside, cures: Cures) -> None:
        self.keys = keys
        self._aside = AsideChecks(aside, cures)
        self._mending = cures.mending

    def weight(self, row: Row) -> int:
        return self._aside.weight(row)

    def asks(self, row: Row) -> Iterable[Ask]:
        column, rest = self.keys.parts_of(row.key)
        if column == UNKNOWN:
            return self._aside.asks(row)
        return self._asks(column, rest, row) if self.keys.has_shape(row.key) else ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, rest = self.keys.parts_of(row.key)
        if column == UNKNOWN:
            return self._aside.judge(row, seen)
        if not self.keys.has_shape(row.key):
            return [Suspect(Flaw.UNKNOWN, row.key, "No key of a waiting line has this shape.", FOREIGN)]
        return self._judge(column, rest, row, seen)

    def _asks(self, column: int, rest: bytes, row: Row) -> Iterator[Ask]:
        if column == DUE:
            yield self.keys.notice(rest[_DEADLINE_BYTES:])
        elif column == NOTICE:
            notice = notice_of(row.value)
            if notice is not None:
                yield self._due_of(notice, rest)
        elif column == RESULT:
            yield self.keys.notice(rest[:RID_BYTES])
        elif column == RENEWAL:
            yield self.keys.request(_ticket(rest))

    def _judge(self, column: int, rest: bytes, row: Row, seen: Seen) -> Iterator[Suspect]:
        if column == REQUEST:
            if self.keys.ticket_of(row.key, row.value)[0].count == 0:
                text = "A request of the line is damaged: it counts as dead."
                yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)
        elif column == DUE:
            if seen.value(self.keys.notice(rest[_DEADLINE_BYTES:])) is None:
                text = "The results of a call were lost: their deadline is there, and no notice."
                yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)
        elif column == NOTICE:
            yield from self._judge_notice(rest, row, seen)
        elif column == RESULT:
            yield from self._judge_result(rest, row, seen)
        else:
            yield from self._judge_renewal(rest, row, seen)

    def _judge_notice(self, rest: bytes, row: Row, seen: Seen) -> Iterator[Suspect]:
        notice = notice_of(row.value)
        if notice is None:
            text = "A notice of the line cannot be read."
            yield Suspect(Flaw.LINE, row.key, text, "At its deadline, a look at the line sets it aside.")
        elif seen.value(self._due_of(notice, rest)) is None:
            text = "A notice has no deadline: if its caller is dead, its results never return."
            key = self._due_of(notice, rest)
            yield Suspect(Flaw.LINE, row.key, text, self._mending, lambda tr: tr.set(key, b""))

    def _judge_result(self, rest: bytes, row: Row, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self.keys.notice(rest[:RID_BYTES])) is None:
            text = "A result of the line belongs to no notice: no call collects it, and it never returns."
            yield Suspect(Flaw.LINE, row.key, text, self._mending, partial(self._return, rest[:RID_BYTES]))

    def _return(self, rid: bytes, tr: Transaction) -> None:
        """Write a notice that is overdue: the next look at the line returns its results."""
        notice = Notice(deadline_us=1, crowd=0)
        tr.set(self.keys.notice(rid), notice_value(notice))
        tr.set(self._due_of(notice, rid), b"")

    def _judge_renewal(self, rest: bytes, row: Row, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self.keys.request(_ticket(rest))) is None:
            text = "A renewal belongs to no request."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif not deadline_of(row.value):
            text = "The renewal of a request is damaged: the request counts as dead."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)

    def _due_of(self, notice: Notice, rid: bytes) -> bytes:
        return self.keys.due_key(Due(notice.deadline_us, rid))


class AsideChecks:
    def __init__(self, aside: Aside, cures: Cures) -> None:
        self._aside = aside
        self._cures = cures
        self._mending = cures.mending

    def weight(self, row: Row) -> int:
        column, _ = self._aside.parts_of(row.key)
        entry = entry_in(row.value) if column == ENTRY else None
        return 0 if entry is None else sum(entry.sizes)

    def asks(self, row: Row) -> Iterator[Ask]:
        column, rest = self._aside.parts_of(row.key)
        if column == ENTRY:
            yield self._parts(rest)
        elif column == PART:
            yield self._aside.entry(rest[:ASIDE_ID_BYTES])

    def judge(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        column, rest = self._aside.parts_of(row.key)
        if column == ENTRY:
            yield from self._judge_entry(rest, row, seen)
        elif column == PART:
            if seen.value(self._aside.entry(rest[:ASIDE_ID_BYTES])) is None:
                text = "A part of a value set aside has no entry: no listing shows it."
                yield Suspect(Flaw.SET_ASIDE, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif column != COUNT or rest:
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a waiting line has this shape.", FOREIGN)

    def _judge_entry(self, rest: bytes, row: Row, seen: Seen) -> Iterator[Suspect]:
        entry = entry_in(row.value)
        if entry is None:
            text = "The entry of a value set aside cannot be read. Nothing restores it."
        elif [len(part.value) for part in seen.rows(self._parts(rest))] != list(entry.sizes):
            text = "A value set aside has lost bytes since. Nothing restores it."
        else:
            return
        yield Suspect(Flaw.SET_ASIDE, row.key, text, self._cures.removing(aside_text(rest)))

    def _parts(self, id_: bytes) -> Under:
        start = self._aside.part(id_)
        return Under(start, start + b"\xff" * 5)


def unless_in_line(keys: LineKeys, id_: bytes) -> Excuse:
    """True while the item lies in a notice or result, for a caller that has not collected it yet."""

    def explains(rows: Sequence[Row]) -> bool:
        return any(id_ in row.key or id_ in row.value for row in rows)

    return Excuse(Under(keys.all_notices.start, keys.all_results.stop), explains)


def _ticket(rest: bytes) -> Ticket:
    return Ticket(rest[:STAMP_BYTES], rest[STAMP_BYTES:], 0)
