"""`fdbqueue export`, and `fdbqueue import file`, which reads its file."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.group import cli, in_a_place, json_option, queue_names, stdout_of
from fdbqueue.operate.cli.imports import import_
from fdbqueue.operate.cli.nearest import nearest
from fdbqueue.operate.cli.parameters import UsablePath
from fdbqueue.operate.cli.session import CREATE_HERE, CREATE_TASKS, Place
from fdbqueue.operate.cli.system import about
from fdbqueue.operate.cli.values import line_of
from fdbqueue.operate.exports.exporting import Export, Exported
from fdbqueue.operate.exports.file import FinishedFile
from fdbqueue.operate.exports.importing import Import, Imported

COUNTED = ("tasks", "items", "elements", "ended", "results", "set_aside", "leases", "cancelled", "unreadable")
"""The numbers of a queue, in the order in which they are told."""
_NOUNS = {"tasks": "task", "items": "item", "elements": "element", "ended": "ended task", "results": "result"}
_TOLD = {
    "set_aside": "set aside",
    "leases": "of them under leases, and ready in the file",
    "cancelled": "cancelled, and left out",
    "unreadable": "unreadable, and left out",
}


@cli.command("export")
@click.argument("path", metavar="FILE", type=UsablePath(dir_okay=False))
@click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=queue_names)
@click.option("--in-use", is_flag=True, help="export queues that are not paused")
@click.option("--leave-out", is_flag=True, help="leave groups and schedules out, and go on")
@json_option
@in_a_place
@click.pass_obj
def export(
    signals: Signals,
    /,
    place: Place,
    path: str,
    queues: tuple[str, ...],
    in_use: bool,
    leave_out: bool,
    as_json: bool,
) -> None:
    """Write QUEUEs, or all queues, whole into FILE, for `fdbqueue import file`.

    A queue has to be paused. With --in-use it need not be: then a task that is put, moved or ended meanwhile
    may be missing, or be in the file though it has ended. Tasks under leases are ready in the file. If the
    command is interrupted or killed, start it again with the same arguments: it goes on. Status 1: something
    in a queue cannot be read, or a queue was refused: then no new file is left.
    """
    if path == "-":
        raise click.BadParameter("an export goes on in its file, so it needs one", param_hint="FILE")
    with place.database() as database:
        for name in queues:
            place.definition(database, name, CREATE_TASKS)
        exported = Export(database, place.registry, queues, in_use=in_use, leave_out=leave_out)
        with about(path):
            unreadable = _tell(signals, exported.run(Path(path)), as_json)
    if unreadable:
        raise Refused(f"unreadable, and not in the file: {unreadable:,}; `fdbqueue verify` tells which")


@import_.command("file")
@click.argument("path", metavar="FILE", type=UsablePath(dir_okay=False))
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--create", is_flag=True, help="make the directory of the database if there is none")
@json_option
@in_a_place
@click.pass_obj
def file(
    signals: Signals, /, place: Place, path: str, queues: tuple[str, ...], create: bool, as_json: bool
) -> None:
    """Make the QUEUEs, or all queues, of FILE, which `fdbqueue export` has written.

    The whole file is checked before anything is written. A queue of the same name is refused, unless it is
    the interrupted import of this export: then the command goes on. No call can use a queue before it is
    whole. A queue that was paused is paused: `fdbqueue resume`. Limits that exist keep their numbers.
    """

    def trial(_: Database) -> None:
        with _finished(path, queues):
            pass

    with place.made(trial, create=create, cure=CREATE_HERE) as database, _finished(path, queues) as found:
        _tell(signals, Import(database, place.registry, found, queues).run(), as_json)


@contextmanager
def _finished(path: str, queues: Sequence[str]) -> Iterator[FinishedFile]:
    """The file, checked. Raises: BadParameter for a queue that is not in it."""
    with FinishedFile(Path(path)) as found:
        for name in queues:
            if name not in found.queues:
                like = ", ".join(map(repr, nearest(name, found.queues)))
                meant = f" (did you mean {like}?)" if like else ""
                raise click.BadParameter(f"{name!r} is not in {path}{meant}", param_hint="QUEUE")
        yield found


def _tell(signals: Signals, steps: Iterable[Exported | Imported], as_json: bool) -> int:
    """Tell the counts of each queue when it is done. Return the number of unreadable parts of queues."""
    unreadable, step = 0, None
    for step in steps:
        if step.is_done:
            unreadable += step.counts.get("unreadable", 0)
            row = _row(step)
            if as_json:
                stdout_of(signals).print(line_of(row))
            else:
                say(f"{step.name!r}: {_told(row)}")
        signals.check()
    if step is None:
        say("nothing to do: the file is a finished export; name another file for a new one")
    return unreadable


def _row(step: Exported | Imported) -> dict[str, Any]:
    row: dict[str, Any] = {"queue": step.name, **{name: step.counts.get(name, 0) for name in COUNTED}}
    return row | ({"earlier": step.was_there} if isinstance(step, Imported) else {})


def _told(row: dict[str, Any]) -> str:
    if row.get("earlier"):
        return "imported earlier"
    return ", ".join(_part(name, row[name]) for name in COUNTED if row[name]) or "empty"


def _part(name: str, count: int) -> str:
    return counted(count, _NOUNS[name]) if name in _NOUNS else f"{count:,} {_TOLD[name]}"
