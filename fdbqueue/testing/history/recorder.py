"""Writes the calls of one thread down while it makes them.

Each line is written by one system call, so a process that is killed has written it or not:

    {"process": "w1", "number": 0, "begin_us": 17, "name": "take", "argument": null}
    {"process": "w1", "number": 0, "end_us": 42, "result": "v1"}

A call whose second line is missing has an unknown result.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.testing.history.model import Call, in_order

R = TypeVar("R")
SUFFIX = ".history"
REFUSED = "refused"
"""The result of a call that has raised an error by which the queue says that nothing was changed."""


class Recorder:
    """The calls of one process of a history, in the file `process`.history of `directory`.

    For each thread, use a recorder with a name of its own. The clock is the monotonic one, which all
    processes of a machine share. It does not go on over a restart of the machine.
    """

    def __init__(self, directory: Path, process: str, runtime: Runtime | None = None) -> None:
        self._process = process
        self._runtime = runtime or RealRuntime()
        path = directory / f"{process}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._number = 0

    def call(
        self,
        name: str,
        argument: Any,
        function: Callable[[], R],
        *,
        shown: Callable[[R], Any] = lambda result: result,
        refusals: tuple[type[Exception], ...] = (),
    ) -> R | None:
        """Call `function`, record it, and return its result; None if it has raised one of `refusals`.

        `argument`, and the value that `shown` makes of the result, must be values of JSON. A refusal is the
        result "refused". After any other error the result of the call is unknown.
        Raises: the errors of `function`, refusals aside.
        """
        number, self._number = self._number, self._number + 1
        self._write({"number": number, "begin_us": self._now_us(), "name": name, "argument": argument})
        try:
            result = function()
        except refusals:
            self._write({"number": number, "end_us": self._now_us(), "result": REFUSED})
            return None
        self._write({"number": number, "end_us": self._now_us(), "result": shown(result)})
        return result

    def close(self) -> None:
        os.close(self._file)

    def _now_us(self) -> int:
        return round(self._runtime.monotonic() * 1_000_000)

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps({"process": self._process, **event}) + "\n"
        os.write(self._file, line.encode())


def read(directory: Path) -> list[Call]:
    """The calls of all recorders of a directory, by their begins."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    return calls_of(line for path in paths for line in path.read_text().splitlines())


def calls_of(lines: Iterable[str]) -> list[Call]:
    """The calls that lines tell of, in any order of their processes, by their begins."""
    begins: dict[tuple[str, int], dict[str, Any]] = {}
    ends: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        event = json.loads(line)
        (begins if "begin_us" in event else ends)[event["process"], event["number"]] = event
    return in_order(_call(begin, ends.get(key)) for key, begin in begins.items())


def _call(begin: dict[str, Any], end: dict[str, Any] | None) -> Call:
    known = () if end is None else (end["end_us"], end["result"])
    return Call(begin["process"], begin["name"], begin["argument"], begin["begin_us"], *known)


def lines_of(calls: Iterable[Call]) -> Iterator[str]:
    """The lines from which `calls_of` makes these calls."""
    for number, call in enumerate(in_order(calls)):
        which = {"process": call.process, "number": number}
        begin = {"begin_us": call.begin_us, "name": call.name, "argument": call.argument}
        yield json.dumps(which | begin)
        if call.is_known:
            yield json.dumps(which | {"end_us": call.end_us, "result": call.result})


def edn_of(calls: Iterable[Call]) -> Iterator[str]:
    """The events of the calls in the order of their times: :invoke, then :ok, or :fail if it was refused.

    A call with an unknown result ends with :info behind all others, so it is concurrent with all after it.
    Jepsen takes a process for ended then, so the next call of its thread has the number of a new process.
    """
    for index, (_, kind, call, process) in enumerate(_events(calls)):
        yield _map(
            process=process,
            type=_Keyword(kind),
            f=_Keyword(call.name),
            value=call.argument if kind != "ok" else call.result,
            time=call.begin_us * 1000 if kind == "invoke" or call.end_us is None else call.end_us * 1000,
            index=index,
        )


def _events(calls: Iterable[Call]) -> list[tuple[tuple[int, int], str, Call, int]]:
    """Begins and ends, each with its place and the number of its process. Of one time, begins come first."""
    events = []
    for call, process in _numbered(calls):
        events.append(((call.begin_us, 0), "invoke", call, process))
        if call.end_us is None:
            events.append(((1 << 62, 1), "info", call, process))
        else:
            kind = "fail" if call.result == REFUSED else "ok"
            events.append(((call.end_us, 1), kind, call, process))
    return sorted(events, key=lambda event: event[0])


def _numbered(calls: Iterable[Call]) -> Iterator[tuple[Call, int]]:
    numbers: dict[str, int] = {}
    processes = 0
    for call in sorted(calls, key=lambda call: call.begin_us):
        if call.process not in numbers:
            numbers[call.process], processes = processes, processes + 1
        yield call, numbers[call.process]
        if not call.is_known:
            del numbers[call.process]


class _Keyword(str):
    """A name that EDN writes with a colon."""


def _map(**entries: Any) -> str:
    return "{" + ", ".join(f":{name} {_value(value)}" for name, value in entries.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, _Keyword):
        return f":{value}"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(name)} {_value(each)}" for name, each in value.items()) + "}"
    return repr(value)
