"""Items and the waiting line in one process with a clock that stands still in each call.

Requests join the line, look, leave, and die; readers hold items, and takes pass by. Each answer, each item in
its place, and each request equals that of a plain model, also at the microsecond of a deadline.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Look, Otherwise, Reason, Ticket
from fdbqueue.core.page import every_row
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import sound
from tests.system.workloads.common import SPACE
from tests.system.workloads.exact_calls import Caller, earliest, require_equal, step_by_step
from tests.system.workloads.exact_line_model import HELD, Answer, Asked, Model, looked, withdrawn

VERBS = (
    *("enqueue",) * 5,
    "enqueue_many",
    "give_back",
    *("dequeue",) * 4,
    *("register",) * 3,
    *("look",) * 6,
    "withdraw",
    "hold",
    *("settle",) * 2,
)
RARE = 0.02
NAME = "exact_line"
REASONS = ("ARRIVAL", "SIGNAL", "SIGNAL", "NOTICE", "RENEWAL", "RENEWAL", "NEGLECT", "CONFLICT")
PAGE = 3


# The model fills each answer: no bound cuts one short.
@workload(
    clients=1,
    steps=60,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=("SERVE_MAX", "SERVE_BYTES_MAX"),
)
def exact_line(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact line")
    simulation.limit(
        PLAIN_ATTEMPTS_MAX=12,  # so that a take tidies before it stands in the line
        CROWD_MIN=1_000,
        RESULTS_RETURNED_MAX=random.choice((1, 2, 10)),
        NOTICE_BYTES_MAX=random.choice((0, 8_000)),
        PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 90_000)),
    )
    simulation.outage(1e9, 1.0)  # far away: but now the requests of a live process may end as dead
    is_named = random.random() < 0.5

    def made(client: Client) -> Process:
        caller = Caller(client)
        return Process(caller, Queue.named(client.db, NAME) if is_named else Queue(SPACE[NAME]))

    step_by_step(simulation, size, made)
    return [no_watch_left_behind, *([] if is_named else [sound(Queue(SPACE[NAME]))])]


# Calls.


class Deeds:
    def __init__(self, caller: Caller, q: Queue) -> None:
        self.caller, self.q, self.model, self.random = caller, q, Model(), caller.random
        self.model.now = caller.clock.now
        self._held: list[tuple[Holder, bytes, int]] = []
        self._taken: list[str] = []
        self._number = 0

    def _once(self, call: Callable[[Any], Any], is_alone: bool | None = None) -> Any:
        """Call it with the database, or in a transaction."""
        alone = self.random.random() < 0.5 if is_alone is None else is_alone
        found = self.caller.answer(call, always_alone=True) if alone else self.caller.within(call)
        assert not isinstance(found, Exception), f"refused: {found!r}"
        return found

    def _values(self, count: int) -> list[str]:
        self._number += count
        longer = self.random.choice((1, 1, 5))
        return [f"{number}." * longer for number in range(self._number - count, self._number)]

    # Items.

    def enqueue(self) -> None:
        values = self._values(1)
        self._once(lambda tr: self.q.enqueue(tr, values[0]))
        self.model.enqueue(values)

    def enqueue_many(self) -> None:
        values = self._values(self.random.choice((2, 3, 4)))
        self._once(lambda tr: self.q.enqueue_many(tr, values))
        self.model.enqueue(values)

    def give_back(self) -> None:
        if self.model.may_share_a_place():
            return
        values = self._taken[-self.random.choice((1, 2)) :]
        self._once(lambda tr: self.q.give_back(tr, values))
        self._taken = [value for value in self._taken if value not in values]
        if values:
            self.model.give_back(values)

    def dequeue(self) -> None:
        alone, count = self.random.random() < 0.6, self.random.choice((1, 1, 2, 3))
        found = self._once(partial(self._dequeued, count), alone)
        wanted = self.model.take_in_turn(count) if alone else self.model.remove(self.model.take(count))
        require_equal(f"dequeue {count}, {'alone' if alone else 'within'}", found, wanted)
        self._taken += found

    def _dequeued(self, count: int, tr: Any) -> list[str]:
        if count > 1:
            return self.q.dequeue_many(tr, count)
        value = self.q.dequeue(tr)
        return [] if value is None else [value]

    def clear(self) -> None:
        self._once(self.q.clear)
        self.model.clear()

    # Readers that hold items.

    def hold(self) -> None:
        holder, count = self.q.holder(self.caller.client.db), self.random.choice((1, 2, 4))
        found = holder.hold(count)
        items = self.model.take(count)
        require_equal("hold", found, [item.value for item in items])
        if items:
            rid = holder._ticket.rid
            self.model.lay_ready(rid, items)
            self._held.append((holder, rid, len(items)))

    def settle(self) -> None:
        if self._held:
            holder, rid, count = self._held.pop(self.random.randrange(len(self._held)))
            shown = self.random.randint(0, count)
            is_there = rid in self.model.ready
            require_equal("settle", holder.settle(shown), is_there)
            if is_there:
                self._taken += self.model.collect(rid, shown)


class Requests(Deeds):
    def __init__(self, caller: Caller, q: Queue) -> None:
        super().__init__(caller, q)
        self._line = q._recipe.part(0).line
        self._tickets: list[Ticket] = []

    def register(self) -> None:
        rid, count = self.caller.client.runtime.random_bytes(12), self.random.choice((1, 1, 2, 3))
        self._once(lambda tr: self._line.register(tr, rid, count, b"", self.model.now), is_alone=False)
        self._tickets.append(run(self.caller.client.db, lambda tr: self._line.find(tr, rid)))
        self.model.register(rid, count)

    def look(self) -> None:
        if not self._tickets:
            return
        ticket, choice = self.random.choice(self._tickets[-6:]), self.random.choice
        asked = Asked(ticket.rid, choice(REASONS), choice(("SLEEP", "SLEEP", "RENEW", "LEAVE")), 1)
        asked = asked._replace(wanted=choice((1, ticket.count)))
        found = self._once(partial(self._looked, ticket, asked), is_alone=False)
        require_equal(f"{asked}", found, looked(self.model, asked))
        self._over(ticket, found)

    def _looked(self, ticket: Ticket, asked: Asked, tr: Any) -> Answer:
        steps = Reason[asked.reason], Otherwise[asked.otherwise]
        turn = self._line.look(tr, ticket, Look(self.model.now, *steps, asked.wanted))
        for watch in turn.watches:
            watch.cancel()
        return turn.outcome.name, list(turn.answers)

    def withdraw(self) -> None:
        if self._tickets:
            ticket = self.random.choice(self._tickets[-6:])
            turn = self._once(lambda tr: self._line.withdraw(tr, ticket), is_alone=False)
            require_equal("withdraw", (turn.outcome.name, [*turn.answers]), withdrawn(self.model, ticket.rid))
            self._over(ticket, ("LEFT", []))

    def _over(self, ticket: Ticket, answer: Answer) -> None:
        self._taken += answer[1]
        if answer[0] in ("SERVED", "LEFT", "GONE") and self.random.random() < 0.9:
            self._tickets.remove(ticket)

    # Looks.

    def require_all(self) -> None:
        run(self.caller.client.db, self._require_all)

    def _require_all(self, tr: Any) -> None:
        items, q = [item.value for item in self.model.items], self.q
        require_equal("the items", self._listed(tr), items)
        told = (q.size(tr), q.empty(tr), q.peek(tr))
        require_equal("size, empty and the first", told, (len(items), not items, items[0] if items else None))
        rows = self._line.keys
        there = tr.snapshot.get_range(rows.requests.start, rows.requests.stop)
        rids = [rows.ticket_of(row.key, row.value)[0].rid for row in there]
        require_equal("the requests", rids, [request.rid for request in self.model.requests])
        due = [rows.due_of(row.key) for row in tr.snapshot.get_range(rows.due.start, rows.due.stop)]
        ready = sorted((one.until, rid) for rid, one in self.model.ready.items())
        require_equal("what lies ready", [(one.deadline_us, one.rid) for one in due], ready)

    def _listed(self, tr: Any) -> list[str]:
        return list(every_row(partial(self.q.items, tr, PAGE)))


class Process(Requests):
    def step(self) -> None:
        self._move()
        verb = "clear" if self.random.random() < RARE else self.random.choice(VERBS)
        self.caller.client.call(NAME, verb, self.model.now, getattr(self, verb))
        self.require_all()

    def _move(self) -> None:
        """Move the clock: mostly to a deadline, or to just before or after it."""
        model, random = self.model, self.random
        ends = [request.alive_until for request in model.requests]
        ends += [request.registered + HELD for request in model.requests]
        ends += [ready.until for ready in model.ready.values()]
        following = earliest(*(end for end in ends if end >= model.now))
        to = model.now
        if random.random() < 0.4 and following is not None:
            to = following + random.choice((-1, 0, 0, 1, 1))
        elif random.random() < 0.2:
            to += random.choice((1, 100_000, 3_000_000))
        model.now = max(model.now, to)
        self.caller.clock.move_to(model.now)
