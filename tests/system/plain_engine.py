"""The plain model of a transactional database: a dict per version, a list of mutations, a naive check.

It is simple, so that a reader can see that it is right. A transaction reads a copy of the dict of its
read version with its own mutations applied, in order. A commit conflicts if a key range that it has read
shares a key with a key range written at a later version. The range that a read counts as read is
FoundationDB's own rule, taken from its client; that a key set or cleared by the transaction itself does not
count, too.

The atomic operations, transcribed from their documentation as plainly as possible.

Arithmetic ones see both sides as little-endian numbers, the old value cut or zero-padded to the width of
the operand. `old` is None for an absent key; so is a result.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

END = b"\xff"

Range = tuple[bytes, bytes]  # half open
Contents = dict[bytes, bytes]


def after(key: bytes) -> bytes:
    """Return the first key above `key`."""
    return key + b"\x00"


@dataclass(frozen=True)
class Selector:
    key: bytes
    or_equal: bool
    offset: int

    def plain(self) -> "Selector":
        """Return an equal selector without `or_equal`."""
        return Selector(after(self.key), False, self.offset) if self.or_equal else self

    def position(self, keys: list[bytes]) -> int:
        """Return its index in the sorted `keys`; below zero is off the beginning, len(keys) off the end."""
        plain = self.plain()
        return sum(key < plain.key for key in keys) + plain.offset - 1

    def resolve(self, keys: list[bytes]) -> bytes:
        position = self.position(keys)
        return b"" if position < 0 else END if position >= len(keys) else keys[position]

    def runs_off(self, keys: list[bytes]) -> bool:
        return not 0 <= self.position(keys) < len(keys)


@dataclass(frozen=True)
class Mutation:
    begin: bytes
    end: bytes
    operation: str = "clear"  # clear, set, or the name of an atomic operation on the key `begin`
    operand: bytes = b""

    def apply(self, contents: Contents) -> None:
        if self.operation == "clear":
            for key in [key for key in contents if self.begin <= key < self.end]:
                del contents[key]
            return
        old = contents.get(self.begin)
        new = self.operand if self.operation == "set" else OPERATIONS[self.operation](old, self.operand)
        contents.pop(self.begin, None)
        if new is not None:
            contents[self.begin] = new

    @property
    def settles(self) -> bool:
        """True if a read of its keys no longer depends on the database."""
        return self.operation in ("clear", "set")


@dataclass
class Read:
    """A range that was read, with the transaction's mutations before the read."""

    range: Range
    own: list[Mutation]

    def meets(self, written: Range) -> bool:
        """True if the two share a key that no own write has decided; it tries the edges of all ranges."""
        settled = [(m.begin, m.end) for m in self.own if m.settles]
        edges = [edge for pair in [self.range, written, *settled] for edge in pair]
        return any(
            inside(edge, self.range) and inside(edge, written) and not any(inside(edge, s) for s in settled)
            for edge in edges
        )


def inside(key: bytes, keys: Range) -> bool:
    return keys[0] <= key < keys[1]


@dataclass
class Commit:
    contents: Contents
    written: list[Range]


