"""A history as EDN, one map a line: the input of Jepsen, Knossos and Elle."""

from collections.abc import Iterable, Iterator
from typing import Any

from fdbqueue.testing.history.model import Call
from fdbqueue.testing.history.recorder import REFUSED


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
