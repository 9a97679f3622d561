"""`fdbqueue demo`: a fleet counts source files exactly once, though its processes are killed and stalled.

It kills processes of the fleet, stalls some past their leases, and checks the result. The handler counts a
part of a file, and writes the result with the ack. The keys of the demo in the database:

D["queues", ...]            the root of its task queue
D["part", path, number]     (digest, lines), written in the transaction of the ack
D["times", path, number]    number of these writes, an atomic add: proves "once"
D["parts"]                  number of counted parts, an atomic add
D["lines"]                  number of their lines, an atomic add
"""

import hashlib
import logging
import os
import random
import signal
import struct
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from fdb import tuple as layer
from fdb.subspace_impl import Subspace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdbqueue.core.database import Database, run
from fdbqueue.core.open import PRIVATE_URL
from fdbqueue.core.open import open as open_database
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Failure, TaskState
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Backoff, Done
from fdbqueue.fleet.supervisor import Fleet
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.queue import TaskQueue

_NOT_THE_LIBRARY = {"site-packages", "dist-packages"}


class Part(NamedTuple):
    """A part of a file. The file has `of` parts of about equal size, numbered from 0."""

    path: str
    number: int
    of: int


@dataclass(frozen=True)
class Counted:
    digest: bytes
    lines: int


