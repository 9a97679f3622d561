"""The judge of histories: hand-made ones, and small random ones against all orders of their calls."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.testing.history import (
    REFUSED,
    Bag,
    Call,
    Fifo,
    Leases,
    Model,
    calls_of,
    edn_of,
    judge,
    lines_of,
)

TTR_US = 10


def put(value: Any, begin_us: int, end_us: int | None = None, process: str = "p") -> Call:
    return Call(process, "put", value, begin_us, end_us)


def take(result: Any, begin_us: int, end_us: int | None, process: str = "t") -> Call:
    return Call(process, "take", None, begin_us, end_us, None if end_us is None else result)


def verb(name: str, lease: list[str], begin_us: int, end_us: int | None, result: Any = None) -> Call:
    return Call("t", name, lease, begin_us, end_us, result)


SOUND: dict[str, tuple[Model, list[Call]]] = {
    "an empty history": (Bag(), []),
    "nothing before the put": (Bag(), [put("a", 2, 3), take(None, 0, 1), take("a", 4, 5)]),
    "nothing during the put": (Bag(), [put("a", 0, 3), take(None, 1, 2), take("a", 4, 5)]),
    "nothing between two items": (
        Bag(),
        [put("a", 0, 1), take("a", 2, 6), put("b", 4, 8), take(None, 3, 7), take("b", 9, 10)],
    ),
    "an unknown put that was done": (Bag(), [put("a", 0), take("a", 5, 6)]),
    "an unknown put that was not": (Bag(), [put("a", 0), take(None, 5, 6)]),
    "an unknown take of the item": (Bag(), [put("a", 0, 1), take("?", 2, None), take(None, 3, 4)]),
    "an item that comes back": (
        Bag(),
        [put("a", 0, 1), take("?", 2, None), take(None, 3, 4), take("a", 5, 6)],
    ),
    "puts at once in either order": (
        Fifo(),
        [put("a", 0, 9), put("b", 0, 8, "q"), take("b", 10, 11), take("a", 12, 13)],
    ),
    "an item that comes back to the head": (
        Fifo(),
        [put("a", 0, 1), put("b", 2, 3), take("?", 4, None, "u"), take("b", 5, 6), take("a", 7, 8)],
    ),
    "keys in any order": (
        Fifo(keyed=True),
        [put(["k", "a"], 0, 1), put(["l", "b"], 2, 3), take(["l", "b"], 4, 5), take(["k", "a"], 6, 7)],
    ),
    "a lease that is over": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), take(["a", "y"], 12, 13), verb("ack", ["a", "y"], 14, 15)],
    ),
    "a late ack of a live lease": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("ack", ["a", "x"], 90, 91), take(None, 92, 93)],
    ),
    "a refused ack": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("ack", ["a", "x"], 13, 14, REFUSED)],
    ),
    "a release": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("release", ["a", "x"], 4, 5), take(["a", "y"], 6, 7)],
    ),
    "a renewal, and an end": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("renew", ["a", "x"], 8, 9), take(["a", "y"], 17, 18)],
    ),
    "an unknown take of a lease": (
        Leases(TTR_US),
        [put("a", 0, 1), take("?", 2, None, "u"), take(None, 3, 4), take(["a", "y"], 5, 6)],
    ),
    "an unknown ack": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("ack", ["a", "x"], 4, None), take(None, 90, 91)],
    ),
}

BROKEN: dict[str, tuple[Model, list[Call]]] = {
    "a lost item": (Bag(), [put("a", 0, 1), take(None, 2, 3)]),
    "an item of no put": (Bag(), [take("a", 0, 1)]),
    "an item before its put": (Bag(), [take("a", 0, 1), put("a", 2, 3)]),
    "an item given twice": (Bag(), [put("a", 0, 1), take("a", 2, 5), take("a", 3, 4, "u")]),
    "two items lost by one take": (
        Bag(),
        [put("a", 0, 1), put("b", 0, 1, "q"), take("?", 2, None), take(None, 3, 4)],
    ),
    "nothing beside an item": (
        Bag(),
        [put("a", 0, 1), put("b", 2, 3), take("a", 4, 7), take(None, 5, 6, "u"), take("b", 8, 9)],
    ),
    "nothing beside items in turn": (
        Bag(),
        [put("a", 0, 1), take(None, 2, 9, "u"), put("b", 3, 4, "q"), take("a", 5, 6), take("b", 10, 11)],
    ),
    "puts in turn, taken in another order": (
        Fifo(),
        [put("a", 0, 1), put("b", 2, 3), take("b", 4, 5), take("a", 6, 7)],
    ),
    "a key out of order": (
        Fifo(keyed=True),
        [put(["k", "a"], 0, 1), put(["k", "b"], 2, 3), take(["k", "b"], 4, 5), take(["k", "a"], 6, 7)],
    ),
    "two live leases": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), take(["a", "y"], 10, 11, "u")],
    ),
    "an ack of a lease that is over": (
        Leases(TTR_US),
        [
            put("a", 0, 1),
            take(["a", "x"], 2, 3),
            take(["a", "y"], 14, 15),
            verb("ack", ["a", "x"], 16, 17),
            verb("ack", ["a", "y"], 18, 19),
        ],
    ),
    "a live lease that is refused": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("ack", ["a", "x"], 4, 5, REFUSED)],
    ),
    "a renewed lease that ends early": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("renew", ["a", "x"], 8, 9), take(["a", "y"], 15, 16)],
    ),
    "an acked task that comes back": (
        Leases(TTR_US),
        [put("a", 0, 1), take(["a", "x"], 2, 3), verb("ack", ["a", "x"], 4, 5), take(["a", "y"], 90, 91)],
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_is_sound(name: str) -> None:
    model, calls = SOUND[name]
    assert judge(calls, model).outcome == "sound"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_broken(name: str) -> None:
    model, calls = BROKEN[name]
    verdict = judge(calls, model)
    assert verdict.outcome == "broken"
    assert verdict.stuck
    assert all(call in calls for call in verdict.stuck)


def test_a_bounded_search_is_undecided() -> None:
    verdict = judge(BROKEN["puts in turn, taken in another order"][1], Fifo(), steps_max=1)
    assert verdict.outcome == "undecided"
    assert str(verdict).startswith("undecided after 1 steps\n")


@pytest.mark.parametrize("name", [*SOUND, *BROKEN])
def test_lines_hold_a_history(name: str) -> None:
    _, calls = (SOUND | BROKEN)[name]
    assert calls_of(lines_of(calls)) == sorted(calls, key=lambda call: call.begin_us)


def test_edn_has_the_events_that_jepsen_reads() -> None:
    calls = [
        put("a", 0, 1),
        take("?", 2, None),
        take(["a", 'say "x"'], 3, 4),
        verb("ack", ["a"], 5, 6, REFUSED),
    ]
    assert list(edn_of(calls)) == [
        '{:process 0, :type :invoke, :f :put, :value "a", :time 0, :index 0}',
        "{:process 0, :type :ok, :f :put, :value nil, :time 1000, :index 1}",
        "{:process 1, :type :invoke, :f :take, :value nil, :time 2000, :index 2}",
        "{:process 2, :type :invoke, :f :take, :value nil, :time 3000, :index 3}",
        '{:process 2, :type :ok, :f :take, :value ["a" "say \\"x\\""], :time 4000, :index 4}',
        '{:process 2, :type :invoke, :f :ack, :value ["a"], :time 5000, :index 5}',
        '{:process 2, :type :fail, :f :ack, :value ["a"], :time 6000, :index 6}',
        "{:process 1, :type :info, :f :take, :value nil, :time 2000, :index 7}",
    ]


MOMENTS = st.tuples(st.integers(0, 8), st.integers(0, 6)).map(lambda at: (at[0], at[0] + at[1]))
VALUES = st.sampled_from("abc")


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    """Up to six calls: puts of different values, and takes of any; one of them may have an unknown result."""
    puts = [put(value, *draw(MOMENTS)) for value in draw(st.sets(VALUES))]
    takes = [take(draw(VALUES | st.none()), *draw(MOMENTS)) for _ in range(draw(st.integers(0, 3)))]
    calls = puts + takes
    if calls and draw(st.booleans()):
        place = draw(st.integers(0, len(calls) - 1))
        call = calls[place]
        calls[place] = Call(call.process, call.name, call.argument, call.begin_us)
    return calls


@given(histories())
def test_the_judge_of_a_bag_agrees_with_all_orders(calls: list[Call]) -> None:
    assert judge(calls, Bag()).is_sound == any(is_right(order, Bag()) for order in orders(calls))


@given(histories())
def test_the_judge_of_a_line_agrees_with_all_orders(calls: list[Call]) -> None:
    assert judge(calls, Fifo()).is_sound == any(is_right(order, Fifo()) for order in orders(calls))


def orders(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """All orders of the calls that keep the order in time, with and without each unknown call."""
    known = [call for call in calls if call.is_known]
    unknown = [call for call in calls if not call.is_known]
    for chosen in product((False, True), repeat=len(unknown)):
        there = known + [call for call, is_there in zip(unknown, chosen, strict=True) if is_there]
        yield from filter(keeps_time, permutations(there))


def keeps_time(order: Sequence[Call]) -> bool:
    return not any(
        later.end_us is not None and later.end_us < call.begin_us
        for place, call in enumerate(order)
        for later in order[place + 1 :]
    )


def is_right(order: Sequence[Call], model: Model) -> bool:
    """True if some states follow each other; events may come between any two calls."""
    states = {model.start()}
    for call in order:
        before = states | {state for each in states for _, state in model.events(each)}
        if call.is_known:
            states = {after for each in before if (after := model.after(each, call)) is not None}
        else:
            states = {after for each in before for after in model.effects(each, call)}
    return bool(states)
