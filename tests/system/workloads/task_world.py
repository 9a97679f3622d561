"""A model of a task queue: all tasks, as one transaction sees them, and the effect of each call on them.

A transaction sees the tasks as of its read version, with its own changes. It commits only if no task that it
read has changed since, so its changes hold for the tasks at its commit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from tests.system.workloads.task_model import (
    Entry,
    Life,
    Op,
    Order,
    Rules,
    Seen,
    Turns,
    effect,
    may,
    passages,
    passages_in,
    settled,
    wrong_time,
    wrong_times,
)

_STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
_DONE = ("ack", "delete", "cancel")
_COMMITS_WITHIN_S = 10.0


class World(Order):
    """The tasks; with what one transaction has relied on and has counted."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.paused = False
        self.calls = Counter[str]()
        """Calls that all transactions so far have counted; exact without times."""
        self.cleared = self.has_set_pause = self.relied_on_pause = False
        self.relied_on: set[str] = set()
        self.sure, self.maybe = Counter[str](), Counter[str]()
        """Calls that this transaction has counted, and calls that sweeps may have counted besides."""

    def copy(self) -> "World":
        world = World(self.rules)
        world.lives, world.paused, world.calls = dict(self.lives), self.paused, Counter(self.calls)
        world.turns = self.turns.copy()
        return world

    def with_changes(self, base: "World", seen: "World") -> "World":
        """This state with the changes of a transaction from `base` to `seen`."""
        world = self.copy()
        kept = {} if seen.cleared else self.lives
        gone = base.lives.keys() - seen.lives.keys()
        changed = {id_: life for id_, life in seen.lives.items() if base.lives.get(id_) is not life}
        world.lives = {id_: life for id_, life in kept.items() if id_ not in gone} | changed
        world.paused = seen.paused if seen.has_set_pause else self.paused
        world.calls += seen.sure
        world.turns = seen.turns if seen.cleared else self.turns.with_changes(base.turns, seen.turns)
        return world

    def call(self, op: Op) -> Iterator[str]:
        """Make the call. Yield a sentence for each part of its answer that is wrong."""
        if op.verb == "put":
            yield from self._put(op)
        elif op.verb == "take":
            yield from self._take(op)
        else:
            yield from self._of_one(op, op.answers[0] if op.answers else None)

    def _note_turn(self, life: Life) -> None:
        if self.rules.has_turns and life.state == "r":
            self.turns.take_next(life)

    def meet(self) -> None:
        """Let task keys join and leave the rounds of a fair queue after a call."""
        if self.rules.has_turns:
            self.turns.meet(life for life in self.lives.values() if life.state == "r")

    def _put(self, op: Op) -> Iterator[str]:
        capacity = self.rules.options.get("capacity", float("inf"))
        there = sum(any(after for after, _ in passages_in(life, op)) for life in self.lives.values())
        if op.error and there + op.count <= capacity:
            yield f"full with {there} tasks"
        stay = (id_ for id_, life in self.lives.items() if settled(life, op))
        last, options = max(stay, default=""), op.options
        for value, seen in zip(op.told, op.answers, strict=False):
            delay, ttl = options.get("delay", 0), options.get("ttl")
            state, cost = "~" if delay else "r", options.get("cost", 1)
            ttr = options.get("ttr") or self.rules.options.get("ttr")
            marks = options.get("pri", 0), options.get("key"), ttr
            life = Life(seen.id, state, value, *marks, seen.until, seen.expires, cost=cost)
            if seen.id <= last or not life.fits(seen):
                yield f"put behind {last}: {seen}"
            yield from wrong_time(op, seen.until, delay or None)
            yield from wrong_time(op, seen.expires, None if ttl is None else ttl + delay)
            self.lives[seen.id], last = life, seen.id
            self.sure["put"] += 1

    def _take(self, op: Op) -> Iterator[str]:
        self.relied_on_pause |= not self.has_set_pause
        for seen in op.answers:
            if (life := self.lives.get(seen.id)) is not None:
                yield from self.overtaken(op, life)
                self._note_turn(life)
            yield from self._of_one(op, seen)
        left = self.takeable(op)
        few = len(op.answers) < op.count and not (op.answers and self.rules.timed)  # expired ones count
        if few and left and not self.paused:
            yield f"no more, though {left} are ready"
        if self.paused and op.answers:
            yield "taken from a paused queue"
        yield from self.crowded(op)

    def _of_one(self, op: Op, seen: Seen | None) -> Iterator[str]:
        """A call about one task: its answer has to fit one of the lives that sweeps may have left."""
        id_ = seen.id if seen else op.id
        self.relied_on.add(id_)
        life = self.lives.get(id_)
        lives = [(None, ())] if life is None else passages_in(life, op)
        if seen is None:
            if all(after is not None and may(op, after) for after, _ in lives):
                yield f"refused: {op.error} for {life}"
            return
        right = [(after, calls) for after, calls in lives if after is not None and may(op, after)]
        effects = [(after, calls, effect(op, after, seen)) for after, calls in right]
        fitting = [found for found in effects if found[2].shown.fits(seen)]
        if not fitting:
            yield f"the answer does not fit {life}"
            return
        after, _, made = fitting[0]
        yield from wrong_times(self.rules, op, after, seen)
        self.sure += Counter(made.calls)
        self.swept([calls for _, calls, _ in fitting])
        if made.stored is None:
            del self.lives[id_]
        elif made.stored != life:
            self.lives[id_] = made.stored

    def swept(self, calls: list[tuple[str, ...]]) -> None:
        """Count the calls of the sweeps of one task: one of `calls`."""
        least, most = Counter(calls[0]), Counter(calls[0])
        for more in map(Counter, calls[1:]):
            least, most = least & more, most | more
        self.sure += least
        self.maybe += most - least


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


