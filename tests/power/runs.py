"""Recorded runs: of several processes, of a failing disk, of a directory opened again or upgraded."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import lmdb

import fdbqueue
from fdbqueue.embedded import layout
from tests.power import program, promises, recording, records
from tests.power.disk import Disk
from tests.power.promises import Expected
from tests.power.records import Kind, Record
from tests.power.shape import SHAPES

DATA = "data"


@dataclass(frozen=True)
class Run:
    """A recorded run below `root`; the disk as it was `before`, and the promises `known` by then."""

    root: Path
    before: Disk
    records: Sequence[Record]
    shape: str
    known: Expected = field(default_factory=Expected)
    failure: str = ""
    """The last words of a process that has failed."""

    @property
    def expected(self) -> Expected:
        """All notes, up to the end of the run."""
        expected = deepcopy(self.known)
        for record in self.records:
            if record.kind is Kind.NOTE:
                expected.hear(*record.note)
        return expected

    def pages(self, path: str) -> bytes:
        """The content of a mapped file at the end of the run; empty if it is gone."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return b""


def recorded(folder: Path, processes: int, steps: int, shape: str = "preallocated") -> Run:
    """Run `processes` programs on one new directory, and record them."""
    root = folder / "disk"
    root.mkdir()
    names = [f"process-{number}" for number in range(processes)]
    return _run(folder, root, Expected(), [_program("program", name, steps, shape) for name in names], shape)


def again(folder: Path, root: Path, known: Expected, name: str, steps: int, shape: str) -> Run:
    """Open the directory of a disk, work on it, and record all of that."""
    return _run(folder, root, known, [_program("again", name, steps, shape)], shape)


def upgraded(folder: Path, steps: int, shape: str = "preallocated") -> Run:
    """Open a directory of format 1 for the first time, and work on it."""
    root, known = folder / "disk", Expected()
    root.mkdir()
    _make_earlier(root / DATA, known)
    return again(folder, root, known, "upgrade", steps, shape)


def forged(folder: Path, seal: str) -> Run:
    """Let a process die, and the next one go on, on a directory with a value that looks like a record."""
    root, shape = folder / "disk", "tiny"
    root.mkdir()
    programs = [_program("forger", step, shape, seal) for step in ("die", "go-on")]
    first, second = (_run(folder, root, Expected(), [one], shape) for one in programs)
    return replace(first, records=[*first.records, *second.records], failure=first.failure + second.failure)


def failing(
    folder: Path, at: int, error: int, times: int = 1, shape: str = "preallocated"
) -> tuple[Run, int]:
    """Run the patient program; change number `at` of its disk fails, and the next ones, `times` in all.

    Return the run, and the program's exit status.
    """
    root = folder / f"failing-{at}-{error}" / "disk"
    root.mkdir(parents=True)
    return failing_again(folder, root, Expected(), at, error, times, shape)


def failing_again(
    folder: Path, root: Path, known: Expected, at: int, error: int, times: int, shape: str
) -> tuple[Run, int]:
    """As `failing`, on a disk with promises that are known: its opening fails, or its work."""
    log, before = root.with_name("log"), Disk(root)
    fault = {"FAIL_AT": str(at), "FAIL_ERRNO": str(error), "FAIL_TIMES": str(times)}
    words = ["tests.power.failing", str(root / DATA), str(log), shape]
    process = recording.start(recording.built(folder), root, log, *words, **fault)
    _, told = process.communicate(timeout=recording.LIMIT_S)
    return Run(root, before, list(records.read(log)), shape, known, told), process.returncode


def _program(module: str, *words: object) -> list[str]:
    return [f"tests.power.{module}", *map(str, words)]


def _run(folder: Path, root: Path, known: Expected, programs: Sequence[Sequence[str]], shape: str) -> Run:
    library, log = recording.built(folder), Path(tempfile.mkdtemp(dir=folder)) / "log"
    before = Disk(root)
    faults = {} if SHAPES[shape].can_allocate else {"CANNOT_ALLOCATE": "1"}
    started = [
        recording.start(library, root, log, module, str(root / DATA), str(log), *words, **faults)
        for module, *words in programs
    ]
    failure = "".join([recording.finish(process) for process in started])
    return Run(root, before, list(records.read(log)), shape, known, failure)


def _make_earlier(path: Path, known: Expected) -> None:
    """Make a directory as a release of format 1 has left it, and note its promises."""
    path.mkdir(mode=0o700)
    with tempfile.TemporaryDirectory() as made:
        with fdbqueue.open(f"embedded:{made}") as db:
            program.make_queue(db, known.hear)
            promises.work(db, "earlier", 20, known.hear)
        with closing(lmdb.open(made)) as env:
            env.copy(os.fspath(path), compact=True)
    with closing(lmdb.open(os.fspath(path))) as env, env.begin(write=True) as txn:
        layout.clear(txn)
        txn.put(layout.FORMAT_KEY, b"1.0")
    (path / "lock.mdb").unlink()
