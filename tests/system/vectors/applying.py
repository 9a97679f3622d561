"""Applies one call to given keys, in a database in memory, and tells all that follows."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import errors
from fdbqueue.core.database import Database, as_database
from fdbqueue.core.once import receipts_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.session import Session
from fdbqueue.embedded.transaction import Transaction, open_private
from fdbqueue.operate.conformance import Conflicts, Keys, heard, is_refusal, merged
from tests.system.vectors.runtime import VectorRuntime
from tests.system.vectors.verbs import ROOT, Given, verb_of

_ALL = (b"", b"\xff")
_REFUSALS = (
    errors.DefinitionUnreadable,
    errors.GroupClosed,
    errors.GroupNotFound,
    errors.ImportUnfinished,
    errors.InvalidArgument,
    errors.QueueKindMismatch,
    errors.QueueNotFound,
    errors.UnknownKind,
    errors.UnknownSession,
    errors.UnsupportedOption,
)
"""Errors of calls that docs/layout.md tells each program to refuse. Others are answers of a call."""


@dataclass(frozen=True)
class Applied:
    """The effect of a call."""

    after: Keys
    returns: Any
    random: list[bytes]
    conflicts: Conflicts | None


class Applier:
    """One database in memory, which is emptied before each call."""

    def __init__(self) -> None:
        self._runtime = VectorRuntime()
        self._engine = open_private(self._runtime)

    def close(self) -> None:
        self._engine.close()

    def apply(
        self,
        before: Keys,
        kind: str,
        verb: str,
        call: Mapping[str, Any],
        now_us: int,
        source: Callable[[int], bytes],
    ) -> Applied:
        """Make the call on the keys `before`, with random bytes of `source`. Its services are new."""
        with closing(as_database(self._engine)) as database:
            self._runtime.time_us = now_us
            session = self._session(database, call)
            self._load(before)
            self._runtime.source, self._runtime.drawn = source, []
            given = Given(kind, call, session)
            if "receipt" in call:
                returns, conflicts = self._with_receipt(database, given, verb), None
            else:
                returns, conflicts = self._in_one(given, verb)
            return Applied(self._stored(), returns, [*self._runtime.drawn], conflicts)

    def prepare(self, before: Keys, now_us: int, body: Callable[[Database], object]) -> Keys:
        """The keys that `body`, given a database, leaves; without receipts."""
        with closing(as_database(self._engine)) as database:
            self._runtime.time_us = now_us
            self._load(before)
            body(database)
            receipts = ROOT.pack((3,))
            return {key: value for key, value in self._stored().items() if not key.startswith(receipts)}

    def _in_one(self, given: Given, verb: str) -> tuple[Any, Conflicts | None]:
        tr = self._engine.create_transaction()
        returns = self._told(tr, given, verb)
        # A program may find the reason for a refusal in another order.
        conflicts = None if is_refusal(returns) else _conflicts_of(tr)
        tr.commit().wait()
        return returns, conflicts

    def _with_receipt(self, database: Database, given: Given, verb: str) -> Any:
        """Make the call given a database. The process that keeps the receipt has the name in the call."""
        runtime = self._runtime
        source, runtime.source = runtime.source, heard(given["receipt"]["process"]).ljust
        receipts_of(database, RootKeys(ROOT))
        runtime.source, runtime.drawn = source, []
        return self._told(database, given, verb)

    def _told(self, target: Any, given: Given, verb: str) -> Any:
        """The result of the call; the name of its error if it raises one."""
        try:
            return verb_of(given.kind, verb)(target, given)
        except _REFUSALS as error:
            return {"refused": type(error).__name__}
        except errors.FdbQueueError as error:
            return {"error": type(error).__name__}

    def _session(self, database: Database, call: Mapping[str, Any]) -> Session | None:
        """A session of that id, which believes that it is open."""
        if "session" not in call:
            return None
        self._runtime.source = heard(call["session"]).ljust
        return Session(database, root=ROOT)

    def _load(self, keys: Keys) -> None:
        tr = self._engine.create_transaction()
        tr.clear_range(*_ALL)
        for key, value in keys.items():
            tr.set(key, value)
        tr.commit().wait()

    def _stored(self) -> Keys:
        rows = self._engine.create_transaction().get_range(*_ALL)
        return {bytes(row.key): bytes(row.value) for row in rows}


def _conflicts_of(tr: Transaction) -> Conflicts:
    """The ranges on which the transaction relies, and those that it declares as written but leaves alone."""
    reads, buffer = tr._reads, tr._buffer
    wrote = merged(
        [(key, key + b"\x00") for key in buffer.entries] + [(begin, end) for begin, end in buffer.cleared]
    )
    declared = [(key, key + b"\x00") for key in buffer.conflicts.points] + buffer.conflicts.ranges
    beside = [one for one in declared if not any(b <= one[0] and one[1] <= e for b, e in wrote)]
    relied = [(key, key + b"\x00") for key in reads.points] + reads.ranges
    return Conflicts(merged(relied), merged(beside))