def source_files() -> dict[str, int]:
    """Return the sizes of the files in bytes, by path, in order."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path for path in library.rglob("*.py") if not _NOT_THE_LIBRARY.intersection(path.parts))
    return {str(path): path.stat().st_size for path in sorted(found) if path.is_file()}


def parts_of(sizes: Mapping[str, int], wanted: int) -> list[Part]:
    """Split the files into `wanted` parts in all: large files into more parts, each into one at least."""
    more, total = max(0, wanted - len(sizes)), max(1, sum(sizes.values()))
    parts, bytes_before = [], 0
    for path, size in sizes.items():
        # The extra parts begin at even distances over all bytes; a file gets those within its own bytes.
        first, last = (more * position // total for position in (bytes_before, bytes_before + size))
        of = 1 + last - first
        parts += [Part(path, number, of) for number in range(of)]
        bytes_before += size
    return parts


def count(part: Part) -> Counted:
    """Return the digest and the number of lines of a part. Raises OSError."""
    content = Path(part.path).read_bytes()
    begin, end = (len(content) * number // part.of for number in (part.number, part.number + 1))
    return Counted(hashlib.sha256(content[begin:end]).digest(), content.count(b"\n", begin, end))


QUEUE = "parts"
ROWS_PER_READ = 2_000
_ONE = struct.pack("<q", 1)
PartId = tuple[str, int]
"""The path of a file, and the number of a part of it."""


class Ledger:
    def __init__(self, space: Subspace) -> None:
        self._space = space
        self.root = space["queues"]

    def count(self, tr: Transaction, part: Part, counted: Counted) -> None:
        place = part.path, part.number
        tr[self._space["part"][place[0]][place[1]]] = layer.pack((counted.digest, counted.lines))
        tr.add(self._space["times"][place[0]][place[1]], _ONE)
        tr.add(self._space["parts"], _ONE)
        tr.add(self._space["lines"], struct.pack("<q", counted.lines))

    def totals(self, tr: Transaction) -> tuple[int, int]:
        return _number(tr[self._space["parts"]].value), _number(tr[self._space["lines"]].value)

    def parts(self, database: Database) -> dict[PartId, Counted]:
        return {place: Counted(*layer.unpack(value)) for place, value in self._entries(database, "part")}

    def times(self, database: Database) -> dict[PartId, int]:
        return {place: _number(value) for place, value in self._entries(database, "times")}

    def erase(self, tr: Transaction) -> None:
        everything = self._space.range()
        tr.clear_range(everything.start, everything.stop)

    def _entries(self, database: Database, column: str) -> Iterator[tuple[Any, bytes]]:
        """Read a column, ROWS_PER_READ rows per transaction, so that none lasts longer than 5 s."""
        space = self._space[column]
        begin, end = space.range().start, space.range().stop
        while rows := run(database, lambda tr: tr.get_range(begin, end, limit=ROWS_PER_READ).to_list()):  # noqa: B023  # run() is done with it before `begin` moves
            for row in rows:
                yield space.unpack(row.key), row.value
            begin = rows[-1].key + b"\x00"


def _number(value: bytes | None) -> int:
    number: int = struct.unpack("<q", value)[0] if value is not None else 0
    return number


HANDLER = f"{__name__}:make"


def make(argument: Any) -> "Counting":
    """Make the handler of a worker process; `argument` is the prefix of the ledger, in hexadecimal."""
    # The demo causes the faults itself, and reports them at the end: the log would repeat them.
    logging.getLogger("fdbqueue").addHandler(logging.NullHandler())
    return Counting(Ledger(Subspace((), bytes.fromhex(argument))))


class Counting:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, task: HeldTask) -> None:
        part = Part(*task.data)
        counted = count(part)
        raise Done(lambda tr: self._ledger.count(tr, part, counted))


FIRST_STALL_S, FIRST_KILL_S = 0.5, 1.0
STALLED_EVERY_S, KILLED_EVERY_S = 9.0, 4.0
STALL_S = 6.0


class FaultInjector:
    """Kills and stalls processes. Call `tick` several times a second with the working processes."""

    def __init__(self) -> None:
        self.kills = 0
        self.stalls = 0
        """Number of processes that were stopped for longer than their leases, and went on."""
        self._kill_at_s = self._stall_at_s = float("inf")
        self._stopped: dict[int, float] = {}

    def tick(self, processes: Sequence[int]) -> None:
        now_s = time.monotonic()
        self._go_on(now_s)
        if processes and self._stall_at_s == float("inf"):
            self._stall_at_s, self._kill_at_s = now_s + FIRST_STALL_S, now_s + FIRST_KILL_S
        running = [process for process in processes if process not in self._stopped]
        if running and now_s >= self._stall_at_s:
            self._stall_at_s = now_s + _about(STALLED_EVERY_S)
            self._stop(random.choice(running), now_s)
        elif running and now_s >= self._kill_at_s:
            self._kill_at_s = now_s + _about(KILLED_EVERY_S)
            self.kills += _signalled(random.choice(running), signal.SIGKILL)

    def end(self) -> None:
        """Let all stopped processes go on."""
        self._go_on(float("inf"))

    def _stop(self, process: int, now_s: float) -> None:
        if _signalled(process, signal.SIGSTOP):
            self._stopped[process] = now_s + STALL_S

    def _go_on(self, now_s: float) -> None:
        for process, until_s in list(self._stopped.items()):
            if now_s >= until_s:
                del self._stopped[process]
                self.stalls += _signalled(process, signal.SIGCONT)


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)


def _signalled(process: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, number)
        return True
    return False


PROCESSES = 4
THREADS = 4
# Enough attempts that no good task uses all of them, though it may lose several workers.
ATTEMPTS = 10
LEASE_S = 4.0
BACKOFF = Backoff(first_s=0.1, growth=1.5, cap_s=1.0)
POISON = Part("/nowhere/poison.py", 0, 1)
PUT_AT_ONCE = 1_000
TICK_S = 0.1
TOLD_EVERY_S = 5.0
ERASE_TIMEOUT_S = 10.0


@dataclass
class Run:
    parts: Sequence[Part]
    faults: FaultInjector = field(default_factory=FaultInjector)
    seconds: float = 0.0
    restarts: int = 0


def main(url: str | None, tasks: int) -> int:
    """Run the demo in a temporary directory, or on `url`; return the exit status."""
    if url == PRIVATE_URL:  # several processes cannot share memory: use a temporary directory
        url = None
    console = Console(highlight=False)
    # The demo causes the faults itself: the log of the supervisor would only repeat them.
    logging.getLogger("fdbqueue").addHandler(logging.NullHandler())
    with Signals(finally_deaf=True), _somewhere(url) as (where, space), open_database(where) as database:
        ledger = Ledger(space)
        try:
            queue = TaskQueue.create(database, QUEUE, "fifottl", ttr=LEASE_S, root=ledger.root)
            done = Run(_put(console, database, queue, tasks, where))
            _work(console, database, ledger, done, where, space)
            return 0 if _prove(console, database, ledger, queue, done) else 1
        finally:
            if url is not None:
                run(database, ledger.erase, timeout_s=ERASE_TIMEOUT_S)


@contextmanager
def _somewhere(url: str | None) -> Iterator[tuple[str, Subspace]]:
    """Yield a URL, and an unused subspace there."""
    with tempfile.TemporaryDirectory(prefix="fdbqueue-demo-") as folder:
        # The name of the directory also makes the subspace unique on a shared cluster.
        yield url or f"embedded:{folder}/data", Subspace(("fdbqueue-demo", folder.rpartition("-")[2]))


def _put(console: Console, database: Database, queue: TaskQueue, tasks: int, url: str) -> list[Part]:
    """Put a task for each part of each file, and one that cannot succeed; return the parts."""
    files = source_files()
    parts = parts_of(files, tasks)
    console.print(
        f"{PROCESSES} processes count the lines of {len(parts):,} parts of {len(files):,} source files of "
        f"the standard library. Each part is a task of a queue in {url}, and one more task is poisoned. "
        "Meanwhile processes are killed (SIGKILL), or stopped for longer than their leases (SIGSTOP). Each "
        "part has to count exactly once.",
        soft_wrap=True,
    )
    middle = len(parts) // 2
    inputs = [*parts[:middle], POISON, *parts[middle:]]
    for start in range(0, len(inputs), PUT_AT_ONCE):
        queue.put_many(database, [list(part) for part in inputs[start : start + PUT_AT_ONCE]])
    return parts


def _work(console: Console, database: Database, ledger: Ledger, done: Run, url: str, space: Subspace) -> None:
    """Count all parts with a fleet, and kill and stall its processes meanwhile."""
    fleet = _fleet(ledger, url, space)
    began_s = monotonic()
    with _progress(console) as tell, _running(fleet) as is_running:
        try:
            while is_running(TICK_S):
                processes = fleet.status().processes
                done.faults.tick([one.process_id for one in processes if one.state == "working"])
                counted, _ = run(database, ledger.totals)
                tell(
                    f"{counted:,} of {len(done.parts):,} counted; "
                    f"{done.faults.kills} killed, {done.faults.stalls} stalled past their leases"
                )
        finally:
            done.faults.end()
    done.seconds = monotonic() - began_s
    done.restarts = fleet.status().restarts


def _fleet(ledger: Ledger, url: str, space: Subspace) -> Fleet:
    return Fleet(
        url,
        QUEUE,
        HANDLER,
        argument=space.key().hex(),
        processes=PROCESSES,
        threads=THREADS,
        attempts=ATTEMPTS,
        backoff=BACKOFF,
        session_ttr_s=LEASE_S,
        until_empty=True,
        root=ledger.root,
    )


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line: alive on a terminal, and each TOLD_EVERY_S seconds elsewhere."""
    told_s = monotonic()

    def print_line(line: str) -> None:
        nonlocal told_s
        if monotonic() >= told_s + TOLD_EVERY_S:
            console.print(line)
            told_s = monotonic()

    with console.status("starting") as status:
        yield status.update if console.is_terminal else print_line


