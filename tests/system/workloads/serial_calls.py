"""The calls that a transaction of the workload `serial` makes: on the engine, and on the plain model."""

from dataclasses import dataclass, replace
from typing import Any

from fdbqueue.embedded.view import KeySelector
from tests.system.plain_engine import Mutation, Selector, Transaction


@dataclass(frozen=True)
class Get:
    key: bytes
    snapshot: bool

    def on(self, tr: Any) -> Any:
        return _reader(tr, self.snapshot).get(self.key).value

    def plain(self, plain: Transaction) -> Any:
        return plain.get(self.key, self.snapshot)


@dataclass(frozen=True)
class GetKey:
    selector: Selector
    snapshot: bool

    def on(self, tr: Any) -> Any:
        return _reader(tr, self.snapshot).get_key(_selector(self.selector)).value

    def plain(self, plain: Transaction) -> Any:
        return plain.get_key(self.selector, self.snapshot)


@dataclass(frozen=True)
class GetRange:
    begin: Selector
    end: Selector
    limit: int
    reverse: bool
    mode: int | None
    """The size of its batches; None: all at once."""
    snapshot: bool

    def on(self, tr: Any) -> Any:
        begin, end, reader = _selector(self.begin), _selector(self.end), _reader(tr, self.snapshot)
        if self.mode is None:
            rows = reader.get_range(begin, end, self.limit, self.reverse).to_list()
        else:
            rows = list(reader.get_range(begin, end, self.limit, self.reverse, self.mode))
        return [(row.key, row.value) for row in rows]

    def plain(self, plain: Transaction) -> Any:
        return plain.get_range(self.begin, self.end, self.limit, self.reverse, self.snapshot)


@dataclass(frozen=True)
class Write:
    mutation: Mutation
    """Its operation is that of the plain model, or "clear key"."""
    silent: bool

    def on(self, tr: Any) -> None:
        if self.silent:
            tr.options.set_next_write_no_write_conflict_range()
        one = self.mutation
        if one.operation == "set":
            tr[one.begin] = one.operand
        elif one.operation == "clear key":
            del tr[one.begin]
        elif one.operation == "clear":
            tr.clear_range(one.begin, one.end)
        else:
            getattr(tr, one.operation)(one.begin, one.operand)

    def plain(self, plain: Transaction) -> None:
        operation = self.mutation.operation.removesuffix(" key")
        plain.write(replace(self.mutation, operation=operation), self.silent)


@dataclass(frozen=True)
class Conflict:
    """A conflict range that the transaction adds, of a read or of a write."""

    begin: bytes
    end: bytes
    of_read: bool

    def on(self, tr: Any) -> None:
        add = tr.add_read_conflict_range if self.of_read else tr.add_write_conflict_range
        add(self.begin, self.end)

    def plain(self, plain: Transaction) -> None:
        if self.of_read:
            plain.has_read((self.begin, self.end))
        elif self.begin < self.end:
            plain.written.append((self.begin, self.end))


@dataclass(frozen=True)
class Option:
    """An option of reads, set before the first call."""

    name: str

    def on(self, tr: Any) -> None:
        getattr(tr.options, f"set_{self.name}")()

    def plain(self, plain: Transaction) -> None:
        plain.sees_own = plain.sees_own and self.name != "read_your_writes_disable"
        plain.snapshots_see_own = plain.snapshots_see_own and self.name != "snapshot_ryw_disable"


Call = Get | GetKey | GetRange | Write | Conflict | Option


def _reader(tr: Any, snapshot: bool) -> Any:
    return tr.snapshot if snapshot else tr


def _selector(selector: Selector) -> KeySelector:
    return KeySelector(selector.key, selector.or_equal, selector.offset)
