"""The queue and its line against a plain model: random programs, every item accounted for after each step."""

from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

import fdbqueue
from fdbqueue import Queue
from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.line.decision import Delivery, Look, Notice, Otherwise, Reason, Ticket, notice_of
from fdbqueue.core.line.staging import DEADLINE_US, Outcome
from fdbqueue.queues.recipe.items import WHOLE, QueueKeys, Recipe
from tests.queue_support import registered
from tests.support import ManualClock

SPACE = Subspace(("model",))
SMALL = {
    "PAYLOAD_PIECE_BYTES_MAX": 20,
    "NOTICE_BYTES_MAX": 60,
    "CROWD_MIN": 2,
    "OFFERS_TO_SPARE": 0,
    "SERVE_MAX": 3,
}


class QueueMachine(RuleBasedStateMachine):
    """Values are numbers in the order of their enqueues, so that order and identity are one."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        # Every second item is split, few results are in a notice, guesses are too low; and it stays fast.
        self.patch = pytest.MonkeyPatch()
        for name, small in SMALL.items():
            self.patch.setattr(limits, name, small)
        self.clock = ManualClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.queue = Queue(SPACE[0], root=SPACE[1])
        self.line = Recipe(QueueKeys(SPACE[0]), codec_named("json")).line
        self.next = 0
        self.inside: set[int] = set()
        self.asleep: dict[Ticket, list[Any]] = {}

    def teardown(self) -> None:
        self.db.close()
        self.patch.undo()

    def run(self, body: Any) -> Any:
        tr = self.db.create_transaction()
        answer = body(tr)
        tr.commit().wait()
        return answer

    def now_us(self) -> int:
        return round(self.clock.now() * 1_000_000)

    def left(self, values: Any) -> None:
        """These went to a caller: each was inside, in order, and is not any more."""
        assert list(values) == sorted(values)
        assert self.inside.issuperset(values)
        self.inside.difference_update(values)

    @rule(count=st.integers(1, 6), large=st.booleans())
    def put(self, count: int, large: bool) -> None:
        values = range(self.next, self.next + count)
        padding = "x" * 50 if large else ""
        self.queue.enqueue_many(self.db, [[value, padding] for value in values])
        self.next += count
        self.inside.update(values)

    @rule(count=st.integers(1, 4))
    def take_by_transaction(self, count: int) -> None:
        first = self.available()[:count]
        taken = [value for value, _ in self.run(lambda tr: self.queue.dequeue_many(tr, count))]
        assert taken == first or not first
        self.left(taken)

    @rule(count=st.integers(1, 4))
    def take_by_database(self, count: int) -> None:
        taken = [value for value, _ in self.queue.dequeue_many(self.db, count)]
        assert taken or not self.available()
        self.left(taken)

    @rule()
    def take_in_vain(self) -> None:
        tr = self.db.create_transaction()
        self.queue.dequeue_many(tr, 2)
        tr.cancel()

    @rule()
    def peek(self) -> None:
        first = self.available()[:1]
        assert [self.queue.peek(self.db)[0]] == first if first else self.queue.empty(self.db)

    @rule()
    def clear(self) -> None:
        self.queue.clear(self.db)
        self.inside.clear()

    @rule(target=tickets, count=st.integers(1, 3))
    def register(self, count: int) -> Ticket:
        rid = self.clock.random_bytes(12)
        return registered(self.db, self.line, rid, self.now_us(), count)

    @rule(
        target=tickets,
        ticket=consumes(tickets),
        reason=st.sampled_from([reason for reason in Reason if reason is not Reason.PASSING]),
        otherwise=st.sampled_from(Otherwise),
        tidies=st.booleans(),
        ahead=st.integers(0, 3),
        wanted=st.integers(1, 3),
    )
    def look(self, ticket: Ticket, **how: Any) -> Any:
        look = Look(self.now_us(), **how)
        turn = self.run(lambda tr: self.line.look(tr, ticket, look))
        self.asleep[ticket] = list(turn.watches)
        self.left([value for value, _ in turn.answers])
        stays = turn.outcome in (Outcome.AGAIN, Outcome.WAIT)
        return ticket if stays else multiple()

    @rule(ticket=consumes(tickets))
    def withdraw(self, ticket: Ticket) -> None:
        self.run(lambda tr: self.line.withdraw(tr, ticket))

    @rule(deadlines=st.floats(0.1, 2.5))
    def wait(self, deadlines: float) -> None:
        self.clock.advance(deadlines * DEADLINE_US / 1_000_000)

    def available(self) -> list[int]:
        return [value for value, _ in self.queue.items(self.db, 1000)]

    def delivered(self) -> list[int]:
        """Results that are not collected yet, read straight from their keys."""
        recipe = Recipe(QueueKeys(SPACE[0]), codec_named("json"))
        results = [Delivery(*result) for result in self.results()]
        return [value for value, _ in self.run(lambda tr: recipe._read(tr, results)[0])]

    def results(self) -> list[tuple[bytes, bytes]]:
        keys = self.line.keys
        beside = self.db.get_range(keys.all_results.start, keys.all_results.stop)
        notices = self.db.get_range(keys.all_notices.start, keys.all_notices.stop)
        inside = [
            result for notice in notices for result in (notice_of(notice.value) or Notice(0, 0)).results
        ]
        return [*inside, *((keys.item_id_of(row.key), row.value) for row in beside)]

    @invariant()
    def every_item_is_in_one_place(self) -> None:
        assert sorted([*self.available(), *self.delivered()]) == sorted(self.inside)

    @invariant()
    def what_is_available_is_in_order(self) -> None:
        assert self.available() == sorted(self.available())

    @invariant()
    def nobody_sleeps_who_is_served_or_could_serve(self) -> None:
        keys = self.line.keys
        for ticket, watches in self.asleep.items():
            if watches and not any(watch.is_ready() for watch in watches):
                assert self.db.get(keys.notice(ticket.rid)) is None
                stands = self.db.get(keys.request(ticket)) is not None  # else it was dropped as dead
                upto = keys.requests_upto(ticket)
                leads = stands and len(list(self.db.get_range(upto.start, upto.stop, limit=2))) == 1
                assert not (leads and self.available())

    @invariant()
    def size_is_exact(self) -> None:
        assert self.queue.size(self.db) == len(self.available())

    @invariant()
    def pieces_belong_to_items(self) -> None:
        keys = QueueKeys(SPACE[0])
        items = [row.value for row in self.db.get_range(keys.items.start, keys.items.stop)]
        delivered = [value for _, value in self.results()]
        pieces = sum(1 for _ in self.db.get_range(keys.pieces.start, keys.pieces.stop))
        assert pieces == sum(pieces_of(value) for value in [*items, *delivered])


def pieces_of(stored: bytes) -> int:
    return 0 if stored[:1] == WHOLE else layer.unpack(stored, prefix_len=1)[0]


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
