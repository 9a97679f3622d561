"""The writing of vectors: bytes, ranges and steps as operate/layout/vectors.json has them."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fdbqueue.operate.conformance import Keys, Ranges, Step, Told, escaped

LAYOUT = Path(__file__).parents[3] / "fdbqueue" / "operate" / "layout"
_RUN_MIN = 16


def told(data: bytes) -> Told:
    """The text of `data`; in parts, if it has long runs of one byte."""
    parts: list[str | Sequence[str | int]] = []
    for byte, run in groupby(data):
        count = sum(1 for _ in run)
        if count >= _RUN_MIN:
            parts.append([escaped(bytes((byte,))), count])
        elif parts and isinstance(parts[-1], str):
            parts[-1] += escaped(bytes((byte,)) * count)
        else:
            parts.append(escaped(bytes((byte,)) * count))
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return parts


def step_to_json(step: Step) -> dict[str, Any]:
    stored: dict[str, Any] = {"verb": step.verb, "call": step.call, "now_us": step.now_us}
    if step.random:
        stored["random"] = [*map(escaped, step.random)]
    if step.set:
        stored["set"] = {escaped(key): told(value) for key, value in sorted(step.set.items())}
    if step.clear:
        stored["clear"] = [*map(escaped, step.clear)]
    if step.returns is not None:
        stored["returns"] = step.returns
    if step.conflicts is not None:
        stored["reads"] = _told(step.conflicts.reads)
        if step.conflicts.writes:
            stored["writes"] = _told(step.conflicts.writes)
    return stored


def stored_schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LAYOUT / "vectors.schema.json").read_text())
    return found


def changes(before: Keys, after: Keys) -> tuple[Keys, list[bytes]]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return changed, sorted(before.keys() - after.keys())


def _told(ranges: Ranges) -> list[Any]:
    """A range of one key is told as that key."""
    return [
        escaped(begin) if end == begin + b"\x00" else [escaped(begin), escaped(end)] for begin, end in ranges
    ]
