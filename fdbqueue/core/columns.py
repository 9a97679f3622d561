"""Columns: a key range is declared once; its builders, slices and parsers are made from the declaration.

A column is its number below a prefix, and the parts of its keys behind that number. A table has the columns
of one prefix: `TASK = S.column(1, ID)` declares the keys S[1] id. The parts of plain columns are plain bytes.
Packed columns are tuples of the tuple layer, and are declared by the types of their parts.

A class of keys takes its functions from the columns when it is opened:

    self.task, self.tasks = TASK.key(prefix), TASK.all(prefix)

A builder makes a key with at most one Python call of ours, and a type checker knows its arguments. Of one
part that is bytes already, it is `prefix.__add__`, which makes none.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Generic, TypeVar, TypeVarTuple, overload

from fdb import tuple as layer

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Parts = TypeVarTuple("Parts")

UNKNOWN = -1
"""The column of a key that is in none of a table."""
UNPACKING = (ValueError, IndexError, struct.error)
"""The tuple layer raises one of these for bytes that no tuple makes."""

_ZERO: bytes = layer.pack((0,))
"""The one number that the tuple layer packs into a single byte. Larger ones, up to 255, take two."""


@dataclass(frozen=True)
class Part(Generic[A]):
    """A part of a plain key: the numbers of bytes that it may have."""

    shortest: int
    longest: int
    pack: Callable[[A], bytes] | None = None
    """None for a part that is bytes already."""
    read: Callable[[bytes], A] | None = None


def sized(shortest: int, longest: int | None = None) -> Part[bytes]:
    """Bytes: exactly `shortest` of them, or any number up to `longest`."""
    return Part(shortest, shortest if longest is None else longest)


def number(size: int) -> Part[int]:
    return Part(size, size, struct.Struct({1: ">B", 4: ">I", 8: ">Q"}[size]).pack, int.from_bytes)


def text(shortest: int, longest: int) -> Part[str]:
    """A text with its length in front, a byte: no text is then a prefix of another."""
    return Part(1 + shortest, 1 + longest, text_bytes, text_in)


def text_bytes(value: str) -> bytes:
    encoded = value.encode()
    return bytes((len(encoded),)) + encoded


def text_in(rest: bytes) -> str:
    return rest[1 : 1 + rest[0]].decode(errors="replace")


def below(prefix: bytes) -> slice:
    """The slice of the tuples that go on behind the one in `prefix`."""
    return slice(prefix + b"\x00", prefix + b"\xff")


class Column(int, Generic[*Parts]):
    """A column of plain bytes. It is its number, and so compares with numbers and stands in tuples."""

    parts: tuple[Any, ...]
    code: bytes
    end: bytes
    """The code of the next column. A column ends there: any byte may follow its own code."""

    def __new__(cls, number: int, parts: tuple[Any, ...]) -> "Column[*Parts]":
        self = super().__new__(cls, number)
        self.parts, self.code, self.end = parts, layer.pack((number,)), layer.pack((number + 1,))
        return self

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest number of bytes behind the code."""
        return sum(part.shortest for part in self.parts), sum(part.longest for part in self.parts)

    def start(self, prefix: bytes) -> bytes:
        """The beginning of all keys of the column: the one key of a column without parts."""
        return prefix + self.code

    def all(self, prefix: bytes) -> slice:
        return slice(prefix + self.code, prefix + self.end)

    def key(self, prefix: bytes) -> Callable[[*Parts], bytes]:
        return self._builder(prefix + self.code)

    def of(self: "Column[A, *tuple[Any, ...]]", prefix: bytes, end: bytes = b"") -> Callable[[A], slice]:
        """Return the function from a first part to the slice of its keys. `end` is greater than all that may
        follow; by default, it is longer.
        """
        build, behind = self._first(prefix), end or self._end
        return lambda part: slice(start := build(part), start + behind)

    def until(self: "Column[int, *tuple[Any, ...]]", prefix: bytes) -> Callable[[int], slice]:
        """Return the function from a number to the slice of the keys with a first part up to that number."""
        start, build = self.all(prefix).start, self._first(prefix)
        return lambda number: slice(start, build(number + 1))

    def after(self: "Column[int, *tuple[Any, ...]]", prefix: bytes) -> Callable[[int], slice]:
        """As `until`, of the keys with a greater first part."""
        stop, build = self.all(prefix).stop, self._first(prefix)
        return lambda number: slice(build(number + 1), stop)

    def first(self: "Column[A, *tuple[Any, ...]]", prefix: bytes) -> Callable[[bytes], A]:
        return self._reader(prefix, 0)

    def last(self: "Column[*tuple[Any, ...], A]", prefix: bytes) -> Callable[[bytes], A]:
        """Return the reader of the last part of a key. Raises IndexError if no size tells where it begins."""
        return self._reader(prefix, len(self.parts) - 1)

    def pair(self: "Column[A, B]", prefix: bytes) -> Callable[[bytes], tuple[A, B]]:
        first, last = self.first(prefix), self.last(prefix)
        return lambda key: (first(key), last(key))

    # Made once for each column: every queue that is opened uses them.

    @cached_property
    def _builder(self) -> Callable[[bytes], Callable[[*Parts], bytes]]:
        return _builder_of(*(part.pack for part in self.parts))

    @cached_property
    def _builder_of_first(self) -> Callable[[bytes], Callable[[Any], bytes]]:
        return _builder_of(self.parts[0].pack)

    @cached_property
    def _end(self) -> bytes:
        longest: int = sum(part.longest for part in self.parts[1:])
        return b"\xff" * (longest + 1)

    @cached_property
    def _places(self) -> list[tuple[int, int | None]]:
        """Begin and end of the parts that can be read, from the code on: all parts before them have one size.
        A text tells its end itself, and a last part of bytes is all that is left.
        """
        places: list[tuple[int, int | None]] = []
        start = len(self.code)
        for at, part in enumerate(self.parts, 1):
            is_fixed, is_last = part.shortest == part.longest, at == len(self.parts)
            if is_fixed or is_last or part.read == text_in:
                is_cut = is_fixed and (part.read is not None or not is_last)
                places.append((start, start + part.longest if is_cut else None))
            if not is_fixed:
                break
            start += part.longest
        return places

    def _first(self, prefix: bytes) -> Callable[[Any], bytes]:
        return self._builder_of_first(prefix + self.code)

    def _reader(self, prefix: bytes, at: int) -> Callable[[bytes], Any]:
        start, stop = self._places[at]
        behind = slice(len(prefix) + start, None if stop is None else len(prefix) + stop)
        read = self.parts[at].read
        return itemgetter(behind) if read is None else lambda key: read(key[behind])


