"""What the workload exact_line leaves open in the decision of a request: far places, the dead, and counts."""

import pytest
from msgspec.structs import replace

from fdbqueue.core.line.decision import (
    Decision,
    Look,
    Offer,
    Otherwise,
    Reason,
    Seen,
    Sleep,
    Step,
    Take,
    Ticket,
    Tidied,
    decide,
)

NOW_US = 1_000_000
AHEAD, MINE, BEHIND, DEAD = (Ticket(b"stamp", name, 1) for name in (b"ahead", b"mine", b"behind", b"dead"))
ITEMS = [Offer(name, b"", 1) for name in (b"a", b"b", b"c")]

IN_THE_MIDDLE = Seen(MINE, [AHEAD, MINE, BEHIND], [], before=b"ahead", place=1, idle=[])
FIRST = Seen(MINE, [MINE, BEHIND], [], before=None, place=0, idle=[])
FAR_BACK = Seen(MINE, [AHEAD, BEHIND], [], before=b"ahead", place=None, idle=[])

SLEEP = Sleep()


def taken(decision: Decision) -> list[tuple[bytes, list[bytes]]]:
    """The pairs of a decision to take: the random name of each request, and its items."""
    assert isinstance(decision, Take)
    return [(ticket.rid, [offer.id for offer in offers]) for ticket, offers in decision.pairs]


def given(seen: Seen, items: int = 3, tidied: Tidied = Tidied.NOT_YET) -> Seen:
    return replace(seen, offers=ITEMS[:items], tidied=tidied)


def look(reason: Reason = Reason.ARRIVAL, tidies: bool = False) -> Look:
    return Look(NOW_US, reason, Otherwise.SLEEP, tidies=tidies)


MINE_ONLY = [(b"mine", [b"b"])]


def test_far_back_only_neglect_serves():
    for reason in (Reason.ARRIVAL, Reason.SIGNAL, Reason.NOTICE, Reason.CONFLICT):
        assert decide(given(FAR_BACK), look(reason)) == SLEEP
    served = decide(given(FAR_BACK, tidied=Tidied.NO_CHANGE), look(Reason.NEGLECT))
    assert taken(served) == [(b"ahead", [b"a"]), (b"behind", [b"b"])]


@pytest.mark.parametrize(
    ("due_us", "step"), [(None, "take"), (NOW_US + 1, "take"), (NOW_US, Step.TIDY), (0, Step.TIDY)]
)
def test_only_the_first_request_makes_due_items_available(due_us, step):
    seen = replace(given(FIRST), next_due_us=due_us)
    decision = decide(seen, look())
    assert decision is step or (step == "take" and taken(decision) == [(b"mine", [b"a"])])
    behind = replace(given(IN_THE_MIDDLE), next_due_us=due_us)
    assert taken(decide(behind, look())) == MINE_ONLY


@pytest.mark.parametrize(
    ("seen", "reason", "tidies", "removed"),
    [
        (FIRST, Reason.ARRIVAL, False, [DEAD]),
        (IN_THE_MIDDLE, Reason.ARRIVAL, False, []),
        (IN_THE_MIDDLE, Reason.ARRIVAL, True, [DEAD]),
        (IN_THE_MIDDLE, Reason.NEGLECT, False, [DEAD]),
    ],
)
def test_dead_requests_are_removed_by_one_request_at_a_time(seen, reason, tidies, removed):
    """Requests that take their own shares would conflict over them."""
    with_dead = replace(given(seen, tidied=Tidied.NO_CHANGE), dead=[DEAD])
    decision = decide(with_dead, look(reason, tidies=tidies))
    assert isinstance(decision, Take)
    assert list(decision.dead) == removed


@pytest.mark.parametrize("reason", [Reason.ARRIVAL, Reason.SIGNAL, Reason.RENEWAL])
def test_a_request_that_sees_only_dead_ones_removes_them(reason):
    """None of those would, and no live request ahead is known."""
    seen = replace(given(FAR_BACK, 0, tidied=Tidied.NO_CHANGE), live=[], dead=[DEAD])
    assert decide(seen, look(reason)) == Take([], [DEAD], 0)


def test_the_decision_counts_the_items_of_requests_ahead():
    decision = decide(given(IN_THE_MIDDLE), look())
    assert isinstance(decision, Take)
    assert decision.ahead == 1
