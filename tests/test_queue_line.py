"""The waiting line: shares, serving, dead requests; no wake-up and no item is lost."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue
from fdbqueue.core import limits
from fdbqueue.core.calls import Nudge
from fdbqueue.core.codec import codec_named
from fdbqueue.core.line.decision import (
    DUE,
    Look,
    Notice,
    Offer,
    Otherwise,
    Reason,
    Ticket,
    at_most,
    free_of,
    notice_of,
    notice_value,
    pair,
    portion_of,
    within,
)
from fdbqueue.core.line.staging import Outcome, Turn, request_lasts_us
from fdbqueue.core.line.taking import Memory, Place, _is_refused
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Waitable
from fdbqueue.embedded import FDBError
from fdbqueue.queues.recipe.items import COUNTER, QueueKeys, Recipe, payload_bytes, split, whole
from tests.queue_support import registered_by
from tests.support import (
    COMMIT_UNKNOWN,
    NOT_COMMITTED,
    PATIENCE_S,
    TOO_MANY_WATCHES,
    TOO_OLD,
    ManualClock,
    begin,
    commit_code,
    wait_until,
)

NOW = 10**15
# Plans.


def ticket(number: int, count: int = 1) -> Ticket:
    return Ticket(b"its stamp ", b"%d" % number, count)


def offer(number: int, size_bytes: int = 1) -> Offer:
    return Offer(b"item%d" % number, bytes(min(size_bytes, 1000)), size_bytes)


def offers_of(names: str) -> list[Offer]:
    """Of the key that is the first letter of its name each."""
    return [Offer(name.encode(), b"", 1, key=name[:1].encode()) for name in names.split()]


def test_a_request_gets_at_most_what_one_collection_can_carry() -> None:
    large = [offer(n, limits.BATCH_BYTES_MAX // 2 + 1) for n in range(3)]
    assert len(portion_of(large).offers) == 1
    assert len(portion_of([offer(0, limits.PAYLOAD_BYTES_MAX)]).offers) == 1


def test_an_item_that_does_not_fit_goes_to_the_next_request() -> None:
    large = [offer(n, limits.BATCH_BYTES_MAX // 2 + 1) for n in range(3)]
    pairs = pair([ticket(0, 2), ticket(1)], [2, 1], large)
    assert [(who.rid, [o.id for o in what]) for who, what in pairs] == [
        (b"0", [b"item0"]),
        (b"1", [b"item1"]),
    ]


@pytest.mark.parametrize(
    ("left", "shares", "free"),
    [
        ("", "a1 b1 a2", "a1 b1 a2"),
        ("a1", "a2 b1", "b1"),
        ("a1 b1", "c1 b2 c2 a2", "c1 c2"),
        ("a1", "b1", "b1"),
    ],
)
def test_a_later_item_of_a_key_is_left_with_an_earlier_one(left: str, shares: str, free: str) -> None:
    pairs = [(ticket(number), [offer]) for number, offer in enumerate(offers_of(shares))]
    served = [who for who, _ in pairs]
    assert [o.id.decode() for _, (o,) in free_of(offers_of(left), pairs, served)] == free.split()


def test_items_behind_the_share_of_an_awake_request_are_left() -> None:
    pairs = [(ticket(number), [offer]) for number, offer in enumerate(offers_of("a1 b1 a2 b2"))]
    served = [ticket(number) for number in (1, 2, 3)]
    assert free_of([], pairs, served) == [pairs[1], pairs[3]]


def test_a_request_with_one_left_item_gets_none() -> None:
    pairs = [(ticket(0, 2), offers_of("a2 b1")), (ticket(1), offers_of("b2")), (ticket(2), offers_of("c1"))]
    assert [who.rid for who, _ in free_of(offers_of("a1"), pairs, [who for who, _ in pairs])] == [b"2"]


def test_a_look_hands_out_a_bounded_number_and_at_least_one() -> None:
    pairs = [(ticket(number, 2), [offer(2 * number), offer(2 * number + 1)]) for number in range(3)]
    assert at_most(5, pairs) == pairs[:2]
    assert at_most(1, pairs) == pairs[:1]
    assert at_most(1, []) == []


def test_a_look_reads_bounded_bytes_and_at_least_one_item() -> None:
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


def test_each_request_takes_its_own_share(steps: Steps) -> None:
    tickets = [steps.register() for _ in range(3)]
    steps.queue.enqueue_many(steps.db, ["a", "b", "c", "d"])
    turns = [steps.look(tickets[number]) for number in (1, 2, 0)]
    assert [(turn.answers, turn.crowd, turn.ahead) for turn in turns] == [
        (["b"], 2, 1),
        (["c"], 2, 1),
        (["a"], 1, 0),
    ]
    assert (steps.queue.items(steps.db, 9), steps.queue.size(steps.db), steps.keys()) == (["d"], 1, 0)


def test_a_damaged_notice_is_set_aside_with_its_results(
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


def test_a_request_whose_results_are_lost_is_gone(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NOTICE_BYTES_MAX", 0)  # results have keys of their own
    tickets, results = [steps.register() for _ in range(2)], steps.line.keys.all_results
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    steps.look(tickets[1], reason=Reason.NEGLECT)
    steps.db.clear_range(results.start, results.stop)
    assert steps.look(tickets[0], reason=Reason.NOTICE).outcome is Outcome.GONE


def test_a_notice_that_is_cut_anywhere_is_damaged() -> None:
    """A shorter value would be another item."""
    notice = Notice(7, 2, [(b"id", b"value"), (b"other", b"last")])
    value = notice_value(notice)
    assert notice_of(value) == notice
    whole_ones = [count for count in range(len(value)) if notice_of(value[:count]) is not None]
    assert [notice_of(value[:count]) for count in whole_ones] == [
        Notice(7, 2, []),
        Notice(7, 2, [(b"id", b"value")]),
    ]


def test_a_damaged_key_of_an_overdue_result_stops_no_take(steps: Steps) -> None:
    steps.queue.enqueue(steps.db, "a")
    steps.db[DUE.start(steps.line.keys.prefix) + b"\x00"] = b""
    assert steps.queue.dequeue(steps.db) == "a"
    assert (steps.queue.dequeue(steps.db, timeout=0), steps.keys()) == (None, 0)


def test_a_look_relies_on_the_items_that_it_hands_out(db: Database, space: Subspace) -> None:
    """Others of the items that it has read may be taken meanwhile."""
    q = Queue(space)
    q.enqueue_many(db, range(3))
    recipe, tr = q._recipe.zero, begin(db)
    offers = list(recipe.available(tr, 3, 0))
    recipe.claim(tr, offers[:1])
    tr.set(recipe.keys.item(offers[0].id), offers[0].value)
    db.clear(recipe.keys.item(offers[2].id))
    assert commit_code(tr) == 0


def test_a_portion_counts_long_task_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A take writes them in more places than the stored value."""
    monkeypatch.setattr(limits, "BATCH_RECORDS_BYTES_MAX", 1_000)
    offers = [Offer(b"%d" % number, b"x" * 100, 0, key=b"k" * 150) for number in range(9)]
    assert len(portion_of(offers).offers) == 2


