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
from fdbqueue.line.keys import Ticket
from fdbqueue.line.staging import (
    DEADLINE_US,
    Look,
    Offer,
    Outcome,
    Turn,
    pair,
    passing_over,
    portion_of,
    within,
)
from fdbqueue.recipe.items import Recipe
from fdbqueue.recipe.keys import QueueKeys
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code, wait_until

NOW = 10**15


# Plans.


def ticket(number: int, count: int = 1) -> Ticket:
    return Ticket(number, b"rid%d" % number, count)


def offer(number: int, size_bytes: int = 1) -> Offer:
    return Offer(b"item%d" % number, bytes(min(size_bytes, 1000)), size_bytes)


def test_requests_and_offers_are_paired_in_order() -> None:
    requests, offers = [ticket(0, 2), ticket(1), ticket(2, 5), ticket(3)], [offer(n) for n in range(5)]
    pairs = pair(requests, [2, 1, 5, 1], offers)
    assert [(who.index, [o.id for o in what]) for who, what in pairs] == [
        (0, [b"item0", b"item1"]),
        (1, [b"item2"]),
        (2, [b"item3", b"item4"]),
    ]


def test_a_request_without_callers_gets_nothing() -> None:
    assert [who.index for who, _ in pair([ticket(0), ticket(1)], [0, 1], [offer(0)])] == [1]


