"""Checks a program against vectors, one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum

from fdbqueue.core import limits
from fdbqueue.operate.conformance.comparing import differences
from fdbqueue.operate.conformance.program import Program, ProgramFailed
from fdbqueue.operate.conformance.protocol import NoAnswer, answer_to, question
from fdbqueue.operate.conformance.vectors import Vector

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
    """The verdict on the answer to one vector."""

    vector: Vector
    verdict: Verdict
    differences: Sequence[str] = ()


def checked(start: Start, root: str, vectors: Sequence[Vector]) -> Iterator[Checked]:
    """Ask a program about each vector. One that has failed is started again, at most
    limits.CONFORMANCE_FAILURES_MAX times; then the rest of the vectors is left out.

    Raises: OSError if it cannot be started.
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