def test_a_portion_has_bounded_bytes_of_stored_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may be large although their payloads lie elsewhere."""
    monkeypatch.setattr(limits, "BATCH_RECORDS_BYTES_MAX", 25)
    offers = [Offer(b"%d" % number, b"x" * 10, 0) for number in range(4)]
    assert [offer.id for offer in portion_of(offers).offers] == [b"0", b"1"]


def test_a_new_request_is_not_renewed_at_once(steps: Steps, space: Subspace) -> None:
    """It has been registered with its whole time."""
    clock = ManualClock()
    db = Database(steps.db.engine, clock)
    place = Place(db, RootKeys(space[1]), steps.line, 1, b"", Nudge(), Memory(db), is_named=False)
    assert 0 < place._renew_at - clock.monotonic() <= 2 * limits.REQUEST_RENEW_S


def test_the_bytes_of_an_item_are_those_of_its_payload() -> None:
    assert [payload_bytes(value) for value in (whole(b"abc"), split(2, 200_000))] == [3, 200_000]


def test_a_handle_tidies_the_line_once_in_a_while(db: Database) -> None:
    clock = ManualClock()
    memory = Memory(Database(db.engine, clock))
    for _ in range(2):
        assert [memory.is_time_to_tidy() for _ in range(3)] == [True, False, False]
        clock.advance(limits.LINE_TIDIED_EVERY_S)


def test_requests_that_take_their_shares_do_not_conflict(steps: Steps) -> None:
    tickets = [steps.register(count) for count in (1, 3, 1)]
    steps.queue.enqueue_many(steps.db, range(5))
    together = [begin(steps.db) for _ in tickets]
    taken = [steps.line.look(tr, who, Look(NOW)).answers for tr, who in zip(together, tickets, strict=True)]
    assert taken == [[0], [1, 2, 3], [4]]
    assert [commit_code(tr) for tr in together] == [0, 0, 0]


def test_a_take_of_a_share_conflicts_with_no_registration_or_put(steps: Steps) -> None:
    who = steps.register()
    steps.queue.enqueue(steps.db, "a")
    taking, coming, putting = (begin(steps.db) for _ in range(3))
    assert steps.line.look(taking, who, Look(NOW)).answers == ["a"]
    steps.queue.enqueue(putting, "b")
    steps.register_by(coming)
    assert [commit_code(tr) for tr in (putting, taking)] == [0, 0]


def test_places_are_in_the_order_of_commits(steps: Steps) -> None:
    """A request inserted ahead of others would shift their shares."""
    late = begin(steps.db)
    late.get_read_version().wait()
    first = steps.register()
    second = steps.register_by(late)
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    assert steps.look(second).answers == ["b"]
    assert steps.look(first).answers == ["a"]


def test_items_beyond_one_collection_are_the_next_share(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for several large items gets fewer; the requests behind it take the rest."""
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