def test_nobody_gets_more_than_one_collection_can_carry() -> None:
    large = [offer(n, limits.BATCH_BYTES_MAX // 2 + 1) for n in range(3)]
    assert len(portion_of(large, 3)) == 1
    assert len(portion_of([offer(0, limits.PAYLOAD_BYTES_MAX)], 3)) == 1


@pytest.mark.parametrize(
    ("lost", "needed", "expected"),
    [(0, 2, "a1 a2"), (1, 2, "b1 c1"), (3, 1, "c1"), (9, 1, "c1"), (1, 3, "b1 c1 b2"), (1, 4, "a1 a2 b1 c1")],
)
def test_the_contended_head_is_left_to_its_winners_with_all_of_its_key(
    lost: int, needed: int, expected: str
) -> None:
    offers = [Offer(name.encode(), b"", 1, key=name[:1].encode()) for name in ["a1", "a2", "b1", "c1", "b2"]]
    assert [o.id.decode() for o in passing_over(lost, offers, needed)] == expected.split()


def test_without_keys_the_head_is_left_as_far_as_nobody_goes_without() -> None:
    offers = [offer(number) for number in range(5)]
    assert passing_over(2, offers, 2) == offers[2:4]
    assert passing_over(4, offers, 3) == offers[2:]


def test_a_serving_moves_a_bounded_number_of_bytes_but_at_least_one_item() -> None:
    assert [o.id for o in within(2500, iter([offer(0, 1000), offer(1, 1000), offer(2, 1000)]))] == [
        b"item0",
        b"item1",
    ]
    assert len(list(within(10, iter([offer(0, 1000), offer(1, 1000)])))) == 1


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
        return self.register_and_watch(count, now_us)[0]

    def register_and_watch(self, count: int = 1, now_us: int = NOW) -> tuple[Ticket, Any, bool]:
        return self.run(lambda tr: self.register_in(tr, count, now_us))

    def register_in(self, tr: Any, count: int = 1, now_us: int = NOW) -> tuple[Ticket, Any, bool]:
        self._rids += 1
        return self.line.register(tr, b"the-%08d" % self._rids, count, b"", now_us)

    def is_woken(self, watch: Any) -> bool:
        return self.db.runtime.wait_any([watch], PATIENCE_S)

    def look(self, who: Ticket, now_us: int = NOW, **how: Any) -> Turn:
        return self.run(lambda tr: self.line.look(tr, who, Look(now_us, **how)))

    def keys(self) -> int:
        return sum(1 for _ in self.db.get_range_startswith(self.line.keys.prefix))


@pytest.fixture
def steps(db: Database, space: Subspace) -> Steps:
    return Steps(db, space)


def test_the_head_serves_everybody_and_each_collects(steps: Steps) -> None:
    first, second, third = (steps.register() for _ in range(3))
    steps.queue.enqueue_many(steps.db, ["a", "b", "c"])
    assert steps.look(second).outcome is Outcome.WAIT
    served = steps.look(first)
    assert (served.outcome, served.answers, served.crowd) == (Outcome.SERVED, ["a"], 3)
    assert steps.queue.size(steps.db) == 0
    assert steps.look(third).answers == ["c"]
    assert steps.look(second).answers == ["b"]
    assert steps.keys() == 0


def test_registrations_do_not_conflict(steps: Steps) -> None:
    first, second = begin(steps.db), begin(steps.db)
    for tr in (first, second):
        steps.register_in(tr)
    assert commit_code(first) == commit_code(second) == 0


def test_registering_does_not_conflict_with_serving_the_one_before_it(steps: Steps) -> None:
    head = steps.register()
    steps.queue.enqueue(steps.db, "a")
    registering = begin(steps.db)
    ticket, watch, alone = steps.register_in(registering)
    assert steps.look(head).answers == ["a"]
    assert commit_code(registering) == 0
    assert (alone, watch.is_ready()) == (False, False)
    assert steps.look(ticket).leads


def test_two_servers_that_saw_different_requests_do_not_deliver_one_item_twice(steps: Steps) -> None:
    steps.queue.enqueue(steps.db, "a")
    first = steps.register()
    early = begin(steps.db)
    second = steps.register()
    late = begin(steps.db)
    steps.line.look(early, first, Look(NOW))
    steps.line.look(late, second, Look(NOW, serve=True))
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
    steps.look(first)
    steps.queue.enqueue(steps.db, 4)
    assert steps.look(second, wanted=1).answers == [1]
    assert steps.queue.items(steps.db, 9) == [2, 3, 4]
    assert steps.queue.size(steps.db) == 3


def test_a_dead_request_is_dropped_and_a_renewed_one_is_not(steps: Steps) -> None:
    dead, renewed, mine = steps.register(), steps.register(), steps.register(now_us=NOW + DEADLINE_US)
    assert steps.look(renewed, NOW + DEADLINE_US, renew=True).outcome is Outcome.AGAIN
    steps.queue.enqueue(steps.db, "a")
    steps.look(mine, NOW + DEADLINE_US + 1, serve=True)
    assert steps.look(dead).outcome is Outcome.GONE
    assert steps.look(renewed).answers == ["a"]


def test_results_of_the_dead_go_back_under_their_old_keys(steps: Steps, db: Database) -> None:
    server, _dead = steps.register(), steps.register(2)
    steps.queue.enqueue_many(db, [0, 1, "x" * 200_000, 3])
    steps.look(server)
    later = NOW + DEADLINE_US + 1
    assert steps.queue.size(db) == 1
    mine = steps.register(now_us=later)
    assert steps.look(mine, later).outcome is Outcome.AGAIN
    assert steps.queue.items(db, 9) == [1, "x" * 200_000, 3]
    assert steps.queue.size(db) == 3
    assert steps.look(mine, later).answers == [1]


@pytest.mark.parametrize("by", ["transaction", "database"])
def test_whoever_finds_nothing_finds_the_overdue_results(db: Database, space: Subspace, by: str) -> None:
    long_ago = round(time.time() * 1_000_000) - 3 * DEADLINE_US
    steps = Steps(db, space)
    server, _dead = steps.register(now_us=long_ago), steps.register(now_us=long_ago)
    steps.queue.enqueue_many(db, ["mine", "overdue"])
    steps.look(server, long_ago)
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
    steps.look(server, long_ago)
    assert [steps.queue.dequeue(db) for _ in range(3)] == ["overdue", "more", "still more"]
    assert (steps.queue.size(db), steps.keys()) == (0, 0)


def test_collecting_conflicts_with_returning(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server)
    collector, returner = begin(db), begin(db)
    assert steps.line.look(collector, owner, Look(NOW)).answers == [1]
    steps.line.return_overdue(
        returner, steps.line.overdue(steps.line.ask_due(returner), NOW + 2 * DEADLINE_US)
    )
    assert [commit_code(collector), commit_code(returner)] == [0, NOT_COMMITTED]
    assert steps.queue.size(db) == 0


def test_clear_takes_delivered_items_too_and_their_owners_register_again(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server)
    steps.queue.clear(db)
    assert steps.look(owner).outcome is Outcome.GONE
    assert steps.keys() == 0


def test_withdrawing_returns_what_was_served_meanwhile(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server)
    steps.run(lambda tr: steps.line.withdraw(tr, owner, NOW))
    assert (steps.queue.items(db, 9), steps.keys()) == ([1], 0)


def test_leaving_gets_what_was_served_meanwhile(steps: Steps, db: Database) -> None:
    server, owner = steps.register(), steps.register()
    steps.queue.enqueue_many(db, [0, 1])
    steps.look(server)
    assert steps.look(owner, leave=True, serve=True).answers == [1]


def test_only_the_first_to_come_finds_nobody(steps: Steps) -> None:
    found = [steps.register_and_watch()[2] for _ in range(3)]
    assert found == [True, False, False]


def served_alone(steps: Steps, before: Ticket) -> None:
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(before).answers == ["a"]


def served_by_one_who_passes(steps: Steps, before: Ticket) -> None:
    steps.queue.enqueue(steps.db, "a")
    steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", Look(NOW)))
    assert steps.look(before).answers == ["a"]


def withdrawn(steps: Steps, before: Ticket) -> None:
    steps.run(lambda tr: steps.line.withdraw(tr, before, NOW))


def left_with_nothing(steps: Steps, before: Ticket) -> None:
    assert steps.look(before, leave=True).outcome is Outcome.LEFT


def dropped_as_dead(steps: Steps, _before: Ticket) -> None:
    steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", Look(NOW + DEADLINE_US + 1)))


@pytest.mark.parametrize(
    "leave", [served_alone, served_by_one_who_passes, withdrawn, left_with_nothing, dropped_as_dead]
)
def test_whoever_stands_behind_one_that_leaves_is_woken_and_leads(
    steps: Steps, leave: Callable[[Steps, Ticket], None]
) -> None:
    before = steps.register()
    behind = steps.register(now_us=NOW + 2 * DEADLINE_US)
    _own, watch = steps.look(behind).watches
    assert not watch.is_ready()
    leave(steps, before)
    assert steps.is_woken(watch)
    assert steps.look(behind).leads


def test_one_that_looks_and_is_not_the_head_is_woken_by_the_one_before_it(steps: Steps) -> None:
    first, second, third = (steps.register() for _ in range(3))
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, second, NOW))
    assert steps.is_woken(watch)
    _own, watch = steps.look(third).watches
    steps.run(lambda tr: steps.line.withdraw(tr, first, NOW))
    assert steps.is_woken(watch)


