"""`fdbqueue elements`: the commands for element queues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueError, QueueKindMismatch
from fdbqueue.core.registry import PIECES, SIMPLE
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.exits import CommandError, Refused, about
from fdbqueue.operate.cli.frame import (
    Here,
    SecondsRange,
    UsablePath,
    command,
    create_option,
    group,
    values_of,
)
from fdbqueue.operate.cli.redacting import require_open, seen
from fdbqueue.operate.cli.session import CREATE_HERE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.queues.elements.folder import PiecesFolder, SimpleFolder, folder_at
from fdbqueue.queues.elements.moving import Moved, export_to, import_from
from fdbqueue.queues.elements.queue import ElementQueue, SimpleElementQueue

AnyElementQueue = ElementQueue | SimpleElementQueue
CREATE = "`fdbqueue elements add {name} --create DATA` makes one"
MAXLOCK = SecondsRange(min=0)
queue_argument = click.argument("queue")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
schema_option = click.option(
    "--schema", metavar="PIECE=TYPE[,...]", help="the pieces of a new queue's elements"
)


@group("elements")
def elements() -> None:
    """Use element queues: named elements that any process may lock, as in dirq."""


@command(elements, queue_argument)
@click.argument("data", nargs=-1, required=True)
@create_option
@schema_option
def add(here: Here, queue: str, data: tuple[str, ...], create: bool, schema: str | None) -> None:
    """Add an element to QUEUE for each DATA; print their names.

    QUEUE must exist, unless --create makes it. Without --schema, an element of a new queue is one byte
    string, and DATA is text. With a schema, such as body=string,header=table?, DATA is a JSON object of
    pieces.
    """
    out = here.out()
    with opened(here, queue, CREATE_HERE, create=create, schema=schema, data=data) as (database, found):
        values = [_data_for(found, text) for text in data]
        for value in values:
            out.print(_name_line(found.add(database, value), here))


@command(elements, queue_argument, name="list")
@click.option("-n", "count", type=click.IntRange(min=1), metavar="N", help="the first N [all]")
def list_(here: Here, queue: str, count: int | None) -> None:
    """Print the names of QUEUE's elements, locked or not, in order."""
    out = here.out()
    with opened(here, queue) as (database, found):
        for name in islice(found.names(database), count):
            out.print(_name_line(name, here))


@command(elements, queue_argument, names_argument)
@click.option("--schema", metavar="PIECE=TYPE[,...]", help="the pieces to read [those of the queue]")
def get(here: Here, queue: str, names: tuple[str, ...], schema: str | None) -> None:
    """Print the elements of these names, one JSON value a line, without removing them.

    A single byte string is printed as text if it is UTF-8. Other bytes, and binary pieces, are printed as
    base64. A locked element is refused. With --json, each line is an object with the `name` of the element
    and its `data`.
    """
    out = here.out()
    with opened(here, queue, schema=schema) as (database, found), refusals():
        for name in names:
            data: Any = seen("data", found.get_element(database, name))
            if isinstance(data, bytes):
                with suppress(UnicodeDecodeError):
                    data = data.decode()
            out.print(line_of({"name": name, "data": data} if here.as_json else data))


@command(elements, queue_argument, names_argument, json=False)
@click.option("--locked", is_flag=True, help="remove locked elements too")
def remove(here: Here, queue: str, names: tuple[str, ...], locked: bool) -> None:
    """Remove the elements of these names."""
    with opened(here, queue) as (database, found), refusals():
        for name in names:
            about_it = here.about(database, name)
            token = found.acquire(about_it, name, permissive=locked)
            found.remove(about_it, name, token=token)


@command(elements, queue_argument, json=False)
@click.option("--maxlock", type=MAXLOCK, default=600.0, metavar="S", help="age of the lock in seconds [600]")
def purge(here: Here, queue: str, maxlock: float) -> None:
    """Unlock the elements of QUEUE with a lock older than --maxlock; 0 unlocks none."""
    with opened(here, queue) as (database, found):
        found.purge(database, maxlock=maxlock)


@command(elements, queue_argument, name="import-dirq")
@click.argument("path", type=UsablePath(exists=True, file_okay=False))
@create_option
@schema_option
def import_dirq(here: Here, queue: str, path: str, create: bool, schema: str | None) -> None:
    """Move the elements of the directory queue at PATH into QUEUE.

    QUEUE must exist, unless --create makes it. Locked elements stay in the directory. If the command is
    interrupted or killed, start it again.
    """
    folder = folder_at(path)
    kind = PIECES if isinstance(folder, PiecesFolder) else SIMPLE
    opening = opened(here, queue, CREATE_HERE, create=create, schema=schema, kind=kind)
    with opening as (database, found):
        _report(here, import_from(folder, database, found), queue)


@command(elements, queue_argument, name="export-dirq")
@click.argument("path", type=UsablePath(file_okay=False))
def export_dirq(here: Here, queue: str, path: str) -> None:
    """Move the elements of QUEUE into the directory queue at PATH.

    The directory is made if there is none. Locked elements stay in QUEUE. If the command is interrupted or
    killed, start it again.
    """
    require_open("elements export-dirq")
    with opened(here, queue) as (database, found):
        with about(path):
            folder = (PiecesFolder if isinstance(found, ElementQueue) else SimpleFolder).made(path)
        _report(here, export_to(folder, database, found), queue)


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
    parts = [part.partition("=") for part in schema.split(",")] if schema else []
    if not all(equals for _, equals, _ in parts):
        raise CommandError(f"{schema!r} is not a schema like body=string,header=table?")
    return {piece: type_ for piece, _, type_ in parts}


def _data_for(queue: AnyElementQueue, text: str) -> Any:
    return text if isinstance(queue, SimpleElementQueue) else values_of((text,), as_text=False)[0]


def _name_line(name: str, here: Here) -> bytes:
    return line_of({"name": name}) if here.as_json else visible(name).encode() + b"\n"


def _report(here: Here, moves: Iterator[Moved], queue: str) -> None:
    """Print the elements that stay, and the counts at the end. Raises Refused if some stay."""
    moved = left = 0
    try:
        for move in moves:
            moved, left = moved + (not move.left), left + bool(move.left)
            if move.left:
                here.tell(f"{move.name} stays: {move.left}", {"name": move.name, "reason": move.left})
            here.counts(moved)
            here.signals.check()
    finally:
        here.tell(f"{moved} moved", {"queue": queue, "moved": moved, "left": left})
    if left:
        raise Refused(f"{left} not moved")