def test_a_request_too_far_back_waits_until_others_have_gone(
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


def test_a_request_too_far_back_leaves_an_empty_queue(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    *_, third = (steps.register() for _ in range(3))
    assert steps.look(third, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT


def test_large_items_of_requests_ahead_are_not_read(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SERVE_BYTES_MAX", 2_500)
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["x" * 1000, "y" * 1000, "z" * 1000])
    assert steps.look(third, otherwise=Otherwise.LEAVE).outcome is Outcome.WAIT
    assert steps.look(first).answers == ["x" * 1000]
    assert steps.look(third, otherwise=Otherwise.LEAVE).answers == ["z" * 1000]
    assert steps.look(second).answers == ["y" * 1000]


def test_registrations_do_not_conflict(steps: Steps) -> None:
    first, second = begin(steps.db), begin(steps.db)
    places = [steps.register_by(tr) for tr in (first, second)]
    assert places == sorted(places, key=lambda ticket: ticket.stamp)


def test_a_request_is_found_behind_a_long_line(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 2)
    *_, last = (steps.register() for _ in range(3))
    assert steps.run(lambda tr: steps.line.find(tr, last.rid)) == last


def test_a_line_loses_its_dead_requests_in_bounded_steps(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    for _ in range(3):
        steps.register()
    late, found = NOW + request_lasts_us() + 1, list[tuple[bool, int]]()
    for _ in range(2):
        found.append((steps.run(lambda tr: steps.line.is_left(tr, late)), steps.keys()))
    assert found == [(False, 1), (True, 0)]


def test_a_line_without_calls_conflicts_with_a_registration(steps: Steps, space: Subspace) -> None:
    closing = begin(steps.db)
    assert steps.line.is_left(closing, NOW)
    closing[space.pack(("closed",))] = b""
    steps.register()
    assert commit_code(closing) == NOT_COMMITTED


def test_a_drop_of_a_request_that_renews_meanwhile_conflicts(steps: Steps) -> None:
    """The request is alive, and keeps its place."""
    slow, mine = steps.register(), steps.register(now_us=NOW + request_lasts_us())
    late = NOW + request_lasts_us() + 1
    dropping = begin(steps.db)
    assert steps.line.look(dropping, mine, Look(late)).outcome is Outcome.AGAIN
    assert steps.look(slow, late, otherwise=Otherwise.RENEW).renewed
    assert commit_code(dropping) == NOT_COMMITTED
    assert steps.db[steps.line.keys.request(slow)] is not None


def test_a_drop_of_dead_requests_conflicts_with_a_renewal(steps: Steps) -> None:
    slow, late = steps.register(), NOW + request_lasts_us() + 1
    dropping = begin(steps.db)
    dropping.get_read_version().wait()
    steps.line.drop_dead(dropping, [slow])
    assert steps.look(slow, late, otherwise=Otherwise.RENEW).renewed
    assert commit_code(dropping) == NOT_COMMITTED
    assert steps.db[steps.line.keys.request(slow)] is not None


def test_a_nudge_before_a_sleep_ends_it_at_once(steps: Steps, space: Subspace) -> None:
    """The time of a caller may change while its leader looks at the line."""
    nudge = Nudge()
    place = Place(steps.db, RootKeys(space[1]), steps.line, 1, b"", nudge, Memory(steps.db), is_named=False)
    turn = steps.run(lambda tr: steps.line.look(tr, place._ticket, Look(place._runtime.now_us())))
    assert turn.watches
    nudge.give()
    began = time.monotonic()
    assert place._wait(turn.watches, PATIENCE_S, b"") is Reason.SIGNAL
    assert time.monotonic() - began < PATIENCE_S / 2
    assert not nudge.is_ready()


SILENT_US = round(limits.SILENT_S * 1_000_000)


def test_a_result_goes_back_if_its_owner_stays_silent(steps: Steps) -> None:
    steps.line.life.watch()
    steps.register()
    alive = steps.register()
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(alive, reason=Reason.NEGLECT).outcome is Outcome.AGAIN  # it goes to the first
    assert steps.look(alive).outcome is Outcome.WAIT
    assert steps.look(alive, NOW + SILENT_US).outcome is Outcome.WAIT
    assert steps.look(alive, NOW + SILENT_US + 1).outcome is Outcome.AGAIN
    assert steps.look(alive, NOW + SILENT_US + 2).answers == ["a"]


def test_the_silence_of_an_owner_goes_on_as_it_is_served(steps: Steps) -> None:
    """Otherwise an item that was put beside two dead requests would wait for the silence of each in turn."""
    steps.line.life.watch()
    steps.register()
    alive, served = steps.register(), NOW + SILENT_US
    assert steps.look(alive).outcome is Outcome.WAIT
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(alive, served, reason=Reason.NEGLECT).outcome is Outcome.AGAIN
    assert steps.look(alive, served).outcome is Outcome.WAIT
    assert steps.look(alive, served + 1).outcome is Outcome.AGAIN
    assert steps.look(alive, served + 2).answers == ["a"]


def test_a_request_without_a_new_sign_of_life_has_no_share(steps: Steps) -> None:
    steps.line.life.watch()
    dead, alive = steps.register(), steps.register()
    assert steps.look(alive).outcome is Outcome.WAIT
    turn = steps.look(alive, NOW + SILENT_US + 1, reason=Reason.RENEWAL)
    assert turn.leads
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(alive, NOW + SILENT_US + 2, reason=Reason.SIGNAL).answers == ["a"]
    assert steps.db[steps.line.keys.request(dead)] is not None


def test_a_request_with_a_new_sign_of_life_keeps_its_share(steps: Steps) -> None:
    steps.line.life.watch()
    first, second = steps.register(), steps.register()
    for number in range(3):
        now_us = NOW + number * SILENT_US
        assert not steps.look(second, now_us, reason=Reason.RENEWAL).leads
        assert steps.look(first, now_us, otherwise=Otherwise.RENEW).is_watched


def test_a_silent_request_that_goes_on_gets_its_share(steps: Steps) -> None:
    steps.line.life.watch()
    slow, other = steps.register(), steps.register()
    later = NOW + SILENT_US + 1
    steps.look(other)
    assert steps.look(other, later, reason=Reason.RENEWAL).leads
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(slow, later, reason=Reason.SIGNAL).answers == ["a"]


def test_nobody_is_silent_in_a_long_line(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SERVE_MAX", 2)
    steps.line.life.watch()
    _, second = steps.register(), steps.register()
    for now_us in (NOW, NOW + SILENT_US + 1):
        turn = steps.look(second, now_us, otherwise=Otherwise.RENEW)
        assert not turn.leads
        assert not turn.is_watched


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


def test_a_return_of_overdue_results_has_a_bound_of_items(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of dead requests beyond that come back with the next returns."""
    monkeypatch.setattr(limits, "RETURNED_ITEMS_MAX", 2)
    long_ago = round(time.time() * 1_000_000) - 3 * request_lasts_us()
    steps = Steps(db, space)
    server, *_dead = [steps.register(now_us=long_ago) for _ in range(4)]
    steps.queue.enqueue_many(db, list("abcd"))
    steps.look(server, long_ago, reason=Reason.SIGNAL)
    results, now_us, left = steps.line.results, round(time.time() * 1_000_000), []
    for _ in range(2):
        steps.run(lambda tr: results.return_overdue(tr, results.overdue(results.ask_due(tr), now_us)))
        left.append(steps.queue.size(db))
    assert left == [2, 3]


def served_alone(steps: Steps, before: Ticket) -> None:
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(before).answers == ["a"]


def withdrawn(steps: Steps, before: Ticket) -> None:
    steps.run(lambda tr: steps.line.withdraw(tr, before))


def left_with_nothing(steps: Steps, before: Ticket) -> None:
    assert steps.look(before, otherwise=Otherwise.LEAVE).outcome is Outcome.LEFT


def dropped_as_dead(steps: Steps, _before: Ticket) -> None:
    steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", NOW + request_lasts_us() + 1))


@pytest.mark.parametrize("leave", [served_alone, withdrawn, left_with_nothing, dropped_as_dead])
def test_the_request_behind_one_that_leaves_wakes_and_leads(
    steps: Steps, leave: Callable[[Steps, Ticket], None]
) -> None:
    before = steps.register()
    behind = steps.register(now_us=NOW + 2 * request_lasts_us())
    _own, watch = steps.look(behind).watches
    assert not watch.is_ready()
    leave(steps, before)
    assert steps.is_woken(watch)
    _own, doorbell = steps.look(behind).watches
    steps.queue.enqueue(steps.db, "b")
    assert steps.is_woken(doorbell)


def test_a_request_wakes_when_the_one_ahead_leaves(steps: Steps) -> None:
    first, second, third = (steps.register() for _ in range(3))
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, second))
    assert steps.is_woken(watch)
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, first))
    assert steps.is_woken(watch)


def test_a_dead_request_between_two_does_not_stop_a_wake_up(steps: Steps) -> None:
    """A dead request does not clear its own key: a watch of it would not fire."""
    later = NOW + request_lasts_us() + 1
    first, _dead, third = (steps.register() for _ in range(3))
    for alive in (first, third):
        steps.look(alive, later, otherwise=Otherwise.RENEW)
    _own, watch = steps.look(third, later).watches
    steps.run(lambda tr: steps.line.withdraw(tr, first))
    assert steps.is_woken(watch)


@pytest.mark.parametrize("floor", [0, 255, 70_000])
def test_a_full_serving_beside_its_notice_reaches_its_owner(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, floor: int
) -> None:
    """The keys of results have the indexes of the items: small ones and large ones."""
    monkeypatch.setattr(limits, "NOTICE_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "SERVE_MAX", 3)
    steps.db[steps.queue._recipe.keys.floor] = COUNTER.pack(floor)
    owner, server = steps.register(3), steps.register()
    steps.queue.enqueue_many(steps.db, list("abc"))
    steps.look(server, reason=Reason.NEGLECT)
    assert steps.look(owner).answers == list("abc")
    steps.run(lambda tr: steps.line.withdraw(tr, server))
    assert (steps.queue.size(steps.db), steps.keys()) == (0, 0)


def test_leaving_conflicts_with_being_served(steps: Steps) -> None:
    head, behind = steps.register(), steps.register()
    steps.queue.enqueue(steps.db, "a")
    leaver, server = begin(steps.db), begin(steps.db)
    steps.line.withdraw(leaver, head)
    steps.line.look(server, behind, Look(NOW, reason=Reason.NEGLECT))
    assert [commit_code(server), commit_code(leaver)] == [0, NOT_COMMITTED]
    assert steps.look(head).answers == ["a"]


def test_passing_by_writes_nothing_if_all_items_are_shares(steps: Steps) -> None:
    """It will look again from the line. A commit with its receipt only would be a cost without a use."""
    steps.register()
    steps.queue.enqueue(steps.db, "theirs")
    turn = steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", NOW))
    assert (turn.outcome, turn.wrote) == (Outcome.AGAIN, False)


def test_a_busy_process_looks_for_overdue_results_at_times(steps: Steps) -> None:
    server, _dead = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    steps.look(server, reason=Reason.SIGNAL)
    later = NOW + request_lasts_us() + 1
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


@pytest.mark.usefixtures("without_looks")
def test_waiters_of_several_clients_get_one_item_each(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    with in_threads(6, lambda _: queue.dequeue(apart(db), "nothing", timeout=100 * PATIENCE_S)) as answers:
        for number in range(6):
            db.runtime.sleep(0.05)
            queue.enqueue(db, number)
    assert sorted(answers) == list(range(6))
    assert queue.size(db) == 0


def test_a_take_in_the_line_leaves_expired_callers_their_answer(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("LOOK_EVERY_S", "REQUEST_RENEW_S"):
        monkeypatch.setattr(limits, pause, 100 * PATIENCE_S)
    takes = Queue(space[0], root=space[1])._calls_of(db)._narrow
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


def test_a_waiting_call_registers_again_without_its_request(db: Database, space: Subspace) -> None:
    """A request that has gone, with time left, is no answer of nothing."""
    steps, queue = Steps(db, space), Queue(space[0], root=space[1])
    requests = steps.line.keys.requests
    with in_threads(1, lambda _: queue.dequeue(apart(db), "nothing", timeout=100 * PATIENCE_S)) as answers:
        for _ in range(2):
            wait_until(lambda: len(db.get_range(requests.start, requests.stop)) == 1)
            db.clear_range(requests.start, requests.stop)
        wait_until(lambda: len(db.get_range(requests.start, requests.stop)) == 1)
        queue.enqueue(db, "a")
    assert answers == ["a"]


def test_waiters_of_one_client_share_a_request(db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    line = Recipe(QueueKeys(space[0]), codec_named("json")).line.keys.requests

    def requests() -> int:
        return len(list(db.get_range(line.start, line.stop)))

    with in_threads(8, lambda _: queue.dequeue(db, "nothing", timeout=PATIENCE_S)) as answers:
        wait_until(lambda: requests() > 0)
        db.runtime.sleep(0.2)  # the other threads begin to wait
        assert requests() == 1
        queue.enqueue_many(db, range(5))
        for number in range(5, 8):
            queue.enqueue(db, number)
    assert sorted(answers) == list(range(8))


def test_a_call_without_a_watch_looks_now_and_then(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(limits, "REQUEST_RENEW_S", 100 * PATIENCE_S)  # a renewal looks, too
    queue, client = Queue(space[0], root=space[1]), apart(db)
    client.engine.options.set_max_watches(0)
    try:
        with in_threads(1, lambda _: queue.dequeue(client, timeout=2 * PATIENCE_S)) as answers:
            db.runtime.sleep(1)
            looks = client.counters.wake_ups
            queue.enqueue(db, "a")
    finally:
        client.engine.options.set_max_watches(10_000)
    assert answers == ["a"]
    assert looks < 50  # of hundreds, were each refusal a call


class Unwoken(ManualClock):
    """A clock on which each wait that no signal ends is over at once. It notes the seconds of each."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        assert timeout_s is not None
        assert not any(future.is_ready() for future in futures)
        self.waited_s.append(timeout_s)
        self.advance(timeout_s)
        return False


def test_the_first_request_looks_at_random_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_RENEW_S", 100.0)
    clock = Unwoken()
    with fdbqueue.open("memory:", runtime=clock) as db:
        assert Queue(Subspace(("q",))).dequeue(db, timeout=40) is None
    *waited_s, _ = clock.waited_s
    assert all(limits.LOOK_EVERY_S / 2 <= each_s <= limits.LOOK_EVERY_S for each_s in waited_s)
    assert len(set(waited_s)) == len(waited_s) >= 20


class Watch:
    """A watch that is pending, has fired, or was refused."""

    def __init__(self, ready: bool, code: int = 0) -> None:
        self._ready, self._code = ready, code

    def is_ready(self) -> bool:
        return self._ready

    def wait(self) -> None:
        if self._code:
            raise FDBError(self._code)


def test_only_a_watch_with_an_error_counts_as_refused() -> None:
    """A watch that has fired before the call sleeps is a signal, and so is one with an error that passes."""
    watches = [Watch(False), Watch(True), Watch(True, TOO_MANY_WATCHES)]
    watches += [Watch(True, COMMIT_UNKNOWN), Watch(True, TOO_OLD)]
    refused = [_is_refused(watch) for watch in watches]  # type: ignore[arg-type]
    assert refused == [False, False, True, False, False]


def test_a_leader_that_times_out_leaves_its_request_to_others(db: Database, space: Subspace) -> None:
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


class NudgedLate(Nudge):
    """A nudge that comes between the look at it and the sleep."""

    def is_ready(self) -> bool:
        ready = super().is_ready()
        self.give()
        return ready


def test_a_nudge_just_before_the_sleep_ends_it(db: Database) -> None:
    """It is given once: the time of a caller has changed."""
    assert db.runtime.wait_any([NudgedLate()], PATIENCE_S)


def test_an_interrupted_take_leaves_the_line_to_other_callers(db: Database, space: Subspace) -> None:
    """The other one registers anew: results for the old request would not be collected."""
    steps, client = Steps(db, space), apart(db)
    theirs = steps.register(now_us=round((time.time() + PATIENCE_S) * 1_000_000))
    steps.queue.enqueue(db, "theirs")
    takes = steps.queue._calls_of(client)._narrow

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
