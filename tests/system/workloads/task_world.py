"""A model of a task queue: all tasks, as one transaction sees them, and the effect of each call on them."""

from collections import Counter
from collections.abc import Iterator

from tests.system.workloads.notes import Op, Seen
from tests.system.workloads.task_model import Life, Rules, passages_in, settled
from tests.system.workloads.task_order import Order
from tests.system.workloads.task_verbs import effect, may, wrong_time, wrong_times


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
