"""The look of a request at the line, in the model of the workload `exact_line`."""

from typing import NamedTuple

from tests.system.workloads.exact_line_model import Model
from tests.system.workloads.exact_line_values import DEADLINE, SLEPT, Answer, Item, Request


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
