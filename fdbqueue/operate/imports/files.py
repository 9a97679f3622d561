"""The file store of persist-queue, `persistqueue.Queue`: a directory of numbered chunks, and `info`.

`info` holds two places, each a chunk, an entry and a byte: the tail, where the next get reads, and the head,
where the next put writes. Bytes behind the head belong to a put that did not finish.

A pickle may name a class or a function, which loading it would import and call. So a class or function in a
pickle is refused, unless the caller trusts the pickles. Numbers, texts, bytes and containers name none.
"""

import importlib
import io
import os
import pickle
import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fdbqueue.core.errors import InvalidArgument, OriginUnusable
from fdbqueue.operate.imports.target import Entry

_LENGTH = struct.Struct("<L")


@dataclass(frozen=True)
class Serializer:
    loads: Callable[[bytes], Any]
    cut: Callable[[BinaryIO], bytes]
    """Read the bytes of the next value of a file. Raises any Exception if they are not whole."""
    loads_cut: Callable[[bytes], Any]
    """Decode those bytes."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        said = f"it needs {module}.{name}, and loading it may run code: --pickle-may-run-code allows that"
        raise pickle.UnpicklingError(said)


def serializer_named(name: str, *, trust_pickle: bool = False) -> Serializer:
    """Return json, msgpack, pickle, or a module with `load` and `loads`. Raises InvalidArgument."""
    known: dict[str, tuple[Callable[[bytes], Any], Callable[[BinaryIO], bytes]]] = {
        "pickle": (pickle.loads if trust_pickle else _plain_pickle, _cut_pickle),
        "json": (msgspec.json.decode, _cut_line),
        "msgpack": (msgspec.msgpack.decode, _cut_counted),
    }
    # The module of persist-queue for pickles would load any.
    short = name.removeprefix("persistqueue.serializers.")
    if short not in known:
        return _from_module(name)
    loads, cut = known[short]
    return Serializer(loads, cut, loads)


def plain(value: Any) -> Any:
    """`value` as JSON's types and bytes, as `type=` stores it. Raises TypeError, RecursionError."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return plain(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _plain_pickle(raw: bytes) -> Any:
    return _PlainUnpickler(io.BytesIO(raw)).load()


def _cut_pickle(stream: BinaryIO) -> bytes:
    # Reads the instructions of the pickle without following them.
    return _between(stream, lambda: sum(1 for _ in pickletools.genops(stream)))


def _cut_line(stream: BinaryIO) -> bytes:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError("its line has no end")
    return line


def _cut_counted(stream: BinaryIO) -> bytes:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("its length is missing")
    (length,) = _LENGTH.unpack(header)
    raw = stream.read(length)
    if len(raw) < length:
        raise EOFError(f"it has {len(raw)} of {length} bytes")
    return raw


def _from_module(name: str) -> Serializer:
    try:
        module: Any = importlib.import_module(name)
        load, loads = module.load, module.loads
    except Exception as reason:
        wanted = f"json, msgpack, pickle, or a module with load and loads ({type(reason).__name__}: {reason})"
        raise InvalidArgument(name="serializer", wanted=wanted, got=name) from reason
    # In a file, `dump` may have framed the bytes of `dumps`, so `load` decodes them.
    return Serializer(
        loads, lambda stream: _between(stream, lambda: load(stream)), lambda raw: load(io.BytesIO(raw))
    )


def _between(stream: BinaryIO, read: Callable[[], object]) -> bytes:
    begin = stream.tell()
    read()
    end = stream.tell()
    stream.seek(begin)
    return stream.read(end - begin)


INFO = "info"
FIRST_CHUNK = "q00000"


def is_file_queue(folder: Path) -> bool:
    """True for the directory of a file queue, also of one into which nothing was ever put."""
    return any((folder / name).is_file() for name in (INFO, FIRST_CHUNK))


class Files:
    kind = "fifo"

    def __init__(self, folder: Path, serializer: Serializer) -> None:
        """Raises: OriginUnusable if `info` is not readable."""
        self.label = f"persist-queue:{folder.resolve()}"
        self._folder = folder
        self._serializer = serializer
        self._info = self._read_info()

    def value(self, entry: Entry) -> Any:
        return self._serializer.loads_cut(entry.raw)

    def entries(self) -> Iterator[Entry]:
        (first, index, offset), (last, _, _) = self._info["tail"], self._info["head"]
        for number in range(first, last + 1):
            yield from self._chunk(number, index, offset)
            index = offset = 0

    def _chunk(self, number: int, index: int, offset: int) -> Iterator[Entry]:
        """Read the entries of one chunk. If one cannot be cut out, those behind it cannot either."""
        last, count, end = self._info["head"]
        count = count if number == last else self._info["chunksize"]
        path = self._folder / f"q{number:05d}"
        if index >= count:
            return
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            yield from _damaged(path, range(index, count), number, "its file is missing")
            return
        with stream:
            stream.seek(offset)
            inode = os.fstat(stream.fileno()).st_ino
            for at in range(index, count):
                try:
                    raw = self._cut(stream, end if number == last else None)
                except OSError:
                    raise
                except Exception as reason:
                    said = (
                        f"its bytes cannot be told from those behind it ({type(reason).__name__}: {reason})"
                    )
                    yield from _damaged(path, range(at, count), number, said)
                    return
                yield Entry((number, at), _where(path, at), raw, identity=str(inode))

    def _cut(self, stream: BinaryIO, end: int | None) -> bytes:
        raw = self._serializer.cut(stream)
        if end is not None and stream.tell() > end:
            raise EOFError("it ends behind the head")
        return raw

    def _read_info(self) -> Mapping[str, Any]:
        path = self._folder / INFO
        if not path.exists():  # nothing was ever put
            return {"head": (0, 0, 0), "tail": (0, 0, 0), "chunksize": 0}
        try:
            with path.open("rb") as stream:
                found = self._serializer.loads_cut(self._serializer.cut(stream))
            head, tail = (tuple(map(int, found[end])) for end in ("head", "tail"))
            return {"head": _three(head), "tail": _three(tail), "chunksize": int(found["chunksize"])}
        except Exception as reason:
            said = f"{INFO} cannot be read with this --serializer ({type(reason).__name__}: {reason})"
            raise OriginUnusable(path=str(self._folder), reason=said) from reason


def _three(place: tuple[int, ...]) -> tuple[int, int, int]:
    chunk, index, offset = place
    return chunk, index, offset


def _damaged(path: Path, indexes: range, number: int, reason: str) -> Iterator[Entry]:
    for at in indexes:
        yield Entry((number, at), _where(path, at), b"", damage=reason)


def _where(path: Path, at: int) -> str:
    return f"item {at} of {path.name}"