@contextmanager
def _running(fleet: Fleet) -> Iterator[Callable[[float], bool]]:
    """Run the fleet in another thread: the main thread gets the signals, and ends the fleet at once."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(fleet.run)
        try:
            yield lambda tick_s: not wait([future], tick_s).done
            future.result()
        finally:
            fleet.stop(at_once=True)


def _prove(console: Console, database: Database, ledger: Ledger, queue: TaskQueue, done: Run) -> bool:
    """Print the events, and check the result against a direct count. Return True if all checks hold."""
    console.print("All parts are counted. A direct count follows, to compare.")
    statistics = queue.statistics(database)
    buried = queue.tasks(database, TaskState.BURIED, 10)
    failures = queue.failures(database, buried[0]) if buried else []
    verified = verify(database, root=ledger.root)
    console.print(_table(statistics["calls"], done))
    walked = {(part.path, part.number): count(part) for part in done.parts}
    lines = sum(counted.lines for counted in walked.values())
    files = len({part.path for part in done.parts})
    checks = {
        f"each of {len(walked):,} parts of {files:,} files was counted exactly once": (
            ledger.times(database) == dict.fromkeys(walked, 1)
        ),
        f"the sums are those of a direct count: {len(walked):,} parts, {lines:,} lines": (
            run(database, ledger.totals) == (len(walked), lines)
        ),
        "every digest is that of a direct count": ledger.parts(database) == walked,
        f"the poisoned task is buried after {ATTEMPTS} attempts, with its traceback": (
            [task.data for task in buried] == [list(POISON)]
            and len(failures) == ATTEMPTS
            and bool(_tracebacks(failures))  # others may have died with their worker
        ),
        "nothing else is in the queue": statistics["tasks"]["total"] == 1,
        f"its {verified.keys:,} stored keys agree with each other": not verified.findings,
        "meanwhile workers were killed, and stalled past their leases": (
            done.faults.kills > 0 and done.faults.stalls > 0
        ),
    }
    for claim, holds in checks.items():
        console.print(f"{'[green]yes[/]' if holds else '[red]NO [/]'}  {claim}")
    for traceback in _tracebacks(failures)[-1:]:
        error = f"     the error of the poisoned task: {traceback.splitlines()[-1]}"
        console.print(Text(error, style="dim"), soft_wrap=True)
    held = all(checks.values())
    console.print("The demo has succeeded." if held else "[red]The demo has failed[/]: see NO above.")
    return held


def _tracebacks(failures: Sequence[Failure]) -> list[str]:
    return [failure.detail for failure in failures if "Traceback" in failure.detail]


def _table(calls: dict[str, int], done: Run) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, number in {
        "tasks": f"{len(done.parts) + 1:,}",
        "taken": f"{calls['take']:,}",
        "acked": f"{calls['ack']:,}",
        "given back, or lost with a worker's session": f"{calls['release']:,}",
        "leases over": f"{calls['ttr']:,}",
        "workers killed (SIGKILL)": f"{done.faults.kills}",
        "workers stalled (SIGSTOP)": f"{done.faults.stalls}",
        "workers started again": f"{done.restarts}",
        "seconds": f"{done.seconds:.1f}",
        "tasks/s": f"{len(done.parts) / done.seconds:,.0f}",
    }.items():
        table.add_row(name, number)
    return table
