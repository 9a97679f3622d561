"""The judge: it cuts the power at many moments of a recorded run, and opens each disk that may be left."""

import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fdbqueue
from fdbqueue.core.errors import QueueNotFound
from tests.power import promises, runs
from tests.power.child import told_by_child
from tests.power.disk import Disk
from tests.power.promises import Expected
from tests.power.records import Kind, Record
from tests.power.runs import DATA, Run
from tests.power.shape import SHAPES

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
    again = set(choose.sample(range(cuts), OPENED_AGAIN)) if later else set()
    for number, (moment, disk, expected) in enumerate(played(run, moments(run.records, cuts, choose))):
        with tempfile.TemporaryDirectory(dir=folder) as image:
            disk.cut(random.Random(f"{seed} {number}"), Path(image), run.pages)
            if number in again:
                own_seed = choose.randrange(1 << 32)
                name = f"again-{own_seed}"
                second = runs.again(folder, Path(image), deepcopy(expected), name, STEPS_AGAIN, run.shape)
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
