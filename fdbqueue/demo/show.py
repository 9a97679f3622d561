"""The demo from above: run the fleet, kill one of it, and prove what came out."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fdb.subspace_impl import Subspace
from rich.console import Console
from rich.status import Status
from rich.table import Table

from fdbqueue.cli.signals import Signals
from fdbqueue.database import Database, run
from fdbqueue.demo.files import count, source_files
from fdbqueue.demo.fleet import Fleet
from fdbqueue.demo.ledger import Counted, Ledger, Work
from fdbqueue.errors import InvalidArgument
from fdbqueue.open import open as open_database

TICK_S = 0.05
ERASE_TIMEOUT_S = 10.0


def main(url: str | None = None) -> int:
    """Run it on a temporary directory, or on `url`; the process's exit status."""
    if url == "memory:":
        raise InvalidArgument(
            name="the demo's url", wanted="a database that several processes share", got=url
        )
    console = Console(highlight=False)
    with Signals(finally_deaf=True), _somewhere(url) as (where, space), open_database(where) as database:
        ledger = Ledger(space)
        try:
            kills = _run(console, database, ledger, where, space)
            return 0 if _prove(console, database, ledger, kills) else 1
        finally:
            if url is not None:
                run(database, ledger.erase, timeout_s=ERASE_TIMEOUT_S)


@contextmanager
def _somewhere(url: str | None) -> Iterator[tuple[str, Subspace]]:
    """A URL, and a part of it that is nobody else's."""
    with tempfile.TemporaryDirectory(prefix="fdbqueue-demo-") as folder:
        # Its name makes the subspace unique, too, on a cluster that others share.
        yield url or f"embedded:{folder}/data", Subspace(("fdbqueue-demo", folder.rpartition("-")[2]))


def _run(console: Console, database: Database, ledger: Ledger, url: str, space: Subspace) -> int:
    """Have all files counted by a fleet that loses a member half-way; how many it lost."""
    total = len(source_files())
    console.print(f"{total:,} source files of the standard library, through a queue in {url}", soft_wrap=True)
    run(database, ledger.open)
    with console.status("starting") as status, Fleet(url, space) as fleet:
        fleet.start()
        open_ended = True
        while fleet.running(TICK_S):
            counted, waiting = run(database, ledger.progress)
            _show(status, counted, waiting, total)
            if not fleet.kills and counted >= total // 2:
                fleet.kill_one()
                console.print(f"{counted:,} counted: one consumer killed (SIGKILL), a new one started")
            if open_ended and not fleet.producing:
                run(database, ledger.no_more)
                open_ended = False
    return fleet.kills


def _show(status: Status, counted: int, waiting: int, total: int) -> None:
    status.update(f"{counted:,} of {total:,} counted, {waiting:,} in the queue")


def _prove(console: Console, database: Database, ledger: Ledger, kills: int) -> bool:
    """Print what happened, and check it against a walk of our own; whether everything is as it should be."""
    console.print(_table(run(database, ledger.work), kills))
    walked = {path: count(path) for path in source_files()}
    times, files = run(database, ledger.times), run(database, ledger.files)
    counted, waiting = run(database, ledger.progress)
    lines = sum(file.lines for file in walked.values())
    checks = {
        f"each of {len(walked):,} files was counted exactly once": _each_once(times, walked),
        f"the sums are those of a direct walk: {counted:,} files, {lines:,} lines": (
            counted == len(walked) and run(database, ledger.lines) == lines
        ),
        "every digest is that of a direct walk": files == walked,
        "the queue is empty": waiting == 0,
        "one consumer was killed on the way": kills == 1,
    }
    for claim, holds in checks.items():
        console.print(f"{'[green]yes[/]' if holds else '[red]NO [/]'}  {claim}")
    return all(checks.values())


def _each_once(times: dict[str, int], walked: dict[str, Counted]) -> bool:
    return times.keys() == walked.keys() and set(times.values()) <= {1}


def _table(work: dict[str, Work], kills: int) -> Table:
    table = Table("", "items", "seconds", "items/s", "conflicts", "retries", "kills", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for role, role_kills in (("producers", 0), ("consumers", kills)):
        done = [entry for name, entry in work.items() if name.startswith(role[:-1])]
        items = sum(entry.items for entry in done)
        seconds = max(entry.ended_s for entry in done) - min(entry.began_s for entry in done)
        conflicts, retries = sum(entry.conflicts for entry in done), sum(entry.retries for entry in done)
        numbers = (f"{items:,}", f"{seconds:.2f}", f"{items / seconds:,.0f}", conflicts, retries, role_kills)
        table.add_row(role, *map(str, numbers))
    return table
