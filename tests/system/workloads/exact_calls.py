"""How the workload `exact` calls a queue: given a database, or in a transaction, which may be rolled back.

After each call the model makes the same one, and the answers must be equal: tasks, errors, numbers.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any, Protocol, TypeVar

from fdbqueue.core.database import run
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import FDBError, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.task import Task
from fdbqueue.testing.cases import Size
from fdbqueue.testing.simulation import Client, Simulation
from tests.system.workloads.common import SPACE
from tests.system.workloads.composed_calls import Rollback

WITHIN, ROLLED_BACK = 0.4, 0.08
_MARK = SPACE["exact"].key()
_ROOT = RootKeys(DEFAULT_ROOT)
_TIMED_OUT = 1031
Verb = Callable[[Any], Any]


class Clock:
    """The clock of the one process: it stands still, except when it is moved."""

    def __init__(self, client: Client) -> None:
        self._runtime = client.runtime
        self.now = client.runtime.now_us()
        self.move_to(self.now)

    def move_to(self, now: int) -> None:
        self.now = max(self.now, now)
        self._runtime.hold(self.now)


class Steps(Protocol):
    """The process of a workload: each step is a call, and looks."""

    def step(self) -> None: ...


P = TypeVar("P", bound=Steps)


def step_by_step(
    simulation: Simulation,
    size: Size,
    made: Callable[[Client], P],
    name: str | None = None,
    end: Callable[[P], object] | None = None,
) -> None:
    """Add the process of a workload. With a name, each of its steps is an operation of the trace."""

    def use(client: Client) -> None:
        process = made(client)
        for _ in range(size.steps):
            if name is None:
                process.step()
            else:
                client.call(name, "step", None, process.step)
        if end is not None:
            end(process)

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")


class Caller:
    """Calls that have their effect once, whatever the faults. An error is an answer, too."""

    def __init__(self, client: Client) -> None:
        self.client, self.random, self.clock = client, client.random, Clock(client)

    def answer(self, verb: Verb, always_alone: bool = False) -> Any:
        """Call `verb` with the database, or in a transaction that happens once."""
        chance = self.random.random()
        if chance < ROLLED_BACK:
            self._roll_back(verb)
        return caught(verb, self.client.db) if always_alone or chance > WITHIN else self.within(verb)

    def _roll_back(self, verb: Verb) -> None:
        def body(tr: Transaction) -> None:
            caught(verb, tr)
            raise Rollback

        with suppress(Rollback):
            run(self.client.db, body)

    def within(self, verb: Verb) -> Any:
        answers: dict[bytes, Any] = {}

        def body(tr: Transaction) -> Any:
            mark = tr.get(_MARK).value
            if mark is None or bytes(mark) not in answers:
                mark = self.client.runtime.random_bytes(8)
                answers[mark] = caught(verb, tr)
                tr.set(_MARK, mark)
            return answers[bytes(mark)]

        return run(self.client.db, body)

    def tick(self) -> None:
        """Let the process sweep all that is due. Many faults may use up the time of a sweep: then it sweeps
        again.
        """
        keeper = keeper_of(self.client.db, _ROOT)
        while True:
            try:
                keeper.tick()
                return
            except FDBError as error:
                if error.code != _TIMED_OUT:
                    raise


def caught(verb: Verb, target: Any) -> Any:
    """The answer of a call; its error, if it is one of ours."""
    try:
        return verb(target)
    except FdbQueueError as error:
        return error


def right(answer: Callable[[], Any]) -> Any:
    """The answer of the model, which may be an error."""
    try:
        return answer()
    except FdbQueueError as error:
        return error


def require_equal(what: str, found: Any, wanted: Any) -> None:
    """Raises: AssertionError, which ends the run as a violation."""
    assert shown_alike(found, wanted), f"{what}: {found!r}, and right is {wanted!r}"


def shown_alike(one: Any, other: Any) -> bool:
    """True for equal answers; the ids of errors' texts count, too."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(shown_alike, one, other))
    return bool(_without_trace(one) == _without_trace(other))


def _without_trace(answer: Any) -> Any:
    return replace(answer, trace=None) if isinstance(answer, Task) else answer


def micro(span_s: float | None) -> int | None:
    return None if span_s is None or span_s == inf else round(span_s * 1_000_000)


def seconds(time: int | None) -> float | None:
    return None if time is None else time / 1_000_000


def added(time: int | None, span: int | None) -> int | None:
    return None if time is None or span is None else time + span


def earliest(*times: int | None) -> int | None:
    return min(known(times), default=None)


def known(times: Iterable[int | None]) -> Iterable[int]:
    return (time for time in times if time is not None)


def is_over(time: int | None, now: int) -> bool:
    """True if it is that time, or later."""
    return time is not None and time <= now
