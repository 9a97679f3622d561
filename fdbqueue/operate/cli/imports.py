"""`fdbqueue import`: the commands that copy the items of other systems' queues. `file` is in exports.py."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fdbqueue.core.codec import BUILT_IN, codec_named
from fdbqueue.core.database import Database
from fdbqueue.core.open import PRIVATE_URL
from fdbqueue.core.open import open as open_database
from fdbqueue.core.registry.definition import PLAIN, Definition
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.exits import CommandError, Refused, say
from fdbqueue.operate.cli.group import (
    cli,
    help_without_command,
    in_a_place,
    json_option,
    queue_argument,
    stdout_of,
)
from fdbqueue.operate.cli.modules import look_in_working_directory
from fdbqueue.operate.cli.parameters import UsablePath
from fdbqueue.operate.cli.session import CREATE_HERE, NoDatabase, Place
from fdbqueue.operate.cli.values import line_of
from fdbqueue.operate.imports.fdb_layer import FdbLayer
from fdbqueue.operate.imports.files import Files, is_file_queue
from fdbqueue.operate.imports.origin import Fate, Origin
from fdbqueue.operate.imports.progress import ProgressKeys
from fdbqueue.operate.imports.serializers import plain, serializer_named
from fdbqueue.operate.imports.steps import Import, Reading, Step, dry_steps
from fdbqueue.operate.imports.tables import FILE, Table
from fdbqueue.operate.imports.target import Items, Target, Tasks
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.kinds import kind_named
from fdbqueue.tasks.queue import TaskQueue

PRIORITIES = "fifottl"
"""The kind of the queue that --create makes for a priority queue."""
KNOWN = ("json", "msgpack", "pickle")
INSIDE = "the old queue and QUEUE are in the same one: name it with --url"
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Options:
    """The options of all imports."""

    create: bool
    codec: str | None
    source: str | None
    dry_run: bool
    as_json: bool


@cli.group("import", invoke_without_command=True)
@click.pass_context
def import_(context: click.Context) -> None:
    """Copy the items of other systems' queues, or the queues of an export. These are read, and never changed.

    If a command is interrupted or killed, start it again: nothing is lost or doubled. Stop the producers and
    consumers of the old queue first. `file` reads a file of `fdbqueue export`. A directory queue is moved by
    `fdbqueue elements import-dirq`.
    """
    help_without_command(context)


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all imports."""
    for option in (
        json_option,
        click.option("--dry-run", is_flag=True, help="read all items, write nothing"),
        click.option("--source", metavar="NAME", help="the name of the progress [that of the old queue]"),
        click.option("--codec", type=click.Choice(BUILT_IN), help="of a new queue [json]"),
        click.option("--create", is_flag=True, help="make QUEUE if there is none"),
    ):
        command = option(command)
    return command


@import_.command("persist-queue")
@click.argument("path", type=UsablePath(exists=True))
@queue_argument
@click.option("--serializer", required=True, metavar="NAME", help="json, msgpack, pickle, or a module")
@click.option("--pickle-may-run-code", "trust_pickle", is_flag=True, help="load pickles that name classes")
@click.option("--table", metavar="TABLE", help="of an SQLite file with several queues")
@click.option("--convert", is_flag=True, help="make lists of tuples, texts of dates, and so on")
@_shared
@in_a_place
@click.pass_obj
def persist_queue(
    signals: Signals,
    /,
    place: Place,
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
    with _database(place, lambda _: origin(), given) as database:
        _copy(signals, place, database, queue, origin(), plain if convert else _unchanged, given, cure)


@import_.command("fdb-layer")
@click.argument("prefix", metavar="PREFIX")
@queue_argument
@click.option("--text", is_flag=True, help="make texts of byte strings in UTF-8")
@_shared
@in_a_place
@click.pass_obj
def fdb_layer(signals: Signals, /, place: Place, prefix: str, queue: str, text: bool, **options: Any) -> None:
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
    convert = _text if text else _unchanged
    given, cure = Options(**options), "" if text else "; --text makes texts of byte strings"
    with place.database(cure=INSIDE) as database:  # --create makes no database: the old queue is in this one
        _copy(signals, place, database, queue, FdbLayer(database, under), convert, given, cure)


def _unchanged(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _copy(
    signals: Signals,
    place: Place,
    database: Database,
    name: str,
    origin: Origin,
    convert: Convert,
    options: Options,
    cure: str,
) -> None:
    """Run an import, or read all items in a dry run; report the counts, and the `cure` of skipped items."""
    with ExitStack() as stack:
        target_at, found = _definition(stack, place, database, name, origin, options)
        target = _target(place, target_at, found, origin)
        reading = Reading(origin, codec_named(found.options["codec"]), convert)
        if options.dry_run:
            _report(signals, dry_steps(reading, target), options, 0, cure)
            return
        keys = ProgressKeys(place.registry.keys, found.id, options.source or origin.label)
        run = Import(database, keys, reading, target)
        _report(signals, run.steps(), options, run.moved_earlier, cure)


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
        if options.codec not in (None, found.options["codec"]):
            raise CommandError(
                f"--codec is for a new queue, and {name!r} has the codec {found.options['codec']}"
            )
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


def _report(signals: Signals, steps: Iterator[Step], options: Options, moved_earlier: int, cure: str) -> None:
    """Print skipped items, and the counts at the end. Raises Refused if some were skipped."""
    counts = {"moved": 0, "buried": 0, "left_out": 0, "skipped": 0, "moved_earlier": moved_earlier}
    shown = stdout_of(signals).print if options.as_json else None
    try:
        for step in steps:
            counts["moved"] += len(step.moved)
            counts["buried"] += sum(one.entry.fate is Fate.BURIED for one in step.moved)
            counts["left_out"] += len(step.left_out)
            counts["skipped"] += len(step.skipped)
            for one in step.skipped:
                if shown:
                    shown(line_of({"item": one.entry.where, "reason": one.problem}))
                else:
                    say(f"{one.entry.where} is skipped: {one.problem}")
            signals.check()
    finally:
        if shown:
            shown(line_of(counts))
        else:
            say(_told(counts, options.dry_run))
    if counts["skipped"]:
        raise Refused(f"{counts['skipped']} skipped: the next import tries them again{cure}")


def _told(counts: dict[str, int], dry_run: bool) -> str:
    done = "could be moved" if dry_run else "moved"
    told = f"{counts['moved']} {done}, {counts['buried']} of them buried" if counts["buried"] else ""
    parts = [told or f"{counts['moved']} {done}"]
    parts += [f"{counts['left_out']} left out"] if counts["left_out"] else []
    parts += [f"{counts['moved_earlier']} moved earlier"] if counts["moved_earlier"] else []
    return ", ".join(parts)
