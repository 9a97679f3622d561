"""What each queue of the workload `paired` has: calls that it draws, and looks at all that it holds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.verify import AnyQueue, verify
from fdbqueue.testing.soundness import told as findings
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.noted import Rollback
from tests.system.workloads.paired_calls import Call, Look, Verb, both, shown
from tests.system.workloads.paired_store import Twins

T = TypeVar("T")

WITHIN, BOTH = 0.4, 0.06
FORGETTING = ("take", "dequeue", "both", "tick", "repartition", "put", "plain put", "enqueue")


class World(ABC):
    """A queue, and the calls of two processes."""

    forgets = False
    """True if the memory of a process may change the answer of a call."""
    verbs: Sequence[str] = ()
    before: Sequence[int] = (2, 5, 10, 20)
    """The numbers of calls before the first pair."""
    space: AnyQueue | None = None
    """The queue, if it has no name."""

    def __init__(self, random: Random, twins: Twins) -> None:
        self.random, self.twins, self._number = random, twins, 0

    # The queue of a run.

    @abstractmethod
    def opened(self, db: Database) -> Any:
        """The handles of a process."""

    def refresh(self) -> None:  # noqa: B027  # queues of items need none
        """Look at the queue, for calls that fit to its state."""

    def learn(self, answer: Any) -> None:  # noqa: B027  # queues of items need none
        """Note the answer of a call that has happened."""

    def next_time(self, now: int) -> int | None:  # noqa: ARG002  # most queues have no times
        """The time of the next change."""
        return None

    def must_forget(self, one: Call, other: Call) -> bool:
        """True if what processes remember may change the answers, which have to be those of the orders."""
        return self.forgets and not {one.name, other.name}.isdisjoint(FORGETTING)

    def is_loose(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # most pairs are strict
        """True if the documentation leaves the outcome of this pair open."""
        return False

    def may_vary(self, one: Call) -> bool:  # noqa: ARG002  # most queues have one order
        """True if a second attempt of this call may do something else than the first one."""
        return False

    def promises(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # most calls promise nothing
        """True if the documentation promises that `one` does not conflict with `other`."""
        return False

    def demands(self, one: Call, other: Call, answer: Any) -> bool:  # noqa: ARG002  # as `promises`
        """True if the documentation promises that `one`, with this answer, conflicts with `other`."""
        return False

    @abstractmethod
    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        """All that a transaction can see; it is rolled back."""

    def names(self) -> Mapping[str, str]:
        """The data of tasks by their ids."""
        return {}

    # Calls.

    def draw(self) -> Call:
        call = self._draw_one()
        if call.alone or self.random.random() > BOTH:
            return call
        other = self._draw_one()
        return call if other.alone else both(call, other)

    def lengthened(self, call: Call, draw: Callable[[], Call]) -> Call:  # noqa: ARG002  # most worlds have pairs
        """The second call of a pair, perhaps with a third one behind it."""
        return call

    def _draw_one(self) -> Call:
        while True:
            call: Call | None = getattr(self, f"_{self.random.choice(self.verbs)}")()
            if call is not None:
                return call

    def forget_focus(self) -> None:  # noqa: B027  # queues of items need none
        """Let the next call be about any task. Other calls are mostly about the task of the call before."""

    def _call(
        self,
        name: str,
        text: str,
        verb: Verb,
        *,
        adds: Sequence[str] = (),
        touches: Any = None,
        alone: bool = False,
    ) -> Call:
        within = not alone and self.random.random() < WITHIN
        return Call(name, text, verb, adds, within, touches, alone)

    def data(self, count: int) -> list[str]:
        """Data that no other task has."""
        self._number += count
        return [f"d{self._number - count + number}." for number in range(count)]

    # Looks.

    def look(self, db: Database) -> tuple[Look, Mapping[str, str]]:
        """All that the store shows, and the names of its tasks."""
        return rolled_back(db, self.seen), self.names()

    def flaws(self, db: Database) -> str:
        """The findings of a verification, as one text."""
        spaces = [] if self.space is None else [verify(db, self.space)]
        return "; ".join(findings(verify(db), *spaces))


def rolled_back(db: Database, body: Callable[[Transaction], Any]) -> Any:
    """The answer of `body`. Its writes are dropped."""
    answers = []

    def roll_back(tr: Transaction) -> None:
        answers.append(body(tr))
        raise Rollback

    caught_rollback(db, roll_back)
    return answers[-1]


def caught_rollback(db: Database, body: Callable[[Transaction], None]) -> None:
    try:
        run(db, body)
    except Rollback:
        return


def text_of(verb: Callable[[Transaction], Any], tr: Transaction) -> str:
    """The answer of a look as a text, or its error."""
    return shown(caught(verb, tr))