class Judge:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.errors: list[str] = []
        self.sure, self.maybe = Counter[str](), Counter[str]()
        self._states: list[tuple[int, World]] = [(0, World(rules))]
        self._last = Op("", 0.0)

    def judge(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._transaction(entry)

    def _transaction(self, entry: Entry) -> None:
        base = next(world for version, world in reversed(self._states) if version <= entry.read_version)
        main = self._states[-1][1]
        seen = base.copy()
        for op in entry.ops:
            self._last = op
            make = QUEUE_CALLS.get(op.verb)
            told = [*(seen.call(op) if make is None else make(seen, op))]
            seen.meet()
            told += self._beside(op, base, main, seen)
            self.errors += [f"{op.verb} {op.id} in the commit {entry.version}: {text}; {op}" for text in told]
        self._states.append((entry.version, self._merged(entry, base, main, seen)))
        self.sure += seen.sure
        self.maybe += seen.maybe

    def _beside(self, op: Op, base: World, main: World, seen: World) -> Iterable[str]:
        """Yield the errors of an answer that other commits before this one make wrong."""
        now, late = main.with_changes(base, seen), Op("", op.began, latest=op.latest + _COMMITS_WITHIN_S)
        ready = [life.id for life in now.takeable(late, stored=True)] if not now.paused else []
        if op.verb == "take" and not op.answers and ready:
            yield f"nothing, though {ready} became ready before the commit"
        count = sum(settled(life, late) for life in now.lives.values())
        if op.verb == "put" and op.answers and count > self.rules.options.get("capacity", count):
            yield f"{count} tasks in a queue for {self.rules.options['capacity']}"
        yield from now.crowded(op) if op.verb == "take" else ()

    def _merged(self, entry: Entry, base: World, main: World, seen: World) -> World:
        """The state after the commit. A call that relied on a task conflicts with each change of it."""
        for id_ in seen.relied_on:
            if main.lives.get(id_) is not base.lives.get(id_):
                self.errors.append(
                    f"the commit {entry.version} relied on {id_} as of {entry.read_version}: "
                    f"{base.lives.get(id_)}, but it was {main.lives.get(id_)}; {entry.ops}"
                )
        if seen.cleared:
            seen.maybe += removed_by_truncate(main, entry.ops[-1])
        if seen.relied_on_pause and main.paused is not base.paused:
            self.errors.append(f"the commit {entry.version} took tasks beside a pause")
        return main.with_changes(base, seen)

    def close(self) -> None:
        """Sweep the tasks that are left at the end: all of them have expired."""
        end = Op("", self._last.latest + 1e6, latest=self._last.latest + 1e6)
        for life in self._states[-1][1].lives.values():
            left, calls = self._end_of(life, end)
            self.sure += Counter(calls)
            if left is not None:
                self.errors.append(f"lost: {left}")

    def _end_of(self, life: Life, end: Op) -> tuple[Life | None, tuple[str, ...]]:
        if settled(life, end):
            return life, ()
        return list(passages(life, end.began, end.latest))[-1]
