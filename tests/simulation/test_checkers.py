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
from tests.system.workloads.notes import Op, Seen
from tests.system.workloads.task_model import Life, Rules, wrong_times

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


def test_a_value_enqueued_and_dequeued_once_is_right() -> None:
    assert History().enqueued("a", "b").dequeued("a").dequeued("b").judged(total_queue(Q)) == []


def test_a_value_still_in_the_queue_is_not_lost() -> None:
    history = History().enqueued("a", "b").dequeued("a")
    assert history.judged(total_queue(Q, present=present("b"))) == []
    (lost,) = history.judged(total_queue(Q))
    assert "lost: ['b']" in lost


def test_nothing_is_delivered_twice() -> None:
    history = History().enqueued("a").dequeued("a").dequeued("a", client="d")
    (twice,) = history.judged(total_queue(Q))
    assert twice == "delivered 2 times: 'a', to c, d"


def test_a_delivered_value_must_not_be_in_the_queue() -> None:
    history = History().enqueued("a").dequeued("a")
    assert history.judged(total_queue(Q, present=present("a"))) == ["delivered 2 times: 'a', to c"]


def test_a_value_that_was_never_enqueued_is_found() -> None:
    assert History().dequeued("a").judged(total_queue(Q)) == ["never enqueued: 'a'"]
    assert History().judged(total_queue(Q, present=present("a"))) == ["never enqueued: 'a'"]


def test_an_enqueue_of_a_dead_client_may_have_happened() -> None:
    assert History().died("enqueue", ["a"]).judged(total_queue(Q)) == []
    assert History().died("enqueue", ["a"]).dequeued("a").judged(total_queue(Q)) == []


def test_a_dequeue_of_a_dead_client_may_have_taken_its_count() -> None:
    assert History().enqueued("a").died("dequeue", 1).judged(total_queue(Q)) == []
    assert len(History().enqueued("a", "b").died("dequeue", 1).judged(total_queue(Q))) == 1


def test_a_clear_may_remove_only_values_enqueued_before_it() -> None:
    assert History().enqueued("a").did("clear", None).judged(total_queue(Q)) == []
    assert len(History().did("clear", None).enqueued("a").judged(total_queue(Q))) == 1


def test_a_cleared_value_must_not_come_back() -> None:
    history = History().enqueued("a").did("clear", None).dequeued("a")
    assert history.judged(total_queue(Q)) == ["cleared, and delivered afterwards: 'a'"]


def test_calls_that_do_not_overlap_keep_their_order() -> None:
    in_order = History().enqueued("a").enqueued("b").dequeued("a").dequeued("b")
    reversed_ = History().enqueued("a").enqueued("b").dequeued("b").dequeued("a")
    assert in_order.judged(order(Q)) == []
    assert reversed_.judged(order(Q)) == ["out of order: 'a' was overtaken by ['b']"]
    assert reversed_.judged(order(Q, overtaken_max=1)) == []
    assert reversed_.judged(order(Q, consumer="somebody else")) == []


def test_values_of_one_call_keep_their_order() -> None:
    assert History().enqueued("a", "b").dequeued("a", "b").judged(order(Q)) == []
    assert len(History().enqueued("a", "b").dequeued("b", "a").judged(order(Q))) == 1


def test_a_waiting_client_must_be_served_at_once() -> None:
    history = History().enqueued("a").dequeued("a")
    assert history.judged(prompt(Q, within_s=1.0)) == []
    assert len(history.judged(prompt(Q, within_s=0.5))) == 1


def test_a_dequeue_of_nothing_needs_an_empty_queue() -> None:
    assert History().dequeued().enqueued("a").dequeued("a").judged(never_nothing(Q)) == []
    assert len(History().enqueued("a").dequeued().dequeued("a").judged(never_nothing(Q))) == 1


def test_a_counter_must_equal_the_contents() -> None:
    assert History().did("audit", None, (2, 2)).judged(exact_statistics(Q)) == []
    assert len(History().did("audit", None, (2, 1)).judged(exact_statistics(Q))) == 1


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
