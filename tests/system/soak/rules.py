"""Rules about the evidence of one subject. Each yields a sentence for a promise that was broken."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from tests.system.soak.evidence import Evidence, Taken

Rule = Callable[[Evidence], Iterator[str]]
SHOWN = 5


def found(flaw: str, values: Iterable[str]) -> Iterator[str]:
    """One sentence for all values with a flaw, none without one."""
    listed = sorted(values)
    if listed:
        yield f"{flaw}: {len(listed)}, the first of them {', '.join(listed[:SHOWN])}"


def lost(evidence: Evidence) -> Iterator[str]:
    """Each acknowledged put is there or has ended."""
    return lost_but(evidence, lambda _: False)


def lost_but(evidence: Evidence, may_fade: Callable[[str], bool]) -> Iterator[str]:
    """The same, but for values that may end by themselves.

    A dequeue without an answer may have removed values, up to the number that it asked for.
    """
    missing = evidence.told - set(evidence.stored.effects) - set(evidence.stored.left)
    missing = {value for value in missing if not evidence.apart.get(value) and not may_fade(value)}
    missing -= evidence.perhaps_acked
    if len(missing) > sum(call.argument for call in evidence.named("dequeue") if not call.is_known):
        yield from found("lost", missing)


def doubled(evidence: Evidence) -> Iterator[str]:
    """Each value has one end, and is not there afterwards."""
    left, effects = Counter(evidence.stored.left), evidence.stored.effects
    values = {value for value, count in left.items() if count > 1} | (set(left) & set(effects))
    ended = set(effects) | set(evidence.ends)
    values |= {value for value in ended if effects.get(value, 0) + evidence.apart.get(value, 0) > 1}
    values |= {value for value, count in evidence.apart.items() if count and value in left}
    yield from found("twice", values)


def given_after_the_end(evidence: Evidence) -> Iterator[str]:
    """No take gives a value after a call that has ended it has returned."""
    for value, calls in evidence.ends.items():
        end_us = min(call.end_us or call.begin_us for call in calls)
        if any(taken.call.begin_us > end_us for taken in evidence.takes_of.get(value, ())):
            yield f"given after its end: {value}"


def from_nowhere(evidence: Evidence) -> Iterator[str]:
    """Each value was put."""
    seen = {*evidence.stored.effects, *evidence.stored.left, *evidence.takes_of}
    yield from found("from nowhere", seen - set(evidence.puts))


def without_effect(evidence: Evidence) -> Iterator[str]:
    """A transaction that has returned has left its effects."""
    told = {value for call, _ in evidence.succeeded("finish") for value, _ in call.argument}
    told |= {taken.value for taken in evidence.taken if taken.call.name == "consume"}
    yield from found("told as done, without its effect", told - set(evidence.stored.effects))


def stuck(evidence: Evidence) -> Iterator[str]:
    """Everything could be taken at the end."""
    yield from found("stuck", evidence.stored.left)


def held_twice(evidence: Evidence) -> Iterator[str]:
    """While a lease is proved to be live, no other take gives its value."""
    for held in evidence.held:
        for other in evidence.takes_of[held.value]:
            inside = held.from_us <= other.call.begin_us and other.end_us <= held.until_us
            if inside and other.token != held.token:
                yield f"two live leases: {held.value}"


def given_too_early(evidence: Evidence) -> Iterator[str]:
    """A value that was not released comes again only after its lease, or after a strike at its holder."""
    for value, takes in evidence.takes_of.items():
        leases = [taken for taken in takes if taken.token]
        for first, second in pairwise(leases):
            is_other_order = second.call.begin_us < first.end_us and not _is_early(evidence, second, first)
            if _is_early(evidence, first, second) and not is_other_order:
                after_s = (second.end_us - first.call.begin_us) / 1e6
                yield f"given again {after_s:.3f} s after its take: {value}"


def _is_early(evidence: Evidence, first: Taken, second: Taken) -> bool:
    if second.end_us >= first.call.begin_us + evidence.ttr_us:
        return False
    released_us = evidence.released.get((first.value, first.token))
    if released_us is not None and released_us <= second.end_us:
        return False
    since_us = first.call.begin_us - evidence.session_ttr_us
    return not any(
        strike.process == first.call.process
        and strike.begin_us <= second.end_us
        and (strike.end_us is None or strike.end_us >= since_us)
        for strike in evidence.strikes
    )


def miscounted(evidence: Evidence) -> Iterator[str]:
    """Each counter equals a scan, and the totals equal the calls."""
    for name, (counter, real) in evidence.stored.counters.items():
        if counter != real:
            yield f"the counter of {name} says {counter}, there are {real}"
    for name, (least, most) in _bounds(evidence).items():
        total = evidence.stored.totals.get(name)
        if total is not None and not least <= total <= most:
            yield f"the counter of {name} says {total}, the notes tell of {least} to {most}"


def _bounds(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """For each total, its value without and with the unknown calls."""
    acked = sum(evidence.stored.effects.values()) + sum(evidence.apart.values())
    return {
        "puts": (len(evidence.told), len(evidence.puts)),
        "acks": (acked, acked + len(evidence.perhaps_acked - set(evidence.apart))),
    }


def unsound(evidence: Evidence) -> Iterator[str]:
    """A verification of the keys finds nothing."""
    yield from evidence.stored.findings


SOUND: tuple[Rule, ...] = (doubled, given_after_the_end, without_effect, stuck, miscounted, unsound)
"""The rules of every subject."""
ITEMS: tuple[Rule, ...] = (lost, from_nowhere, *SOUND)
"""Those of queues that get values from the soak only."""
LEASED: tuple[Rule, ...] = (*ITEMS, held_twice, given_too_early)
