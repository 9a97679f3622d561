"""The waiting line: who serves, what becomes of the dead, and that no wake-up and no item is lost."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue, limits
from fdbqueue.codec import codec_named
from fdbqueue.errors import DatabaseClosed
from fdbqueue.line.decision import Look, Otherwise, Reason
from fdbqueue.line.keys import Ticket
from fdbqueue.line.shares import Offer, at_most, free_of, pair, portion_of, within
from fdbqueue.line.staging import DEADLINE_US, Outcome, Turn
from fdbqueue.recipe.items import Recipe
from fdbqueue.recipe.keys import QueueKeys, whole
from tests.queue_support import registered_by
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code, wait_until

NOW = 10**15
LONG_AFTER = NOW + round(limits.SHARE_HELD_S * 1_000_000) + 1


# Plans.


def ticket(number: int, count: int = 1) -> Ticket:
    return Ticket(b"its stamp ", b"%d" % number, count)


def offer(number: int, size_bytes: int = 1) -> Offer:
    return Offer(b"item%d" % number, bytes(min(size_bytes, 1000)), size_bytes)


def offers_of(names: str) -> list[Offer]:
    """Of the key that is the first letter of its name each."""
    return [Offer(name.encode(), b"", 1, key=name[:1].encode()) for name in names.split()]


def test_requests_and_offers_are_paired_in_order() -> None:
    requests, offers = [ticket(0, 2), ticket(1), ticket(2, 5), ticket(3)], [offer(n) for n in range(5)]
    pairs = pair(requests, [2, 1, 5, 1], offers)
    assert [(who.rid, [o.id for o in what]) for who, what in pairs] == [
        (b"0", [b"item0", b"item1"]),
        (b"1", [b"item2"]),
        (b"2", [b"item3", b"item4"]),
    ]


def test_a_request_without_callers_gets_nothing() -> None:
    assert [who.rid for who, _ in pair([ticket(0), ticket(1)], [0, 1], [offer(0)])] == [b"1"]


def test_nobody_gets_more_than_one_collection_can_carry() -> None:
    large = [offer(n, limits.BATCH_BYTES_MAX // 2 + 1) for n in range(3)]
    assert len(portion_of(large).offers) == 1
    assert len(portion_of([offer(0, limits.PAYLOAD_BYTES_MAX)]).offers) == 1


@pytest.mark.parametrize(
    ("left", "shares", "free"),
    [
        ("", "a1 b1 a2", "a1 b1 a2"),
        ("a1", "a2 b1", "b1"),
        ("a1 b1", "c1 b2 c2 a2", "c1 c2"),
        ("a1", "b1", "b1"),
    ],
)
def test_of_a_key_the_second_is_left_to_those_who_get_the_first(left: str, shares: str, free: str) -> None:
    pairs = [(ticket(number), [offer]) for number, offer in enumerate(offers_of(shares))]
    served = [who for who, _ in pairs]
    assert [o.id.decode() for _, (o,) in free_of(offers_of(left), pairs, served)] == free.split()


def test_what_is_left_to_those_who_help_themselves_is_left_with_all_that_comes_after_it_of_a_key() -> None:
    pairs = [(ticket(number), [offer]) for number, offer in enumerate(offers_of("a1 b1 a2 b2"))]
    served = [ticket(number) for number in (1, 2, 3)]
    assert free_of([], pairs, served) == [pairs[1], pairs[3]]


def test_what_is_left_of_a_key_leaves_all_that_a_request_would_get_with_it() -> None:
    pairs = [(ticket(0, 2), offers_of("a2 b1")), (ticket(1), offers_of("b2")), (ticket(2), offers_of("c1"))]
    assert [who.rid for who, _ in free_of(offers_of("a1"), pairs, [who for who, _ in pairs])] == [b"2"]


def test_one_transaction_hands_out_a_bounded_number_but_at_least_one_share() -> None:
    pairs = [(ticket(number, 2), [offer(2 * number), offer(2 * number + 1)]) for number in range(3)]
    assert at_most(5, pairs) == pairs[:2]
    assert at_most(1, pairs) == pairs[:1]
    assert at_most(1, []) == []


def test_what_is_read_has_a_bounded_number_of_bytes_but_at_least_one_item() -> None:
    three = [offer(0, 1000), offer(1, 1000), offer(2, 1000)]
    assert within(2500, three) == three[:2]
    assert within(10, three) == three[:1]


# Transactions of the line, step by step.


class Steps:
    """A queue's line, driven by hand."""

    def __init__(self, db: Database, space: Subspace) -> None:
        self.db = db
        self.queue = Queue(space[0], root=space[1])
        self.line = Recipe(QueueKeys(space[0]), codec_named("json")).line
        self._rids = 0

    def run(self, body: Callable[[Any], Any]) -> Any:
        tr = self.db.create_transaction()
        answer = body(tr)
        tr.commit().wait()
        return answer

    def register(self, count: int = 1, now_us: int = NOW) -> Ticket:
        return self.register_by(self.db.create_transaction(), count, now_us)

    def register_by(self, tr: Any, count: int = 1, now_us: int = NOW) -> Ticket:
        self._rids += 1
        return registered_by(tr, self.line, b"the-%08d" % self._rids, now_us, count)

    def is_woken(self, watch: Any) -> bool:
        return self.db.runtime.wait_any([watch], PATIENCE_S)

    def look(self, who: Ticket, now_us: int = NOW, **how: Any) -> Turn:
        return self.run(lambda tr: self.line.look(tr, who, Look(now_us, **how)))

    def keys(self) -> int:
        return sum(1 for _ in self.db.get_range_startswith(self.line.keys.prefix))


