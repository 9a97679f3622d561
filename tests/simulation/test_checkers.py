"""Checkers, on traces made by hand: each finds its violation, and yields nothing for a correct trace."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core.database import run
from fdbqueue.testing import (
    Checker,
    Client,
    Faults,
    Simulation,
    Trace,
    bounded_transactions,
    exact_statistics,
    never_nothing,
    no_key_left_behind,
    no_watch_left_behind,
    order,
    prompt,
    total_queue,
)
from fdbqueue.testing.trace import Footprint
from tests.system.workloads.task_model import Life, Op, Rules, Seen, wrong_times

Q = "q"


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as database:
        yield database


class History:
    """Operations one after the other, one second each; `open` ones are of clients that died."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._now_s = 0.0

    def did(self, name: str, argument: Any, result: Any = None, client: str = "c") -> "History":
        operation = self.trace.begin(self._now_s, client, Q, name, argument)
        self.trace.end(self._now_s + 1, operation, result)
        self._now_s += 1
        return self

    def died(self, name: str, argument: Any) -> "History":
        self.trace.begin(self._now_s, "dead", Q, name, argument)
        return self

    def enqueued(self, *values: str) -> "History":
        return self.did("enqueue", list(values))

    def dequeued(self, *values: str, wanted: int = 1, client: str = "c") -> "History":
        return self.did("dequeue", wanted, list(values), client)

    def judged(self, checker: Checker, db: Any = None) -> list[str]:
        return list(checker(self.trace, db))


def present(*values: str) -> Any:
    return lambda _: values


LEFT, TWICE = total_queue(Q, present=present("a")), "delivered 2 times: 'a', to c"
CLEARED = "cleared, and delivered afterwards: 'a'"
REVERSED = History().enqueued("a").enqueued("b").dequeued("b").dequeued("a")

# A history, its checker, and the finding, or the number of findings.
JUDGED: list[tuple[History, Checker, str | int]] = [
    (History().enqueued("a", "b").dequeued("a").dequeued("b"), total_queue(Q), 0),
    (History().enqueued("a", "b").dequeued("b"), LEFT, 0),
    (History().enqueued("a", "b").dequeued("a"), total_queue(Q), 1),
    (History().enqueued("a").dequeued("a").dequeued("a", client="d"), total_queue(Q), f"{TWICE}, d"),
    (History().enqueued("a").dequeued("a"), LEFT, TWICE),
    (History().dequeued("a"), total_queue(Q), "never enqueued: 'a'"),
    (History(), LEFT, "never enqueued: 'a'"),
    # The call of a client that died may have happened.
    (History().died("enqueue", ["a"]), total_queue(Q), 0),
    (History().died("enqueue", ["a"]).dequeued("a"), total_queue(Q), 0),
    (History().enqueued("a").died("dequeue", 1), total_queue(Q), 0),
    (History().enqueued("a", "b").died("dequeue", 1), total_queue(Q), 1),
    # A clear removes values that were enqueued before it.
    (History().enqueued("a").did("clear", None), total_queue(Q), 0),
    (History().did("clear", None).enqueued("a"), total_queue(Q), 1),
    (History().enqueued("a").did("clear", None).dequeued("a"), total_queue(Q), CLEARED),
    # Calls that do not overlap keep their order, and so do the values of one call.
    (History().enqueued("a").enqueued("b").dequeued("a").dequeued("b"), order(Q), 0),
    (REVERSED, order(Q), "out of order: 'a' was overtaken by ['b']"),
    (REVERSED, order(Q, overtaken_max=1), 0),
    (REVERSED, order(Q, consumer="somebody else"), 0),
    (History().enqueued("a", "b").dequeued("a", "b"), order(Q), 0),
    (History().enqueued("a", "b").dequeued("b", "a"), order(Q), 1),
    (History().enqueued("a").dequeued("a"), prompt(Q, within_s=1.0), 0),
    (History().enqueued("a").dequeued("a"), prompt(Q, within_s=0.5), 1),
    (History().dequeued().enqueued("a").dequeued("a"), never_nothing(Q), 0),
    (History().enqueued("a").dequeued().dequeued("a"), never_nothing(Q), 1),
    (History().did("audit", None, (2, 2)), exact_statistics(Q), 0),
    (History().did("audit", None, (2, 1)), exact_statistics(Q), 1),
]


@pytest.mark.parametrize(("history", "checker", "expected"), JUDGED)
def test_a_checker_finds_each_violation(history: History, checker: Checker, expected: str | int) -> None:
    found = history.judged(checker)
    assert len(found) == expected or found == [expected]


def test_a_lost_value_is_named() -> None:
    (lost,) = History().enqueued("a", "b").dequeued("a").judged(total_queue(Q))
    assert "lost: ['b']" in lost


@pytest.mark.parametrize("numbers", [(11, 1, 1), (1, 11, 1), (1, 1, 11)])
def test_a_transaction_beyond_its_bounds_is_found(numbers: tuple[int, int, int]) -> None:
    trace = Trace()
    trace.committed(Footprint("c", 1, 0.0, "committed", 10, 10, 10))
    checker = bounded_transactions(10, 10, 10)
    assert list(checker(trace, None)) == []  # type: ignore[arg-type]  # it needs no database
    trace.committed(Footprint("c", 2, 0.0, "committed", *numbers))
    assert len(list(checker(trace, None))) == 1  # type: ignore[arg-type]


def test_an_audit_may_read_the_whole_queue() -> None:
    trace = Trace()
    audit = trace.begin(0.0, "c", Q, "audit", None)
    trace.committed(Footprint("c", 1, 0.0, "committed", 1000, 0, 0, operation=audit))
    assert list(bounded_transactions(1, 1, 1)(trace, None)) == []  # type: ignore[arg-type]


def test_a_watch_left_behind_is_found() -> None:
    def forgetful(client: Client) -> None:
        run(client.db, lambda tr: tr.watch(b"key"))

    def tidy(client: Client) -> None:
        run(client.db, lambda tr: tr.watch(b"key")).cancel()

    def violations(function: Callable[[Client], None]) -> tuple[str, ...]:
        simulation = Simulation(1, faults=Faults())
        simulation.client(function, "client")
        return simulation.run([no_watch_left_behind]).violations

    assert violations(tidy) == ()
    assert violations(forgetful) == ("client has finished and left 1 watches open",)


def test_a_key_left_behind_is_found(db: fdbqueue.Database) -> None:
    db[b"q/a"], db[b"other"] = b"1", b"2"
    assert list(no_key_left_behind(b"q/", lambda key, _: key == b"q/a")(Trace(), db)) == []
    assert list(no_key_left_behind(b"q/", lambda _, value: value == b"0")(Trace(), db)) == [
        "left behind: b'q/a' = b'1'"
    ]


@pytest.mark.parametrize(
    ("state", "expires", "is_right"), [("~", 10.5, True), ("~", 10.0, False), ("-", 10.0, True)]
)
def test_a_delay_lengthens_the_life_of_a_task_that_stays(state: str, expires: float, is_right: bool) -> None:
    """A task that was cancelled while it was taken is gone after its release, and shows its old time."""
    life = Life("id", "t", "data", 0, None, None, 9.0, 10.0)
    op = Op("release", 5.0, seconds=0.5, ended=5.0, latest=5.0)
    until = 5.5 if state == "~" else None
    seen = Seen("id", state, "data", 0, None, 1, 0, 0, until, expires, None, False)
    assert (list(wrong_times(Rules("fifottl", True), op, life, seen)) == []) is is_right
