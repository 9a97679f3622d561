"""Recorded runs: of several processes, of a failing disk, of a directory opened again or upgraded.

The judge cuts the power at many moments of one, and opens each disk that may be left.
"""

import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import lmdb

import fdbqueue
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.embedded import layout
from tests.power import disk, program, promises, recording
from tests.power.child import told_by_child
from tests.power.disk import Disk, Kind, Record
from tests.power.promises import SHAPES, Expected

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
    return Run(root, before, list(disk.read(log)), shape, known, told), process.returncode


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
    return Run(root, before, list(disk.read(log)), shape, known, failure)


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


OPENED_AGAIN = 3
"""The disks of a run that are opened under the recorder, if their openings are cut, too."""
STEPS_AGAIN = 6


@dataclass(frozen=True)
class Found:
    """A promise that the disk of a power cut breaks. `moments`: the number of records before each cut."""

    moments: tuple[int, ...]
    text: str


def judge(run: Run, folder: Path, seed: int, cuts: int, *later: int) -> Iterator[Found]:
    """Cut the power at `cuts` moments of a run.

    Three of the disks are opened under the recorder, and work goes on there. The power is cut again at the
    first number of `later` moments of that. The other numbers are for the openings after those.
    """
    if run.failure:
        yield Found((), run.failure[-4000:])
    choose = random.Random(seed)
    twice = set(choose.sample(range(cuts), OPENED_AGAIN)) if later else set()
    for number, (moment, left, expected) in enumerate(played(run, moments(run.records, cuts, choose))):
        with tempfile.TemporaryDirectory(dir=folder) as image:
            left.cut(random.Random(f"{seed} {number}"), Path(image), run.pages)
            if number in twice:
                own_seed = choose.randrange(1 << 32)
                name = f"again-{own_seed}"
                second = again(folder, Path(image), deepcopy(expected), name, STEPS_AGAIN, run.shape)
                for one in judge(second, folder, own_seed, *later):
                    yield Found((moment, *one.moments), one.text)
            else:
                for text in told_by_child(partial(opened, Path(image) / DATA, expected, run.shape)):
                    yield Found((moment,), text)


def played(run: Run, at: Sequence[int]) -> Iterator[tuple[int, Disk, Expected]]:
    """Yield the disk and the promises at the moments `at`, which rise; both change with the next one."""
    disk, expected, begin = deepcopy(run.before), deepcopy(run.known), 0
    for moment in at:
        for record in run.records[begin:moment]:
            if record.kind is Kind.NOTE:
                expected.hear(*record.note)
            else:
                disk.play(record)
        begin = moment
        yield moment, disk, expected


def moments(run: Sequence[Record], count: int, choose: random.Random) -> list[int]:
    """Choose moments of a run: half of them anywhere, half near a kind of change that may be rare."""
    by_kind: defaultdict[Kind, list[int]] = defaultdict(list)
    for number, record in enumerate(run):
        by_kind[record.kind].append(number)
    kinds = sorted(by_kind)
    near = [choose.choice(by_kind[choose.choice(kinds)]) + choose.randrange(4) for _ in range(count // 2)]
    anywhere = choose.choices(range(1, len(run) + 1), k=count - len(near))
    return sorted(min(moment, len(run)) for moment in near + anywhere)


def opened(path: Path, expected: Expected, shape: str) -> Iterator[str]:
    """Open the directory of a cut, and tell the promises that it breaks."""
    try:
        with SHAPES[shape].used(), fdbqueue.open(f"embedded:{path}") as db:
            yield from promises.broken(db, expected)
            yield from going_on(db)
    except Exception as error:  # whatever it is: a program would not get to its data
        yield f"{type(error).__name__}: {error}"


def going_on(db: fdbqueue.Database) -> Iterator[str]:
    """Work on it as a program does after the restart of its machine."""
    with suppress(QueueNotFound):
        queue = fdbqueue.TaskQueue.open(db, promises.QUEUE)
        queue.put(db, "after the cut")
        task = queue.take(db, timeout=0)
        if task is None:
            yield "a task was put after the cut, and no task is there"
        else:
            queue.ack(db, task)


def main_folder() -> str | None:
    """A folder in memory, if there is one: images need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