@pytest.fixture
def steps(db: Database, space: Subspace) -> Steps:
    return Steps(db, space)


def test_everybody_takes_the_share_of_its_own_place(steps: Steps) -> None:
    tickets = [steps.register() for _ in range(3)]
    steps.queue.enqueue_many(steps.db, ["a", "b", "c", "d"])
    turns = [steps.look(tickets[number]) for number in (1, 2, 0)]
    assert [(turn.answers, turn.crowd, turn.ahead) for turn in turns] == [
        (["b"], 2, 1),
        (["c"], 2, 1),
        (["a"], 1, 0),
    ]
    assert (steps.queue.items(steps.db, 9), steps.queue.size(steps.db), steps.keys()) == (["d"], 1, 0)


def test_a_damaged_notice_is_set_aside_with_the_results_beside_it(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NOTICE_BYTES_MAX", 0)
    tickets, keys = [steps.register() for _ in range(2)], steps.line.keys
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    steps.look(tickets[1], reason=Reason.NEGLECT)
    steps.db[keys.notice(tickets[0].rid)] = b"\xff"
    assert not steps.look(tickets[0], reason=Reason.NOTICE).answers
    [found] = steps.queue.aside(steps.db, 9)
    assert list(found.values) == [b"\xff", whole(b'"a"')]
    for column in (keys.all_notices, keys.all_results):
        assert list(steps.db.get_range(column.start, column.stop)) == []


def test_those_who_take_their_shares_do_not_conflict(steps: Steps) -> None:
    tickets = [steps.register(count) for count in (1, 3, 1)]
    steps.queue.enqueue_many(steps.db, range(5))
    together = [begin(steps.db) for _ in tickets]
    taken = [steps.line.look(tr, who, Look(NOW)).answers for tr, who in zip(together, tickets, strict=True)]
    assert taken == [[0], [1, 2, 3], [4]]
    assert [commit_code(tr) for tr in together] == [0, 0, 0]


def test_nor_do_they_with_one_who_comes_and_with_one_who_puts(steps: Steps) -> None:
    who = steps.register()
    steps.queue.enqueue(steps.db, "a")
    taking, coming, putting = (begin(steps.db) for _ in range(3))
    assert steps.line.look(taking, who, Look(NOW)).answers == ["a"]
    steps.queue.enqueue(putting, "b")
    steps.register_by(coming)
    assert [commit_code(tr) for tr in (putting, taking)] == [0, 0]


def test_places_are_in_the_order_of_commits(steps: Steps) -> None:
    """Nobody comes to stand before one that is there already: then all behind would use others' shares."""
    late = begin(steps.db)
    late.get_read_version().wait()
    first = steps.register()
    second = steps.register_by(late)
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    assert steps.look(second).answers == ["b"]
    assert steps.look(first).answers == ["a"]


def test_two_who_take_one_item_for_theirs_conflict(steps: Steps) -> None:
    """One has seen that somebody left without taking anything, the other has not."""
    leaving, first, second = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    early = begin(steps.db)
    steps.run(lambda tr: steps.line.withdraw(tr, leaving))
    late = begin(steps.db)
    assert steps.line.look(early, first, Look(NOW)).answers == ["b"]
    assert steps.line.look(late, second, Look(NOW)).answers == ["b"]
    assert [commit_code(late), commit_code(early)] == [0, NOT_COMMITTED]
    assert steps.look(first).answers == ["a"]


def test_a_plain_dequeue_costs_the_line_one_conflict(steps: Steps) -> None:
    first, second = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    attempts = [begin(steps.db), begin(steps.db)]
    steps.line.look(attempts[0], first, Look(NOW))
    steps.line.look(attempts[1], second, Look(NOW))
    assert steps.run(steps.queue.dequeue) == "a"
    assert [commit_code(tr) for tr in attempts] == [NOT_COMMITTED, 0]
    assert steps.look(first).answers == ["c"]


def test_what_one_collection_cannot_carry_is_the_share_of_the_next(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has asked for several large items gets fewer; those behind it do not leave the rest lying."""
    first, second = steps.register(3), steps.register(3)
    steps.queue.enqueue_many(steps.db, [name * 1000 for name in "abc"])
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 1_500)
    assert steps.look(second).answers == ["b" * 1000]
    assert steps.look(first).answers == ["a" * 1000]


@pytest.mark.parametrize("ahead", [0, 1, 60])
def test_a_guess_of_how_many_items_are_for_others_may_be_wrong(steps: Steps, ahead: int) -> None:
    *_, last = (steps.register(3) for _ in range(4))
    steps.queue.enqueue_many(steps.db, range(12))
    assert steps.look(last, ahead=ahead, wanted=3).answers == [9, 10, 11]


def test_what_is_for_those_before_it_is_waited_for_also_by_one_who_may_not_wait(steps: Steps) -> None:
    """They may leave without it: "nothing" is true only when it has gone."""
    first, second = steps.register(), steps.register()
    steps.queue.enqueue(steps.db, "a")
    waiting = steps.look(second, otherwise=Otherwise.LEAVE)
    assert waiting.outcome is Outcome.WAIT
    assert steps.look(first).answers == ["a"]
    assert steps.is_woken(waiting.watches[1])
    assert steps.look(second, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT


def test_one_that_stands_too_far_back_waits_until_others_have_gone(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look at all of them, so it cannot say that there is nothing either."""
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    waiting = steps.look(third, otherwise=Otherwise.LEAVE)
    assert waiting.outcome is Outcome.WAIT
    assert steps.look(second).answers == ["b"]
    assert steps.is_woken(waiting.watches[1])
    assert steps.look(third, reason=Reason.SIGNAL).answers == ["c"]
    assert steps.look(first).answers == ["a"]


def test_one_that_stands_too_far_back_leaves_an_empty_queue(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    *_, third = (steps.register() for _ in range(3))
    assert steps.look(third, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT


def test_one_whom_nobody_serves_serves_all(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it may be frozen: it serves them, too, or it would never come to its own share."""
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    assert steps.look(third, reason=Reason.NEGLECT).outcome is Outcome.AGAIN
    assert steps.look(third, reason=Reason.NEGLECT).answers == ["c"]
    assert [steps.look(who).answers for who in (second, first)] == [["b"], ["a"]]
    assert steps.keys() == 0


def test_large_items_are_left_to_those_before_one_unread(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SERVE_BYTES_MAX", 2_500)
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["x" * 1000, "y" * 1000, "z" * 1000])
    assert steps.look(third, otherwise=Otherwise.LEAVE).outcome is Outcome.WAIT
    assert steps.look(first).answers == ["x" * 1000]
    assert steps.look(third, otherwise=Otherwise.LEAVE).answers == ["z" * 1000]
    assert steps.look(second).answers == ["y" * 1000]


def test_one_that_has_slept_serves_those_who_sleep_behind_it(steps: Steps) -> None:
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    served = steps.look(first, reason=Reason.SIGNAL)
    assert (served.outcome, served.answers, served.crowd) == (Outcome.SERVED, ["a"], 3)
    assert steps.queue.size(steps.db) == 0
    assert steps.look(third).answers == ["c"]
    assert steps.look(second).answers == ["b"]
    assert steps.keys() == 0


def test_but_not_those_before_it_who_have_just_come(steps: Steps) -> None:
    _first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    assert steps.look(second, reason=Reason.SIGNAL).answers == ["b"]
    assert steps.look(third, reason=Reason.NOTICE).answers == ["c"]
    assert steps.queue.items(steps.db, 9) == ["a"]


@pytest.mark.parametrize("registered", [True, False])
def test_those_before_it_who_have_stood_there_for_long_are_served(steps: Steps, registered: bool) -> None:
    """They sleep, or are slow or dead: nobody keeps others for longer from what comes after its share."""
    idle, fresh = steps.register(), steps.register(now_us=LONG_AFTER)
    mine = steps.register(now_us=LONG_AFTER)
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    if registered:
        assert steps.look(mine, LONG_AFTER).answers == ["c"]
    else:
        steps.run(lambda tr: steps.line.withdraw(tr, mine))
        assert steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", LONG_AFTER)).answers == ["c"]
    assert steps.queue.items(steps.db, 9) == ["b"]
    assert steps.look(idle, LONG_AFTER, reason=Reason.NOTICE).answers == ["a"]
    assert steps.look(fresh, LONG_AFTER).answers == ["b"]


def test_one_that_finds_only_what_is_for_those_serves_them(steps: Steps) -> None:
    idle, mine = steps.register(), steps.register(now_us=LONG_AFTER)
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(mine, LONG_AFTER, otherwise=Otherwise.LEAVE).outcome is Outcome.AGAIN
    assert steps.look(mine, LONG_AFTER, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT
    assert steps.look(idle, LONG_AFTER).answers == ["a"]


def test_one_that_met_somebody_takes_its_own_share_alone(steps: Steps) -> None:
    idle, mine, _behind = (steps.register(now_us=when) for when in (NOW, LONG_AFTER, LONG_AFTER))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    assert steps.look(mine, LONG_AFTER, reason=Reason.CONFLICT).answers == ["b"]
    assert steps.queue.items(steps.db, 9) == ["a", "c"]
    assert steps.look(idle, LONG_AFTER).answers == ["a"]


def test_a_server_and_one_that_helps_itself_conflict(steps: Steps) -> None:
    first, second = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    server, taker = begin(steps.db), begin(steps.db)
    steps.line.look(server, first, Look(NOW, reason=Reason.SIGNAL))
    steps.line.look(taker, second, Look(NOW))
    assert [commit_code(server), commit_code(taker)] == [0, NOT_COMMITTED]
    assert steps.look(second).answers == ["b"]


def test_registrations_do_not_conflict(steps: Steps) -> None:
    first, second = begin(steps.db), begin(steps.db)
    places = [steps.register_by(tr) for tr in (first, second)]
    assert places == sorted(places, key=lambda ticket: ticket.stamp)


def test_a_request_is_found_by_its_name(steps: Steps) -> None:
    """Who does not know whether it has registered does not know its stamp."""
    tickets = [steps.register() for _ in range(3)]
    assert [steps.run(lambda tr, t=t: steps.line.find(tr, t.rid)) for t in tickets] == tickets
    assert steps.run(lambda tr: steps.line.find(tr, b"nobody's")).stamp == b""


def test_two_servers_that_saw_different_requests_do_not_deliver_one_item_twice(steps: Steps) -> None:
    steps.queue.enqueue(steps.db, "a")
    first = steps.register()
    early = begin(steps.db)
    second = steps.register()
    late = begin(steps.db)
    steps.line.look(early, first, Look(NOW))
    steps.line.look(late, second, Look(NOW, reason=Reason.NEGLECT))
    assert commit_code(late) == 0
    assert commit_code(early) == NOT_COMMITTED
    assert steps.look(first).answers == ["a"]
    assert steps.look(second).outcome is Outcome.WAIT


def test_one_item_is_not_delivered_by_a_server_and_taken_by_a_plain_dequeue(steps: Steps) -> None:
    steps.queue.enqueue(steps.db, "a")
    head = steps.register()
    server, taker = begin(steps.db), begin(steps.db)
    assert steps.line.look(server, head, Look(NOW)).answers == ["a"]
    assert steps.queue.dequeue(taker) == "a"
    assert [commit_code(taker), commit_code(server)] == [0, NOT_COMMITTED]


def test_a_request_for_several_is_satisfied_by_fewer(steps: Steps) -> None:
    first, second = steps.register(3), steps.register(3)
    steps.queue.enqueue_many(steps.db, [1, 2, 3, 4])
    assert steps.look(first).answers == [1, 2, 3]
    assert steps.look(second).answers == [4]


def test_what_has_no_caller_any_more_returns_to_its_old_place_uncounted(steps: Steps) -> None:
    first, second = steps.register(), steps.register(3)
    steps.queue.enqueue_many(steps.db, [0, 1, 2, 3])
    steps.look(first, reason=Reason.SIGNAL)
    steps.queue.enqueue(steps.db, 4)
    assert steps.look(second, wanted=1).answers == [1]
    assert steps.queue.items(steps.db, 9) == [2, 3, 4]
    assert steps.queue.size(steps.db) == 3


def test_a_dead_request_is_dropped_and_a_renewed_one_is_not(steps: Steps) -> None:
    dead, renewed, mine = steps.register(), steps.register(), steps.register(now_us=NOW + DEADLINE_US)
    assert steps.look(renewed, NOW + DEADLINE_US, otherwise=Otherwise.RENEW).renewed
    steps.queue.enqueue(steps.db, "a")
    steps.look(mine, NOW + DEADLINE_US + 1, reason=Reason.NEGLECT)
    assert steps.look(dead).outcome is Outcome.GONE
    assert steps.look(renewed).answers == ["a"]


def test_a_request_behind_others_renews_and_sleeps_in_one_step(steps: Steps) -> None:
    first, second = steps.register(), steps.register()
    turn = steps.look(second, NOW + 1, otherwise=Otherwise.RENEW)
    assert turn.outcome is Outcome.WAIT
    assert turn.renewed
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(first, reason=Reason.SIGNAL).answers == ["a"]
    assert steps.is_woken(turn.watches[1])


def test_the_first_request_renews_in_a_step_without_watches(steps: Steps) -> None:
    turn = steps.look(steps.register(), NOW + 1, otherwise=Otherwise.RENEW)
    assert turn.outcome is Outcome.AGAIN
    assert turn.renewed
    assert not turn.watches


def test_a_check_takes_nothing_that_a_request_ahead_may_take(steps: Steps, db: Database) -> None:
    first, second = steps.register(), steps.register()
    assert steps.look(second, reason=Reason.RENEWAL).outcome is Outcome.WAIT
    steps.queue.enqueue_many(db, ["a", "b"])
    taking = db.create_transaction()
    assert steps.line.look(taking, first, Look(NOW, reason=Reason.SIGNAL)).answers == ["a"]
    assert steps.look(second, reason=Reason.RENEWAL, tidies=True).outcome is Outcome.PENDING
    taking.commit().wait()
    assert steps.look(second).answers == ["b"]


def test_a_check_of_the_first_request_takes_its_share(steps: Steps) -> None:
    first = steps.register()
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(first, reason=Reason.RENEWAL).answers == ["a"]


def test_results_of_the_dead_go_back_under_their_old_keys(steps: Steps, db: Database) -> None:
    server, _dead = steps.register(), steps.register(2)
    steps.queue.enqueue_many(db, [0, 1, "x" * 200_000, 3])
    steps.look(server, reason=Reason.SIGNAL)
    later = NOW + DEADLINE_US + 1
    assert steps.queue.size(db) == 1
    mine = steps.register(now_us=later)
    assert steps.look(mine, later, tidies=True).outcome is Outcome.AGAIN
    assert steps.queue.items(db, 9) == [1, "x" * 200_000, 3]
    assert steps.queue.size(db) == 3
    assert steps.look(mine, later).answers == [1]


@pytest.mark.parametrize("by", ["transaction", "database"])
def test_whoever_finds_nothing_finds_the_overdue_results(db: Database, space: Subspace, by: str) -> None:
    long_ago = round(time.time() * 1_000_000) - 3 * DEADLINE_US
    steps = Steps(db, space)
    server, _dead = steps.register(now_us=long_ago), steps.register(now_us=long_ago)
    steps.queue.enqueue_many(db, ["mine", "overdue"])
    steps.look(server, long_ago, reason=Reason.SIGNAL)
    assert steps.queue.empty(db)
    take = steps.queue.dequeue
    assert (take(db) if by == "database" else steps.run(take)) == "overdue"
    assert (steps.queue.size(db), steps.keys()) == (0, 0)


def test_whoever_takes_in_turn_finds_the_overdue_results_while_there_is_more(
    db: Database, space: Subspace
) -> None:
    long_ago = round(time.time() * 1_000_000) - 3 * DEADLINE_US
    steps = Steps(db, space)
    server, _dead = steps.register(now_us=long_ago), steps.register(now_us=long_ago)
    steps.queue.enqueue_many(db, ["mine", "overdue", "more", "still more"])
    steps.look(server, long_ago, reason=Reason.SIGNAL)
    assert [steps.queue.dequeue(db) for _ in range(3)] == ["overdue", "more", "still more"]
    assert (steps.queue.size(db), steps.keys()) == (0, 0)


def test_collecting_conflicts_with_returning(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server, reason=Reason.SIGNAL)
    collector, returner = begin(db), begin(db)
    assert steps.line.look(collector, owner, Look(NOW)).answers == [1]
    steps.line.results.return_overdue(
        returner, steps.line.results.overdue(steps.line.results.ask_due(returner), NOW + 2 * DEADLINE_US)
    )
    assert [commit_code(collector), commit_code(returner)] == [0, NOT_COMMITTED]
    assert steps.queue.size(db) == 0


def test_clear_takes_delivered_items_too_and_their_owners_register_again(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server, reason=Reason.SIGNAL)
    steps.queue.clear(db)
    assert steps.look(owner).outcome is Outcome.GONE
    assert steps.keys() == 0


def test_withdrawing_returns_what_was_served_meanwhile(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server, reason=Reason.SIGNAL)
    steps.run(lambda tr: steps.line.withdraw(tr, owner))
    assert (steps.queue.items(db, 9), steps.keys()) == ([1], 0)


def test_leaving_gets_what_was_served_meanwhile(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server, reason=Reason.SIGNAL)
    assert steps.look(owner, reason=Reason.NEGLECT, otherwise=Otherwise.LEAVE).answers == [1]


def served_alone(steps: Steps, before: Ticket) -> None:
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(before).answers == ["a"]


def withdrawn(steps: Steps, before: Ticket) -> None:
    steps.run(lambda tr: steps.line.withdraw(tr, before))


def left_with_nothing(steps: Steps, before: Ticket) -> None:
    assert steps.look(before, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT


def dropped_as_dead(steps: Steps, _before: Ticket) -> None:
    steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", NOW + DEADLINE_US + 1))


@pytest.mark.parametrize("leave", [served_alone, withdrawn, left_with_nothing, dropped_as_dead])
def test_whoever_stands_behind_one_that_leaves_is_woken_and_leads(
    steps: Steps, leave: Callable[[Steps, Ticket], None]
) -> None:
    before = steps.register()
    behind = steps.register(now_us=NOW + 2 * DEADLINE_US)
    _own, watch = steps.look(behind).watches
    assert not watch.is_ready()
    leave(steps, before)
    assert steps.is_woken(watch)
    _own, doorbell = steps.look(behind).watches
    steps.queue.enqueue(steps.db, "b")
    assert steps.is_woken(doorbell)


def test_one_that_looks_and_is_not_the_head_is_woken_by_the_one_before_it(steps: Steps) -> None:
    first, second, third = (steps.register() for _ in range(3))
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, second))
    assert steps.is_woken(watch)
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, first))
    assert steps.is_woken(watch)


def test_the_dead_between_two_keep_neither_from_being_woken_by_the_other(steps: Steps) -> None:
    """They leave only if somebody drops them: whoever watched one of them would sleep on."""
    later = NOW + DEADLINE_US + 1
    first, _dead, third = (steps.register() for _ in range(3))
    for alive in (first, third):
        steps.look(alive, later, otherwise=Otherwise.RENEW)
    _own, watch = steps.look(third, later).watches
    steps.run(lambda tr: steps.line.withdraw(tr, first))
    assert steps.is_woken(watch)


def test_those_who_are_served_together_are_woken_together(steps: Steps) -> None:
    head, *others = (steps.register() for _ in range(4))
    watches = [steps.look(who).watches[0] for who in others]
    steps.queue.enqueue_many(steps.db, range(4))
    assert steps.look(head, reason=Reason.SIGNAL).answers == [0]
    for number, (who, watch) in enumerate(zip(others, watches, strict=True), 1):
        assert steps.is_woken(watch)
        assert steps.look(who, reason=Reason.NOTICE).answers == [number]


def test_one_that_is_called_and_not_served_looks_as_any_other(steps: Steps) -> None:
    """What has changed may be that somebody took it for dead, or nothing: a watch may fire for no reason."""
    first, second = steps.register(), steps.register()
    assert steps.look(second, reason=Reason.NOTICE).outcome is Outcome.WAIT
    assert steps.look(first, reason=Reason.NOTICE).outcome is Outcome.WAIT
    steps.run(lambda tr: steps.line.withdraw(tr, second))
    assert steps.look(second, reason=Reason.NOTICE).outcome is Outcome.GONE


@pytest.mark.parametrize("size", [10, limits.NOTICE_BYTES_MAX, 3 * limits.NOTICE_BYTES_MAX])
def test_results_of_any_size_reach_their_owner(steps: Steps, size: int) -> None:
    server, owner = steps.register(), steps.register(3)
    values = ["x" * size, "y" * size, "z"]
    steps.queue.enqueue_many(steps.db, ["mine", *values])
    steps.look(server, reason=Reason.SIGNAL)
    assert steps.look(owner).answers == values
    assert (steps.queue.size(steps.db), steps.keys()) == (0, 0)


def test_the_head_is_woken_if_somebody_serves_it(steps: Steps) -> None:
    head, behind = steps.register(), steps.register()
    own, _doorbell = steps.look(head).watches
    steps.queue.enqueue(steps.db, "a")
    steps.look(behind, reason=Reason.NEGLECT)
    assert steps.is_woken(own)


def test_leaving_conflicts_with_being_served(steps: Steps) -> None:
    head, behind = steps.register(), steps.register()
    steps.queue.enqueue(steps.db, "a")
    leaver, server = begin(steps.db), begin(steps.db)
    steps.line.withdraw(leaver, head)
    steps.line.look(server, behind, Look(NOW, reason=Reason.NEGLECT))
    assert [commit_code(server), commit_code(leaver)] == [0, NOT_COMMITTED]
    assert steps.look(head).answers == ["a"]


def test_one_who_passes_by_leaves_the_line_its_shares(steps: Steps, db: Database) -> None:
    now_us = round(time.time() * 1_000_000)
    waiting = steps.register(2, now_us=now_us)
    steps.queue.enqueue_many(db, ["theirs", "theirs, too", "mine"])
    assert steps.queue.dequeue(db) == "mine"
    assert steps.look(waiting, now_us).answers == ["theirs", "theirs, too"]


def test_one_who_finds_only_what_is_for_others_is_told_nothing_once_it_is_theirs(
    steps: Steps, db: Database
) -> None:
    now_us = round(time.time() * 1_000_000)
    waiting = steps.register(now_us=now_us)
    steps.queue.enqueue(db, "theirs")
    assert steps.queue.dequeue(db) is None
    assert steps.queue.empty(db)
    assert steps.look(waiting, now_us, reason=Reason.NOTICE).answers == ["theirs"]


def test_one_who_passes_by_and_finds_only_what_is_for_others_writes_nothing(steps: Steps) -> None:
    """It will look from the line: until then each attempt would cost a commit of nothing but its receipt."""
    steps.register()
    steps.queue.enqueue(steps.db, "theirs")
    turn = steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", NOW))
    assert (turn.outcome, turn.wrote) == (Outcome.AGAIN, False)


def test_one_who_cannot_see_the_end_of_the_line_does_not_pass_by(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    for _ in range(2):
        steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    turn = steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", NOW))
    assert turn.outcome is Outcome.AGAIN
    assert steps.queue.size(steps.db) == 3


def test_one_who_passes_by_is_told_of_nothing_that_comes_due_later(steps: Steps) -> None:
    """An answer of nothing must be true: what lies overdue is available first."""
    server, _dead = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    steps.look(server, reason=Reason.SIGNAL)
    later = NOW + DEADLINE_US + 1
    for outcome in (Outcome.AGAIN, Outcome.SERVED):
        turn = steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", later))
        assert turn.outcome is outcome
    assert turn.answers == ["b"]


def test_while_there_is_something_to_take_one_looks_at_times_for_what_lies_overdue(steps: Steps) -> None:
    server, _dead = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    steps.look(server, reason=Reason.SIGNAL)
    later = NOW + DEADLINE_US + 1
    mine, behind = steps.register(now_us=later), steps.register(now_us=later)
    assert steps.look(mine, later, tidies=True).outcome is Outcome.AGAIN
    assert steps.look(behind, later).answers == ["c"]
    assert steps.look(mine, later).answers == ["b"]


# The whole: threads, time-outs, wake-ups. Each thread has a Database of its own, so that nothing combines.


@contextmanager
def in_threads(count: int, call: Callable[[int], Any]) -> Iterator[list[Any]]:
    """Run `call(number)` in threads; their answers, in order of number, once the block has ended."""
    answers: list[Any] = [None] * count

    def run(number: int) -> None:
        answers[number] = call(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def apart(db: Database) -> Database:
    """A second client of the same database."""
    return Database(db.engine, db.runtime)


def test_waiters_of_several_clients_get_one_item_each(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    with in_threads(6, lambda _: queue.dequeue(apart(db), "nothing", timeout=PATIENCE_S)) as answers:
        for number in range(6):
            db.runtime.sleep(0.05)
            queue.enqueue(db, number)
    assert sorted(answers) == list(range(6))
    assert queue.size(db) == 0


def test_a_take_in_the_line_leaves_those_who_wait_to_be_told_that_their_time_is_over(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("LOOK_EVERY_S", "REQUEST_RENEW_S"):
        monkeypatch.setattr(limits, pause, 100 * PATIENCE_S)
    takes = Queue(space[0], root=space[1])._calls_of(db)._takes
    with in_threads(1, lambda _: takes.wait(100 * PATIENCE_S)) as answers:
        steps = Steps(db, space)
        wait_until(lambda: steps.keys() == 1)
        db.runtime.sleep(0.1)  # it sleeps: nothing tells when
        takes._memory.note(Turn(Outcome.SERVED, ["a"], crowd=limits.CROWD_MIN))
        assert takes.take(1) == ()
        takes.end_waits()
    assert [list(answer) for answer in answers] == [[]]


def test_a_wait_behind_a_dead_crowd_ends_in_time(db: Database, space: Subspace) -> None:
    steps, client = Steps(db, space), apart(db)
    for _ in range(limits.SERVE_MAX + 10):
        steps.register(now_us=round(db.runtime.now() * 1_000_000))
    steps.queue.enqueue(db, "for the first")
    begun = 0
    begin = client.create_transaction

    def counted() -> Any:
        nonlocal begun
        begun += 1
        return begin()

    client.create_transaction = counted  # type: ignore[method-assign]
    assert steps.queue.dequeue(client, "nothing", timeout=0.3) == "nothing"
    assert begun < 50  # a few; thousands, if it looked again and again until the crowd is taken for dead


def test_waiters_of_one_client_share_a_request(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    requests = QueueKeys(space[0])
    with in_threads(8, lambda _: queue.dequeue(db, "nothing", timeout=PATIENCE_S)) as answers:
        db.runtime.sleep(0.2)
        line = Recipe(requests, codec_named("json")).line.keys.requests
        assert len(list(db.get_range(line.start, line.stop))) == 1
        queue.enqueue_many(db, range(5))
        for number in range(5, 8):
            queue.enqueue(db, number)
    assert sorted(answers) == list(range(8))


def test_who_is_refused_a_watch_looks_now_and_then(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_EVERY_S", 0.2)
    queue, client = Queue(space[0], root=space[1]), apart(db)
    client.engine.options.set_max_watches(0)
    try:
        with in_threads(1, lambda _: queue.dequeue(client, timeout=PATIENCE_S)) as answers:
            db.runtime.sleep(1)
            looks = client.counters.wake_ups
            queue.enqueue(db, "a")
    finally:
        client.engine.options.set_max_watches(10_000)
    assert answers == ["a"]
    assert looks < 50  # of hundreds, were each refusal a call


def test_waiting_ends_in_time_with_nothing_left_behind(db: Database, space: Subspace) -> None:
    steps = Steps(db, space)
    began = time.monotonic()
    with in_threads(
        4, lambda n: steps.queue.dequeue(apart(db), "nothing", timeout=0.1 + 0.05 * n)
    ) as answers:
        pass
    assert answers == ["nothing"] * 4
    assert time.monotonic() - began < PATIENCE_S / 2
    assert steps.keys() == 0


def test_a_follower_whose_time_is_over_leaves_the_leader_waiting(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    with in_threads(1, lambda _: queue.dequeue(db, "nothing", timeout=PATIENCE_S)) as answers:
        db.runtime.sleep(0.1)
        assert queue.dequeue(db, "nothing", timeout=0.1) == "nothing"
        queue.enqueue(db, "a")
    assert answers == ["a"]


def test_a_leader_whose_time_is_over_leaves_its_request_to_the_others(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    timeouts = [0.3, PATIENCE_S, PATIENCE_S]

    def wait(number: int) -> Any:
        db.runtime.sleep(0.05 * number)
        return queue.dequeue(db, "nothing", timeout=timeouts[number])

    with in_threads(3, wait) as answers:
        db.runtime.sleep(0.6)
        queue.enqueue_many(db, ["a", "b"])
    assert answers[0] == "nothing"
    assert sorted(answers[1:]) == ["a", "b"]


def test_a_dead_head_costs_time_never_an_answer(db: Database, space: Subspace) -> None:
    """Its request stands in the line, live by its deadline, and nobody serves."""
    steps = Steps(db, space)
    steps.register(now_us=round(time.time() * 1_000_000))
    steps.queue.enqueue_many(db, ["theirs", "mine"])
    assert steps.queue.dequeue(db, timeout=PATIENCE_S) == "mine"


def test_waiting_may_be_for_ever(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    with in_threads(2, lambda _: queue.dequeue(db, timeout=math.inf)) as answers:
        db.runtime.sleep(0.1)
        queue.enqueue_many(db, [1, 2])
    assert sorted(answers) == [1, 2]


def test_closing_ends_the_waiting(db: Database, space: Subspace) -> None:
    queue, client = Queue(space[0], root=space[1]), apart(db)

    def wait(_: int) -> Any:
        try:
            return queue.dequeue(client, timeout=PATIENCE_S)
        except DatabaseClosed:
            return "closed"

    with in_threads(3, wait) as answers:
        db.runtime.sleep(0.1)
        client.close()
    assert answers == ["closed"] * 3


def test_an_interrupted_waiter_leaves_the_line(db: Database, space: Subspace) -> None:
    steps = Steps(db, space)

    class Interrupted(BaseException):
        pass

    def interrupt(*_: Any) -> bool:
        raise Interrupted

    client = apart(db)
    client.runtime = _Runtime(db.runtime, interrupt)
    with pytest.raises(Interrupted):
        steps.queue.dequeue(client, timeout=PATIENCE_S)
    assert steps.keys() == 0
    steps.queue.enqueue(db, "a")
    client.runtime = db.runtime
    assert steps.queue.dequeue(client) == "a"


def test_an_interrupted_take_leaves_the_line_also_when_another_goes_on(db: Database, space: Subspace) -> None:
    """The other one registers anew: nobody would come for what the request left behind is given."""
    steps, client = Steps(db, space), apart(db)
    theirs = steps.register(now_us=round(time.time() * 1_000_000))
    steps.queue.enqueue(db, "theirs")
    takes = steps.queue._calls_of(client)._takes

    class Interrupted(BaseException):
        pass

    def interrupt(*_: Any) -> bool:
        client.runtime.wait_any = db.runtime.wait_any
        other.start()
        wait_until(lambda: len(takes._takes._pending) == 2)
        raise Interrupted

    client.runtime = _Runtime(db.runtime, interrupt)
    other = threading.Thread(target=lambda: steps.queue.dequeue(client))
    with pytest.raises(Interrupted):
        steps.queue.dequeue(client)
    other.join(PATIENCE_S)
    requests = steps.line.keys.requests
    assert list(db.get_range(requests.start, requests.stop)) == []
    assert steps.look(theirs).answers == ["theirs"]


class _Runtime:
    """A runtime that waits in its own way."""

    def __init__(self, runtime: Any, wait_any: Callable[..., bool]) -> None:
        self._runtime = runtime
        self.wait_any = wait_any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)
