"""Repeats the transactions of the workload `serial` on the plain model, in the order of their stamps."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from fdbqueue.core.database import Database
from fdbqueue.core.fdberror import MAYBE_COMMITTED, TIMED_OUT
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace
from tests.system import plain_engine
from tests.system.plain_engine import Mutation, Transaction, after
from tests.system.workloads.process_checks import DONE, Record, records
from tests.system.workloads.serial_attempts import PREFIX, Attempt

_CONFLICT = 1020
# A commit that is not finished at its timeout may be stored after it, as on a cluster.
_MAYBE_STORED = MAYBE_COMMITTED | {TIMED_OUT}


def in_one_order(log: Sequence[Attempt], *, may_be_unknown: bool, is_silent: bool) -> Checker:
    """Make a checker: the answers, the refusals and the final contents are those of one serial order."""

    def check(_: Trace, database: Database) -> Iterator[str]:
        stored = records(database)
        yield from _told_as_stored(log, stored, may_be_unknown=may_be_unknown)
        yield from Replay(log, is_silent=is_silent).of(stored, database)

    return check


def _told_as_stored(
    log: Sequence[Attempt], stored: Sequence[Record], *, may_be_unknown: bool
) -> Iterator[str]:
    places = {record.name: record.place for record in stored}
    if len(places) != len(stored):
        yield "an attempt is stored twice"
    for one in log:
        place = places.get(one.name)
        if one.place is not None and one.place != place:
            yield f"{one.name!r} was told {one.place}, and is stored at {place}"
        if one.code is not None and one.code not in _MAYBE_STORED and place is not None:
            yield f"{one.name!r} raised {one.code}, and is stored at {place}"
        if one.code in MAYBE_COMMITTED and not may_be_unknown:
            yield f"the result of {one.name!r} stayed unknown"


class Replay:
    def __init__(self, log: Sequence[Attempt], *, is_silent: bool) -> None:
        """`is_silent`: some writes conflict with no read."""
        self._is_silent = is_silent
        self._log = {one.name: one for one in log}
        self._plain = plain_engine.Database()
        self._versions = [0]
        """The version of each commit of the plain model."""

    def of(self, stored: Sequence[Record], database: Database) -> Iterator[str]:
        for record in stored:
            one = self._log.pop(record.name)
            tr = self._begun(one)
            yield from _answers(one, tr)
            if not tr.may_commit() or not (self._is_silent or tr.would_do_the_same_now()):
                yield f"{one.name!r} was committed, and something that it read had changed"
            _stamp(one, record, tr)
            tr.commit()
            self._versions.append(record.version)
        for one in self._log.values():
            tr = self._begun(one)
            yield from _answers(one, tr)
            if one.code == _CONFLICT and not tr.database.conflict(tr.reads + tr.maybe_reads, tr.version):
                yield f"{one.name!r} was refused, and nothing that it read had changed"
        found = {entry.key: entry.value for entry in database.get_range(b"", b"\xff")}
        for key in sorted(found.keys() ^ self._plain.latest.keys()):
            yield f"after all, {key!r} is in one of the two only"
        for key, value in self._plain.latest.items():
            if found.get(key, value) != value:
                yield f"after all, {key!r} is {found[key]!r}, where {value!r} was written"

    def _begun(self, one: Attempt) -> Transaction:
        last = len(self._versions) - 1
        version = last if one.read_version is None else bisect_right(self._versions, one.read_version) - 1
        return Transaction(self._plain, version)


def _answers(one: Attempt, tr: Transaction) -> Iterator[str]:
    for call, answer in one.calls:
        expected = call.plain(tr)
        if answer != expected:
            yield f"{one.name!r} made {call}, and got {answer!r}, not {expected!r}"


def _stamp(one: Attempt, record: Record, tr: Transaction) -> None:
    """Write the record and the stamp of the commit."""
    stamp = record.version.to_bytes(8, "big") + record.order.to_bytes(2, "big")
    if one.stamped is not None:
        tr.write(Mutation(one.stamped, after(one.stamped), "set", PREFIX + stamp))
    tr.write(Mutation(DONE + stamp, after(DONE + stamp), "set", one.record))
