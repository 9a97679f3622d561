"""A program of the user's own that answers a line with a line, within a time limit.

Its pipes do not block this process: a program that does not read, or that writes without end, costs its time
limit and a bounded memory.

The lines between `fdbqueue conformance` and a program (docs/conformance.md). All of it is pure.
"""

import errno
import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from fdbqueue.core import limits
from fdbqueue.core.runtime import Runtime
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

_CHUNK_BYTES = 65_536
_KILLED_WITHIN_S = 5.0


class ProgramFailed(Exception):
    """The program gives no answer; the text says why. It is killed."""


class Program:
    """A running program. A context manager that kills it."""

    def __init__(self, argv: Sequence[str], timeout_s: float, runtime: Runtime) -> None:
        self._timeout_s = timeout_s
        self._runtime = runtime
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except ValueError as error:  # a name with a NUL, or one without bytes: no file has it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        self._stdin, self._stdout = _opened(self._process.stdin), _opened(self._process.stdout)
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(_KILLED_WITHIN_S)
        for pipe in (self._stdin, self._stdout):
            pipe.close()

    def answer(self, line: bytes) -> bytes:
        """Its answer to one line; both end in a newline. Raises: ProgramFailed."""
        until = self._runtime.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._stdout, selectors.EVENT_READ)
            ready.register(self._stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._heard:
                left_s = until - self._runtime.monotonic()
                if left_s <= 0:
                    raise ProgramFailed(f"it has not answered within {self._timeout_s:g} s")
                for key, _ in ready.select(left_s):
                    if key.fileobj is self._stdout:
                        self._hear()
                    elif not (line := self._say(line)):
                        ready.unregister(self._stdin)
        answer, _, self._heard = self._heard.partition(b"\n")
        return answer

    def _say(self, line: bytes) -> bytes:
        """Write a part of the line. Returns the rest."""
        try:
            return line[os.write(self._stdin.fileno(), line[:_CHUNK_BYTES]) :]
        except BlockingIOError:  # there was room for less than a page
            return line
        except BrokenPipeError:
            raise self._ended() from None

    def _hear(self) -> None:
        heard = os.read(self._stdout.fileno(), _CHUNK_BYTES)
        if not heard:
            raise self._ended()
        self._heard += heard
        if len(self._heard) > limits.CONFORMANCE_ANSWER_BYTES_MAX:
            raise ProgramFailed(f"its answer has more than {limits.CONFORMANCE_ANSWER_BYTES_MAX:,} bytes")

    def _ended(self) -> ProgramFailed:
        try:
            status = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            return ProgramFailed("it has closed its output")
        return ProgramFailed(f"it has ended with status {status}")


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # as Popen was asked for it
    return pipe


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
