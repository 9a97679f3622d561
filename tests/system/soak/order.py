"""Rules about order. Takers meet, so most of them judge the last client, which is alone."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby

from fdbqueue.testing.history import Call
from tests.system.soak.evidence import Evidence, Held, key_of

LAST = "last"
"""The client that puts and takes when all others have ended, and the queue is empty."""


def in_turn(evidence: Evidence) -> Iterator[str]:
    """The last client takes all values in the order of their puts."""
    return _in_order(evidence, lambda _: "", lambda values: values)


def in_turn_by_key(evidence: Evidence) -> Iterator[str]:
    """The last client takes the values of each key in the order of their puts."""
    return _in_order(evidence, key_of, lambda values: values)


def by_priority(evidence: Evidence) -> Iterator[str]:
    """The last client takes the values of the lowest number first, each in order of the puts."""
    return _in_order(evidence, lambda _: "", lambda values: sorted(values, key=key_of))


def _in_order(
    evidence: Evidence, group: Callable[[str], str], wanted: Callable[[list[str]], list[str]]
) -> Iterator[str]:
    put = [value for call in evidence.named("put") if call.process == LAST for value in call.argument]
    got = [taken.value for taken in evidence.taken if taken.call.process == LAST]
    for key in sorted({*map(group, put), *map(group, got)}):
        expected = wanted([value for value in put if group(value) == key])
        found = [value for value in got if group(value) == key]
        if found != expected:
            yield f"out of order: {', '.join(found)} in place of {', '.join(expected)}"


def ends_in_turn(evidence: Evidence) -> Iterator[str]:
    """Of two values of a key, the one that was put before ends first, among all clients.

    Values of puts that overlap have no order.
    """
    ended: dict[str, list[tuple[Call, int, str]]] = defaultdict(list)
    for value in evidence.ends:
        put = evidence.puts.get(value)
        if put is not None and put.end_us is not None:
            ended[key_of(value)].append((put, put.argument.index(value), value))
    for key in sorted(ended):
        yield from _overtaken(evidence, ended[key])


def _overtaken(evidence: Evidence, values: list[tuple[Call, int, str]]) -> Iterator[str]:
    """Compare the end of each value with the latest end of a value that was put before it."""
    by_put_end = sorted(values, key=lambda one: (one[0].end_us or 0, one[1]))
    ends_us = [put.end_us or 0 for put, _, _ in by_put_end]
    latest: list[tuple[int, str]] = []
    for _, _, value in by_put_end:
        begin_us = max(call.begin_us for call in evidence.ends[value])
        latest.append(max(latest[-1], (begin_us, value)) if latest else (begin_us, value))
    for put, place, value in values:
        before = bisect_left(ends_us, put.begin_us)
        earlier = [latest[before - 1]] if before else []
        if place:
            neighbour = _neighbour(put, place, value)
            earlier += [(call.begin_us, neighbour) for call in evidence.ends.get(neighbour, ())]
        end_us = min(call.end_us or call.begin_us for call in evidence.ends[value])
        for begin_us, other in earlier:
            if begin_us > end_us:
                yield f"{value} has ended before {other}, which was put before it"


def _neighbour(put: Call, place: int, value: str) -> str:
    """The value before this one in the same put."""
    before: str = put.argument[place - 1]
    return before if key_of(before) == key_of(value) else value


def one_at_a_time(evidence: Evidence) -> Iterator[str]:
    """At no moment two values of one key are proved to be held."""
    for key, group in groupby(sorted(evidence.held, key=_key_and_time), lambda held: key_of(held.value)):
        last: Held | None = None
        for held in group:
            if last is not None and held.from_us < last.until_us and held.value != last.value:
                yield f"two live leases of the key {key}: {last.value}, {held.value}"
            if last is None or held.until_us > last.until_us:
                last = held


def _key_and_time(held: Held) -> tuple[str, int]:
    return key_of(held.value), held.from_us
