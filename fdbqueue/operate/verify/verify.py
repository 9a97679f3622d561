"""Verify: every key of a queue, or of a root, checked while the system is in use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named, type_name
from fdbqueue.core.database import Database, as_database, run
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError, WrongType
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import (
    PIECES,
    PLAIN,
    SIMPLE,
    UNREADABLE,
    Definition,
    Registry,
    codec_of,
    of_kind,
    require_options,
)
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.rows import Checks, Count, Mend, Row, Suspect, Under, below, compared
from fdbqueue.core.seam import AnyDatabase, Transaction
from fdbqueue.operate.verify import slices as verify_slices
from fdbqueue.operate.verify.limits import miscounted, miscounted_total, unwalked
from fdbqueue.operate.verify.partitions import (
    ElementChecks,
    Partitioned,
    RecipeChecks,
    partitioned,
    stored_partitions,
    strays,
)
from fdbqueue.operate.verify.root import RootChecks, compare_members, orphans, unreadable
from fdbqueue.operate.verify.slices import judged, slices
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.values import Cures, Finding, Verification
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.store import ElementKeys, Elements
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.items import QueueKeys, Recipe
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.limits.parking import walk_out
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.options import is_kind
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
            total = miscounted_total(self.database, LimitKeys(root.prefix, name), checks.mending)
            self._tell(None, root.prefix, [miscounted(self.database, root, name, checks.mending), total])
        for name in checks.limits.walks:
            self._walk(name, checks.mending)
        for definition in self._definitions():
            self.definition(definition)
        for group in sorted(checks.groups):
            look = partial(compare_members, root, group, checks.mending)
            self._tell(None, root.prefix, [run(self.database, look)])
        if 0 in checks.names:
            self._uncompared.append("Dropped queues: the id in a definition cannot be read.")
        else:
            self._tell(None, root.prefix, orphans(self.database, self.registry, checks))

    def _walk(self, limit: str, mending: str) -> None:
        """Report the walk of a limit that no sweep goes on with. The mending ends it."""
        root = self.registry.keys
        found = run(self.database, partial(unwalked, root, limit, mending))
        self._tell(None, root.prefix, [found])
        if found is not None and self._mend:
            for _ in walk_out(self.database, root.prefix, LimitKeys(root.prefix, limit)):
                pass

    def definition(self, definition: Definition) -> None:
        """Verify a named queue, if this process knows its kind and its options."""
        root, name = self.registry.keys, definition.name
        try:
            subject = subject_named(self.registry, of_kind(definition, definition.kind))
        except DefinitionUnreadable as error:
            self._tell(None, root.prefix, [unreadable(root.definition(name), name, error)])
        except FdbQueueError as error:
            self._tell(name, root.prefix, [str(error)])
        else:
            if subject is None:
                self._tell(name, root.prefix, [f"its kind {definition.kind!r} is unknown."])
            else:
                self.subject(subject)

    def subject(self, subject: Subject) -> None:
        self._queues += 1
        checks, prefix = subject.checks, subject.keys.start
        for part in self._parts(subject):
            self._part(part, prefix)
        for feature in checks.features if isinstance(checks, TaskChecks) else ():
            found = compared(self.database, feature.shared_counts(), checks.mending)
            self._tell(subject.name, prefix, found)

    def _parts(self, subject: Subject) -> Iterator[Subject]:
        """The queue without its partitions, and each partition that has keys."""
        yield subject
        if subject.partitioned is None or subject.partition is None:
            return
        for number in stored_partitions(self.database, subject.partitioned):
            found = run(self.database, partial(strays, subject.partitioned, number))
            self._tell(subject.name, subject.keys.start, found)
            if number:
                yield subject.partition(number)

    def _part(self, subject: Subject, prefix: bytes) -> None:
        """Verify a queue, or a partition of the queue with that prefix."""
        name, checks = subject.name, subject.checks
        for keys in subject.ranges:
            self._scan(name, prefix, checks, keys, subject.keys.start)
        self._tell(name, prefix, compared(self.database, subject.counts, checks.mending))
        if isinstance(checks, TaskChecks):
            self._tell(name, prefix, verify_slices.key_counters(self.database, checks))

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

    def _tell(self, queue: str | None, prefix: bytes, found: Iterable[Suspect | str | None]) -> None:
        """Report contradictions that a mending looks at again, and parts that were not verified."""
        for one in found:
            if isinstance(one, Suspect):
                self._report(queue, prefix, one, one.mend)
            elif one is not None:
                self._uncompared.append(f"The queue {queue!r}: {one}")

    def _report(self, queue: str | None, prefix: bytes, suspect: Suspect, mend: Mend | None) -> None:
        finding = Finding(suspect.flaw, queue, suspect.key.removeprefix(prefix), suspect.text, suspect.cure)
        if self._mend and suspect.mend is not None and mend is not None:
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
    checks = TaskChecks(shape, Cures(shape.name, registered))
    counts = verify_slices.counts_of_tasks(checks, registered)
    found = Subject(shape.name, below(shape.keys.prefix), checks, counts)
    if not registered or shape.keys.partition:
        return found
    parts = partitioned(shape)
    return replace(found, partitioned=parts, partition=lambda n: partition_subject(shape.partition(n)))


def _of_plain(registry: Registry, definition: Definition) -> Subject:
    """A named queue of items."""
    contents, guard = registry.contents(definition), registry.guard(definition)
    name, plan = definition.name, plan_of(definition)
    queue = Partitioned(name, registry.keys.definition(name), SharedKeys(contents))

    def partition(number: int) -> Subject:
        keys = QueueKeys(Subspace((), prefix_of(contents, number)))
        recipe, has_flags = Recipe(keys, codec_named("bytes"), guard, partition=number), plan is not None
        return _of_recipe(RecipeChecks(recipe, Cures(name), queue, has_flags=has_flags), name)

    return replace(partition(0), partitioned=queue, partition=partition)


def _of_queue(queue: Queue) -> Subject:
    parts = queue._recipe
    if parts.current is None:
        return _of_recipe(RecipeChecks(parts.zero, Cures(parts.name, parts.registered)), parts.name)
    return _of_plain(queue._registry(), parts.current.definition)


def _of_recipe(checks: RecipeChecks, name: str) -> Subject:
    return Subject(
        name, below(checks.recipe.keys.prefix), checks, verify_slices.counts_of_recipe(checks.recipe)
    )


def _of_elements(elements: Elements, name: str, *, registered: bool) -> Subject:
    checks = ElementChecks(elements, Cures(name, registered))
    return Subject(name, below(elements.keys.prefix), checks, verify_slices.counts_of_elements(elements))


def _mend_again(checks: Checks, prefix: bytes, row: Row, suspect: Suspect, tr: Transaction) -> None:
    """Mend a contradiction of the row, if it is still there. Reads: all that it rests on, serialisably."""
    value = tr.get(row.key)
    if value.present():
        current = Row(row.key, bytes(value.value))
        for _, again in judged(checks, prefix, [current], tr):
            if again.flaw == suspect.flaw and again.mend is not None:
                again.mend(tr)
