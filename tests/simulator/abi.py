"""The interface of the simulator for external workloads, as far as Python calls it: contexts and promises.

The host hands over addresses. The structures are those of release 7.4, version 1 of the interface.
"""

import ctypes
from collections.abc import Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p as address
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """The simulator fails a run that has an ERROR."""

    DEBUG, INFO, WARNING, WARNING_ALWAYS, ERROR = range(5)


class Detail(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class StringTable(Structure):
    _fields_ = [("free", CFUNCTYPE(None, address))]


class String(Structure):
    _fields_ = [("inner", address), ("table", POINTER(StringTable))]


class ContextTable(Structure):
    _fields_ = [
        ("trace", CFUNCTYPE(None, address, c_int, c_char_p, POINTER(Detail), c_int)),
        ("get_process", CFUNCTYPE(c_uint64, address)),
        ("set_process", CFUNCTYPE(None, address, c_uint64)),
        ("now", CFUNCTYPE(c_double, address)),
        ("random", CFUNCTYPE(c_uint32, address)),
        ("option", CFUNCTYPE(String, address, c_char_p, c_char_p)),
        ("client_id", CFUNCTYPE(c_int, address)),
        ("client_count", CFUNCTYPE(c_int, address)),
        ("shared_random", CFUNCTYPE(c_int64, address)),
        ("delay", CFUNCTYPE(address, address, c_double)),
    ]


class ContextStructure(Structure):
    _fields_ = [("api_version", c_int), ("inner", address), ("table", POINTER(ContextTable))]


class PromiseTable(Structure):
    _fields_ = [("free", CFUNCTYPE(None, address)), ("send", CFUNCTYPE(None, address, c_bool))]


class Metric(Structure):
    _fields_ = [("key", c_char_p), ("format", c_char_p), ("value", c_double), ("is_average", c_bool)]


class MetricsTable(Structure):
    _fields_ = [
        ("reserve", CFUNCTYPE(None, address, c_int)),
        ("push", CFUNCTYPE(None, address, Metric)),
    ]


class Context:
    """What one client of a workload knows of its simulator."""

    def __init__(self, place: int) -> None:
        self._structure = ContextStructure.from_address(place)
        self._inner = self._structure.inner
        self._table = self._structure.table.contents
        self.client_id: int = self._table.client_id(self._inner)
        self.client_count: int = self._table.client_count(self._inner)
        self.shared_random: int = self._table.shared_random(self._inner)
        """A number that all clients of a run have."""

    def now(self) -> float:
        """The time of the simulation, in seconds from its begin."""
        seconds: float = self._table.now(self._inner)
        return seconds

    def random(self) -> int:
        number: int = self._table.random(self._inner)
        return number

    def delay(self, seconds: float) -> int:
        """The address of a future that is ready after that time."""
        place: int = self._table.delay(self._inner, seconds)
        return place

    @property
    def process(self) -> int:
        """The simulated process that runs now: what it asks of the network belongs to it."""
        number: int = self._table.get_process(self._inner)
        return number

    @process.setter
    def process(self, number: int) -> None:
        self._table.set_process(self._inner, number)

    def option(self, name: str, default: str) -> str:
        """The value in the test file. Only the first question has the answer."""
        found = self._table.option(self._inner, name.encode(), default.encode())
        try:
            return ctypes.string_at(found.inner).decode()
        finally:
            found.table.contents.free(found.inner)

    def trace(self, severity: Severity, name: str, details: Mapping[str, Any]) -> None:
        """Write an event to the simulator's trace. The names are alphanumeric."""
        pairs = [(key.encode(), str(value).encode()) for key, value in details.items()]
        array = (Detail * len(pairs))(*(Detail(*pair) for pair in pairs))
        self._table.trace(self._inner, severity, name.encode(), array, len(pairs))


class Promise:
    """The end of a stage."""

    def __init__(self, inner: int, table: int) -> None:
        self._inner, self._table = inner, PromiseTable.from_address(table)

    def send(self, value: bool) -> None:
        """End the stage, once. The simulator may begin the next one before this returns."""
        self._table.send(self._inner, value)
        self._table.free(self._inner)


def push_metrics(inner: int, table: int, metrics: Mapping[str, float]) -> None:
    place = MetricsTable.from_address(table)
    place.reserve(inner, len(metrics))
    for name, value in metrics.items():
        place.push(inner, Metric(name.encode(), None, value, False))
