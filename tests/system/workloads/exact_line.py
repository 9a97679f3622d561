"""Items and the waiting line in one process with a clock that stands still in each call, and a model.

The model follows the rules of the waiting line in docs/protocols.md. A place is a number; items of one call
share it, and lie in their order. Each answer, each place and each request equals that of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core import limits
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
from tests.system.workloads.exact_model import Caller, earliest, micro, require_equal, step_by_step

DEADLINE = micro(limits.REQUEST_DEADLINE_S) or 0
HELD = micro(limits.SHARE_HELD_S) or 0
"""A request that is older than this, and has left its share, is idle: others serve it."""
SLEPT = ("SIGNAL", "NOTICE", "RENEWAL", "NEGLECT")


class Item(NamedTuple):
    place: int
    added: int
    """The number of the call, and then that of the item in it."""
    number: int
    value: str


class Items:
    """Items, and those that lie ready for requests."""

    def __init__(self) -> None:
        self.now = 0
        self.items: list[Item] = []
        self.ready: dict[bytes, Ready] = {}
        self.requests: list[Request] = []
        self._floor = self._calls = 0

    def enqueue(self, values: list[str]) -> None:
        after = self.items[-1].place + 1 if self.items else 0
        self._add(values, [max(after, self._floor) + number for number in range(len(values))])

    def give_back(self, values: list[str]) -> None:
        self._add(values, [self._before() - 1] * len(values))

    def may_share_a_place(self) -> bool:
        """True if an item that lies ready may come back to the place of a value that is given back now: then
        their order is left open.
        """
        places = {item.place for ready in self.ready.values() for item in ready.items}
        return self._before() - 1 in places

    def _before(self) -> int:
        return self.items[0].place if self.items else self._floor

    def _add(self, values: list[str], places: list[int]) -> None:
        self._calls += 1
        new = zip(places, range(len(values)), values, strict=True)
        self.put([Item(place, self._calls, number, value) for place, number, value in new])

    def put(self, items: list[Item]) -> None:
        """Let them lie in their places, again or for the first time."""
        self.items = sorted([*self.items, *items])

    def remove(self, items: list[Item]) -> list[str]:
        self.items = [item for item in self.items if item not in items]
        return [item.value for item in items]

    def lay_ready(self, rid: bytes, items: list[Item]) -> None:
        self.remove(items)
        self._floor = max([self._floor, *(item.place + 1 for item in items)])
        self.ready[rid] = Ready(self.now + DEADLINE, items)

    def collect(self, rid: bytes, wanted: int) -> list[str]:
        items = self.ready.pop(rid).items
        self.put(items[wanted:])
        return [item.value for item in items[:wanted]]

    def clear(self) -> None:
        self.items, self.ready = [], {}

    def take(self, count: int) -> list[Item]:
        """The items of a take in a transaction of its caller, whichever requests they belong to."""
        while not self.items and self.return_overdue():
            pass
        return self.items[:count]

    def return_overdue(self) -> bool:
        """Return a batch of items that their requests have not collected in time."""
        overdue = sorted((one.until, rid) for rid, one in self.ready.items() if one.until < self.now)
        for _, rid in overdue[: limits.RESULTS_RETURNED_MAX]:
            self.collect(rid, 0)
        return bool(overdue)


@dataclass
class Request:
    rid: bytes
    count: int
    registered: int
    alive_until: int


class Model(Items):
    """Items, and the line of requests."""

    def register(self, rid: bytes, count: int) -> None:
        self.requests.append(Request(rid, count, self.now, self.now + DEADLINE))

    def is_alive(self, request: Request) -> bool:
        return request.alive_until >= self.now

    def living(self) -> list[Request]:
        return [request for request in self.requests if self.is_alive(request)]

    def leave(self, rid: bytes) -> None:
        self.requests = [request for request in self.requests if request.rid != rid]

    def is_idle(self, request: Request) -> bool:
        return request.registered < self.now - HELD

    def take_in_turn(self, count: int) -> list[str]:
        """A take of a process without a request. It passes by those in the line, and serves them if they are
        idle, or if there is nothing else.
        """
        if not self.requests and self.items and not any(one.until < self.now for one in self.ready.values()):
            return self.remove(self.items[:count])
        while self.return_overdue():
            pass
        self.requests = self.living()
        before = sum(request.count for request in self.requests)
        mine = self.items[before:][:count]
        self._serve(all_of_them=not mine)
        return self.remove(mine)

    def _serve(self, all_of_them: bool) -> None:
        """Lay each item ready for the request that its share belongs to."""
        rest = self.items
        for request in [*self.requests]:
            share, rest = rest[: request.count], rest[request.count :]
            if share and (all_of_them or self.is_idle(request)):
                self.leave(request.rid)
                self.lay_ready(request.rid, share)


class Ready(NamedTuple):
    """Items that lie ready for a request."""

    until: int
    items: list[Item]


Answer = tuple[str, list[str]]
"""The outcome of a look, and its values."""


# Looks.


class Asked(NamedTuple):
    """A look of a request. The reasons and the steps have the names of core/line/decision.py."""

    rid: bytes
    reason: str
    otherwise: str
    wanted: int


def looked(model: Model, asked: Asked) -> Answer:
    """The outcome of a look, and its values, after its effect on the model."""
    if asked.rid in model.ready:
        return "SERVED", model.collect(asked.rid, asked.wanted)
    mine = next((request for request in model.requests if request.rid == asked.rid), None)
    if mine is None:
        return "GONE", []
    return _decided(model, asked, mine)


def _decided(model: Model, asked: Asked, mine: Request) -> Answer:
    known = model.requests if asked.reason in SLEPT else model.requests[: model.requests.index(mine) + 1]
    line = [request for request in known if request is mine or model.is_alive(request)]
    place = line.index(mine)
    if asked.otherwise == "RENEW" and place == 0:
        return _renewed(model, mine, "AGAIN")
    if asked.reason == "RENEWAL" and place:
        return _slept(model, asked, mine, "PENDING" if model.items else "WAIT")
    shares = _shares(model, asked, line, place)
    neglects = asked.reason == "NEGLECT"
    tidies = neglects or (not shares and (place == 0 or asked.otherwise == "LEAVE"))
    if tidies and model.return_overdue():
        return "AGAIN", []
    dead = [request for request in known if request not in line] if place == 0 or neglects else []
    if shares or dead:
        return _taken(model, asked, shares, dead)
    if asked.otherwise == "LEAVE" and not model.items:
        model.leave(asked.rid)
        return "LEFT", []
    return _slept(model, asked, mine, "WAIT")


def _shares(model: Model, asked: Asked, line: list[Request], place: int) -> list[tuple[Request, list[Item]]]:
    rest, shares = model.items, list[tuple[Request, list[Item]]]()
    for at, request in enumerate(line):
        count = min(asked.wanted, request.count) if at == place else request.count
        share, rest = rest[:count], rest[count:]
        if share and _is_served(model, asked, line, at, place):
            shares.append((request, share))
    return shares


def _is_served(model: Model, asked: Asked, line: list[Request], at: int, place: int) -> bool:
    if at == place or asked.reason == "NEGLECT":
        return True
    if asked.reason == "CONFLICT":
        return False
    return model.is_idle(line[at]) if at < place else asked.reason in SLEPT


def _taken(
    model: Model, asked: Asked, shares: list[tuple[Request, list[Item]]], dead: list[Request]
) -> Answer:
    answer: Answer = ("AGAIN", [])
    for request in dead:
        model.leave(request.rid)
    for request, share in shares:
        model.leave(request.rid)
        if request.rid == asked.rid:
            answer = ("SERVED", model.remove(share))
        else:
            model.lay_ready(request.rid, share)
    return answer


def _slept(model: Model, asked: Asked, mine: Request, outcome: str) -> Answer:
    return _renewed(model, mine, outcome) if asked.otherwise == "RENEW" else (outcome, [])


def _renewed(model: Model, mine: Request, outcome: str) -> Answer:
    mine.alive_until = model.now + DEADLINE
    return outcome, []


def withdrawn(model: Model, rid: bytes) -> Answer:
    """A request that leaves, and gives back what lay ready for it."""
    if rid in model.ready:
        return "SERVED", model.collect(rid, 0)
    model.leave(rid)
    return "LEFT", []


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
