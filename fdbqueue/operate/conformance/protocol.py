"""The lines between `fdbqueue conformance` and a program (docs/conformance.md). All of it is pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.embedded.writes import ADD, COMPARE_AND_CLEAR, MAX, OPERATIONS
from fdbqueue.operate.conformance.vectors import (
    Conflicts,
    Keys,
    Vector,
    escaped,
    heard,
    heard_result,
    keys_of,
    ranges_of,
    texts_of,
    unescaped,
)

_ATOMIC = {"add": ADD, "max": MAX, "compare_and_clear": COMPARE_AND_CLEAR}


class NoAnswer(Exception):
    """The line is no answer to the question; the text says why."""


@dataclass(frozen=True)
class Answer:
    """The answer of a program. None stands for a part that it does not tell."""

    after: Keys
    returns: Any = None
    tells_result: bool = False
    conflicts: Conflicts | None = None


def question(number: int, root: str, vector: Vector) -> bytes:
    asked = {
        "id": number,
        "name": vector.name,
        "kind": vector.kind,
        "verb": vector.verb,
        "root": root,
        "call": _plain(vector.call),
        "now_us": vector.now_us,
        "random": [*map(escaped, vector.random)],
        "keys": texts_of(vector.before),
    }
    return json.dumps(asked, separators=(",", ":")).encode() + b"\n"


def _plain(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call, in which each payload is one text."""
    plain = dict(call)
    if "payload" in plain:
        plain["payload"] = escaped(heard(plain["payload"]))
    if "payloads" in plain:
        plain["payloads"] = [escaped(heard(payload)) for payload in plain["payloads"]]
    return plain


def answer_to(number: int, before: Keys, line: bytes) -> Answer | None:
    """The answer in a line; None if the program does not know the call. Raises: NoAnswer."""
    try:
        told = json.loads(line)
    except ValueError:
        raise NoAnswer(f"it has answered no JSON: {line[:60]!r}") from None
    if not isinstance(told, dict) or told.get("id") != number:
        raise NoAnswer(f"its answer is no object with the id {number}: {line[:60]!r}")
    if told.get("unsupported"):
        return None
    try:
        return _answer(before, told)
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise NoAnswer(f"its answer has another shape ({type(reason).__name__}: {reason})") from None


def _answer(before: Keys, told: Mapping[str, Any]) -> Answer:
    after = keys_of(told["keys"]) if "keys" in told else mutated(before, told["mutations"])
    conflicts = None
    if "reads" in told:
        conflicts = Conflicts(ranges_of(told["reads"]), ranges_of(told.get("writes", ())))
    heard_result(told.get("returns"))  # a text that stands for no bytes is no result
    return Answer(after, told.get("returns"), "returns" in told, conflicts)


def mutated(before: Keys, mutations: Sequence[Sequence[str]]) -> Keys:
    """The keys after these mutations. Raises: TypeError, ValueError for one that is none."""
    keys = dict(before)
    for name, *parts in mutations:
        first, second = [*map(unescaped, parts), b"", b""][:2]
        if name == "set":
            keys[first] = second
        elif name == "clear":
            keys.pop(first, None)
        elif name == "clear_range":
            keys = {key: value for key, value in keys.items() if not first <= key < second}
        elif name not in _ATOMIC:
            raise ValueError(f"there is no mutation {name!r}")
        else:
            value = OPERATIONS[_ATOMIC[name]](keys.pop(first, None), second)
            keys |= {} if value is None else {first: value}
    return keys
