"""Import of an export: its queues, made anew from the file; each batch and the progress in one transaction.

    R[0, name]                     definition   of kind IMPORTING
    R[11, id, "export:..."]        progress     the place in the file of that export; it stays with the queue

No handle opens a queue of that kind, so the import has the queue alone. The last step writes the true
definition. After a kill, or an unknown result of a commit, the progress tells where to go on in the file.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.errors import ExportUnusable, ImportOvertaken, QueueNotFound
from fdbqueue.core.registry import IMPORTING, PIECES, PLAIN, SIMPLE, Definition, Registry, exists_already
from fdbqueue.core.rows import ContentLine, Counts, NotOurs
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.exports.file import FinishedFile, Found, Place
from fdbqueue.operate.exports.lines import IMPORT_LABEL, DoneLine, LimitLine, Mark
from fdbqueue.operate.exports.placing import Placer, placer_for
from fdbqueue.operate.imports.steps import Progress, ProgressKeys
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.limits.rule import LimitKeys

STEP_BYTES = 12


class Imported(NamedTuple):
    name: str
    counts: Counts
    """Those of the export, when the queue is done."""
    is_done: bool
    was_there: bool = False
    """True if an earlier import of the same export has finished it."""


class _Batch(NamedTuple):
    lines: Sequence[ContentLine]
    place: Place
    """Behind its last line."""
    done: DoneLine | None = None
    """The end of the queue, if this is its last batch."""


class Import:
    def __init__(
        self, database: Database, registry: Registry, file: FinishedFile, names: Collection[str] = ()
    ) -> None:
        for name in names:
            if name not in file.queues:
                raise QueueNotFound(name=name)
        self._database = database
        self._registry = registry
        self._file = file
        self._names = frozenset(names or file.queues)

    def run(self) -> Iterator[Imported]:
        """Import the queues, or go on with an interrupted import of the same file. Yield after each batch.

        Raises: QueueExists, ImportOvertaken, QueueDropped, ExportUnusable, InvalidArgument; UnknownKind,
        DefinitionUnreadable and UnknownCodec for a queue that this process cannot open.
        """
        for name, found in self._file.queues.items():
            if name in self._names:
                yield from _OneQueue(self._database, self._registry, self._file, found).run()


class _OneQueue:
    def __init__(self, database: Database, registry: Registry, file: FinishedFile, found: Found) -> None:
        self._database = database
        self._registry = registry
        self._file = file
        self._found = found
        self._name, self._kind, self._options = found.queue.name, found.queue.kind, found.queue.options
        self._label = IMPORT_LABEL + file.header.id
        self._placer(Definition(self._name, 1, self._kind, self._options))  # before anything is written

    def run(self) -> Iterator[Imported]:
        definition, before = run(self._database, partial(self._begin, random=self._random()))
        if definition.kind != IMPORTING:
            yield Imported(self._name, {}, is_done=True, was_there=True)
            return
        assert before.position is not None  # `_begin` has written it, or an earlier import
        placer = self._placer(replace(definition, kind=self._kind, options=self._options))
        for batch in self._batches(Place(before.position[0], before.mark)):
            moved = before.moved + len(batch.lines)
            after = Progress([batch.place.offset], batch.place.digest, moved, self._random())
            run(self._database, partial(self._write, definition, placer, batch, before, after))
            before = after
            yield Imported(
                self._name, {} if batch.done is None else batch.done.counts, batch.done is not None
            )

    def _begin(self, tr: Transaction, random: bytes) -> tuple[Definition, Progress]:
        """The queue, and its progress: of the interrupted import of this export, or begun now."""
        found = self._registry.look(tr, self._name)
        if found is None:
            self._set_limits(tr)
            found = self._registry.create(tr, self._name, IMPORTING, {})
            place = self._found.place
            self._progress(found).write(tr, Progress([place.offset], place.digest, 0, random))
        progress = self._progress(found).read(tr)
        if progress.position is None:  # no import of this export has begun it
            asked = {"kind": self._kind, **self._options}
            raise exists_already(self._name, found.kind, found.options, asked)
        return found, progress

    def _write(
        self,
        definition: Definition,
        placer: Placer,
        batch: _Batch,
        before: Progress,
        after: Progress,
        tr: Transaction,
    ) -> None:
        """Put a batch with the progress that tells of it; at the end store the definition."""
        keys, check = self._progress(definition), self._registry.guard(definition)(tr)
        found = keys.read(tr)
        if found == after:
            return  # the attempt before has committed, with an unknown result
        check()
        if found != before:
            raise ImportOvertaken(label=str(self._file.path))
        try:
            placer.place(tr, batch.lines, runtime_of(tr).now_us())
        except NotOurs as reason:
            said = f"the queue {self._name!r} has contents of another kind ({reason})"
            raise ExportUnusable(path=str(self._file.path), reason=said) from reason
        if batch.done is not None:
            whole = replace(definition, kind=self._kind, options=self._options)
            tr.set(self._registry.keys.definition(self._name), whole.to_bytes())
        keys.write(tr, after)

    def _batches(self, place: Place) -> Iterator[_Batch]:
        """Split the lines behind a place into batches, each small enough for one transaction."""
        lines, begin = list[ContentLine](), place.offset
        for read in self._file.lines(place):
            if isinstance(read.line, DoneLine):
                yield _Batch(lines, read.place, read.line)
                return
            is_full = (
                len(lines) >= limits.IMPORT_BATCH_ITEMS
                or read.place.offset - begin > limits.IMPORT_BATCH_BYTES
            )
            if lines and is_full:
                yield _Batch(lines, place)
                lines, begin = [], place.offset
            if not isinstance(read.line, Mark):
                lines.append(self._content(read.line))
            place = read.place

    def _content(self, line: object) -> ContentLine:
        if isinstance(line, ContentLine):
            return line
        said = f"a line {type(line).__name__} lies within the queue {self._name!r}"
        raise ExportUnusable(path=str(self._file.path), reason=said)

    def _set_limits(self, tr: Transaction) -> None:
        """Make the limits that the queue names, where there are none of these names."""
        root = self._registry.keys.prefix
        asked = [(line, tr.get(LimitKeys(root, line.name).row)) for line in self._found.limits]
        for line, row in asked:
            if not row.present():
                _set_limit(tr, line, Subspace((), root))

    def _placer(self, definition: Definition) -> Placer:
        is_of_elements = self._kind in (PIECES, SIMPLE)
        return placer_for(
            self._registry, definition, is_plain=self._kind == PLAIN, is_of_elements=is_of_elements
        )

    def _progress(self, definition: Definition) -> ProgressKeys:
        return ProgressKeys(self._registry.keys, definition.id, self._label)

    def _random(self) -> bytes:
        return self._database.runtime.random_bytes(STEP_BYTES)


def _set_limit(tr: Transaction, line: LimitLine, root: Subspace) -> None:
    rule = line.rule
    if rule.is_of_slots:
        Limit.set(tr, line.name, slots=rule.slots, per_key=rule.per_key, root=root)
        return
    per = rule.per_us / 1_000_000
    Limit.set(tr, line.name, rate=rule.rate, per=per, burst=rule.burst, per_key=rule.per_key, root=root)
