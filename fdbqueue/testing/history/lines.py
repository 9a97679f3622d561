"""JSON lines of a recorder, read as calls; and written, for other programs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fdbqueue.testing.history.call import Call, in_order
from fdbqueue.testing.history.recorder import SUFFIX


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
