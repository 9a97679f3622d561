"""Serializers of persist-queue: bytes to values, and the ends of values in a file that holds several.

A pickle may name a class or a function, which loading it would import and call. So a class or function in a
pickle is refused, unless the caller trusts the pickles. Numbers, texts, bytes and containers name none.
"""

import importlib
import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from fdbqueue.core.errors import InvalidArgument

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
