"""The judge: it cuts the power at many moments of a recorded run, and opens each disk that may be left."""

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import fdbqueue
from fdbqueue.errors import QueueNotFound
from tests.power import promises, recording, records
from tests.power.disk import Disk
from tests.power.promises import Expected
from tests.power.records import Kind, Record

DATA = "data"

Edit = Callable[[list[Record]], Iterable[Record]]


@dataclass(frozen=True)
class Found:
    """A promise that the disk of one power cut breaks. `moment`: the number of records before the cut."""

    moment: int
    seed: int
    text: str


@dataclass(frozen=True)
class Run:
    """A recorded run below `root`, and the disk as it was `before`."""

    root: Path
    before: Disk
    records: Sequence[Record]

    @property
    def expected(self) -> Expected:
        """Its notes, up to its end."""
        expected = Expected()
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


def recorded(folder: Path, processes: int, steps: int) -> Run:
    """Run `processes` programs on one directory, and record them."""
    library, root, log = recording.built(folder), folder / "disk", folder / "log"
    root.mkdir()
    before = Disk(root)
    words = ["tests.power.program", str(root / DATA), str(log)]
    started = [
        recording.start(library, root, log, *words, f"process-{number}", str(steps))
        for number in range(processes)
    ]
    for process in started:
        recording.finish(process)
    return Run(root, before, list(records.read(log)))


def judge(run: Run, folder: Path, cuts: int, seed: int) -> Iterator[Found]:
    """Cut the power at `cuts` moments of a run."""
    choose = random.Random(seed)
    moments = sorted(choose.choices(range(1, len(run.records) + 1), k=cuts))
    disk, expected, played = deepcopy(run.before), Expected(), 0
    for number, moment in enumerate(moments):
        for record in run.records[played:moment]:
            if record.kind is Kind.NOTE:
                expected.hear(*record.note)
            else:
                disk.play(record)
        played = moment
        with tempfile.TemporaryDirectory(dir=folder) as image:
            disk.cut(random.Random(f"{seed} {number}"), Path(image), run.pages)
            for text in opened(Path(image) / DATA, expected):
                yield Found(moment, number, text)


def failing(folder: Path, at: int, error: int) -> tuple[Run, int]:
    """Run the patient program on a disk whose change number `at` fails; the run, and its exit status."""
    own = folder / f"failing-{at}-{error}"
    library, root, log = recording.built(folder), own / "disk", own / "log"
    root.mkdir(parents=True)
    before = Disk(root)
    fault = {"FAIL_AT": str(at), "FAIL_ERRNO": str(error), "FAIL_TIMES": "1"}
    words = ["tests.power.failing", str(root / DATA), str(log)]
    process = recording.start(library, root, log, *words, **fault)
    process.communicate(timeout=recording.LIMIT_S)
    return Run(root, before, list(records.read(log))), process.returncode


def opened(path: Path, expected: Expected) -> Iterator[str]:
    """Open the directory of a cut, and tell the promises that it breaks."""
    try:
        with fdbqueue.open(f"embedded:{path}") as db:
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
