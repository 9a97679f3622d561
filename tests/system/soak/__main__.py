"""Kills and stops under load, then a count: python -m tests.system.soak [--minutes M] [--url URL]

Processes put, take and end values of all subjects in one database. At random moments one of them is stopped
(SIGSTOP) for a while, or killed (SIGKILL) and replaced. At the end all are killed. Then one process takes
all that is left, and the notes of all are compared with the keys (docs/tests.md). The exit status is 1 if a
promise was broken; then the keys and the notes stay. Ctrl-C ends the run early, and counts.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path

import fdbqueue
from fdbqueue.core.database import Database
from tests.system.soak.client import NOTES, Setup
from tests.system.soak.counting import Count, counted
from tests.system.soak.crew import Crew, working
from tests.system.soak.subjects import SUBJECTS

PROCESSES = 8
PAUSE_S = 0.35
FAULTS = "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_"
HEAD = f"{'subject':12} {'put':>9} {'ended':>9} {'again':>9} {'unknown':>9}"


class RootInUse(Exception):
    """The root of a soak has keys already."""


def soaked(
    directory: Path,
    setup: Setup,
    seconds: float,
    processes: int = PROCESSES,
    pause_s: float = PAUSE_S,
    seed: int = 0,
) -> tuple[Crew, list[Count]]:
    """Soak, and count. `directory`, an empty one, gets the notes. Raises: RootInUse."""
    faults = faults_taken(os.environ)
    environment = {**os.environ, **faults}
    with fdbqueue.open(setup.url) as db:
        prepare(directory, setup, db)
    with working(Crew(directory, processes, pause_s, seed, environment)) as crew:
        crew.wait_until_begun()
        crew.run(seconds)
    return crew, counted(directory, crew.strikes)


def faults_taken(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Take the variables for faults of FoundationDB's client: only the killed processes have them.

    The count reads hundreds of keys in a transaction, which has no chance to succeed among such faults.
    """
    names = [name for name in environment if name.startswith(FAULTS)]
    return {name: environment.pop(name) for name in names}


def prepare(directory: Path, setup: Setup, db: Database) -> None:
    """Create the queues of all subjects. Raises: RootInUse."""
    under = setup.space.range()
    if list(db.get_range(under.start, under.stop, limit=1)):
        raise RootInUse(f"the root {setup.root!r} has keys: give another --root, or clear it")
    (directory / NOTES).mkdir()
    setup.write(directory)
    for name in setup.subjects:
        SUBJECTS[name](setup).prepare(db)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="fdbqueue-soak-", dir=options.directory))
    url = options.url or f"embedded:{directory / 'data'}"
    setup = Setup(url, options.subjects, options.root, wait_s=options.wait)
    print(f"seed {seed}, {setup.url}, notes in {directory}", flush=True)
    try:
        crew, counts = soaked(directory, setup, options.minutes * 60, options.processes, options.pause, seed)
    except RootInUse as in_use:
        print(in_use, file=sys.stderr)
        shutil.rmtree(directory)
        return 2
    print(f"{crew.kills} kills, {crew.stops} stops\n{HEAD}", *counts, sep="\n")
    return _ended(directory, setup, counts)


def _ended(directory: Path, setup: Setup, counts: Sequence[Count]) -> int:
    """Tell the verdict. Without a finding, remove everything. Return the exit status."""
    findings = [f"{count.subject}: {finding}" for count in counts for finding in count.findings]
    if findings:
        print(*findings, sep="\n")
        return 1
    total = sum(count.put for count in counts)
    print(f"{total:,} values: nothing lost, twice, early, stuck or out of order; counters and keys are right")
    with fdbqueue.open(setup.url) as db:
        db.clear_range_startswith(setup.space.key())
    shutil.rmtree(directory)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.system.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--url", help="the database; a new directory by default")
    parser.add_argument("--root", default="soak", help="all keys lie below this text; it must have none")
    parser.add_argument("--subjects", type=_subjects, default=tuple(SUBJECTS), help=", ".join(SUBJECTS))
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="average seconds between two signals")
    parser.add_argument("--seed", type=int, help="of the signals; the order of calls is not repeatable")
    parser.add_argument("--wait", type=float, default=0.2, help="longest wait of a take, in seconds")
    parser.add_argument("--directory", help="where to make the notes; choose a disk to test flushes")
    return parser


def _subjects(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    for name in names:
        if name not in SUBJECTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SUBJECTS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