class Packed(Column[*Parts]):
    """A column of tuples. `parts` are their types."""

    def all(self, prefix: bytes) -> slice:
        return below(prefix + self.code)

    def key(self, prefix: bytes, *then: Any) -> Callable[[*Parts], bytes]:
        """Return the builder of a key from its parts; `then` stands behind them."""
        under, pack = prefix + self.code, layer.pack

        def build(*parts: *Parts) -> bytes:
            key: bytes = pack((*parts, *then), under)
            return key

        return build

    def under(self, prefix: bytes, *then: Any) -> Callable[[*Parts], slice]:
        """Return the function from the parts of a key to the slice of the keys below it."""
        key = self.key(prefix, *then)
        return lambda *parts: below(key(*parts))

    def parse(self, prefix: bytes) -> Callable[[bytes], tuple[*Parts] | None]:
        """Return the reader of all parts, which returns None for a key of another shape."""
        under, shape = prefix + self.code, [*self.parts]

        def read(key: bytes) -> Any:
            parts = unpacked(key, len(under)) if key.startswith(under) else None
            return parts if parts is not None and [type(part) for part in parts] == shape else None

        return read

    def _first(self, prefix: bytes) -> Callable[[Any], bytes]:
        under, pack = prefix + self.code, layer.pack
        return lambda first: pack((first,), under)

    def _reader(self, prefix: bytes, at: int) -> Callable[[bytes], Any]:
        size, unpack = len(prefix + self.code), layer.unpack
        return lambda key: unpack(key, size)[at]


