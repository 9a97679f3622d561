"""Upgrade: brings the queues of earlier releases to the present layout, in steps that a kill cannot harm.

The first step of a queue stamps its definition, and stores R[18, id], its progress, in the same transaction.
From then on, each call of an earlier release on that queue fails, so no process adds rows of the older
layout behind the progress. Each further step brings some rows to the layout and moves the progress; the last
one clears it. A process of this release reads both layouts, and goes on all the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from fdbqueue.database import Database, run
from fdbqueue.errors import DefinitionUnreadable, LayoutNewer
from fdbqueue.key_layout import LAYOUT
from fdbqueue.partitions.current import plan_of
from fdbqueue.records.keys import TaskKeys
from fdbqueue.records.statistics import LIVE, unpacked
from fdbqueue.registry.definition import Definition
from fdbqueue.registry.progress import BEGINNING, place, place_in
from fdbqueue.registry.registry import Registry
from fdbqueue.seam import Transaction
from fdbqueue.sessions.ending import is_sessionless
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.upgrading.entries import Batch, bring, waiting
from fdbqueue.upgrading.older import require_none_older


@dataclass(frozen=True)
class Work:
    """The part of an upgrade that concerns one queue."""

    queue: str
    kind: str
    layout: int | None
    """That of its definition; the present one, if an upgrade has begun. None if it cannot be read."""
    entries: int
    """Number of tasks that are taken, delayed or buried: an upgrade looks at each of them."""
    problem: str | None = None
    """The reason why this process cannot upgrade it."""


class Upgrade:
    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry

    def plan(self) -> list[Work]:
        """The queues with an older layout, those with an upgrade under way, and those that cannot be read.

        Reads: all definitions, and the progress and the counters of each queue, by snapshot.
        Conflicts: none.
        """
        return [work for found in self._definitions() if (work := self._work(found)) is not None]

    def require_no_older_sessions(self) -> None:
        """Raises: OlderSessions."""
        require_none_older(self._database, self._registry.keys)

    def steps(self, work: Work) -> Iterator[Batch]:
        """Upgrade one queue; each step was committed. A queue that is dropped meanwhile has no step more.

        Conflicts: of the first step, every call on the queue; then, changes of the tasks that it writes.
        Raises: DefinitionUnreadable.
        """
        run(self._database, partial(self._begin, work.queue))
        while (done := run(self._database, partial(self._step, work.queue))) is not None:
            yield done

    def _definitions(self) -> Iterator[Definition]:
        after = ""
        while found := self._registry.names(self._database, after):
            yield from found
            after = found[-1].name

    def _work(self, listed: Definition) -> Work | None:
        try:
            return run(self._database, partial(self._look, listed.name))
        except DefinitionUnreadable as error:
            layout = error.layout if isinstance(error, LayoutNewer) else None
            return Work(listed.name, listed.kind, layout, 0, str(error))

    def _look(self, name: str, tr: Transaction) -> Work | None:
        """The work on one queue; None without any. Raises: DefinitionUnreadable."""
        found = self._registry.look(tr, name)
        if found is None:
            return None
        progress = tr.snapshot.get(self._registry.keys.upgrade(found.id))
        parts = self._parts_of(found) if is_kind(found.kind) else []
        asked = [tr.snapshot.get(keys.live) for keys in parts]
        if found.layout == LAYOUT and not progress.present():
            return None
        entries = waiting([unpacked(LIVE, live.value) for live in asked])
        known = is_kind(found.kind) or is_sessionless(found.kind)
        problem = None if known else f"this process does not know the kind {found.kind!r}"
        return Work(found.name, found.kind, found.layout, entries, problem)

    def _begin(self, name: str, tr: Transaction) -> None:
        """Stamp the definition. Writes: the definition; the progress, if the queue has rows to look at."""
        found = self._registry.look(tr, name)
        if found is None or found.layout == LAYOUT:
            return
        tr.set(self._registry.keys.definition(name), replace(found, layout=LAYOUT).to_bytes())
        if is_kind(found.kind):
            tr.set(self._registry.keys.upgrade(found.id), BEGINNING)

    def _step(self, name: str, tr: Transaction) -> Batch | None:
        """Bring the next rows to the layout; None if there are no more. Conflicts: another upgrade."""
        found = self._registry.look(tr, name)
        if found is None:
            return None
        key = self._registry.keys.upgrade(found.id)
        progress = tr.get(key).value
        if progress is None:
            return None
        number, rest = place_in(progress) or (0, b"")
        parts = self._parts_of(found)
        if number >= len(parts):  # a repartition has let the last ones go
            tr.clear(key)
            return Batch(0, 0, None)
        keys = parts[number]
        done = bring(tr, keys, keys.prefix + rest if rest else None)
        if done.next is not None:
            tr.set(key, place(number, done.next.removeprefix(keys.prefix)))
        elif number + 1 < len(parts):
            tr.set(key, place(number + 1, b""))
        else:
            tr.clear(key)
        return done

    def _parts_of(self, found: Definition) -> list[TaskKeys]:
        """The keys of all partitions."""
        plan, contents = plan_of(found), self._registry.contents(found)
        return [TaskKeys(contents, number) for number in range(1 if plan is None else plan.high)]
