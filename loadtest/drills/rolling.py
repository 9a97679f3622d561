"""A rolling upgrade: python -m loadtest.drills.rolling [--url URL] [--processes N] [--per-s N]

N worker processes of one release work under load. One after the other, a process of a newer release begins,
and then an older one is drained. It prints a row for each. No task may be lost or begin twice, each drained
process has to end with status 0, and at the end all are of the new release. After a broken promise the exit
status is 1.

Without --url, it runs on a new directory. In a database, it clears the root "rolling", and uses that.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from subprocess import Popen

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import HeldTask, TaskQueue, Worker
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.fleet import status, steering
from fdbqueue.fleet.steering import Member, members, releases

ROOT = Subspace(("rolling",))
KEYS, BEGUN, QUEUE = RootKeys(ROOT), ROOT["begun"], "rolling"
OLD, NEW = "1.0", "1.1"
WORK_S, PUTS_TOGETHER, PATIENCE_S = 1.0, 5, 120.0
PER_S = 2.5
"""Tasks in a second for each process, so that each holds two or three."""


@dataclass(frozen=True)
class Replaced:
    place: str
    held: int
    """Tasks that the old process held when it was drained."""
    began_s: float
    """Time until the new process was there."""
    drained_s: float
    """Time until the old one had ended."""
    exit_status: int


@dataclass(frozen=True)
class Report:
    replaced: Sequence[Replaced]
    put: int
    lost: int
    twice: int
    left: int
    mixed: bool
    """True if two releases were seen beside each other."""
    at_the_end: dict[str, int]
    """Processes of each release."""

    def broken(self) -> list[str]:
        promises = {
            "no task is lost": not (self.lost or self.left),
            "no task begins twice": not self.twice,
            "there is a load": self.put >= len(self.replaced),
            "a drained process ends with status 0": all(not one.exit_status for one in self.replaced),
            "several releases are told": self.mixed,
            "all processes are of the new release": self.at_the_end == {NEW: len(self.replaced)},
        }
        return [promise for promise, holds in promises.items() if not holds]

    def lines(self) -> Iterator[str]:
        yield f"{'drained':24}{'held':>6}{'new after':>12}{'ended after':>13}{'status':>8}"
        for one in self.replaced:
            times = f"{one.began_s:>10.1f} s{one.drained_s:>11.1f} s"
            yield f"{one.place:24}{one.held:>6}{times}{one.exit_status:>8}"
        yield f"{self.put:,} tasks: {self.lost} lost, {self.twice} begun twice, {self.left} left"


def serve(url: str, release: str) -> int:
    """A worker process, which tells another release than it has. It ends when it is drained."""
    vars(status)["__version__"] = release
    with fdbqueue.open(url, create=False) as db:

        def handle(task: HeldTask) -> None:
            @fdbqueue.transactional
            def begin(tr: fdbqueue.Transaction) -> None:
                tr.add(BEGUN[task.data].key(), b"\x01")

            begin(db)
            time.sleep(WORK_S)

        worker = Worker(db, QUEUE, handle, threads=4, root=ROOT)
        worker.run()
        return 0 if worker.drained else 3


class Processes:
    """Those that live, by their process ids."""

    def __init__(self, url: str, db: fdbqueue.Database) -> None:
        self._url, self._db = url, db
        self.live: dict[int, Popen[bytes]] = {}

    def start(self, release: str, count: int = 1) -> None:
        """Start processes, and wait until they are listed."""
        command = [sys.executable, "-m", "loadtest.drills.rolling", "--url", self._url, "--serve", release]
        started = [Popen(command) for _ in range(count)]
        self.live |= {process.pid: process for process in started}
        ids = {process.pid for process in started}
        wait_until(lambda: ids <= {one.presence.process_id for one in members(self._db, KEYS)}, "begin")

    def drain(self, one: Member) -> int:
        """Return the exit status."""
        steering.drain(self._db, KEYS, [one])
        return self.live.pop(one.presence.process_id).wait(PATIENCE_S)

    def kill(self) -> None:
        for process in self.live.values():
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], told: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"the processes do not {told}")
        time.sleep(0.1)


@contextmanager
def load(db: fdbqueue.Database, queue: TaskQueue, per_s: float, put: list[int]) -> Iterator[None]:
    """Put numbers at a rate, and note those that were put."""
    stopping = threading.Event()

    def produce() -> None:
        while not stopping.wait(PUTS_TOGETHER / per_s):
            numbers = range(len(put), len(put) + PUTS_TOGETHER)
            queue.put_many(db, numbers)
            put.extend(numbers)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        stopping.set()
        producer.join()


def replace_one(processes: Processes, db: fdbqueue.Database, old: Member) -> Replaced:
    began = time.monotonic()
    processes.start(NEW)
    drained = time.monotonic()
    held = next(one.presence.held for one in members(db, KEYS) if one.same == old.same)
    exit_status = processes.drain(old)
    ended = time.monotonic()
    return Replaced(old.place, held, drained - began, ended - drained, exit_status)


def drill(url: str, count: int, per_s: float) -> Report:
    with ExitStack() as stack:
        db = stack.enter_context(fdbqueue.open(url))
        db.clear_range(ROOT.range().start, ROOT.range().stop)
        queue = TaskQueue.create(db, QUEUE, "fifottl", root=ROOT)
        processes, put = Processes(url, db), list[int]()
        stack.callback(processes.kill)
        processes.start(OLD, count)
        old = members(db, KEYS)
        with load(db, queue, per_s, put):
            replaced = [replace_one(processes, db, old[0])]
            mixed = len(releases(members(db, KEYS))) > 1
            replaced += [replace_one(processes, db, one) for one in old[1:]]
        wait_until(lambda: not queue.statistics(db)["tasks"]["total"], "take all tasks")
        at_the_end = releases(members(db, KEYS))
        for one in members(db, KEYS):
            processes.drain(one)
        return judged(db, queue, put, replaced, mixed or count == 1, at_the_end)


def judged(
    db: fdbqueue.Database,
    queue: TaskQueue,
    put: Sequence[int],
    replaced: Sequence[Replaced],
    mixed: bool,
    at_the_end: dict[str, int],
) -> Report:
    begun = {BEGUN.unpack(row.key)[0]: row.value[0] for row in db[BEGUN.range()]}
    return Report(
        replaced,
        len(put),
        lost=sum(number not in begun for number in put),
        twice=sum(times > 1 for times in begun.values()),
        left=queue.statistics(db)["tasks"]["total"],
        mixed=mixed,
        at_the_end=at_the_end,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="the database; without it, a new directory")
    parser.add_argument("--processes", type=int, default=20, help="worker processes")
    parser.add_argument("--per-s", type=float, default=PER_S, help="tasks put in a second, per process")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.url, asked.serve)
    with tempfile.TemporaryDirectory(prefix="fdbqueue-rolling-") as directory:
        report = drill(
            asked.url or f"embedded:{directory}/queues", asked.processes, asked.processes * asked.per_s
        )
    for line in report.lines():
        print(line)
    for promise in report.broken():
        print(f"broken: {promise}")
    return 1 if report.broken() else 0


if __name__ == "__main__":
    sys.exit(main())
