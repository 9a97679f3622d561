"""`fdbqueue elements`: the commands for element queues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueError, QueueKindMismatch
from fdbqueue.core.registry.definition import PIECES, SIMPLE
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.exits import CommandError, Refused
from fdbqueue.operate.cli.group import cli, help_without_command, in_a_place, json_option, stdout_of
from fdbqueue.operate.cli.parameters import SecondsRange, UsablePath
from fdbqueue.operate.cli.session import CREATE_HERE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import tell
from fdbqueue.operate.cli.system import about
from fdbqueue.operate.cli.values import line_of, value_of
from fdbqueue.queues.elements.folder import Folder, PiecesFolder, SimpleFolder, folder_at
from fdbqueue.queues.elements.moving import Moved, export_to, import_from
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.elements.simple import SimpleElementQueue

AnyElementQueue = ElementQueue | SimpleElementQueue
CREATE = "`fdbqueue elements add {name} --create DATA` makes one"
create_option = click.option("--create", is_flag=True, help="make QUEUE if there is none")


@cli.group(invoke_without_command=True)
@click.pass_context
def elements(context: click.Context) -> None:
    """Use element queues: named elements that any process may lock, as in dirq."""
    help_without_command(context)


@elements.command()
@click.argument("queue")
@click.argument("data", nargs=-1, required=True)
@create_option
@click.option("--schema", metavar="PIECE=TYPE[,...]", help="the pieces of a new queue's elements")
@json_option
@in_a_place
@click.pass_obj
def add(
    signals: Signals,
    place: Place,
    queue: str,
    data: tuple[str, ...],
    create: bool,
    schema: str | None,
    as_json: bool,
) -> None:
    """Add an element to QUEUE for each DATA; print their names.

    QUEUE must exist, unless --create makes it. Without --schema, an element of a new queue is one byte
    string, and DATA is text. With a schema, such as body=string,header=table?, DATA is a JSON object of
    pieces.
    """
    out = stdout_of(signals)
    with opened(place, queue, CREATE_HERE, create=create, schema=schema, data=data) as (database, found):
        values = [_data_for(found, text) for text in data]
        for value in values:
            out.print(_name_line(found.add(database, value), as_json))


@elements.command("list")
@click.argument("queue")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="the first N [all]")
@json_option
@in_a_place
@click.pass_obj
def list_(signals: Signals, place: Place, queue: str, count: int | None, as_json: bool) -> None:
    """Print the names of QUEUE's elements, locked or not, in order."""
    out = stdout_of(signals)
    with opened(place, queue) as (database, found):
        for shown, name in enumerate(found.names(database)):
            if shown == count:
                break
            out.print(_name_line(name, as_json))


@elements.command()
@click.argument("queue")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--schema", metavar="PIECE=TYPE[,...]", help="the pieces to read [those of the queue]")
@json_option
@in_a_place
@click.pass_obj
def get(
    signals: Signals, place: Place, queue: str, names: tuple[str, ...], schema: str | None, as_json: bool
) -> None:
    """Print the elements of these names, one JSON value a line, without removing them.

    A single byte string is printed as text if it is UTF-8. Other bytes, and binary pieces, are printed as
    base64. A locked element is refused. With --json, each line is an object with the `name` of the element
    and its `data`.
    """
    out = stdout_of(signals)
    with opened(place, queue, schema=schema) as (database, found), refusals():
        for name in names:
            data = _shown(found.get_element(database, name))
            out.print(line_of({"name": name, "data": data} if as_json else data))


@elements.command()
@click.argument("queue")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--locked", is_flag=True, help="remove locked elements too")
@in_a_place
def remove(place: Place, queue: str, names: tuple[str, ...], locked: bool) -> None:
    """Remove the elements of these names."""
    with opened(place, queue) as (database, found), refusals():
        for name in names:
            token = found.acquire(database, name, permissive=locked)
            found.remove(database, name, token=token)


@elements.command()
@click.argument("queue")
@click.option(
    "--maxlock", type=SecondsRange(min=0), default=600.0, metavar="S", help="age of the lock in seconds [600]"
)
@in_a_place
def purge(place: Place, queue: str, maxlock: float) -> None:
    """Unlock the elements of QUEUE with a lock older than --maxlock; 0 unlocks none."""
    with opened(place, queue) as (database, found):
        found.purge(database, maxlock=maxlock)


