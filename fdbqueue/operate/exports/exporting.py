"""Export: queues, read in bounded transactions, and written to a file batch by batch.

No transaction sees a whole queue. So a queue must be paused, and stay so, or the caller accepts that it is in
use: then each task is in the file as it was at some moment of the export. Each transaction reads the
definition: a queue that is dropped, created anew or repartitioned meanwhile ends the export.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable, ExportRefused, QueueNotFound, UnknownKind
from fdbqueue.core.registry import (
    IMPORTING,
    PIECES,
    PLAIN,
    SIMPLE,
    UNREADABLE,
    Definition,
    Registry,
    checked_name,
)
from fdbqueue.core.rows import Batch, Counts, Line, Section
from fdbqueue.core.seam import Transaction
from fdbqueue.core.version import __version__
from fdbqueue.operate.exports import sections
from fdbqueue.operate.exports.file import (
    FORMAT,
    DoneLine,
    End,
    ExportFile,
    Header,
    LimitLine,
    Mark,
    QueueLine,
)
from fdbqueue.tasks.limits.rule import LimitKeys, rule_of
from fdbqueue.tasks.options import is_kind, owner_of
from fdbqueue.tasks.schedules import list_schedules
from fdbqueue.tasks.shape import shape_of

ID_BYTES = 16
REFUSALS = (QueueNotFound, ExportRefused, UnknownKind, DefinitionUnreadable)
"""The errors of a queue that cannot be exported as it is."""


class Exported(NamedTuple):
    name: str
    counts: Counts
    is_done: bool


class Export:
    def __init__(
        self,
        database: Database,
        registry: Registry,
        names: Sequence[str] = (),
        *,
        in_use: bool = False,
        leave_out: bool = False,
    ) -> None:
        """`names`: the queues; none for all under the root. `in_use`: they need not be paused. `leave_out`:
        groups, and schedules that put into the queues, stay behind.

        Raises: InvalidArgument.
        """
        self.database = database
        self.registry = registry
        self._names = sorted({checked_name(name) for name in names})
        self.in_use = in_use
        self.leave_out = leave_out

    def run(self, path: Path) -> Iterator[Exported]:
        """Write the export, or go on with the one in that file. Yield after each batch.

        All queues are looked at first, so a queue that is refused costs no export of the others. A new
        export that is refused leaves no file.
        Raises: QueueNotFound, ExportRefused, ExportUnusable, ExportInUse, UnknownKind, DefinitionUnreadable,
        OSError.
        """
        id_ = self.database.runtime.random_bytes(ID_BYTES).hex()
        header = Header(FORMAT, id_, __version__, self._names, self.in_use, self.leave_out)
        with ExportFile(path, header) as file:
            if file.state.is_finished:
                return
            try:
                yield from self._written(file)
            except REFUSALS:
                file.discard()
                raise

    def _written(self, file: ExportFile) -> Iterator[Exported]:
        schedules = self.schedules_by_queue()
        for name in self._left(file.state.last):
            _OneQueue(self, file, name).require_fit(schedules)
        for name in self._left(file.state.last):
            yield from _OneQueue(self, file, name).run()
            file.sync()
        file.write([End(file.state.done)])
        file.sync()

    def _left(self, after: str) -> Iterator[str]:
        """The queues that are not in the file yet, in order of their names."""
        if self._names:
            yield from (name for name in self._names if name > after)
            return
        while found := self.registry.names(self.database, after):
            yield from (one.name for one in found if not is_left_out(one))
            after = found[-1].name

    def schedules_by_queue(self) -> Mapping[str, Sequence[str]]:
        """The schedules that put into each queue. None if schedules stay behind."""
        found, root = defaultdict[str, list[str]](list), Subspace((), self.registry.keys.prefix)
        after: str | None = None if self.leave_out else ""
        while after is not None:
            page = list_schedules(self.database, after=after, root=root)
            for one in page:
                found[one.queue].append(one.name)
            after = page.next
        return found


def is_left_out(definition: Definition) -> bool:
    return definition.kind == IMPORTING or definition.options.get("temporary") is not None


def _value_of(tr: Transaction, key: bytes) -> bytes | None:
    value: bytes | None = tr.get(key).value
    return value


def _first_counts(begun: QueueLine) -> Counts:
    return {"unreadable": begun.unreadable_limits} if begun.unreadable_limits else {}


class _OneQueue:
    def __init__(self, export: Export, file: ExportFile, name: str) -> None:
        self._export = export
        self._file = file
        self._database, self._registry = export.database, export.registry
        self._key = self._registry.keys.definition(name)
        self._stored: bytes | None = run(self._database, lambda tr: tr.get(self._key).value)
        if self._stored is None:
            raise QueueNotFound(name=name)
        self._definition = Definition.listed(name, self._stored)

    def require_fit(self, schedules: Mapping[str, Sequence[str]]) -> None:
        _, pause = self._sections()
        if pause is not None:
            self._require_paused(run(self._database, partial(_value_of, key=pause)))
        self._require_none_of(schedules)

    def run(self) -> Iterator[Exported]:
        name, counts = self._definition.name, Counts()
        sections, pause = self._sections()
        takes = 0 if pause is None else self._takes()
        begun = self._begin(takes)
        mark = self._file.state.mark
        at, begin = (0, b"") if mark is None else (mark.section, self._whole(mark.after))
        counts.update(_first_counts(begun) if mark is None else mark.counts)
        while at < len(sections):
            found, begin = run(self._database, partial(self._batch, sections[at], begin, pause))
            for kind, count in found.counts.items():
                counts[kind] = counts.get(kind, 0) + count
            at += not begin
            self._file.write(
                [*found.lines, Mark(at, begin.removeprefix(self._registry.keys.prefix), dict(counts))]
            )
            yield Exported(name, counts, is_done=False)
        if pause is not None and self._takes() != begun.takes:
            raise self._refused("tasks were taken from it since the export began: begin another one")
        self._file.write([DoneLine(name, counts)])
        yield Exported(name, counts, is_done=True)

    def _batch(
        self, section: Section, begin: bytes, pause: bytes | None, tr: Transaction
    ) -> tuple[Batch, bytes]:
        """Read a batch, unless the queue has changed, or is not paused."""
        stored = tr.snapshot.get(self._key)
        paused = None if pause is None else tr.snapshot.get(pause)
        found = section.batch(tr, begin)
        if stored.value != self._stored:
            raise self._refused("its definition has changed since the export began: begin another one")
        if paused is not None:
            self._require_paused(paused.value)
        return found

    def _require_paused(self, value: bytes | None) -> None:
        if value is None:
            raise self._refused(
                "it is not paused: `fdbqueue pause` does that; --in-use exports it all the same"
            )

    def _begin(self, takes: int) -> QueueLine:
        """The definition in the file: written now, or by an interrupted export. Raises: ExportRefused."""
        definition, there = self._definition, self._file.state.queue
        begun = QueueLine(definition.name, definition.id, definition.kind, dict(definition.options), takes)
        if there is None:
            # A schedule may have come since the first look, while other queues were written.
            self._require_none_of(self._export.schedules_by_queue())
            limits, begun.unreadable_limits = self._limits()
            self._file.write([*limits, begun])
            return begun
        if (there.name, there.id, there.kind, there.options) != (
            begun.name,
            begun.id,
            begun.kind,
            begun.options,
        ):
            raise self._refused("its definition has changed since the export began: begin another one")
        return there

    def _takes(self) -> int:
        """The takes of a task queue so far: a queue that was resumed in between has more of them."""
        shape = shape_of(self._registry, self._definition)
        return run(self._database, partial(sections.takes_of, sections.task_partitions_of(shape)))

    def _sections(self) -> tuple[list[Section], bytes | None]:
        """The parts of the queue, and the key that tells that it is paused; None if that does not count."""
        kind, registry, definition = self._definition.kind, self._registry, self._definition
        if is_kind(kind):
            if owner_of(definition) is not None:
                raise self._refused("it is temporary, and ends with its session")
            shape = shape_of(registry, definition)
            if shape.plan is not None and shape.plan.before:
                raise self._refused("it is being repartitioned: `fdbqueue repartition` finishes that")
            pause = None if self._export.in_use else shape.keys.paused
            return sections.sections_of_tasks(shape, leave_out=self._export.leave_out), pause
        if kind not in (PLAIN, PIECES, SIMPLE):
            unknown = (
                "it is the unfinished import of an export" if kind == IMPORTING else f"its kind is {kind!r}"
            )
            raise self._refused("its definition cannot be read" if kind == UNREADABLE else unknown)
        if not self._export.in_use:
            raise self._refused("its kind has no pause: stop its producers and consumers, then use --in-use")
        of = sections.sections_of_items if kind == PLAIN else sections.sections_of_elements
        return of(registry, definition), None

    def _limits(self) -> tuple[Sequence[Line], int]:
        """The limits of the queue that exist, and the number of those that cannot be read."""
        options, lines, unreadable = self._definition.options, list[Line](), 0
        for name in (*options.get("limits", ()), *options.get("task_limits", ())):
            row = LimitKeys(self._registry.keys.prefix, name).row
            stored = run(self._database, partial(_value_of, key=row))
            rule = rule_of(stored)
            if rule is not None:
                lines.append(LimitLine(name, rule))
            unreadable += rule is None and stored is not None
        return lines, unreadable

    def _require_none_of(self, schedules: Mapping[str, Sequence[str]]) -> None:
        """Refuse a queue into which schedules put tasks."""
        names = schedules.get(self._definition.name)
        if names:
            told = ", ".join(map(repr, names))
            raise self._refused(
                f"the schedules {told} put tasks into it, and are not exported; --leave-out allows that"
            )

    def _refused(self, reason: str) -> ExportRefused:
        return ExportRefused(name=self._definition.name, reason=reason)

    def _whole(self, short: bytes) -> bytes:
        return self._registry.keys.prefix + short if short else b""