@dataclass
class Step:
    """One read or one write, with all that is needed to repeat it."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any = None


@dataclass
class Transaction:
    database: "Database"
    version: int
    mutations: list[Mutation] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    maybe_reads: list[Read] = field(default_factory=list)  # it may conflict or not
    written: list[Range] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    sees_own: bool = True
    """False: its reads leave its own writes out, as with the option read_your_writes_disable."""
    snapshots_see_own: bool = True
    """False: its snapshot reads do, as with the option snapshot_ryw_disable."""

    def contents(self, snapshot: bool) -> Contents:
        contents = dict(self.database.commits[self.version].contents)
        if self.sees_own and (self.snapshots_see_own or not snapshot):
            for mutation in self.mutations:
                mutation.apply(contents)
        return contents

    def own(self) -> list[Mutation]:
        """Return the mutations that decide its reads."""
        return list(self.mutations) if self.sees_own else []

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        found = self.contents(snapshot).get(key)
        if not snapshot:
            self.has_read((key, after(key)))
            self.steps.append(Step("get", (key,), found))
        return found

    def get_key(self, selector: Selector, snapshot: bool) -> bytes:
        found = selector.resolve(sorted(self.contents(snapshot)))
        if not snapshot:
            edge = selector.plain().key
            self.has_read((found, edge) if selector.offset <= 0 else (edge, after(found)))
            self.steps.append(Step("get_key", (selector,), found))
        return found

    def get_range(
        self, begin: Selector, end: Selector, limit: int, reverse: bool, snapshot: bool
    ) -> list[tuple[bytes, bytes]]:
        begin, end = begin.plain(), end.plain()
        if begin.offset >= end.offset and begin.key >= end.key:
            return []
        contents = self.contents(snapshot)
        keys = sorted(contents)
        first, last = begin.resolve(keys), end.resolve(keys)
        found = [key for key in keys if first <= key < last]
        if reverse:
            found.reverse()
        more = 0 < limit <= len(found)
        if limit:
            found = found[:limit]
        rows = [(key, contents[key]) for key in found]
        if not snapshot:
            self.steps.append(Step("get_range", (begin, end, limit, reverse), rows))
            if begin.runs_off(keys) or end.runs_off(keys):
                self.maybe_reads.append(Read((b"", END + END), self.own()))
            else:
                self.has_read(range_read(begin, end, found, more, reverse))
        return rows

    def has_read(self, keys: Range) -> None:
        if keys[0] < keys[1]:
            self.reads.append(Read(keys, self.own()))

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, mutation: Mutation, silent: bool = False) -> None:
        """Apply a mutation; a silent one conflicts with no read."""
        if mutation.begin < mutation.end:
            self.mutations.append(mutation)
            self.steps.append(Step("write", (mutation,)))
            if not silent:
                self.written.append((mutation.begin, mutation.end))

    # -- the commit ------------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        return bool(self.mutations or self.written)

    def may_commit(self) -> bool:
        return not (self.writes and self.database.conflict(self.reads, self.version))

    def may_fail(self) -> bool:
        return self.writes and self.database.conflict(self.reads + self.maybe_reads, self.version)

    def would_do_the_same_now(self) -> bool:
        """Check serialisability: repeated at the moment of the commit, each read gives the same answer."""
        again = self.database.begin()
        again.sees_own, again.snapshots_see_own = self.sees_own, self.snapshots_see_own
        for step in self.steps:
            reading = () if step.method == "write" else (False,)
            if getattr(again, step.method)(*step.arguments, *reading) != step.answer:
                return False
        return True

    def commit(self) -> None:
        if self.writes:
            latest = dict(self.database.latest)
            for mutation in self.mutations:
                mutation.apply(latest)
            self.database.commits.append(Commit(latest, list(self.written)))


def range_read(begin: Selector, end: Selector, found: list[bytes], more: bool, reverse: bool) -> Range:
    """Return the conflict range of a range read: its ends and records, without the part after a limit."""
    low, high = min(begin.key, end.key), max(begin.key, end.key)
    if begin.key < end.key and more:
        if not reverse and end.offset > 0:
            high = begin.key
        if reverse and begin.offset <= 1:
            low = end.key
    if found and not reverse:
        low = min(low, found[0]) if begin.offset <= 0 else low
        high = max(high, after(found[-1]))
    if found and reverse:
        low = min(low, found[-1])
        high = max(high, after(found[0])) if end.offset > 0 else high
    return low, high


class Database:
    def __init__(self, contents: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.commits = [Commit(dict(contents), [])]

    @property
    def latest(self) -> Contents:
        return self.commits[-1].contents

    def begin(self) -> Transaction:
        return Transaction(self, len(self.commits) - 1)

    def conflict(self, reads: list[Read], version: int) -> bool:
        return any(read.meets(written) for written in self._written_since(version) for read in reads)

    def _written_since(self, version: int) -> Iterator[Range]:
        for commit in self.commits[version + 1 :]:
            yield from commit.written


VALUE_BYTES_MAX = 100_000

Operation = Callable[[bytes | None, bytes], bytes | None]


def _number(value: bytes | None, width: int) -> int:
    return int.from_bytes((value or b"")[:width], "little")


def _arithmetic(compute: Callable[[int, int], int]) -> Operation:
    def operation(old: bytes | None, operand: bytes) -> bytes:
        width = len(operand)
        result = compute(_number(old, width), _number(operand, width))
        return (result % (1 << 8 * width)).to_bytes(width, "little")

    return operation


def _or_operand_if_absent(operation: Operation) -> Operation:
    return lambda old, operand: operand if old is None else operation(old, operand)


def _append_if_fits(old: bytes | None, operand: bytes) -> bytes:
    joined = (old or b"") + operand
    return joined if len(joined) <= VALUE_BYTES_MAX else (old or b"")


OPERATIONS: dict[str, Operation] = {
    "add": _arithmetic(lambda old, operand: old + operand),
    "bit_and": _or_operand_if_absent(_arithmetic(lambda old, operand: old & operand)),
    "bit_or": _arithmetic(lambda old, operand: old | operand),
    "bit_xor": _arithmetic(lambda old, operand: old ^ operand),
    "max": _arithmetic(max),
    "min": _or_operand_if_absent(_arithmetic(min)),
    "byte_max": _or_operand_if_absent(lambda old, operand: max(old or b"", operand)),
    "byte_min": _or_operand_if_absent(lambda old, operand: min(old or b"", operand)),
    "append_if_fits": _append_if_fits,
    "compare_and_clear": lambda old, operand: None if old in (None, operand) else old,
}
