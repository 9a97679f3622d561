"""The judge of notes: for each call of each transaction, the answers that are right.

A transaction sees the tasks as of its read version, with its own changes. It commits only if no task that it
read has changed since, so its changes hold for the tasks at its commit.
"""

from collections import Counter
from collections.abc import Iterable

from tests.system.workloads.notes import Entry, Op
from tests.system.workloads.queue_calls import QUEUE_CALLS, removed_by_truncate
from tests.system.workloads.task_model import Life, Rules, passages, settled
from tests.system.workloads.task_world import World

_COMMITS_WITHIN_S = 10.0


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