def test_one_that_is_served_by_a_server_that_does_not_see_the_one_before_it(steps: Steps) -> None:
    """That one has come to its place, before others, after the server has read the line."""
    head = steps.register()
    late = begin(steps.db)
    steps.register_in(late)  # reads the line now, and is first in the order of their names
    behind = steps.register()
    steps.run(lambda tr: steps.line.withdraw(tr, head, NOW))
    steps.queue.enqueue(steps.db, "a")
    server = begin(steps.db)
    server.get_read_version().wait()
    assert commit_code(late) == 0
    watches = steps.look(behind).watches
    steps.line.pass_by(server, 1, b"", Look(NOW))
    assert commit_code(server) == 0
    assert steps.db.runtime.wait_any(watches, PATIENCE_S)
    assert steps.look(behind).answers == ["a"]


def test_those_who_are_served_together_are_woken_together(steps: Steps) -> None:
    head = steps.register()
    places = [steps.register_and_watch() for _ in range(3)]
    steps.queue.enqueue_many(steps.db, range(4))
    assert steps.look(head).answers == [0]
    for number, (ticket, watch, _alone) in enumerate(places, 1):
        assert steps.is_woken(watch)
        assert steps.look(ticket, called=True).answers == [number]


def test_one_that_is_called_and_not_served_looks_as_any_other(steps: Steps) -> None:
    """What has changed may be that somebody took it for dead, or nothing: a watch may fire for no reason."""
    first, second = steps.register(), steps.register()
    assert steps.look(second, called=True).outcome is Outcome.WAIT
    assert steps.look(first, called=True).leads
    steps.run(lambda tr: steps.line.withdraw(tr, second, NOW))
    assert steps.look(second, called=True).outcome is Outcome.GONE


# In a crowd whoever is served first serves those who have come since.


def served_in_a_crowd(steps: Steps, count: int = limits.CROWD_MIN) -> list[Ticket]:
    """The places of `count` who were served together, the server's first."""
    places = [steps.register() for _ in range(count)]
    steps.queue.enqueue_many(steps.db, range(count))
    assert steps.look(places[0]).answers == [0]
    return places


def test_in_a_crowd_the_first_to_collect_serves_those_who_have_come_since(steps: Steps) -> None:
    _server, relay, other, *_ = served_in_a_crowd(steps)
    late = [steps.register_and_watch() for _ in range(2)]
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    assert steps.look(other, called=True).answers == [2]
    assert not any(watch.is_ready() for _, watch, _ in late)
    assert steps.look(relay, called=True).answers == [1]
    for (ticket, watch, _), expected in zip(late, "ab", strict=True):
        assert steps.is_woken(watch)
        assert steps.look(ticket).answers == [expected]


def test_what_has_no_caller_any_more_is_the_first_to_be_handed_out_by_one_that_serves_on(
    steps: Steps,
) -> None:
    server, relay = steps.register(), steps.register(3)
    for _ in range(limits.CROWD_MIN - 2):
        steps.register()
    steps.queue.enqueue_many(steps.db, range(limits.CROWD_MIN + 2))
    steps.look(server)
    late = [steps.register() for _ in range(3)]
    steps.queue.enqueue_many(steps.db, ["a", "b"])
    assert steps.look(relay, wanted=1).answers == [1]
    assert [steps.look(ticket).answers for ticket in late] == [[2], [3], ["a"]]
    assert (steps.queue.items(steps.db, 9), steps.queue.size(steps.db)) == (["b"], 1)


