"""One process with handles of different types: takes pass over the values that do not fit theirs.

A value that a handle cannot read stays in its place, whole, also if it was delivered to a waiting take.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.errors import PayloadMismatch
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import unsound
from tests.system.workloads.common import SPACE, cramped, once
from tests.system.workloads.exact_model import caught, step_by_step

VERBS = (*("put",) * 4, *("take",) * 5, *("wait",) * 3)
WITHIN, LARGE, VALUES_MAX = 0.4, 0.15, 40
WAITING: Sequence[Sequence[Any]] = ((None,), (int,), (str, str), (int, str), (int, str), (int, int, str))
"""The types of takes that wait at once. A value has one taker, or several of one type."""
Verb = Callable[[DatabaseOrTransaction], Any]
NAME, TIMEOUT_S = "exact_types", 5.0
TYPES: Sequence[Any] = (None, int, str)
ROOT = Subspace(("exact types",))
"""Not the default one, of which an auditor judges each take: no take may pass over a value there."""


class Items:
    """A queue of items, as one of its handles sees it."""

    def __init__(self, client: Client, type_: Any, **options: Any) -> None:
        self._q = Queue.named(client.db, NAME, type=type_, root=ROOT, **options)

    def put(self, tr: Any, values: Sequence[Any]) -> None:
        self._q.enqueue_many(tr, values)

    def take(self, tr: Any, count: int) -> list[Any]:
        return self._q.dequeue_many(tr, count)

    def wait(self, db: Any) -> Any:
        return self._q.dequeue(db, timeout=TIMEOUT_S)


class Tasks(Items):
    def __init__(self, client: Client, type_: Any, **_: Any) -> None:
        self._tasks = TaskQueue.create(client.db, NAME, "fifo", type=type_, if_not_exists=True, root=ROOT)

    def put(self, tr: Any, values: Sequence[Any]) -> None:
        self._tasks.put_many(tr, values)

    def take(self, tr: Any, count: int) -> list[Any]:
        tasks = self._tasks.take_many(tr, count)
        for task in tasks:
            self._tasks.ack(tr, task)
        return [task.data for task in tasks]

    def wait(self, db: Any) -> Any:
        task = self._tasks.take(db, TIMEOUT_S)
        return None if task is None else self._tasks.ack(db, task).data


class Unnamed(Items):
    def __init__(self, client: Client, type_: Any, **options: Any) -> None:  # noqa: ARG002  # as its base
        self._q = Queue(SPACE[NAME], type=type_, root=ROOT, **options)


KINDS: Sequence[type[Items]] = (Items, Unnamed, Tasks)


@workload(
    clients=1, steps=25, never=("die", "stall", "slow_reply", "clock_skew_s"), wide=("BATCH_BYTES_MAX",)
)
def exact_types(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} {NAME}")
    kind, contended = random.choice(KINDS), random.choice(("staged", "simple"))

    def made(client: Client) -> Process:
        return Process(client, {type_: kind(client, type_, contended=contended) for type_ in TYPES})

    step_by_step(simulation, size, made, NAME, Process.end)
    return [no_watch_left_behind]


class Process:
    def __init__(self, client: Client, handles: dict[Any, Items]) -> None:
        self._client, self._handles, self._random = client, handles, client.random
        self._values: list[Any] = []
        """All values of the queue, in order."""
        self._number = 0
        self._large_bytes = min(100_001, 4 * limits.PAYLOAD_PIECE_BYTES_MAX)
        """Payloads of this size are stored in pieces."""

    def step(self) -> None:
        verb = self._random.choice(VERBS) if len(self._values) < VALUES_MAX else "take"
        getattr(self, f"_{verb}")()

    def end(self) -> None:
        self._client.call(NAME, "end", None, self._take_all)

    def _take_all(self) -> None:
        """Take all that is left by the handle that can read it."""
        while self._values:
            self._take_by(None, 9)
        assert not unsound(self._client.db, ROOT)

    # Calls.

    def _answer(self, verb: Verb) -> Any:
        if self._random.random() < WITHIN:
            return once(self._client, partial(caught, verb))
        return caught(verb, self._client.db)

    def _drawn(self) -> list[Any]:
        """Values of both types."""
        count = self._random.choice((1, 1, 2, 3))
        self._number += count
        return [self._one(self._number - number) for number in range(count)]

    def _one(self, number: int) -> Any:
        if self._random.random() < 0.5:
            return number
        return f"{number}".ljust(self._large_bytes if self._random.random() < LARGE else 0)

    def _put(self) -> None:
        values = self._drawn()
        found = self._answer(lambda tr: self._handles[None].put(tr, values))
        assert found is None, f"a put raised {found!r}"
        self._values += values

    def _take(self) -> None:
        self._take_by(self._random.choice(TYPES), self._random.choice((1, 1, 2, 4)))

    def _take_by(self, type_: Any, count: int) -> None:
        """A take gives the first values that it can read, if there is one."""
        found = self._answer(lambda tr: self._handles[type_].take(tr, count))
        readable = [value for value in self._values if can_read(type_, value)]
        told = f"a take of {count} by a handle of the type {type_} gave {shown(found)}"
        if not readable:
            assert is_right_without(found, self._values), f"{told}, and there is {shown(self._values)}"
            return
        assert isinstance(found, list), f"{told}, and there is {shown(readable)}"
        assert 0 < len(found) <= count, f"{told}, and there is {shown(readable)}"
        assert found == readable[: len(found)], f"{told}, and right is {shown(readable)}"
        for value in found:
            self._values.remove(value)

    def _wait(self) -> None:
        """Takes wait in threads, while values are put: one request may get values of another one's type."""
        types = self._random.choice(WAITING)
        answers = dict[int, Any]()
        waiting = [
            self._client.thread(partial(self._wait_in_thread, type_, number, answers), f"{number}")
            for number, type_ in enumerate(types)
        ]
        before = [*self._values]
        for _ in types:
            self._client.pause(0.1)
            values = self._drawn()
            self._handles[None].put(self._client.db, values)
            self._values += values
        for thread in waiting:
            thread.join()
        for type_ in dict.fromkeys(types):
            found = [answers[number] for number, one in enumerate(types) if one is type_]
            self._require_of_type(type_, found, before, alone={*types} == {type_})

    def _wait_in_thread(self, type_: Any, number: int, answers: dict[int, Any], client: Client) -> None:
        answers[number] = caught(self._handles[type_].wait, client.db)

    def _require_of_type(
        self, type_: Any, found: Sequence[Any], before: Sequence[Any], *, alone: bool
    ) -> None:
        """Takes that wait give the first values that they can read. Until one is there, any of them may tell
        that it passes over others. Beside a take of another type, a value may lie ready for that one for a
        moment: then they give one behind it.
        """
        told = f"takes that wait, by a handle of the type {type_}, gave {shown(found)}"
        readable = [value for value in self._values if can_read(type_, value)]
        given = [one for one in found if not isinstance(one, PayloadMismatch) and one is not None]
        assert all(value in readable for value in given), f"{told}, and there is {shown(readable)}"
        assert len({*given}) == len(given), told
        if alone:
            refused = sum(isinstance(one, PayloadMismatch) for one in found)
            there = sum(can_read(type_, value) for value in before)
            assert not refused or there <= len(found) - refused, f"{told}, and there was {shown(before)}"
            enough = readable[: len(found) - refused]
            assert sorted(given, key=readable.index) == enough, f"{told}, and right is {shown(readable)}"
        for value in given:
            self._values.remove(value)


def can_read(type_: Any, value: Any) -> bool:
    return type_ is None or isinstance(value, type_)


def is_right_without(found: Any, values: Sequence[Any]) -> bool:
    """True if this is the answer of a take that can read none of these values."""
    return isinstance(found, PayloadMismatch) if values else found == []


def shown(values: Any) -> str:
    """The values as a text; large ones are cut."""
    if not isinstance(values, list):
        return str(values)
    return str([repr(value)[:40].replace(" ", "") for value in values])