def unpacked(key: bytes, prefix_len: int) -> tuple[Any, ...] | None:
    """The parts of a key behind its prefix; None if no tuple makes them."""
    try:
        parts: tuple[Any, ...] = layer.unpack(key, prefix_len)
    except UNPACKING:
        return None
    return parts


def _builder_of(*packs: Any) -> Callable[[bytes], Any]:
    """The function from a prefix to a builder: one for each form, as a loop over the parts is slow."""
    match packs:
        case ():
            return lambda under: lambda: under
        case (None,):
            return lambda under: under.__add__
        case (pack,):
            return lambda under: lambda one: under + pack(one)
        case (None, None):
            return lambda under: lambda one, two: under + one + two
        case (None, pack):
            return lambda under: lambda one, two: under + one + pack(two)
        case (pack, None):
            return lambda under: lambda one, two: under + pack(one) + two
        case (pack, then):
            return lambda under: lambda one, two: under + pack(one) + then(two)
        case (None, pack, None):
            return lambda under: lambda one, two, three: under + one + pack(two) + three
    raise NotImplementedError(packs)


class Table:
    """The columns of one prefix. A number may stand for several columns, which differ in their parts."""

    def __init__(self, *shared: Column[*tuple[Any, ...]]) -> None:
        self.columns: list[Column[*tuple[Any, ...]]] = []
        self._of_codes: dict[bytes, int] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        for column in shared:
            self._add(column)

    @overload
    def column(self, number: int, /) -> Column[()]: ...
    @overload
    def column(self, number: int, a: Part[A], /) -> Column[A]: ...
    @overload
    def column(self, number: int, a: Part[A], b: Part[B], /) -> Column[A, B]: ...
    @overload
    def column(self, number: int, a: Part[A], b: Part[B], c: Part[C], /) -> Column[A, B, C]: ...
    def column(self, number: int, /, *parts: Part[Any]) -> Any:
        return self._add(Column(number, parts))

    @overload
    def packed(self, number: int, /) -> Packed[()]: ...
    @overload
    def packed(self, number: int, a: type[A], /) -> Packed[A]: ...
    @overload
    def packed(self, number: int, a: type[A], b: type[B], /) -> Packed[A, B]: ...
    @overload
    def packed(self, number: int, a: type[A], b: type[B], c: type[C], /) -> Packed[A, B, C]: ...
    def packed(self, number: int, /, *parts: type[Any]) -> Any:
        self.columns.append(Packed(number, parts))
        return self.columns[-1]

    def parts_of(self, prefix: bytes) -> Callable[[bytes], tuple[int, bytes]]:
        """Return the function from a plain key to its column, or UNKNOWN, and the part behind it."""
        start, of_codes = len(prefix), self._of_codes

        def parts_of(key: bytes) -> tuple[int, bytes]:
            behind = start + 1 if key[start : start + 1] == _ZERO else start + 2
            column = of_codes.get(key[start:behind], UNKNOWN) if key.startswith(prefix) else UNKNOWN
            return column, key[behind:]

        return parts_of

    def has_shape(self, prefix: bytes) -> Callable[[bytes], bool]:
        """Return the function that is True for a plain key of one of the columns, by its number of bytes."""
        parts_of, sizes = self.parts_of(prefix), self._sizes

        def has_shape(key: bytes) -> bool:
            column, rest = parts_of(key)
            shortest, longest = sizes.get(column, (0, -1))
            return shortest <= len(rest) <= longest

        return has_shape

    def _add(self, column: Column[*tuple[Any, ...]]) -> Column[*tuple[Any, ...]]:
        self.columns.append(column)
        self._of_codes.setdefault(column.code, column)
        (shortest, longest), known = column.sizes, self._sizes.get(column, column.sizes)
        self._sizes[column] = (min(shortest, known[0]), max(longest, known[1]))
        return column