@elements.command("import-dirq")
@click.argument("queue")
@click.argument("path", type=UsablePath(exists=True, file_okay=False))
@create_option
@click.option("--schema", metavar="PIECE=TYPE[,...]", help="the pieces of a new queue's elements")
@json_option
@in_a_place
@click.pass_obj
def import_dirq(
    signals: Signals, place: Place, queue: str, path: str, create: bool, schema: str | None, as_json: bool
) -> None:
    """Move the elements of the directory queue at PATH into QUEUE.

    QUEUE must exist, unless --create makes it. Locked elements stay in the directory. If the command is
    interrupted or killed, start it again.
    """
    folder = folder_at(path)
    kind = PIECES if isinstance(folder, PiecesFolder) else SIMPLE
    opening = opened(place, queue, CREATE_HERE, create=create, schema=schema, kind=kind)
    with opening as (database, found):
        _report(import_from(folder, database, found), signals, queue, as_json)


@elements.command("export-dirq")
@click.argument("queue")
@click.argument("path", type=UsablePath(file_okay=False))
@json_option
@in_a_place
@click.pass_obj
def export_dirq(signals: Signals, place: Place, queue: str, path: str, as_json: bool) -> None:
    """Move the elements of QUEUE into the directory queue at PATH.

    The directory is made if there is none. Locked elements stay in QUEUE. If the command is interrupted or
    killed, start it again.
    """
    with opened(place, queue) as (database, found):
        _report(export_to(_folder_for(found, path), database, found), signals, queue, as_json)


@contextmanager
def opened(
    place: Place,
    name: str,
    cure: str = CREATE,
    *,
    create: bool = False,
    schema: str | None = None,
    kind: str | None = None,
    data: Sequence[str] = (),
) -> Iterator[tuple[Database, AnyElementQueue]]:
    """Open the element queue of that name. A new one gets `kind`, or the kind that `schema` implies.

    It is not made if the `data` do not fit.
    """
    types = _types_of(schema)

    def find(database: Database) -> AnyElementQueue:
        new = kind or (PIECES if types else SIMPLE)
        known = place.kind_of(database, name, cure, new if create else None)
        if known not in ELEMENT_KINDS:
            raise QueueKindMismatch(name=name, found=known, wanted=kind or PIECES)
        if kind not in (None, known):
            raise QueueKindMismatch(name=name, found=known, wanted=kind)
        if known == SIMPLE and types:
            raise CommandError(f"{name!r} has no schema: its elements are single byte strings")
        if known == PIECES:
            return ElementQueue.named(database, name, types, create=create, root=place.root)
        return SimpleElementQueue.named(database, name, create=create, root=place.root)

    def trial(database: Database) -> None:
        queue = find(database)
        for text in data:
            queue.add(database, _data_for(queue, text))

    with place.made(trial, name, create=create, cure=cure.format(name=name)) as database:
        yield database, find(database)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a QueueError into Refused. Some are OSErrors, which otherwise mean a failing environment."""
    try:
        yield
    except QueueError as reason:
        raise Refused(str(reason)) from None


def _types_of(schema: str | None) -> dict[str, str]:
    if not schema:
        return {}
    parts = [part.partition("=") for part in schema.split(",")]
    if not all(equals for _, equals, _ in parts):
        raise CommandError(f"{schema!r} is not a schema like body=string,header=table?")
    return {piece: type_ for piece, _, type_ in parts}


def _data_for(queue: AnyElementQueue, text: str) -> Any:
    return text if isinstance(queue, SimpleElementQueue) else _pieces_of(text)


def _pieces_of(text: str) -> Any:
    try:
        return value_of(text)
    except ValueError as reason:
        raise CommandError(str(reason)) from None


def _shown(data: dict[str, Any] | bytes) -> Any:
    if isinstance(data, dict):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _folder_for(queue: AnyElementQueue, path: str) -> Folder:
    with about(path):
        return PiecesFolder.made(path) if isinstance(queue, ElementQueue) else SimpleFolder.made(path)


def _report(moves: Iterator[Moved], signals: Signals, queue: str, as_json: bool) -> None:
    """Print the elements that stay, and the counts at the end. Raises Refused if some stay."""
    moved = left = 0
    try:
        for move in moves:
            moved, left = moved + (not move.left), left + bool(move.left)
            if move.left:
                row = {"name": move.name, "reason": move.left}
                tell(signals, f"{move.name} stays: {move.left}", row, as_json)
            signals.check()
    finally:
        tell(signals, f"{moved} moved", {"queue": queue, "moved": moved, "left": left}, as_json)
    if left:
        raise Refused(f"{left} not moved")


def _name_line(name: str, as_json: bool) -> bytes:
    return line_of({"name": name}) if as_json else visible(name).encode() + b"\n"
