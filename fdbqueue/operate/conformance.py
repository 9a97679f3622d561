"""The vectors of the key layout, and programs in other languages beside them (docs/conformance.md).

Vectors: what each verb of each kind reads and writes, as a file tells it (operate/layout/vectors.json). The
file has *scripts*. A script begins with the keys `given`, and each of its steps is one call in one
transaction, on the keys that the steps before it have left. A step stores its changes only, so the file stays
short; `vectors_in` gives each step the whole keys before it and after it.

A vector is read by people, too: keys, names and payloads stay legible. In JSON, no character of such a text
needs an escape. A file may store a long run of one byte as its text and a number.

A program of the user's own answers a line with a line, within a time limit. Its pipes do not block this
process: a program that does not read, or that writes without end, costs its time limit and a bounded memory.
The lines between `fdbqueue conformance` and a program are made and read by pure functions.

A program is checked against vectors, one after the other, and the differences of its answers are told.
"""

import errno
import json
import os
import re
import selectors
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from itertools import islice
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import unquote_to_bytes

from fdbqueue.core import limits
from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded.writes import ADD, COMPARE_AND_CLEAR, MAX, OPERATIONS

_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'%"\\+')
_TEXT = re.compile(r"(?:[ -$&-~]|%[0-9A-Fa-f]{2})*")
_TEXT_OF = [chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in range(256)]


def escaped(data: bytes) -> str:
    return "".join(map(_TEXT_OF.__getitem__, data))


def unescaped(text: str) -> bytes:
    """The bytes that a text stands for. Raises: ValueError for a bad escape, or a character of no text."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is no text of bytes: a byte is printable ASCII, or % and two hex digits")
    return unquote_to_bytes(text)


Told = str | Sequence[str | Sequence[str | int]]
"""A text, or its parts: texts, and pairs of a text and the number of times that it is repeated."""


def heard(value: Told) -> bytes:
    """The bytes that a text, or its parts, stand for."""
    if isinstance(value, str):
        return unescaped(value)
    return b"".join(map(_part, value))


def _part(part: str | Sequence[str | int]) -> bytes:
    if isinstance(part, str):
        return unescaped(part)
    text, times = part
    return unescaped(str(text)) * int(times)


def heard_result(result: Any) -> Any:
    """The result of a call, in which texts are the bytes that they stand for. Raises: ValueError."""
    if isinstance(result, list):
        return [*map(heard_result, result)]
    return unescaped(result) if isinstance(result, str) else result


Keys = dict[bytes, bytes]
Ranges = tuple[tuple[bytes, bytes], ...]
"""Ranges of keys, [begin, end), sorted, that neither overlap nor touch."""


@dataclass(frozen=True)
class Conflicts:
    """The conflict ranges of a transaction. `writes`: those beside the keys that it changes."""

    reads: Ranges = ()
    writes: Ranges = ()


@dataclass(frozen=True)
class Vector:
    """One call: the keys before it, its arguments, and all that follows from them."""

    name: str
    kind: str
    verb: str
    call: Mapping[str, Any]
    """The queue and the arguments; bytes as escaped texts."""
    now_us: int
    random: tuple[bytes, ...]
    before: Keys
    after: Keys
    returns: Any = None
    conflicts: Conflicts | None = None
    """None for a call that refuses, and for one given a database, which may make several transactions."""

    @property
    def refuses(self) -> bool:
        """True for a queue, or an argument, that the page tells each program to refuse."""
        return is_refusal(self.returns)

    def is_one_of(self, selected: str) -> bool:
        """True for `KIND`, `KIND/VERB` or the whole name."""
        return selected in (self.kind, f"{self.kind}/{self.verb}", self.name)


@dataclass
class Step:
    """A step of a script, as it is stored."""

    verb: str
    call: dict[str, Any]
    now_us: int
    random: list[bytes] = field(default_factory=list)
    set: Keys = field(default_factory=dict)
    clear: list[bytes] = field(default_factory=list)
    returns: Any = None
    conflicts: Conflicts | None = None

    def on(self, keys: Keys) -> Keys:
        left = {key: value for key, value in keys.items() if key not in self.clear}
        return dict(sorted((left | self.set).items()))

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Step":
        conflicts = None
        if "reads" in stored:
            conflicts = Conflicts(ranges_of(stored["reads"]), ranges_of(stored.get("writes", ())))
        return cls(
            stored["verb"],
            stored["call"],
            stored["now_us"],
            [*map(unescaped, stored.get("random", ()))],
            keys_of(stored.get("set", {})),
            [*map(unescaped, stored.get("clear", ()))],
            stored.get("returns"),
            conflicts,
        )


def vectors_in(stored: Mapping[str, Any]) -> Iterator[Vector]:
    """The vectors of a file, each with all keys before and after it."""
    for script in stored["scripts"]:
        keys = keys_of(script.get("given", {}))
        for number, one in enumerate(script["steps"], 1):
            step, before = Step.of_json(one), keys
            keys = step.on(before)
            yield Vector(
                f"{script['name']}#{number}",
                script["kind"],
                step.verb,
                step.call,
                step.now_us,
                tuple(step.random),
                before,
                keys,
                plain(step.returns),
                step.conflicts,
            )


def is_refusal(returns: Any) -> bool:
    """True for the result of a call that the page tells each program to refuse."""
    return isinstance(returns, dict) and "refused" in returns


def plain(returns: Any) -> Any:
    """A result, in which each payload is one text."""
    if not isinstance(returns, list):
        return returns
    return [one if isinstance(one, str) else escaped(heard(one)) for one in returns]


def stored_vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text("vectors.json"))
    return found


def _text(name: str) -> str:
    return (resources.files("fdbqueue.operate") / "layout" / name).read_text()


def texts_of(keys: Mapping[bytes, bytes]) -> dict[str, str]:
    return {escaped(key): escaped(value) for key, value in sorted(keys.items())}


def keys_of(texts: Mapping[str, Any]) -> Keys:
    return {unescaped(key): heard(value) for key, value in texts.items()}


def merged(ranges: "list[tuple[bytes, bytes]]") -> Ranges:
    """The same keys as sorted ranges that do not touch."""
    found: list[tuple[bytes, bytes]] = []
    for begin, end in sorted(one for one in ranges if one[0] < one[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def ranges_of(told: Any) -> Ranges:
    pairs = []
    for one in told:
        if isinstance(one, str):
            pairs.append((unescaped(one), unescaped(one) + b"\x00"))
        else:
            begin, end = one
            pairs.append((unescaped(begin), unescaped(end)))
    return merged(pairs)


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

    def said(self) -> list[bytes]:
        """The further lines that it has written by now."""
        with suppress(BlockingIOError):
            while heard := os.read(self._stdout.fileno(), _CHUNK_BYTES):
                self._heard += heard
        *lines, self._heard = self._heard.split(b"\n")
        return lines

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Close its input, and wait for its end. Returns its status. Raises: ProgramFailed."""
        self._stdin.close()
        try:
            return self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"it has not ended within {self._timeout_s:g} s after its input") from None

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
    texts = {name: [escaped(heard(one)) for one in call[name]] for name in ("payloads",) if name in call}
    one = {"payload": escaped(heard(call["payload"]))} if "payload" in call else {}
    return {**call, **texts, **one}


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


