"""A queue of items, and requests in its line that look for each reason, leave, and come late."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.line.decision import Look, Otherwise, Reason, Ticket, notice_of
from fdbqueue.core.line.staging import Line
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.recipe.queue import Queue
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_items import ItemCalls
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, Table, rolled_back, text_of

NAME, ALL, RID_BYTES, SERVED = "paired_line", 99, 12, 0.5
REASONS = ("ARRIVAL", "SIGNAL", "SIGNAL", "NOTICE", "RENEWAL", "RENEWAL", "NEGLECT", "CONFLICT")
COME_BACK_IN = {"look", "hold", "dequeue", "give_back"}
BY_OTHERS = ("SLEEP", "SLEEP", "RENEW", "LEAVE")


class Requests(Table, ItemCalls):
    verbs = (
        "enqueue",
        "give_back",
        "dequeue",
        "dequeue_many",
        "register",
        "look",
        "withdraw",
        "withdraw_early",
        "hold",
        "clear",
    )

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.space = self._q = Queue(SPACE[NAME])
        self._tickets: list[Ticket] = []
        self._focus: Ticket | None = None
        self._unborn = self._begun = b""
        self._has_dead = False
        """True if a request or a result is past its deadline."""

    def __str__(self) -> str:
        return "a queue of items with requests in its line"

    def opened(self, db: Database) -> Queue:  # noqa: ARG002  # it belongs to no database
        return Queue(SPACE[NAME])

    def must_forget(self, one: Call, other: Call) -> bool:
        """A process remembers whether calls of it stood in the line."""
        return not {one.name, other.name}.isdisjoint(("dequeue", "hold"))

    def is_loose(self, one: Call, other: Call) -> bool:
        """Values that are given back have the first place, and so has an item that is still held. Items of
        dead requests come back in any look or take. A request has one look at a time.
        """
        if one.name == other.name == "look" and one.touches == other.touches:
            return True
        names = {one.name, other.name}
        return names == {"hold", "give_back"} or (self._has_dead and names <= COME_BACK_IN)

    def lengthened(self, call: Call, draw: Callable[[], Call]) -> Call:  # noqa: ARG002  # only pairs are serial
        """A look reads the line by snapshot: three calls in a row may tell."""
        return call

    # The state.

    def look_around(self) -> None:
        self._tickets = run(self.twins.own, self._there)
        first = run(self.twins.own, partial(self._next_time, now=0))
        self._has_dead = first is not None and first < self.twins.now
        if not self._has_dead:  # a dead request has no share, and its items come back
            rolled_back(self.twins.own, self._require_shares)

    def _require_shares(self, tr: Transaction) -> None:
        """A take without a request gets only items behind the shares of all requests.

        Raises: AssertionError, which ends the run as a violation.
        """
        items = list(every_row(partial(self._q.items, tr, ALL)))
        shares = items[: sum(ticket.count for ticket in self._tickets)]
        got = _line(self._q).pass_by(tr, 2, b"", self.twins.now).answers
        assert not {*got} & {*shares}, f"a take passes by, and gets {got} of the shares {shares}"

    def _there(self, tr: Transaction) -> list[Ticket]:
        keys = _line(self._q).keys
        rows = tr.snapshot.get_range(keys.requests.start, keys.requests.stop)
        return [keys.ticket_of(row.key, row.value)[0] for row in rows]

    def top_up(self) -> None:
        """Leave some requests, and about as many items, and results that wait for their owner."""
        own, choice = self.twins.own, self.random.choice
        while len(self._tickets) < choice((0, 1, 2, 3)):
            run(own, partial(self._registered, self._q, self.random.randbytes(RID_BYTES), choice((1, 1, 2))))
            self._tickets = run(own, self._there)
        size = self._q.size(own)
        if size < choice((0, 1, 2, 4)):
            self._q.enqueue_many(own, self.data(choice((1, 2))))
        if self._tickets and self.random.random() < SERVED:
            served = Look(self.twins.now, Reason.NEGLECT)
            run(own, partial(self._looked, self._q, self._tickets[-1], served))

    def next_time(self, now: int) -> int | None:
        return run(self.twins.own, partial(self._next_time, now=now))

    def _next_time(self, tr: Transaction, now: int) -> int | None:
        keys = _line(self._q).keys
        requests = tr.snapshot.get_range(keys.requests.start, keys.requests.stop)
        times = [keys.ticket_of(row.key, row.value)[1] for row in requests]
        due = tr.snapshot.get_range(keys.due.start, keys.due.stop)
        times += [keys.due_of(row.key).deadline_us for row in due]
        return min((time for time in times if time >= now), default=None)

    def forget_focus(self) -> None:
        super().forget_focus()
        self._focus, self._unborn, self._begun = None, b"", b""

    def _ticket(self) -> Ticket | None:
        """A request: mostly that of the call before."""
        if self._focus is None or self.random.random() < 0.4:
            self._focus = self.random.choice(self._tickets) if self._tickets else None
        return self._focus

    def demands(self, one: Call, other: Call, answer: Any) -> bool:  # noqa: ARG002  # whatever the answer
        """A registration that arrives late has to meet its withdrawal."""
        names = {one.name, other.name}
        return names == {"register", "withdraw early"} and one.touches == other.touches

    # Calls.

    def _enqueue(self) -> Call:
        data = self.data(self.random.choice((1, 1, 2)))
        return self._call("enqueue", f"enqueue {data}", lambda q, tr: q.enqueue_many(tr, data), adds=data)

    def _register(self) -> Call:
        if self._begun == self._unborn:
            self._unborn = b""  # two requests never have one name
        rid, count = self._rid(), self.random.choice((1, 1, 2))
        self._begun, verb = rid, partial(self._registered_in, rid, count)
        text = f"register {rid.hex()} for {count}"
        return Call("register", text, verb, [rid.hex()], within=True, touches=rid)

    def _rid(self) -> bytes:
        """The name of the request of the pair that is not in the line yet."""
        self._unborn = self._unborn or self.random.randbytes(RID_BYTES)
        return self._unborn

    def _registered_in(self, rid: bytes, count: int, q: Queue, tr: Transaction) -> None:
        self._registered(q, rid, count, tr)

    def _registered(self, q: Queue, rid: bytes, count: int, tr: Transaction) -> None:
        _line(q).register(tr, rid, count, b"", self.twins.now)

    def _look(self) -> Call | None:
        ticket, choice = self._ticket(), self.random.choice
        if ticket is None:
            return None
        steps = Reason[choice(REASONS)], Otherwise[choice(BY_OTHERS)]
        look = Look(self.twins.now, *steps, choice((1, ticket.count)))
        text = f"look of {ticket.rid.hex()} for {look.reason.name}, else {look.otherwise.name}"
        verb = partial(self._looked_in, ticket, look)
        return Call("look", text, verb, within=True, touches=ticket.rid)

    def _looked_in(self, ticket: Ticket, look: Look, q: Queue, tr: Transaction) -> list[Any]:
        return self._looked(q, ticket, look, tr)

    def _looked(self, q: Queue, ticket: Ticket, look: Look, tr: Transaction) -> list[Any]:
        turn = _line(q).look(tr, ticket, look)
        for watch in turn.watches:
            watch.cancel()
        return [turn.outcome.name, *turn.answers]

    def _withdraw(self) -> Call | None:
        ticket = self._ticket()
        if ticket is None:
            return None
        text = f"withdraw {ticket.rid.hex()}"
        return Call("withdraw", text, partial(_withdrawn, ticket), within=True)

    def _withdraw_early(self) -> Call:
        """The withdrawal of a call that does not know whether its request is in the line."""
        rid = self._rid()
        text = f"withdraw {rid.hex()} without a stamp"
        verb = partial(_withdrawn, Ticket(b"", rid, 1))
        return Call("withdraw early", text, verb, within=True, touches=rid)

    def _hold(self) -> Call:
        count, keeps = self.random.choice((1, 2)), self.random.choice((0, 1, 2))

        def verb(q: Queue, db: Any) -> list[Any]:
            holder = q.holder(db)
            held = holder.hold(count)
            return [held, holder.settle(min(keeps, len(held))) if held else None]

        return self._call("hold", f"hold {count}, and keep {keeps}", verb, alone=True)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        keys, q = _line(self._q).keys, self._q
        notices = tr.snapshot.get_range(keys.all_notices.start, keys.all_notices.stop)
        due = tr.snapshot.get_range(keys.due.start, keys.due.stop)
        renewals = tr.snapshot.get_range(keys.all_renewals.start, keys.all_renewals.stop)
        return {
            "size": [text_of(q.size, tr)],
            "order of items": list(every_row(partial(q.items, tr, ALL))),
            "order of requests": [ticket.rid.hex() for ticket in self._there(tr)],
            "renewals": [f"{row.key[-RID_BYTES:].hex()} {row.value.hex()}" for row in renewals],
            "notices": [f"{row.key[-RID_BYTES:].hex()} {_told(row.value)}" for row in notices],
            "due": [str(keys.due_of(row.key)) for row in due],
        }

    def names(self) -> Mapping[str, str]:
        return {}


def _line(q: Queue) -> Line:
    return q._recipe.part(0).line


def _withdrawn(ticket: Ticket, q: Queue, tr: Transaction) -> list[Any]:
    turn = _line(q).withdraw(tr, ticket)
    return [turn.outcome.name, *turn.answers]


def _told(value: bytes) -> str:
    notice = notice_of(value)
    return str(notice and (notice.deadline_us, len(notice.results)))
