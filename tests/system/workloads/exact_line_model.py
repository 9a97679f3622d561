"""The plain model of the workload `exact_line`: items in their places, requests in order, and notices.

It follows the rules of the waiting line in docs/design.md. A place is a number; items of one call share it,
and lie in their order.
"""

from dataclasses import dataclass
from typing import NamedTuple

from fdbqueue.core import limits
from tests.system.workloads.exact_calls import micro

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
    """A look of a request. The names of the reasons and of the steps are those of docs/design.md."""

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
