"""Checks a program against vectors, one after the other, and tells how its answers differ."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from fdbqueue.core import limits
from fdbqueue.operate.conformance.program import Answer, NoAnswer, Program, ProgramFailed, answer_to, question
from fdbqueue.operate.conformance.vectors import Ranges, Vector, escaped, heard_result

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
