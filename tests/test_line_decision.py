"""The decision of a request in a waiting line, as a table: the line seen, a reason, the next step."""

from collections.abc import Sequence

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

SLEEP, PENDING = Sleep(), Sleep(pending=True)


def taken(decision: Decision) -> list[tuple[bytes, list[bytes]]]:
    """The pairs of a decision to take: the random name of each request, and its items."""
    assert isinstance(decision, Take)
    return [(ticket.rid, [offer.id for offer in offers]) for ticket, offers in decision.pairs]


def given(seen: Seen, items: int = 3, idle: Sequence[int] = (), tidied: Tidied = Tidied.NOT_YET) -> Seen:
    return replace(seen, offers=ITEMS[:items], idle=idle, tidied=tidied)


def look(
    reason: Reason = Reason.ARRIVAL, otherwise: Otherwise = Otherwise.SLEEP, tidies: bool = False
) -> Look:
    return Look(NOW_US, reason, otherwise, tidies=tidies)


MINE_ONLY = [(b"mine", [b"b"])]
MINE_AND_BEHIND = [*MINE_ONLY, (b"behind", [b"c"])]
ALL = [(b"ahead", [b"a"]), *MINE_AND_BEHIND]


@pytest.mark.parametrize(
    ("reason", "idle", "pairs"),
    [
        (Reason.ARRIVAL, [], MINE_ONLY),
        (Reason.ARRIVAL, [0], ALL[:2]),
        (Reason.PASSING, [], MINE_ONLY),
        (Reason.SIGNAL, [], MINE_AND_BEHIND),
        (Reason.SIGNAL, [0], ALL),
        (Reason.NOTICE, [], MINE_AND_BEHIND),
        (Reason.CONFLICT, [0], MINE_ONLY),
    ],
)
def test_the_reason_decides_which_requests_are_served(reason, idle, pairs):
    assert taken(decide(given(IN_THE_MIDDLE, idle=idle), look(reason))) == pairs


def test_a_neglected_line_is_tidied_and_served_as_a_whole():
    assert decide(given(IN_THE_MIDDLE), look(Reason.NEGLECT)) is Step.TIDY
    tidied = given(IN_THE_MIDDLE, tidied=Tidied.NO_CHANGE)
    assert taken(decide(tidied, look(Reason.NEGLECT))) == ALL


def test_far_back_only_neglect_serves():
    for reason in (Reason.ARRIVAL, Reason.SIGNAL, Reason.NOTICE, Reason.CONFLICT):
        assert decide(given(FAR_BACK), look(reason)) == SLEEP
    served = decide(given(FAR_BACK, tidied=Tidied.NO_CHANGE), look(Reason.NEGLECT))
    assert taken(served) == [(b"ahead", [b"a"]), (b"behind", [b"b"])]


@pytest.mark.parametrize(("items", "step"), [(0, SLEEP), (1, PENDING), (3, PENDING)])
def test_a_renewal_behind_others_takes_nothing(items, step):
    for otherwise in (Otherwise.SLEEP, Otherwise.RENEW):
        assert decide(given(IN_THE_MIDDLE, items), look(Reason.RENEWAL, otherwise)) == step


def test_a_renewal_of_the_first_request_takes_its_share():
    assert taken(decide(given(FIRST), look(Reason.RENEWAL))) == [(b"mine", [b"a"]), (b"behind", [b"b"])]


@pytest.mark.parametrize("items", [0, 3])
def test_the_first_request_renews_in_a_transaction_of_its_own(items):
    """Its next transaction watches the doorbell: a put would abort the renewal."""
    assert decide(given(FIRST, items), look(otherwise=Otherwise.RENEW)) is Step.RENEW
    assert decide(given(IN_THE_MIDDLE, 1), look(otherwise=Otherwise.RENEW)) == SLEEP


@pytest.mark.parametrize(
    ("seen", "otherwise", "step"),
    [
        (given(IN_THE_MIDDLE, 0), Otherwise.SLEEP, SLEEP),
        (given(IN_THE_MIDDLE, 1), Otherwise.SLEEP, SLEEP),
        (given(FIRST, 0), Otherwise.SLEEP, Step.TIDY),
        (given(IN_THE_MIDDLE, 0), Otherwise.LEAVE, Step.TIDY),
        (given(IN_THE_MIDDLE, 1), Otherwise.LEAVE, Step.TIDY),
    ],
)
def test_the_first_and_the_leaving_tidy_before_they_find_nothing(seen, otherwise, step):
    assert decide(seen, look(otherwise=otherwise)) == step


@pytest.mark.parametrize(
    ("items", "otherwise", "step"),
    [
        (0, Otherwise.SLEEP, SLEEP),
        (0, Otherwise.LEAVE, Step.LEAVE),
        (1, Otherwise.LEAVE, SLEEP),  # the item belongs to the request ahead, which may leave without it
    ],
)
def test_a_request_leaves_only_if_no_item_is_available(items, otherwise, step):
    assert decide(given(IN_THE_MIDDLE, items, tidied=Tidied.NO_CHANGE), look(otherwise=otherwise)) == step


@pytest.mark.parametrize("otherwise", [Otherwise.SLEEP, Otherwise.LEAVE])
def test_after_tidying_changed_the_queue_a_request_looks_again(otherwise):
    for tidied in (Tidied.ITEMS, Tidied.RESULTS):
        assert decide(given(IN_THE_MIDDLE, 0, tidied=tidied), look(otherwise=otherwise)) is Step.AGAIN
    items = given(IN_THE_MIDDLE, 3, tidied=Tidied.ITEMS)
    assert taken(decide(items, look(otherwise=otherwise))) == MINE_ONLY
    # Returned results are not among the items that were read, so shares may have moved.
    assert decide(replace(items, tidied=Tidied.RESULTS), look(otherwise=otherwise)) is Step.AGAIN


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


def test_dead_requests_are_removed_although_no_item_is_there():
    decision = decide(replace(given(FIRST, 0, tidied=Tidied.NO_CHANGE), dead=[DEAD]), look())
    assert decision == Take([], [DEAD], 0)


@pytest.mark.parametrize("reason", [Reason.ARRIVAL, Reason.SIGNAL, Reason.RENEWAL])
def test_a_request_that_sees_only_dead_ones_removes_them(reason):
    """None of those would, and no live request ahead is known."""
    seen = replace(given(FAR_BACK, 0, tidied=Tidied.NO_CHANGE), live=[], dead=[DEAD])
    assert decide(seen, look(reason)) == Take([], [DEAD], 0)


def test_a_request_takes_no_more_items_than_it_still_wants():
    three = Ticket(MINE.stamp, MINE.rid, 3)
    seen = replace(given(FIRST), mine=three, live=[three, BEHIND])
    assert taken(decide(seen, replace(look(), wanted=2))) == [(b"mine", [b"a", b"b"])]
    assert taken(decide(seen, look())) == [(b"mine", [b"a", b"b", b"c"])]


def test_the_decision_counts_the_items_of_requests_ahead():
    decision = decide(given(IN_THE_MIDDLE), look())
    assert isinstance(decision, Take)
    assert decision.ahead == 1
