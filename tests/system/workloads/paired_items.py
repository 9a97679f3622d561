"""Queues of items in the workload `paired`, and requests in a line that look, leave, and come late."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.line.decision import Look, Otherwise, Reason, Ticket, notice_of
from fdbqueue.core.line.staging import Line
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_world import Call, Table, Twins, World, rolled_back, text_of

NAME = "paired"
ALL = 99
LOCK_S = 5.0
SCHEMA = {"body": "string"}


class ItemCalls(World):
    """Calls of a queue of items, with requests in its line or without."""

    def _dequeue(self) -> Call:
        return self._call("dequeue", "dequeue", lambda q, tr: q.dequeue(tr))

    def _dequeue_many(self) -> Call:
        """In a transaction: given a database, an answer of fewer does not rely on the end of the queue."""
        count = self.random.choice((2, 3, 50))
        text = f"dequeue {count}"
        return Call("dequeue", text, lambda q, tr: q.dequeue_many(tr, count), within=True)

    def _give_back(self) -> Call:
        data = self.data(self.random.choice((1, 2)))
        return self._call("give_back", f"give back {data}", lambda q, tr: q.give_back(tr, data), adds=data)

    def _clear(self) -> Call | None:
        if self.random.random() < 0.5:
            return None
        return self._call("clear", "clear", lambda q, tr: q.clear(tr))


class Items(ItemCalls):
    verbs = (
        *("enqueue",) * 4,
        *("dequeue",) * 3,
        *("dequeue_many",) * 2,
        *("give_back",) * 2,
        "look",
        "clear",
        "repartition",
    )
    partitions: Sequence[int] = (0, 0, 1, 3)

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._partitions = random.choice(self.partitions)
        self.forgets = self._partitions > 1
        if self._partitions:
            Queue.named(twins.own, NAME, partitions=self._partitions)
        self.space = None if self._partitions else self._own()

    def __str__(self) -> str:
        return f"a queue with {self._partitions} partitions" if self._partitions else "a queue"

    def _own(self) -> Queue:
        return Queue(SPACE[NAME])

    def opened(self, db: Database) -> Queue:
        return Queue.named(db, NAME) if self._partitions else self._own()

    def is_loose(self, one: Call, other: Call) -> bool:
        """A take or a peek is of one partition, and an answer of fewer relies on no other one. Values
        that are enqueued at the same time have any order, also for a take or a peek behind an enqueue of its
        own transaction.
        """
        names = {one.name, other.name}
        if "both" in names and names <= {"both", "peek"} and one.adds and other.adds:
            return True
        return self.forgets and any(verb in f"{one} {other}" for verb in ("dequeue", "peek"))

    def may_vary(self, one: Call) -> bool:
        return self.forgets and one.name in ("dequeue", "peek", "both")

    def promises(self, one: Call, other: Call) -> bool:
        """Enqueues. A queue without a name looks at its subspace until it has seen a key, and one with
        partitions sets flags.
        """
        return (
            self._partitions == 1
            and one.name == "enqueue"
            and other.name in ("enqueue", "dequeue", "give_back", "look")
        )

    def demands(self, one: Call, other: Call, answer: Any) -> bool:
        """A dequeue relies on the head of the queue, up to its last value."""
        return not self.forgets and bool(answer) and (one.name, other.name) == ("dequeue", "give_back")

    # Calls.

    def _enqueue(self) -> Call:
        data = self.data(self.random.choice((1, 1, 2)))
        if len(data) == 1:
            return self._call("enqueue", f"enqueue {data}", lambda q, tr: q.enqueue(tr, data[0]), adds=data)
        return self._call("enqueue", f"enqueue {data}", lambda q, tr: q.enqueue_many(tr, data), adds=data)

    def _look(self) -> Call | None:
        """A peek beside a put: the put relies on what it has seen."""
        (mark,) = self.data(1)

        def verb(q: Queue, tr: Any) -> Any:
            found = q.peek(tr)
            q.enqueue(tr, mark)
            return found

        return Call("peek", f"peek, and enqueue {mark}", verb, [mark], within=True)

    def _repartition(self) -> Call | None:
        if self._partitions < 2:
            return None
        count = self.random.choice((1, 2, 4))
        return self._call("repartition", f"repartition {count}", lambda q, tr: q.repartition(tr, count))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        q = self.opened(self.twins.own)
        found: dict[str, Sequence[str]] = {"size": [text_of(q.size, tr)]}
        if self._partitions > 1:
            found["items"] = list(every_row(partial(q.items, tr, ALL)))
            return found
        return {
            **found,
            "order of items": list(every_row(partial(q.items, tr, ALL))),
            "order of takes": list(q.dequeue_many(tr, ALL)),
            "size at the end": [text_of(q.size, tr)],
        }


class FairItems(World):
    verbs: Sequence[str] = (*("put",) * 4, *("get",) * 3, "give_back", "look")
    KEYS = ("a", "b", "c")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._capacity = random.choice((None, 4, 8))
        if self._capacity is not None:  # an item that is given back counts for no capacity
            self.verbs = tuple(verb for verb in self.verbs if verb != "give_back")
        self.space = self._q = FairQueue(
            SPACE[NAME], key=lambda item: item[0], capacity=self._capacity, weights={"a": 2}
        )

    def __str__(self) -> str:
        return f"a FairQueue of the capacity {self._capacity}"

    def opened(self, db: Database) -> FairQueue:  # noqa: ARG002  # it belongs to no database
        return self._q

    def is_loose(self, one: Call, other: Call) -> bool:
        """The size is read by snapshot, also by a put that is refused in a transaction that goes on."""
        may_be_refused = self._capacity is not None and "both" in (one.name, other.name)
        return may_be_refused or "size" in one.text + other.text

    def promises(self, one: Call, other: Call) -> bool:
        """Puts of other task keys."""
        return (
            self._capacity is None
            and one.name == other.name == "put"
            and one.touches.isdisjoint(other.touches)
        )

    # Calls.

    def _put(self) -> Call:
        return self._adding("put", "put", lambda q: q.put)

    def _give_back(self) -> Call:
        return self._adding("give_back", "give back", lambda q: q.give_back)

    def _adding(self, name: str, text: str, verb: Any) -> Call:
        (data,), key, cost = self.data(1), self.random.choice(self.KEYS), self.random.choice((1, 1, 2))
        item = [key, data]
        return self._call(
            name,
            f"{text} {item} of the cost {cost}",
            lambda q, tr: verb(q)(tr, item, cost=cost),
            adds=[data],
            touches=frozenset(key),
        )

    def _get(self) -> Call:
        return self._call("get", "get", lambda q, tr: q.take_item(tr))

    def _look(self) -> Call:
        return self._call("look", "size", lambda q, tr: q.size(tr))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        page = self._q.snapshot(tr, ALL)
        lines = [page.round, *(items for _, items in page.lines)]
        found: dict[str, Sequence[str]] = {
            "size": [text_of(self._q.size, tr)],
            "keys": [f"{one.key}: {one.ready}" for one in self._q.key_statistics(tr, ALL)],
        }
        taken = []
        while (one := self._q.take_item(tr))[0]:
            taken.append(one[1])
        for key in self.KEYS:
            found[f"order of {key}"] = [data for of, data in taken if of == key]
        found["taken"] = [data for _, data in taken]
        found["listed"] = [item[1] for items in lines for item in items]
        return found


class Elements(World):
    verbs = ("add", *("acquire",) * 4, *("of_a_lock",) * 6, "touch", "dequeue", "get_element", "purge")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.space = self._q = ElementQueue(SPACE["paired"], SCHEMA, maxelts=100)
        self._names: list[str] = ["00000000/00000000000000"]
        self._tokens: dict[str, str] = {}
        self._focus: str | None = None
        self._bodies: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def __str__(self) -> str:
        return "an element queue"

    def opened(self, db: Database) -> ElementQueue:  # noqa: ARG002  # it belongs to no database
        return self._q

    def refresh(self) -> None:
        rolled_back(self.twins.own, self.seen)
        self._bodies, self._names = self.names(), [*self._seen] or self._names

    def learn(self, answer: Any) -> None:
        for one in answer if isinstance(answer, tuple | list) else (answer,):
            if isinstance(one, Locked):
                self._tokens[one.name] = one.token

    def next_time(self, now: int) -> int | None:
        return now + round(LOCK_S * 1_000_000)

    def forget_focus(self) -> None:
        self._focus = None

    def _name(self) -> str:
        if self._focus is None or self.random.random() < 0.2:
            self._focus = self.random.choice(self._names[:4])
        return self._focus

    # Calls.

    def _add(self) -> Call:
        (data,) = self.data(1)
        return self._call("add", f"add {data}", lambda q, tr: Added(q.add(tr, {"body": data})))

    def _acquire(self) -> Call:
        name = self._name()

        def verb(q: ElementQueue, tr: Any) -> Any:
            found = q.acquire(tr, name)
            return found and Locked(name, found)

        return self._call("acquire", f"acquire {name}", verb)

    def _of_a_lock(self) -> Call:
        name, verb = self._name(), self.random.choice(("get", "unlock", "unlock", "remove"))
        token = self._tokens.get(name) if self.random.random() < 0.7 else None
        text = f"{verb} {name} by {'a' if token else 'no'} token"
        return self._call(verb, text, lambda q, tr: getattr(q, verb)(tr, name=name, token=token))

    def _touch(self) -> Call:
        name = self._name()
        return self._call("touch", f"touch {name}", lambda q, tr: q.touch(tr, name))

    def _dequeue(self) -> Call:
        name = self._name()
        return self._call("dequeue", f"dequeue {name}", lambda q, tr: q.dequeue(tr, name))

    def _get_element(self) -> Call:
        name = self._name()
        return self._call("get_element", f"get_element {name}", lambda q, tr: q.get_element(tr, name))

    def _purge(self) -> Call:
        span_s = self.random.choice((LOCK_S, 0))
        return self._call("purge", f"purge {span_s}", lambda q, tr: q.purge(tr, maxlock=span_s))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        names = list(self._q.names(tr))
        free = [name for name in names if self._q.acquire(tr, name)]
        bodies = self._seen = {name: self._q.get(tr, name)["body"] for name in names}
        return {
            "count": [text_of(self._q.count, tr)],
            "elements": list(bodies.values()),
            "elements without a lock": [bodies[name] for name in free],
        }

    def names(self) -> dict[str, str]:
        return {**self._bodies, **self._seen}


class Locked(tuple[str, str]):
    """The name of an element, and the token of its lock. Equal if the element is: a token is random."""

    def __new__(cls, name: str, token: str) -> "Locked":
        return super().__new__(cls, (name, token))

    @property
    def name(self) -> str:
        return self[0]

    @property
    def token(self) -> str:
        return self[1]

    def __repr__(self) -> str:
        return f"the lock of {self.name}"


class Added(str):
    """The name of a new element, which is random."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a name"


LINE, RID_BYTES, SERVED = "paired_line", 12, 0.5
REASONS = ("ARRIVAL", "SIGNAL", "SIGNAL", "NOTICE", "RENEWAL", "RENEWAL", "NEGLECT", "CONFLICT")
COME_BACK_IN = {"look", "hold", "dequeue", "give_back"}
BY_OTHERS = ("SLEEP", "SLEEP", "RENEW", "LEAVE")


class Requests(Table, ItemCalls):
    verbs = (
        *("enqueue", "give_back", "dequeue", "dequeue_many", "register"),
        *("look", "withdraw", "withdraw_early", "hold", "clear"),
    )

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.space = self._q = Queue(SPACE[LINE])
        self._tickets: list[Ticket] = []
        self._focus: Ticket | None = None
        self._unborn = self._begun = b""
        self._has_dead = False
        """True if a request or a result is past its deadline."""

    def __str__(self) -> str:
        return "a queue of items with requests in its line"

    def opened(self, db: Database) -> Queue:  # noqa: ARG002  # it belongs to no database
        return Queue(SPACE[LINE])

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
