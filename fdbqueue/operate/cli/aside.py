"""`fdbqueue aside`: list, export and remove the values that were set aside."""

import os
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import PLAIN
from fdbqueue.core.unreadable import KeepsAside, SetAside
from fdbqueue.operate.cli.exits import about, say
from fdbqueue.operate.cli.group import Here, cli, command, first_option, queue_argument
from fdbqueue.operate.cli.parameters import UsablePath
from fdbqueue.operate.cli.session import ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import Row, columns
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.queues.recipe.queue import Queue

EXPORT_FILE = UsablePath(dir_okay=False, path_type=Path)


@command(cli, queue_argument, first_option)
@click.option("--export", "path", type=EXPORT_FILE, metavar="FILE", help="append all values to FILE")
@click.option("--remove", "ids", multiple=True, metavar="ID", help="remove the value of that id; repeatable")
@click.option("--remove-all", is_flag=True, help="remove all values; with --export, all exported ones")
def aside(
    here: Here, queue: str, count: int, path: Path | None, ids: tuple[str, ...], remove_all: bool
) -> None:
    """List the values of QUEUE that could not be read and were set aside.

    The oldest comes first. Columns: id, when (seconds since the epoch), bytes, key (in hexadecimal), reason.
    With --json, and in an exported file, each line also has `values`, the stored bytes in base64: the value
    of the key first, then those of the payload. If only the payload of a task cannot be read, the task is
    buried instead: see `tasks --state buried`.
    """
    with here.database() as database:
        found = _queue(here, database, queue)
        if path is not None:
            exported = _export(database, found, path)
            count = len(exported)
            here.tell(f"{count} exported to {path}", {"queue": queue, "exported": count})
            ids += tuple(exported) if remove_all else ()
        elif remove_all:
            ids += tuple(entry.id for entry in _entries(database, found))
        if ids or remove_all:
            removed = 0
            for start in range(0, len(ids), limits.VERB_BATCH):
                with here.signals.deferred():
                    removed += found.remove_aside(database, ids[start : start + limits.VERB_BATCH])
            here.tell(f"{removed} removed", {"queue": queue, "removed": removed})
        elif path is None:
            here.show(_listed(database, found, count), columns("id", "when", "bytes", "key", "reason"))


def _queue(place: Place, database: Database, name: str) -> KeepsAside:
    """Open the queue of that name, of any kind. Raises CommandError."""
    definition = place.definition(database, name)
    if definition.kind == PLAIN:
        return Queue.named(database, name, root=place.root, create=False)
    if definition.kind in ELEMENT_KINDS:
        return place.elements_in(definition)
    return place.tasks_in(database, name)


def _entries(database: Database, queue: KeepsAside) -> Iterator[SetAside]:
    return every_row(partial(queue.aside, database, limits.VERB_BATCH))


def _listed(database: Database, queue: KeepsAside, count: int) -> Iterator[Row]:
    for number, entry in enumerate(_entries(database, queue)):
        if number == count:
            say(f"more follow the first {count}: -n N lists N")
            return
        yield _row(entry)


def _row(entry: SetAside) -> Row:
    return {
        "id": entry.id,
        "when": entry.when,
        "bytes": sum(map(len, entry.values)),
        "key": entry.key.hex(),
        "reason": entry.reason,
        "values": [b64encode(value).decode() for value in entry.values],
    }


def _export(database: Database, queue: KeepsAside, path: Path) -> list[str]:
    """Append all entries to the file; return their ids."""
    written = []
    with about(path), path.open("ab") as file:
        for entry in _entries(database, queue):
            file.write(line_of(_row(entry)))
            written.append(entry.id)
        file.flush()
        os.fsync(file.fileno())  # the exported entries may be removed next
    return written