def test_those_who_serve_on_hand_it_on(steps: Steps) -> None:
    _server, relay, *_ = served_in_a_crowd(steps)
    crowd = [steps.register() for _ in range(limits.CROWD_MIN)]
    steps.queue.enqueue_many(steps.db, range(limits.CROWD_MIN))
    steps.look(relay)
    last = steps.register()
    steps.queue.enqueue(steps.db, "a")
    steps.look(crowd[0])
    assert steps.look(last).answers == ["a"]


def test_one_that_comes_from_a_crowd_has_the_few_that_are_left_serve_on(steps: Steps) -> None:
    """They count on it: who was served in a crowd waits longer before it looks by itself."""
    server, relay = steps.register(), steps.register()
    steps.queue.enqueue_many(steps.db, [0, 1])
    steps.look(server, crowded=True)
    late = steps.register()
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(relay).answers == [1]
    assert steps.look(late).answers == ["a"]


def test_nobody_serves_on_where_there_is_no_crowd(steps: Steps) -> None:
    """Those who come take for themselves, and serve on their way: they would be in each other's way."""
    _server, other, *_ = served_in_a_crowd(steps, limits.CROWD_MIN - 1)
    late = steps.register()
    steps.queue.enqueue(steps.db, "a")
    steps.look(other)
    assert steps.look(late).leads is False
    assert steps.queue.size(steps.db) == 0


def test_one_that_lost_to_another_server_collects_without_serving(steps: Steps) -> None:
    _server, relay, *_ = served_in_a_crowd(steps)
    steps.register()
    steps.queue.enqueue(steps.db, "a")
    assert steps.look(relay, relay=False).answers == [1]
    assert steps.queue.size(steps.db) == 1


def test_serving_on_with_nothing_to_hand_out_is_collecting(steps: Steps) -> None:
    _server, relay, *_ = served_in_a_crowd(steps)
    late = steps.register()
    assert steps.look(relay).answers == [1]
    assert steps.look(late).outcome is Outcome.WAIT


def test_one_that_serves_on_conflicts_with_another_server_over_those_it_serves(steps: Steps) -> None:
    _server, relay, *_ = served_in_a_crowd(steps)
    late = steps.register()
    steps.queue.enqueue(steps.db, "a")
    serving_on, server = begin(steps.db), begin(steps.db)
    steps.line.look(serving_on, relay, Look(NOW))
    assert steps.line.look(server, late, Look(NOW)).answers == ["a"]
    assert [commit_code(server), commit_code(serving_on)] == [0, NOT_COMMITTED]
    assert steps.look(relay, relay=False).answers == [1]


@pytest.mark.parametrize("size", [10, limits.NOTICE_BYTES_MAX, 3 * limits.NOTICE_BYTES_MAX])
def test_results_of_any_size_reach_their_owner(steps: Steps, size: int) -> None:
    server, owner = steps.register(), steps.register(3)
    values = ["x" * size, "y" * size, "z"]
    steps.queue.enqueue_many(steps.db, ["mine", *values])
    steps.look(server)
    assert steps.look(owner).answers == values
    assert (steps.queue.size(steps.db), steps.keys()) == (0, 0)


def test_the_head_is_woken_if_one_who_passes_by_serves_it(steps: Steps) -> None:
    head = steps.register()
    own, _doorbell = steps.look(head).watches
    steps.queue.enqueue(steps.db, "a")
    steps.run(lambda tr: steps.line.pass_by(tr, 1, b"", Look(NOW)))
    assert steps.is_woken(own)


def test_leaving_conflicts_with_being_served(steps: Steps) -> None:
    head = steps.register()
    steps.queue.enqueue(steps.db, "a")
    leaver, server = begin(steps.db), begin(steps.db)
    steps.line.withdraw(leaver, head, NOW)
    steps.line.pass_by(server, 1, b"", Look(NOW))
    assert [commit_code(server), commit_code(leaver)] == [0, NOT_COMMITTED]
    assert steps.look(head).answers == ["a"]


def test_one_who_passes_by_serves_the_line_before_itself(steps: Steps, db: Database) -> None:
    now_us = round(time.time() * 1_000_000)
    waiting = steps.register(now_us=now_us)
    steps.queue.enqueue_many(db, ["theirs", "mine"])
    assert steps.queue.dequeue(db) == "mine"
    assert steps.look(waiting, now_us).answers == ["theirs"]


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
        takes._hint.served_among(limits.CROWD_MIN)
        assert takes.take(1) == ()
        takes.end_waits()
    assert [list(answer) for answer in answers] == [[]]


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
    assert looks < 10  # of hundreds, were each refusal a call


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


class _Runtime:
    """A runtime that waits in its own way."""

    def __init__(self, runtime: Any, wait_any: Callable[..., bool]) -> None:
        self._runtime = runtime
        self.wait_any = wait_any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)
