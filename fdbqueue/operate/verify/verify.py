"""Verify: every key of a queue, or of a root, checked while the system is in use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import Database, as_database, run
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError, WrongType
from fdbqueue.core.misfit import type_name
from fdbqueue.core.partitions.current import plan_of
from fdbqueue.core.partitions.keys import SharedKeys, prefix_of
from fdbqueue.core.registry.definition import PIECES, PLAIN, SIMPLE, UNREADABLE, Definition
from fdbqueue.core.registry.registry import Registry, codec_of, of_kind, require_options
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase, Transaction
from fdbqueue.operate.verify.checks import Checks, Row, Suspect, Under, below
from fdbqueue.operate.verify.counters import (
    Count,
    compared,
    counts_of_elements,
    counts_of_members,
    counts_of_recipe,
    counts_of_tasks,
    key_counters,
)
from fdbqueue.operate.verify.groups import compare_members
from fdbqueue.operate.verify.items import ElementChecks, RecipeChecks
from fdbqueue.operate.verify.limits import miscounted_in_all, unwalked
from fdbqueue.operate.verify.partitions import partitioned
from fdbqueue.operate.verify.root import RootChecks, orphans, unreadable
from fdbqueue.operate.verify.shared import Partitioned, stored_partitions, strays
from fdbqueue.operate.verify.slices import judged, slices
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.values import Cures, Finding, Verification
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.keys import ElementKeys
from fdbqueue.queues.elements.store import Elements
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.queues.recipe.items import Recipe
from fdbqueue.queues.recipe.keys import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.limiting.keys import LimitKeys
from fdbqueue.tasks.parking.settling import walk_out
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.shape import Shape, shape_of

AnyQueue = TaskQueue | Queue | FairQueue | ElementBase


def verify(
    db: AnyDatabase, queue: str | AnyQueue | None = None, *, root: Any = DEFAULT_ROOT, mend: bool = False
) -> Verification:
    """Check that the stored keys of a queue agree with each other. Calls of others may go on meanwhile.

    `queue` is the name of a queue, or a queue; None is everything under the root. With `mend`, contradictions
    that have one remedy are mended, each in one transaction that has seen it again. Payloads are measured,
    and not decoded.

    Reads: every key, by snapshot, in slices of one read version each.
    Writes: nothing; with `mend`, the keys of the findings.
    Conflicts: none; with `mend`, a change of the keys of a finding.
    Raises: QueueNotFound, NotADatabase; WrongType for another `queue`.
    Round trips: 1 for each slice of limits.SLICE_KEYS_MAX keys, and 1 more for each transaction of
    limits.SLICES_TOGETHER slices; 1 more for keys that lie apart, and for a doubt; 1 for each counter.
    """
    verifier = Verifier(as_database(db), Registry(root), mend)
    try:
        if queue is None:
            verifier.all()
        elif isinstance(queue, str):
            verifier.definition(verifier.registry.find(db, queue))
        else:
            verifier.subject(_present_subject(verifier.database, queue))
    except _TooMany:
        return verifier.result(whole=False)
    return verifier.result(whole=True)


class _TooMany(Exception):
    """The verification has limits.FINDINGS_MAX findings."""


@dataclass(frozen=True)
class Subject:
    """One queue: its name, its keys, its checks and its counters."""

    name: str
    keys: Under
    checks: Checks
    counts: Iterable[Count]
    mending: str
    partitioned: Partitioned | None = None
    """The queue, if partitions may lie below it: each is a subject of its own."""
    partition: Callable[[int], "Subject"] | None = None

    @property
    def ranges(self) -> Sequence[Under]:
        if self.partitioned is None:
            return (self.keys,)
        apart = self.partitioned.keys.partitions
        return Under(self.keys.start, apart.start), Under(apart.stop, self.keys.stop)


class Verifier:
    def __init__(self, database: Database, registry: Registry, mend: bool) -> None:
        self.registry = registry
        self.database = database
        self._mend = mend
        self._findings: list[Finding] = []
        self._uncompared: list[str] = []
        self._queues = self._keys = 0

    def result(self, *, whole: bool) -> Verification:
        return Verification(tuple(self._findings), tuple(self._uncompared), self._queues, self._keys, whole)

    def all(self) -> None:
        """Verify the root, its queues, and the keys of queues that are gone."""
        root, checks = self.registry.keys, RootChecks(self.registry)
        everything, contents = below(root.prefix), root.all_contents
        for part in (Under(everything.start, contents.start), Under(contents.stop, everything.stop)):
            self._scan(None, root.prefix, checks, part)
        for name in checks.limits.names:
            for suspect in miscounted_in_all(self.database, root, name, checks.limits.mending):
                self._report(None, root.prefix, suspect, partial(_mend_at_once, suspect))
        for name in checks.limits.walks:
            self._walk(name, checks.limits.mending)
        for definition in self._definitions():
            self.definition(definition)
        for group in sorted(checks.groups):
            found = run(self.database, partial(compare_members, root, group, Cures(None).mending))
            if found is not None:
                self._report(None, root.prefix, found, partial(_mend_at_once, found))
        if 0 in checks.names:
            self._uncompared.append("Dropped queues: the id in a definition cannot be read.")
            return
        for suspect in orphans(self.database, self.registry, checks):
            self._report(None, root.prefix, suspect, partial(_mend_at_once, suspect))

    def _walk(self, limit: str, mending: str) -> None:
        """Report the walk of a limit that no sweep goes on with. The mending ends it."""
        root = self.registry.keys
        found = run(self.database, partial(unwalked, root, limit, mending))
        if found is None:
            return
        self._report(None, root.prefix, found, partial(_mend_at_once, found))
        if self._mend:
            for _ in walk_out(self.database, root.prefix, LimitKeys(root.prefix, limit)):
                pass

    def definition(self, definition: Definition) -> None:
        """Verify a named queue, if this process knows its kind and its options."""
        root = self.registry.keys
        try:
            subject = subject_named(self.registry, of_kind(definition, definition.kind))
        except DefinitionUnreadable as error:
            found = unreadable(root.definition(definition.name), definition.name, error)
            self._report(None, root.prefix, found, partial(_mend_at_once, found))
            return
        except FdbQueueError as error:
            self._uncompared.append(f"The queue {definition.name!r}: {error}")
            return
        if subject is None:
            self._uncompared.append(
                f"The queue {definition.name!r}: its kind {definition.kind!r} is unknown."
            )
            return
        self.subject(subject)

    def subject(self, subject: Subject) -> None:
        self._queues += 1
        for part in self._parts(subject):
            self._part(part, subject.keys.start)
        if isinstance(subject.checks, TaskChecks):  # members may lie in all partitions
            for each in counts_of_members(subject.checks):
                found = compared(self.database, each, subject.mending)
                self._compare(subject.name, subject.keys.start, found)

    def _parts(self, subject: Subject) -> Iterator[Subject]:
        """The queue without its partitions, and each partition that has keys."""
        yield subject
        if subject.partitioned is None or subject.partition is None:
            return
        for number in stored_partitions(self.database, subject.partitioned):
            for suspect in run(self.database, partial(strays, subject.partitioned, number)):
                self._report(subject.name, subject.keys.start, suspect, partial(_mend_at_once, suspect))
            if number:
                yield subject.partition(number)

    def _part(self, subject: Subject, prefix: bytes) -> None:
        """Verify a queue, or a partition of the queue with that prefix."""
        compare = partial(self._compare, subject.name, prefix)
        for keys in subject.ranges:
            self._scan(subject.name, prefix, subject.checks, keys, subject.keys.start)
        for each in subject.counts:
            compare(compared(self.database, each, subject.mending))
        if isinstance(subject.checks, TaskChecks):
            for found in key_counters(self.database, subject.checks, subject.mending):
                compare(found)

    def _definitions(self) -> Iterator[Definition]:
        after = ""
        while found := self.registry.names(self.database, after):
            yield from (one for one in found if one.kind != UNREADABLE)
            after = found[-1].name

    def _scan(
        self, queue: str | None, prefix: bytes, checks: Checks, keys: Under, part: bytes | None = None
    ) -> None:
        """Verify a range of a queue, or of its part with the prefix `part`."""
        columns = part or prefix
        for found in slices(self.database, checks, columns, keys):
            self._keys += len(found.rows)
            for row, suspect in found.suspects:
                self._report(queue, prefix, suspect, partial(_mend_again, checks, columns, row, suspect))

    def _compare(self, queue: str, prefix: bytes, found: Suspect | str | None) -> None:
        if isinstance(found, Suspect):
            self._report(queue, prefix, found, partial(_mend_at_once, found))
        elif found is not None:
            self._uncompared.append(f"The queue {queue!r}: {found}")

    def _report(
        self, queue: str | None, prefix: bytes, suspect: Suspect, mend: Callable[[Transaction], None]
    ) -> None:
        finding = Finding(suspect.flaw, queue, suspect.key.removeprefix(prefix), suspect.text, suspect.cure)
        if self._mend and suspect.mend is not None:
            run(self.database, mend)
            finding = replace(finding, mended=True)
        self._findings.append(finding)
        if len(self._findings) == limits.FINDINGS_MAX:
            raise _TooMany


def subject_of(queue: AnyQueue) -> Subject:
    """Raises: WrongType."""
    if isinstance(queue, TaskQueue):
        return _of_tasks(queue._shape, registered=True)
    if isinstance(queue, FairQueue):
        return _of_tasks(queue._items.shape, registered=False)
    if isinstance(queue, Queue):
        return _of_queue(queue)
    if isinstance(queue, ElementBase):
        return _of_elements(queue.store, queue.path, registered=False)
    raise WrongType(name="queue", wanted="a name, or a queue", got=type_name(queue))


def _present_subject(database: Database, queue: AnyQueue) -> Subject:
    """The queue of a handle; a named queue of items by its present plan."""
    current = queue._recipe.current if isinstance(queue, Queue) else None
    if not isinstance(queue, Queue) or current is None:
        return subject_of(queue)
    registry, known = queue._registry(), current.definition
    found = registry.look(database, known.name)
    return _of_plain(registry, known if found is None or found.id != known.id else found)


def partition_subject(shape: Shape) -> Subject:
    """A partition of a task queue, but partition 0: that is the queue itself."""
    return _of_tasks(shape, registered=True)


def subject_named(registry: Registry, definition: Definition) -> Subject | None:
    """The named queue; None for a kind that is unknown here. Raises: as `shape_of`."""
    contents, guard, kind = registry.contents(definition), registry.guard(definition), definition.kind
    if kind == PLAIN:
        codec_of(definition)  # it judges the options, too
        return _of_plain(registry, definition)
    if kind in (PIECES, SIMPLE):
        require_options(definition, ["schema"] if kind == PIECES else ())
        return _of_elements(Elements(ElementKeys(contents), guard), definition.name, registered=True)
    return _of_tasks(shape_of(registry, definition), registered=True) if is_kind(kind) else None


def _of_tasks(shape: Shape, *, registered: bool) -> Subject:
    cures = Cures(shape.name, registered)
    checks = TaskChecks(shape, cures)
    subject = Subject(
        shape.name,
        below(shape.keys.prefix),
        checks,
        counts_of_tasks(checks, registered),
        cures.mending,
    )
    if not registered or shape.keys.partition:
        return subject
    return replace(
        subject,
        partitioned=partitioned(shape),
        partition=lambda number: partition_subject(shape.partition(number)),
    )


def _of_plain(registry: Registry, definition: Definition) -> Subject:
    """A named queue of items."""
    contents, guard = registry.contents(definition), registry.guard(definition)
    queue = Partitioned(definition.name, registry.keys.definition(definition.name), SharedKeys(contents))

    def partition(number: int) -> Subject:
        keys = QueueKeys(Subspace((), prefix_of(contents, number)))
        recipe = Recipe(keys, codec_named("bytes"), guard, partition=number)
        return _of_recipe(recipe, definition.name, queue, has_flags=plan_of(definition) is not None)

    return replace(partition(0), partitioned=queue, partition=partition)


def _of_queue(queue: Queue) -> Subject:
    parts = queue._recipe
    if parts.current is None:
        return _of_recipe(parts.zero, parts.name, registered=parts.registered)
    return _of_plain(queue._registry(), parts.current.definition)


def _of_recipe(
    recipe: Recipe,
    name: str,
    queue: Partitioned | None = None,
    *,
    registered: bool = True,
    has_flags: bool = False,
) -> Subject:
    cures = Cures(name, registered)
    checks = RecipeChecks(recipe, cures, queue, has_flags)
    return Subject(name, below(recipe.keys.prefix), checks, counts_of_recipe(recipe), cures.mending)


def _of_elements(elements: Elements, name: str, *, registered: bool) -> Subject:
    cures, keys = Cures(name, registered), below(elements.keys.prefix)
    return Subject(name, keys, ElementChecks(elements, cures), counts_of_elements(elements), cures.mending)


def _mend_again(checks: Checks, prefix: bytes, row: Row, suspect: Suspect, tr: Transaction) -> None:
    """Mend a contradiction of the row, if it is still there. Reads: all that it rests on, serialisably."""
    value = tr.get(row.key)
    if value.present():
        current = Row(row.key, bytes(value.value))
        for _, again in judged(checks, prefix, [current], tr):
            if again.flaw == suspect.flaw and again.mend is not None:
                again.mend(tr)


def _mend_at_once(suspect: Suspect, tr: Transaction) -> None:
    """Mend a contradiction that the mending itself looks at again."""
    if suspect.mend is not None:
        suspect.mend(tr)
