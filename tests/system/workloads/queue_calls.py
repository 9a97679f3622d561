"""Calls about all tasks of a queue, in the model of a task queue."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from tests.system.workloads.notes import Op
from tests.system.workloads.task_model import Life, passages, settled
from tests.system.workloads.task_turns import Turns
from tests.system.workloads.task_world import World

_STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
_DONE = ("ack", "delete", "cancel")


def kick(world: World, op: Op) -> Iterator[str]:
    """`told`: the tasks that are shown as buried afterwards. Of the others, `number` were kicked, and the
    rest have expired, swept or not.
    """
    buried = sorted((x for x in world.lives.values() if x.state == "!"), key=world.rules.place)
    stay = [life for life in buried if life.id in op.told]
    left = sorted((x for x in buried if x.id not in op.told), key=lambda x: -(x.expires or 1e18))
    kicked, expired = left[: op.number], left[op.number :]
    surely_stay = [life for life in stay if settled(life, op)]
    if [life.id for life in stay] != op.told or op.number > op.count or len(kicked) < op.number:
        yield f"kicked {op.number} of {buried}"
    if any(settled(life, op) for life in expired) or (op.number < op.count and surely_stay):
        yield f"not kicked: {expired} {surely_stay}"
    for life in kicked:
        if all(after is None for after, _ in passages(life, op.began, op.latest)):
            yield f"expired: {life}"
        if any(world.rules.place(other) < world.rules.place(life) for other in surely_stay):
            yield f"kicked {life} before {surely_stay}"
        world.lives[life.id] = life.freed(failures=0, orphaned=0)
    world.relied_on |= {life.id for life in kicked}
    world.sure["kick"] += op.number


def truncate(world: World, _: Op) -> Iterator[str]:
    yield from ()
    world.lives.clear()
    world.cleared, world.turns = True, Turns(world.rules.options.get("weights", {}))


def removed_by_truncate(world: World, op: Op) -> Counter[str]:
    """The calls that sweeps may have counted for tasks before a truncate removed them."""
    calls = Counter[str]()
    for life in world.lives.values():
        *_, (_, most) = passages(life, op.began, op.latest + 10)
        calls += Counter(most)
    return calls


def truncate_some(world: World, op: Op) -> Iterator[str]:
    first = sorted(world.lives)[: op.count]
    if op.told != len(first):
        yield f"removed {op.told} of {len(world.lives)}"
    world.relied_on |= set(first)
    for id_ in first:
        del world.lives[id_]


def release_all(world: World, _: Op) -> Iterator[str]:
    yield from ()
    for life in [life for life in world.lives.values() if life.state == "t"]:
        world.relied_on.add(life.id)
        del world.lives[life.id]
        world.sure["cancel" if life.cancelled else "release"] += 1
        if not life.cancelled:
            world.lives[life.id] = life.freed()


def pause(world: World, op: Op) -> Iterator[str]:
    yield from ()
    world.paused, world.has_set_pause = op.told, True


def statistics(world: World, op: Op) -> Iterator[str]:
    found = Counter(_STATES[life.state] for life in world.lives.values())
    calls = world.calls + world.sure
    wanted = {**{name: found[name] for name in _STATES.values()}, "total": len(world.lives)}
    wanted["done"] = sum(calls[name] for name in _DONE)
    wanted |= {name: calls[name.removeprefix("calls: ")] for name in op.told if name.startswith("calls: ")}
    if wrong := {name: (n, op.told[name]) for name, n in wanted.items() if op.told[name] != n}:
        yield f"the model's number, and the counter: {wrong}"


def listing(world: World, op: Op) -> Iterator[str]:
    for state, ids in op.told.items():
        there = [life for life in world.lives.values() if life.state == state]
        if sorted(ids) != sorted(life.id for life in there):
            yield f"listed as {state}: {ids}, there are {there}"
        elif state in "r!":
            yield from _unordered(world, [world.lives[id_] for id_ in ids], by_key=state == "r")


def _unordered(world: World, lives: list[Life], by_key: bool) -> Iterator[str]:
    keys = {life.key for life in lives} if by_key else {None}
    for key in sorted(keys, key=str):
        places = [world.rules.place(life) for life in lives if not by_key or life.key == key]
        if places != sorted(places):
            yield f"listed in another order than {places}"


QUEUE_CALLS: Mapping[str, Callable[[World, Op], Iterator[str]]] = {
    "kick": kick,
    "truncate": truncate,
    "truncate_some": truncate_some,
    "release_all": release_all,
    "pause": pause,
    "resume": pause,
    "statistics": statistics,
    "listing": listing,
}
