"""The tokens of a limit of starts, from the numbers of its cells."""

from fdbqueue.core import limits
from fdbqueue.tasks.limiting.rule import Rule
from fdbqueue.tasks.limiting.state import Bucket

NOW_NS = 10**18
RULE = Rule(rate=1, per_us=1_000_000, burst=2 * limits.CELL_TOKENS_MIN)
AHEAD_NS = 10**9
"""Less than the clocks of two processes may differ by."""


def bucket(*full_in_ns: int) -> Bucket:
    return Bucket(RULE, [NOW_NS + span_ns for span_ns in full_in_ns], NOW_NS)


def test_a_cell_of_a_clock_that_is_ahead_costs_no_other_cell() -> None:
    """By this clock its next token comes in more than a whole burst."""
    empty = bucket(0, 0)
    full_ns = [room * empty.token_ns for room in empty.rooms]
    found = bucket(full_ns[0] + AHEAD_NS, full_ns[1] - empty.token_ns)
    assert (found.tokens, found.all_tokens()) == ([0, 1], 1)
    assert found.taken(1, 0) == {1: NOW_NS + full_ns[1]}
    assert found.taken(2, 0) is None


def test_a_time_of_a_wrong_clock_counts_as_none() -> None:
    empty = bucket(0, 0)
    beyond_ns = empty.rooms[0] * empty.token_ns + round(limits.CLOCK_SKEW_S * 10**9) + 1
    assert bucket(beyond_ns, 0).tokens == empty.tokens
    assert bucket(beyond_ns - 1, 0).tokens == [0, empty.rooms[1]]


def test_the_next_token_is_that_of_the_first_cell_to_get_one() -> None:
    empty = bucket(0, 0)
    full_ns = [room * empty.token_ns for room in empty.rooms]
    found = bucket(full_ns[0], full_ns[1] - empty.token_ns // 2)
    assert found.next_us() == -(-(NOW_NS + empty.token_ns // 2) // 1_000)
    assert bucket(0, full_ns[1]).next_us() is None
