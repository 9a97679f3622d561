"""Verify: every key of a queue, or of a root, checked while the system is in use.

A scan in slices: the next keys of a range, judged by keys of the same read version.

    round trip 1   the next keys of the range; they are asked for with the keys that the slice before names
    round trip 2   the keys that these keys name; a third one for those that do not lie side by side
    one more       only for doubtful contradictions: the keys that may explain them

One transaction reads up to limits.SLICES_TOGETHER slices, for limits.VERIFIED_S. If it runs again, because it
became too old, it reads half of the keys.

A slice judges each of its keys by keys of the same read version. So a change between two slices is never
reported. All reads are by snapshot: a scan makes no other call conflict, and has no bound of time or bytes.

Rows that lie side by side mostly name keys that lie side by side, too: ids of tasks and places in an order
grow with the time of the put. So the keys of one column are read as one range, in place of one read each. If
strangers fill that range, the keys behind them are read one by one: these are the second round trip.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named, type_name
from fdbqueue.core.database import Database, as_database, run, runtime_of
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError, WrongType
from fdbqueue.core.once import run_once
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import (
    FAIR_ITEMS,
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
from fdbqueue.core.rows import (
    Checks,
    Count,
    Excuse,
    Flaw,
    Mend,
    Row,
    Suspect,
    Tally,
    Under,
    ask,
    asks_of,
    below,
    claim_mending,
    compared,
    rows_of,
    suspects_of,
    told_key,
)
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import WANT_ALL, AnyDatabase, Range, ReadTransaction, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.verify.partitions import (
    ElementChecks,
    Partitioned,
    RecipeChecks,
    partitioned,
    stored_partitions,
    strays,
)
from fdbqueue.operate.verify.root import (
    RootChecks,
    compare_members,
    miscounted,
    miscounted_total,
    orphans,
    unreadable,
    unwalked,
)
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.values import Cures, Finding, Verification
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.store import ElementKeys, Elements
from fdbqueue.queues.fair import FAIR_OPTIONS, FairQueue
from fdbqueue.queues.recipe.items import QueueKeys, Recipe, size_of
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.limits.parking import walk_out
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.options import as_given, is_kind
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed, rebuild
from fdbqueue.tasks.stored.records import COUNTER_NAMES, LIVE_NAMES, TaskKeys, packed, unpacked


@dataclass(frozen=True)
class Slice:
    rows: Sequence[Row]
    suspects: Sequence[tuple[Row, Suspect]]
    next: bytes | None
    """The start of the next slice; None at the end."""


def slices(database: Database, checks: Checks, prefix: bytes, keys: Under) -> Iterator[Slice]:
    """Scan the range in slices. `prefix` is that of the queue, or of the root."""
    scan = _Scan(checks, prefix, keys, database.runtime)
    while scan.start is not None:
        found = run(database, scan.read)
        for one in found:
            for row in one.rows:
                checks.note(row)
            yield one
        scan.go_on(found[-1].next)


class _Scan:
    """A scan of one range: the place that it has reached, and its pace."""

    def __init__(self, checks: Checks, prefix: bytes, keys: Under, runtime: Runtime) -> None:
        self.start: bytes | None = keys.start
        self._checks = checks
        self._prefix = prefix
        self._stop = keys.stop
        self._runtime = runtime
        self._limit = limits.SLICE_KEYS_MAX
        self._most = limits.SLICES_TOGETHER
        self._is_again = False

    def read(self, tr: Transaction) -> list[Slice]:
        """Read and judge the next slices. Reads: by snapshot. Round trips: 1, and 1 for each slice."""
        if self._is_again:
            self._limit, self._most = max(self._limit // 2, 1), 1
        self._is_again = True
        until, found = self._runtime.monotonic() + limits.VERIFIED_S, list[Slice]()
        asked = self._ask_rows(tr, self.start)
        while asked is not None:
            rows, following = _first_rows(self._checks, asked, self._limit)
            suspects = _look(self._checks, self._prefix, rows, tr.snapshot)
            is_last = len(found) + 1 >= self._most or self._runtime.monotonic() >= until
            asked = None if is_last else self._ask_rows(tr, following)
            found.append(Slice(rows, suspects(), following))
        return found

    def go_on(self, start: bytes | None) -> None:
        """Begin the next transaction there. It is as fast as before, if this one ran once."""
        self.start = start
        self._limit = min(2 * self._limit, limits.SLICE_KEYS_MAX)
        self._most = min(2 * self._most, limits.SLICES_TOGETHER)
        self._is_again = False

    def _ask_rows(self, tr: Transaction, start: bytes | None) -> Range | None:
        if start is None:
            return None
        return tr.snapshot.get_range(start, self._stop, limit=self._limit, streaming_mode=WANT_ALL)


def judged(
    checks: Checks, prefix: bytes, rows: Sequence[Row], tr: ReadTransaction
) -> list[tuple[Row, Suspect]]:
    """The contradictions of `rows`, without those that other keys explain."""
    return _look(checks, prefix, rows, tr)()


def _look(
    checks: Checks, prefix: bytes, rows: Sequence[Row], tr: ReadTransaction
) -> Callable[[], list[tuple[Row, Suspect]]]:
    """Ask for the keys that the rows name."""
    begun = [(row, check := checks.check(row), next(check, None)) for row in rows]
    asked = ask(tr, prefix, {wanted: None for _, _, first in begun for wanted in asks_of(first)})

    def suspects() -> list[tuple[Row, Suspect]]:
        seen = asked()
        found = [(row, suspect) for row, check, first in begun for suspect in suspects_of(check, first, seen)]
        excuses = {excuse.under: None for _, suspect in found for excuse in suspect.excuses}
        if not excuses:
            return found
        told = ask(tr, prefix, excuses)()
        return [
            (row, suspect)
            for row, suspect in found
            if not any(_holds(excuse, told.rows(excuse.under)) for excuse in suspect.excuses)
        ]

    return suspects


def _first_rows(checks: Checks, asked: Range, limit: int) -> tuple[list[Row], bytes | None]:
    """The first rows, up to the bounds of a slice, and the start of the next one; None at the end."""
    rows: list[Row] = []
    weight = 0
    for row in rows_of(asked):
        weight += len(row.value) + checks.weight(row)
        if rows and weight > limits.BATCH_BYTES_MAX:
            return rows, rows[-1].key + b"\x00"
        rows.append(row)
    return rows, rows[-1].key + b"\x00" if len(rows) == limit else None


def _holds(excuse: Excuse, rows: Sequence[Row]) -> bool:
    # Beyond the bound an explanation may follow: a contradiction that is not certain is not reported.
    return len(rows) == limits.VERIFIED_ROWS_MAX or excuse.explains(rows)


_KEYS_TOGETHER = 500
"""Task keys that one transaction compares with their counters."""


def counts_of_tasks(checks: TaskChecks, registered: bool) -> Iterator[Count]:
    """The counters of a queue. Those of classes of failure are known after the scan of `checks`."""
    shape, keys = checks.shape, checks.keys
    # A FairQueue counts no calls, so that its counters may return to an old value.
    quiet = (keys.counters,) if registered else ()
    states = zip(LIVE_NAMES, (shape.discipline.index, keys.taken, keys.buried, keys.delayed), strict=True)
    for state, under in states:
        yield _count_of_state(state, Tally({state: under}, keys.counters, keys.has_shape, quiet))
    for error in sorted(checks.classes):
        tally = Tally({error: keys.classed_under(error)}, keys.class_count(error), keys.has_shape, quiet)
        yield Count(f"buried tasks of the class {error!r}", tally, goes_at_zero=True)
    for feature in checks.features:
        yield from feature.counts()
    if not keys.partition:
        yield _count_of_aside(shape.aside)


def _count_of_state(state: str, tally: Tally) -> Count:
    def number_in(value: bytes | None) -> int:
        return _signed(unpacked(LIVE_NAMES, value)[state])

    return Count(f"{state} tasks", tally, number_in, lambda more: packed(COUNTER_NAMES, {state: more}))


def counts_of_recipe(recipe: Recipe) -> Iterator[Count]:
    yield Count("items", Tally({"items": recipe.keys.items}, recipe.keys.size, recipe.keys.is_key), size_of)
    yield _count_of_aside(recipe.aside)


def counts_of_elements(elements: Elements) -> Iterator[Count]:
    keys = elements.keys
    yield Count("elements", Tally({"elements": keys.elements}, keys.count, keys.is_sound))
    yield _count_of_aside(elements.aside)


def _count_of_aside(aside: Aside) -> Count:
    return Count("values set aside", Tally({"values": aside.entries}, aside.count_key))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# Counters by task key.


def key_counters(database: Database, checks: TaskChecks) -> Iterator[Suspect | str]:
    """Compare the counters of doubtful task keys, some at a time, in one transaction each. A sentence if that
    took too long.
    """
    discipline, keys = checks.shape.discipline, doubtful_keys(checks)
    if isinstance(discipline, Keyed):
        counters = _OfKeys(checks.keys, discipline, checks.mending)
        for at in range(0, len(keys), _KEYS_TOGETHER):
            yield from run(database, partial(counters.compare, keys[at : at + _KEYS_TOGETHER]))


def doubtful_keys(checks: TaskChecks) -> Sequence[bytes]:
    """Task keys with other counters than the tasks that the scan found; some have changed meanwhile."""
    counted: dict[bytes, dict[str, int]] = {}
    for (key, state), number in checks.found_by_key.items():
        counted.setdefault(key, {})[state] = number
    stored = {} if checks.beside is None else checks.beside.counters
    positive = {key: {state: n for state, n in numbers.items() if n} for key, numbers in stored.items()}
    known = counted.keys() | positive.keys()
    return sorted(key for key in known if counted.get(key, {}) != positive.get(key, {}))


class _OfKeys:
    """The counters of the task keys of one queue, or of one partition."""

    def __init__(self, keys: TaskKeys, keyed: Keyed, mending: str) -> None:
        self._keys = keys
        self._keyed = keyed
        self.mending = mending

    def compare(self, batch: Sequence[bytes], tr: Transaction) -> Sequence[Suspect | str]:
        counted = self._counted(batch, tr)
        if counted is None:
            return ["The counters of task keys: there are too many tasks to count."]
        stored = {key: self._keyed.counts.numbers(tr, slug_of(key)) for key in batch}
        return [
            Suspect(
                Flaw.KEY_COUNTER,
                self._keyed.counts.counts_key(slug_of(key)),
                f"The counter of the {state} tasks of the task key {told_key(key)} says "
                f"{_signed(stored[key][state]):,}, and there are {counted[key, state]:,}.",
                self.mending,
                partial(self._mend, key),
            )
            for key in batch
            for state in LIVE_NAMES
            if stored[key][state] != counted[key, state]
        ]

    def _counted(self, batch: Sequence[bytes], tr: Transaction) -> Counter[tuple[bytes, str]] | None:
        """The tasks of these keys by state; None if that takes longer than limits.COUNTED_S."""
        now, wanted, counted = runtime_of(tr).monotonic, set(batch), Counter[tuple[bytes, str]]()
        until = now() + limits.COUNTED_S
        for key, state in self._tasks(batch, tr.snapshot):
            if now() > until:
                return None
            if key in wanted:
                counted[key, state] += 1
        return counted

    def _tasks(self, batch: Sequence[bytes], tr: ReadTransaction) -> Iterator[tuple[bytes, str]]:
        """The task keys and states of all tasks that are not ready, and of the ready ones of the batch."""
        keys = self._keys
        for state, under in (("taken", keys.taken), ("buried", keys.buried), ("delayed", keys.delayed)):
            yield from ((bytes(row.value), state) for row in tr.get_range(under.start, under.stop))
        for key in batch:
            fifo = self._keyed.fifo(key)
            yield from ((key, "ready") for _ in tr.get_range(fifo.start, fifo.stop))

    def _mend(self, key: bytes, tr: Transaction) -> None:
        counter = self._keyed.counts.counts_key(slug_of(key))
        claim_mending(tr, counter)
        counted = self._counted([key], tr)
        if counted is not None:
            stored = self._keyed.counts.numbers(tr, slug_of(key))
            more = {state: counted[key, state] - stored[state] for state in LIVE_NAMES}
            tr.add(counter, packed(LIVE_NAMES, more))
            tr.compare_and_clear(counter, bytes(len(packed(LIVE_NAMES, {}))))
            rebuild(self._keyed, tr, key)  # the state was judged, and perhaps mended, by the wrong counter


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
    verifier = Verifier(as_database(db).at("background"), Registry(root), mend)
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
            self._tell(name, prefix, key_counters(self.database, checks))

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
            run_once(self.database, self.registry.keys, mend)  # an action has a line with its first effect
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
    if kind == FAIR_ITEMS:
        require_options(definition, FAIR_OPTIONS)
        root, options = Subspace((), registry.keys.prefix), as_given(definition.options)
        fair = FairQueue(contents, key=None, root=root, guard=guard, name=definition.name, **options)
        return _of_tasks(fair._items.shape, registered=False)
    if kind in (PIECES, SIMPLE):
        require_options(definition, ["schema"] if kind == PIECES else ())
        return _of_elements(Elements(ElementKeys(contents), guard), definition.name, registered=True)
    return _of_tasks(shape_of(registry, definition), registered=True) if is_kind(kind) else None


def _of_tasks(shape: Shape, *, registered: bool) -> Subject:
    checks = TaskChecks(shape, Cures(shape.name, registered))
    counts = counts_of_tasks(checks, registered)
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
    return Subject(name, below(checks.recipe.keys.prefix), checks, counts_of_recipe(checks.recipe))


def _of_elements(elements: Elements, name: str, *, registered: bool) -> Subject:
    checks = ElementChecks(elements, Cures(name, registered))
    return Subject(name, below(elements.keys.prefix), checks, counts_of_elements(elements))


def _mend_again(checks: Checks, prefix: bytes, row: Row, suspect: Suspect, tr: Transaction) -> None:
    """Mend a contradiction of the row, if it is still there. Reads: all that it rests on, serialisably."""
    value = tr.get(row.key)
    if value.present():
        current = Row(row.key, bytes(value.value))
        for _, again in judged(checks, prefix, [current], tr):
            if again.flaw == suspect.flaw and again.mend is not None:
                again.mend(tr)