_SHOWN_MAX = 20
"""Differences of one vector that are told: an answer may have none of its keys."""


def differences(vector: Vector, answer: Answer) -> list[str]:
    return [*islice(_all(vector, answer), _SHOWN_MAX)]


def _all(vector: Vector, answer: Answer) -> Iterator[str]:
    for key in sorted(vector.after.keys() | answer.after.keys()):
        wanted, got = vector.after.get(key), answer.after.get(key)
        if wanted != got:
            yield f"{escaped(key)}: {_value(got)} in place of {_value(wanted)}"
    if vector.refuses:
        if not _is_error(answer.returns):
            yield "it does not refuse"
    elif answer.tells_result and not _same_result(vector.returns, answer.returns):
        right = "nothing" if vector.returns is None else repr(vector.returns)
        yield f"it returns {answer.returns!r} in place of {right}"
    if answer.conflicts is not None and vector.conflicts is not None:
        yield from _of_ranges("rely on", answer.conflicts.reads, vector.conflicts.reads)
        yield from _of_ranges("declare as written", answer.conflicts.writes, vector.conflicts.writes)


def _value(value: bytes | None) -> str:
    return "no such key" if value is None else f"the value {escaped(value)!r}"


def _same_result(wanted: Any, got: Any) -> bool:
    """Errors have names of their own in each language."""
    errors = [*map(_is_error, (wanted, got))]
    return all(errors) if any(errors) else bool(heard_result(wanted) == heard_result(got))


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def _of_ranges(does: str, got: Ranges, wanted: Ranges) -> Iterator[str]:
    for begin, end in (one for one in wanted if one not in got):
        yield f"it must {does} {_range(begin, end)}"
    for begin, end in (one for one in got if one not in wanted):
        yield f"it must not {does} {_range(begin, end)}"


def _range(begin: bytes, end: bytes) -> str:
    if end == begin + b"\x00":
        return escaped(begin)
    return f"the range from {escaped(begin)} to {escaped(end)}"


Start = Callable[[], AbstractContextManager[Program]]


class Verdict(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    UNSUPPORTED = "unsupported"
    """The program says that it does not know the call."""
    FAILED = "failed"
    """The program crashed, did not answer in time, or answered something else."""


@dataclass(frozen=True)
class Checked:
    vector: Vector
    verdict: Verdict
    differences: Sequence[str] = ()


def checked(start: Start, root: str, vectors: Sequence[Vector]) -> Iterator[Checked]:
    """Ask a program about each vector. One that has failed is started again, at most
    limits.CONFORMANCE_FAILURES_MAX times; then the rest of the vectors is left out. Raises: OSError if it
    cannot be started.
    """
    with ExitStack() as running:
        program, failures = running.enter_context(start()), 0
        for number, vector in enumerate(vectors, 1):
            try:
                yield _checked(program, number, root, vector)
            except (ProgramFailed, NoAnswer) as reason:
                yield Checked(vector, Verdict.FAILED, [str(reason)])
                failures += 1
                if failures >= limits.CONFORMANCE_FAILURES_MAX:
                    return
                running.close()
                program = running.enter_context(start())


def _checked(program: Program, number: int, root: str, vector: Vector) -> Checked:
    answer = answer_to(number, vector.before, program.answer(question(number, root, vector)))
    if answer is None:
        return Checked(vector, Verdict.SAME if vector.refuses else Verdict.UNSUPPORTED)
    found = differences(vector, answer)
    return Checked(vector, Verdict.DIFFERENT if found else Verdict.SAME, found)
