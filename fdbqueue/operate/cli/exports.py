"""`fdbqueue export`, and `fdbqueue import`, which reads its file or the queues of other systems."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fdbqueue.core.codec import BUILT_IN, codec_named
from fdbqueue.core.database import Database
from fdbqueue.core.open import PRIVATE_URL
from fdbqueue.core.open import open as open_database
from fdbqueue.core.registry import PLAIN, Definition
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import CommandError, Refused, about, look_in_working_directory, say
from fdbqueue.operate.cli.frame import (
    Here,
    UsablePath,
    cli,
    command,
    create_option,
    group,
    queue_argument,
    queue_names,
)
from fdbqueue.operate.cli.redacting import require_open
from fdbqueue.operate.cli.session import CREATE_HERE, CREATE_TASKS, NoDatabase, Place, did_you_mean
from fdbqueue.operate.exports.exporting import Export, Exported
from fdbqueue.operate.exports.file import FinishedFile
from fdbqueue.operate.exports.importing import Import as FileImport
from fdbqueue.operate.exports.importing import Imported
from fdbqueue.operate.imports import Import, ProgressKeys, Reading, Step, dry_steps
from fdbqueue.operate.origins import (
    FILE,
    Fate,
    FdbLayer,
    Files,
    Items,
    Origin,
    Table,
    Target,
    Tasks,
    is_file_queue,
    plain,
    serializer_named,
)
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.options import kind_named
from fdbqueue.tasks.queue import TaskQueue

COUNTED = ("tasks", "items", "elements", "ended", "results", "set_aside", "leases", "cancelled", "unreadable")
"""The numbers of a queue, in the order in which they are told."""
_NOUNS = {"tasks": "task", "items": "item", "elements": "element", "ended": "ended task", "results": "result"}
_TOLD = {
    "set_aside": "set aside",
    "leases": "of them under leases, and ready in the file",
    "cancelled": "cancelled, and left out",
    "unreadable": "unreadable, and left out",
}
PRIORITIES = "fifottl"
"""The kind of the queue that --create makes for a priority queue."""
KNOWN = ("json", "msgpack", "pickle")
INSIDE = "the old queue and QUEUE are in the same one: name it with --url"
Convert = Callable[[Any], Any]


@command(cli, name="export")
@click.argument("path", metavar="FILE", type=UsablePath(dir_okay=False))
@click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=queue_names)
@click.option("--in-use", is_flag=True, help="export queues that are not paused")
@click.option("--leave-out", is_flag=True, help="leave groups and schedules out, and go on")
def export(here: Here, path: str, queues: tuple[str, ...], in_use: bool, leave_out: bool) -> None:
    """Write QUEUEs, or all queues, whole into FILE, for `fdbqueue import file`.

    A queue has to be paused. With --in-use it need not be: then a task that is put, moved or ended meanwhile
    may be missing, or be in the file though it has ended. Tasks under leases are ready in the file. If the
    command is interrupted or killed, start it again with the same arguments: it goes on. Status 1: something
    in a queue cannot be read, or a queue was refused: then no new file is left.
    """
    if path == "-":
        raise click.BadParameter("an export goes on in its file, so it needs one", param_hint="FILE")
    require_open("export")
    with here.database() as database:
        for name in queues:
            here.definition(database, name, CREATE_TASKS)
        exported = Export(database, here.registry, queues, in_use=in_use, leave_out=leave_out)
        with about(path):
            unreadable = _tell(here, exported.run(Path(path)))
    if unreadable:
        raise Refused(f"unreadable, and not in the file: {unreadable:,}; `fdbqueue verify` tells which")


@group("import")
def import_() -> None:
    """Copy the items of other systems' queues, or the queues of an export. These are read, and never changed.

    If a command is interrupted or killed, start it again: nothing is lost or doubled. Stop the producers and
    consumers of the old queue first. `file` reads a file of `fdbqueue export`. A directory queue is moved by
    `fdbqueue elements import-dirq`.
    """


@command(import_, name="file")
@click.argument("path", metavar="FILE", type=UsablePath(dir_okay=False))
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--create", is_flag=True, help="make the directory of the database if there is none")
def file(here: Here, path: str, queues: tuple[str, ...], create: bool) -> None:
    """Make the QUEUEs, or all queues, of FILE, which `fdbqueue export` has written.

    The whole file is checked before anything is written. A queue of the same name is refused, unless it is
    the interrupted import of this export: then the command goes on. No call can use a queue before it is
    whole. A queue that was paused is paused: `fdbqueue resume`. Limits that exist keep their numbers.
    """

    def trial(_: Database) -> None:
        with _finished(path, queues):
            pass

    with here.made(trial, create=create, cure=CREATE_HERE) as database, _finished(path, queues) as found:
        _tell(here, FileImport(database, here.registry, found, queues).run())


@contextmanager
def _finished(path: str, queues: Sequence[str]) -> Iterator[FinishedFile]:
    """The file, checked. Raises: BadParameter for a queue that is not in it."""
    with FinishedFile(Path(path)) as found:
        for name in queues:
            if name not in found.queues:
                meant = did_you_mean(name, found.queues)
                raise click.BadParameter(f"{name!r} is not in {path}{meant}", param_hint="QUEUE")
        yield found


def _tell(here: Here, steps: Iterable[Exported | Imported]) -> int:
    """Tell the counts of each queue when it is done. Return the number of unreadable parts of queues."""
    unreadable, tasks, step = 0, 0, None
    for step in steps:
        if step.is_done:
            unreadable += step.counts.get("unreadable", 0)
            row: dict[str, Any] = {"queue": step.name, **{name: step.counts.get(name, 0) for name in COUNTED}}
            row |= {"earlier": step.was_there} if isinstance(step, Imported) else {}
            tasks += row["tasks"]
            here.counts(tasks)
            here.tell(f"{step.name!r}: {_counts_of(row)}", row)
        here.signals.check()
    if step is None:
        say("nothing to do: the file is a finished export; name another file for a new one")
    return unreadable


def _counts_of(row: dict[str, Any]) -> str:
    if row.get("earlier"):
        return "imported earlier"
    there = [(name, row[name]) for name in COUNTED if row[name]]
    told = (counted(n, _NOUNS[name]) if name in _NOUNS else f"{n:,} {_TOLD[name]}" for name, n in there)
    return ", ".join(told) or "empty"


@dataclass(frozen=True)
class Options:
    """The options of all imports from other systems."""

    create: bool
    codec: str | None
    source: str | None
    dry_run: bool


def _shared(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--dry-run", is_flag=True, help="read all items, write nothing"),
        click.option("--source", metavar="NAME", help="the name of the progress [that of the old queue]"),
        click.option("--codec", type=click.Choice(BUILT_IN), help="of a new queue [json]"),
        create_option,
    ):
        function = option(function)
    return function


@command(import_, name="persist-queue")
@click.argument("path", type=UsablePath(exists=True))
@queue_argument
@click.option("--serializer", required=True, metavar="NAME", help="json, msgpack, pickle, or a module")
@click.option("--pickle-may-run-code", "trust_pickle", is_flag=True, help="load pickles that name classes")
@click.option("--table", metavar="TABLE", help="of an SQLite file with several queues")
@click.option("--convert", is_flag=True, help="make lists of tuples, texts of dates, and so on")
@_shared
def persist_queue(
    here: Here,
    path: str,
    queue: str,
    serializer: str,
    trust_pickle: bool,
    table: str | None,
    convert: bool,
    **options: Any,
) -> None:
    """Copy the items of the persist-queue at PATH into QUEUE.

    PATH is the directory of a file queue, or of an SQLite queue; or the SQLite file. --serializer is the one
    that the queue was opened with: persist-queue takes pickle if none is named. A module is imported, and has
    `load` and `loads`. --create makes a fifo queue, or fifottl for a priority queue.

    Acked items stay behind. Items that failed (ack_failed) are buried. A pickle that names a class is skipped
    without --pickle-may-run-code, because loading it can run any code. Status 1: items were skipped.
    """
    if trust_pickle or serializer not in KNOWN:
        look_in_working_directory()
    reads = serializer_named(serializer, trust_pickle=trust_pickle)
    given = Options(**options)

    def origin() -> Origin:
        folder = Path(path)
        if is_file_queue(folder):
            return Files(folder, reads)
        return Table(folder / FILE if folder.is_dir() else folder, table, reads)

    cure = "" if convert else "; --convert makes lists of tuples, and texts of dates"
    with _database(here, lambda _: origin(), given) as database:
        _copy(here, database, queue, origin(), plain if convert else lambda value: value, given, cure)


@command(import_, name="fdb-layer")
@click.argument("prefix", metavar="PREFIX")
@queue_argument
@click.option("--text", is_flag=True, help="make texts of byte strings in UTF-8")
@_shared
def fdb_layer(here: Here, prefix: str, queue: str, text: bool, **options: Any) -> None:
    """Copy the items of FoundationDB's old queue layer, in the same database, into QUEUE.

    PREFIX is the prefix of its keys in hexadecimal: `subspace.key().hex()`. The queue may be one of the
    Python layer of 2013, or of the recipe in FoundationDB's documentation. --create makes a plain queue.

    Python 2 wrote byte strings, which JSON does not have: --text makes texts of them, --codec msgpack keeps
    them. Status 1: items were skipped.
    """
    try:
        under = bytes.fromhex(prefix)
    except ValueError:
        raise click.BadParameter(f"{prefix!r} is not hexadecimal", param_hint="PREFIX") from None
    if not under:
        raise click.BadParameter("it is empty, and so names the whole database", param_hint="PREFIX")

    def convert(value: Any) -> Any:
        return value.decode() if text and isinstance(value, bytes) else value

    given, cure = Options(**options), "" if text else "; --text makes texts of byte strings"
    with here.database(cure=INSIDE) as database:  # --create makes no database: the old queue is in this one
        _copy(here, database, queue, FdbLayer(database, under), convert, given, cure)


def _copy(
    here: Here, database: Database, name: str, origin: Origin, convert: Convert, options: Options, cure: str
) -> None:
    """Run an import, or read all items in a dry run; report the counts, and the `cure` of skipped items."""
    with ExitStack() as stack:
        target_at, found = _definition(stack, here, database, name, origin, options)
        target = _target(here, target_at, found, origin)
        reading = Reading(origin, codec_named(found.options["codec"]), convert)
        if options.dry_run:
            _report(here, dry_steps(reading, target), options, 0, cure)
            return
        keys = ProgressKeys(here.registry.keys, found.id, options.source or origin.label)
        run = Import(database, keys, reading, target)
        _report(here, run.steps(), options, run.moved_earlier, cure)


@contextmanager
def _database(place: Place, trial: Callable[[Database], object], options: Options) -> Iterator[Database]:
    """Open the database. A dry run that finds none has one in memory."""
    with ExitStack() as stack:
        makes = options.create and not options.dry_run
        try:
            database = stack.enter_context(place.made(trial, create=makes, cure=CREATE_HERE))
        except NoDatabase:
            if not options.create:
                raise
            database = stack.enter_context(open_database(PRIVATE_URL))
        yield database


def _definition(
    stack: ExitStack, place: Place, database: Database, name: str, origin: Origin, options: Options
) -> tuple[Database, Definition]:
    """Return the definition of the queue, and its database; a dry run makes a new queue in memory."""
    found = place.registry.look(database, name)
    if found is not None:
        codec = found.options["codec"]
        if options.codec not in (None, codec):
            raise CommandError(f"--codec is for a new queue, and {name!r} has the codec {codec}")
        return database, found
    if not options.create:
        raise place.missing(database, name, CREATE_HERE)
    at = stack.enter_context(open_database(PRIVATE_URL)) if options.dry_run else database
    codec = options.codec or "json"
    if origin.kind == PLAIN:
        Queue.named(at, name, codec=codec, root=place.root)
    else:
        TaskQueue.create(at, name, origin.kind, codec=codec, root=place.root)
    return at, place.registry.find(at, name)


def _target(place: Place, database: Database, found: Definition, origin: Origin) -> Target:
    """Return the queue as a target, unless it cannot keep the priorities of the origin."""
    if found.kind == PLAIN:
        if origin.kind == PRIORITIES:
            raise CommandError(f"{found.name!r} has no priorities: a queue of kind {PRIORITIES} has")
        return Items(Queue.named(database, found.name, create=False, root=place.root))
    tasks = place.tasks_in(database, found.name)
    if origin.kind == PRIORITIES:
        kind_named(found.kind).require("pri")
    return Tasks(tasks)


def _report(here: Here, steps: Iterator[Step], options: Options, moved_earlier: int, cure: str) -> None:
    """Print skipped items, and the counts at the end. Raises Refused if some were skipped."""
    counts = {"moved": 0, "buried": 0, "left_out": 0, "skipped": 0, "moved_earlier": moved_earlier}
    try:
        for step in steps:
            counts["moved"] += len(step.moved)
            counts["buried"] += sum(one.entry.fate is Fate.BURIED for one in step.moved)
            counts["left_out"] += len(step.left_out)
            counts["skipped"] += len(step.skipped)
            for one in step.skipped:
                row = {"item": one.entry.where, "reason": one.problem}
                here.tell(f"{one.entry.where} is skipped: {one.problem}", row)
            here.counts(counts["moved"])
            here.signals.check()
    finally:
        here.tell(_told(counts, options.dry_run), counts)
    if counts["skipped"]:
        raise Refused(f"{counts['skipped']} skipped: the next import tries them again{cure}")


def _told(counts: dict[str, int], dry_run: bool) -> str:
    others = {"buried": "of them buried", "left_out": "left out", "moved_earlier": "moved earlier"}
    parts = [f"{counts['moved']} {'could be moved' if dry_run else 'moved'}"]
    return ", ".join(parts + [f"{counts[name]} {told}" for name, told in others.items() if counts[name]])
