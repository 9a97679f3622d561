"""The demo: runs a fleet, kills its processes, stalls some past their leases, and checks the result."""

import logging
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic

from fdb.subspace_impl import Subspace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdbqueue.core.database import Database, run
from fdbqueue.core.open import PRIVATE_URL
from fdbqueue.core.open import open as open_database
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Failure, TaskState
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.supervisor import Fleet
from fdbqueue.operate.demo.handler import HANDLER
from fdbqueue.operate.demo.ledger import QUEUE, Counted, Ledger, Part, count, parts_of, source_files
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.queue import TaskQueue

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
                done.faults.tick(_at_work(fleet))
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
        max_attempts=ATTEMPTS,
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


def _at_work(fleet: Fleet) -> list[int]:
    return [process.process_id for process in fleet.status().processes if process.state == "working"]


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
        f"each of {len(walked):,} parts of {files:,} files was counted exactly once": _each_once(
            ledger.times(database), walked
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
        error = f"     its error: {traceback.splitlines()[-1]}"
        console.print(Text(error, style="dim"), soft_wrap=True)
    held = all(checks.values())
    console.print("The demo has succeeded." if held else "[red]The demo has failed[/]: see NO above.")
    return held


def _each_once(times: dict[tuple[str, int], int], walked: dict[tuple[str, int], Counted]) -> bool:
    return times.keys() == walked.keys() and set(times.values()) <= {1}


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
