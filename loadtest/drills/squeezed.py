"""A cluster that Ratekeeper squeezes: python -m loadtest.drills.squeezed [--seconds N] [--judge-latency]

One server runs on 127.0.0.1, and a foreign writer fills its write queue. Knobs scale the batch target of that
queue down, so transactions of batch priority get no read version. Foreign reads, a recipe queue and a task
queue go on. In every second phase a process does background work: verify, export, redrive, purge, sweeps. The
foreign reads must not become slower. Living workers must keep their leases, and no task may run twice. After
a broken promise the exit status is 1.

The latency is judged with --judge-latency alone: a machine that others use delays reads by itself. With
--control the background work has default priority, for comparison.
"""

import argparse
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import DeadLetters, Session, Task, TaskQueue, transactional, verify
from fdbqueue.core import limits
from fdbqueue.core.errors import NotTaken, RedriveUnderWay, UnknownSession
from fdbqueue.core.registry import Registry
from fdbqueue.operate.exports.exporting import Export
from loadtest.drills.load import Load
from loadtest.drills.servers import PATIENCE_S, Servers, wait_until
from loadtest.ledger import Verdict

# A thousandth of the defaults for batch priority. A server keeps five seconds of writes in its queue.
KNOBS = {
    "target_bytes_per_storage_server_batch": 750_000,
    "spring_bytes_storage_server_batch": 100_000,
}
FOREIGN_KEYS, FOREIGN_BYTES, FOREIGN_WRITES_PER_S = 200, 10_000, 40
READERS, READS_PER_S = 4, 200
CLIENTS = 2
PAUSE_S, WORK_S = 0.05, 0.02
HELD, HELD_TTR_S = 8, 6.0
STOCK, BURIED, WASTE, FEW = 2_000, 500, 2_000, 500
RATIO_MAX = 1.10
SETUP_S = 600


@dataclass(frozen=True)
class Phase:
    """Counts and latencies of the measured part of a phase."""

    is_background_on: bool
    reads: int
    p50_ms: float
    p99_ms: float
    puts: int
    default_started: int
    batch_started: int
    batch_limit_per_s: float
    limited_by: str
    """What limits batch priority: "workload" if nothing does."""


@dataclass(frozen=True)
class Report:
    phases: Sequence[Phase]
    rounds: Mapping[str, int]
    """How often each kind of background work was done, or a step of it."""
    batch: int
    fallbacks: int
    lost: Sequence[str]
    """Leases and sessions of living workers that have ended."""
    verdict: Verdict

    def p99_ms(self, is_background_on: bool) -> float:
        """The median of the phases."""
        return median(phase.p99_ms for phase in self.phases if phase.is_background_on is is_background_on)

    @property
    def ratio(self) -> float:
        return self.p99_ms(True) / self.p99_ms(False)

    def broken(self, *, is_control: bool = False, is_latency_judged: bool = False) -> list[str]:
        """The promises that do not hold."""
        promises = {
            "the cluster holds batch priority back": all(
                phase.limited_by != "workload" for phase in self.phases
            ),
            "work of default priority goes on": all(phase.puts for phase in self.phases),
            "background work asks at batch priority": is_control or self.batch > 0,
            "background work goes on while it is held back": is_control or self.fallbacks > 0,
            "living workers keep their leases": not self.lost,
            "no task is lost or runs twice": self.verdict.holds and not self.verdict.doubtful,
            "foreign reads are left alone": not is_latency_judged or self.ratio <= RATIO_MAX,
        }
        return [promise for promise, holds in promises.items() if not holds]

    def rows(self) -> Iterator[tuple[str, str]]:
        for number, phase in enumerate(self.phases, 1):
            yield (
                f"phase {number}, background {'on' if phase.is_background_on else 'off'}",
                f"p50 {phase.p50_ms:.2f} ms, p99 {phase.p99_ms:.2f} ms of {phase.reads:,} reads; "
                f"{phase.puts:,} puts; started: {phase.default_started:,} default, {phase.batch_started:,} "
                f"batch; batch limit {phase.batch_limit_per_s:.0f}/s by {phase.limited_by}",
            )
        off, on = self.p99_ms(False), self.p99_ms(True)
        yield "p99 of foreign reads, off", f"{off:.2f} ms"
        yield "p99 of foreign reads, on", f"{on:.2f} ms"
        yield "ratio", f"{self.ratio:.3f}"
        yield "attempts at batch priority", f"{self.batch:,}"
        yield "of them on at default priority", f"{self.fallbacks:,}"
        yield "background work", ", ".join(f"{name} {count:,}" for name, count in self.rounds.items())
        yield "leases and sessions lost", ", ".join(self.lost) or "0"
        yield "tasks and items", f"{self.verdict.produced:,}"
        yield "lost", f"{self.verdict.lost:,}"
        yield "run twice", f"{self.verdict.twice:,}"
        yield "findings of verify", f"{len(self.verdict.findings):,}"


class SteadyLoad(Load):
    """The load at a bounded rate. A run is noted where it begins, so that a second one is seen."""

    def __init__(self, cluster_file: Path, space: Subspace) -> None:
        super().__init__(cluster_file, space, CLIENTS)
        self.lost: list[str] = []

    def _produce(self, kind: str, put: Callable[[fdbqueue.Database, int], Any]) -> None:
        def steadily(db: fdbqueue.Database, number: int) -> None:
            put(db, number)
            time.sleep(PAUSE_S)

        super()._produce(kind, steadily)

    def _take_in(self, session: Session) -> None:
        try:
            while task := self._tasks.take(self.db, 0.5, session=session):
                self._run(task, session)
        except UnknownSession:
            self.lost.append("a session")
            raise

    def _run(self, task: Task, session: Session) -> None:
        @transactional
        def finish(tr: Any) -> None:
            self._tasks.ack(tr, task, session=session)
            self.witness.consumed(tr, item, delivery)

        item, delivery = ("task", task.data), os.urandom(8)
        self.witness.delivers(item, delivery)
        time.sleep(WORK_S)
        try:
            finish(self.db)
        except NotTaken:
            # The first attempt's commit may have succeeded (1021).
            if self.db[self.witness.consumed_row(item, delivery)] is None:
                self.lost.append(f"the lease of task {task.data}")


class Holder:
    """A living worker of a few long tasks, which renews its leases and its session, both of a short ttr."""

    def __init__(self, db: fdbqueue.Database, root: Subspace) -> None:
        self._db = db
        self._queue = TaskQueue.create(db, "held", "fifottl", ttr=HELD_TTR_S, root=root)
        self._queue.put_many(db, range(HELD))
        self._session = Session(db, ttr=HELD_TTR_S, root=root)
        self._tasks = self._queue.take_many(db, HELD, PATIENCE_S, session=self._session)

    def renew(self) -> None:
        self._queue.renew(self._db, self._tasks)

    def lost(self) -> list[str]:
        """Ack all. The tasks that another one could take, or that are no longer this worker's."""
        rival = self._queue.take_many(self._db, HELD)
        lost = [f"held task {task.data}" for task in rival]
        for task in self._tasks:
            try:
                self._queue.ack(self._db, task, session=self._session)
            except NotTaken:
                lost.append(f"the lease of held task {task.data}")
        self._session.end()
        return lost


@contextmanager
def repeated(per_s: float, body: Callable[[], object]) -> Iterator[None]:
    """Call `body` in a thread, at most `per_s` times a second. Its error ends the thread, which prints it."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(1 / per_s):
            body()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(PATIENCE_S)


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """A process of its own, so that no lock of this interpreter delays it or is delayed by it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    running = context.Process(target=target, args=(*args, theirs), daemon=True)
    running.start()
    theirs.close()
    try:
        yield ours
    finally:
        running.kill()
        running.join()


def read_on(url: str, prefix: bytes, orders: Connection) -> None:
    """Read foreign keys. At each order, send what reads have taken since the last one."""
    database, space, seconds = fdbqueue.open(url), Subspace(rawPrefix=prefix), list[float]()

    def read() -> None:
        key = space[random.randrange(FOREIGN_KEYS)].key()
        began = time.perf_counter()
        database[key]
        seconds.append(time.perf_counter() - began)

    with ExitStack() as readers:
        for _ in range(READERS):
            readers.enter_context(repeated(READS_PER_S / READERS, read))
        while orders.recv():
            orders.send([seconds.pop() for _ in range(len(seconds))])


def work_on(url: str, root: bytes, is_on: bool, orders: Connection) -> None:
    """Background work, each kind in a thread, or none, until an order comes. Send what was done, and end.

    It stands for another host: it leaves the processors of this one to the server and the readers.
    """
    os.nice(19)
    work = Background(fdbqueue.open(url), Subspace(rawPrefix=root))
    kinds = (work.verify, work.export, work.redrive, work.purge, work.sweep)
    for kind in kinds if is_on else ():
        threading.Thread(target=work.repeat, args=(kind,), daemon=True).start()
    orders.recv()
    counters = work.database.counters
    orders.send((work.rounds, counters.batch, counters.fallbacks, work.failures))
    os._exit(0)  # its threads may wait for a cluster that holds them back


class Background:
    """The background work of fdbqueue, on queues of its own; verify and export look at those of the load."""

    def __init__(self, database: fdbqueue.Database, root: Subspace) -> None:
        self.database = database
        self.root = root
        self.rounds: Counter[str] = Counter()
        self.failures: list[str] = []

    def repeat(self, kind: Callable[[], None]) -> None:
        try:
            while True:
                kind()
        except Exception as error:
            self.failures.append(f"{kind.__name__}: {error!r}")

    def verify(self) -> None:
        self.failures += [finding.text for finding in verify(self.database, root=self.root).findings]
        self.rounds["verifications"] += 1

    def export(self) -> None:
        with tempfile.TemporaryDirectory(prefix="fdbqueue-squeezed-") as directory:
            export = Export(self.database, Registry(self.root), ["stock"], in_use=True)
            for _ in export.run(Path(directory, "stock.export")):
                self.rounds["batches exported"] += 1

    def redrive(self) -> None:
        dead = DeadLetters.open(self.database, "buried", root=self.root)
        with suppress(RedriveUnderWay):  # of a phase before
            dead.begin_redrive(self.database, rate_per_s=500.0)
        dead.run_redrive(self.database)
        TaskQueue.open(self.database, "buried", root=self.root).change(self.database, {}, do="bury")
        self.rounds["redrives"] += 1

    def purge(self) -> None:
        waste = TaskQueue.open(self.database, "waste", root=self.root)
        self.rounds["tasks purged"] += waste.change(self.database, {}, do="delete").changed
        time.sleep(1.0)

    def sweep(self) -> None:
        """Each look at a queue sweeps due tasks of it."""
        brief = TaskQueue.open(self.database, "brief", root=self.root)
        due = brief.statistics(self.database)["tasks"]["total"]
        time.sleep(0.1)
        self.rounds["tasks swept"] += due - brief.statistics(self.database)["tasks"]["total"]


def fill(database: fdbqueue.Database, root: Subspace, name: str, count: int, ttl: float) -> TaskQueue:
    """Put tasks for the background work into a queue."""
    queue = TaskQueue.create(database, name, "fifottl", if_not_exists=True, root=root)
    for _ in range(0, count, FEW):
        queue.put_many(database, ["x" * 200] * FEW, ttl=ttl)
    return queue


class Drill:
    def __init__(self, servers: Servers, load: SteadyLoad, reader: Connection, url: str) -> None:
        self.servers = servers
        self.load = load
        self.reader = reader
        self.url = url
        """Of the background work."""
        self.filler = fdbqueue.open(f"fdb:{servers.cluster_file}")
        """Without a session: it sweeps nothing."""
        self.rounds: Counter[str] = Counter()
        self.batch = self.fallbacks = 0
        self.failures: list[str] = []

    def run(self, pairs: int, settle_s: float, seconds: float) -> list[Phase]:
        """Every second pair begins with the work: a server that grows slower is no part of the ratio."""
        pair = (False, True)
        return [
            self.phase(is_on, settle_s, seconds)
            for number in range(pairs)
            for is_on in (pair if number % 2 == 0 else reversed(pair))
        ]

    def phase(self, is_on: bool, settle_s: float, seconds: float) -> Phase:
        """Without work there is the same preparation and a process, which take time of the machine, too."""
        fill(self.filler, self.load.root, "waste", WASTE, math.inf)
        fill(self.filler, self.load.root, "brief", WASTE, settle_s)
        with process(work_on, self.url, self.load.root.key(), is_on) as background:
            seen = self.measured(is_on, settle_s, seconds)
            background.send(None)
            rounds, batch, fallbacks, failures = background.recv()
        self.rounds += rounds
        self.batch += batch
        self.fallbacks += fallbacks
        self.failures += failures
        return seen

    def measured(self, is_on: bool, settle_s: float, seconds: float) -> Phase:
        time.sleep(settle_s)
        before, puts = self.servers.status()["cluster"], self.load.progress()
        self.latencies()
        time.sleep(seconds)
        found, puts = sorted(self.latencies()), self.load.progress() - puts
        if not found:
            raise TimeoutError("no foreign read is answered")
        after = self.servers.status()["cluster"]
        return Phase(
            is_on,
            reads=len(found),
            p50_ms=quantile_ms(found, 0.5),
            p99_ms=quantile_ms(found, 0.99),
            puts=puts,
            default_started=started(after, "default") - started(before, "default"),
            batch_started=started(after, "batch") - started(before, "batch"),
            batch_limit_per_s=after["qos"]["batch_transactions_per_second_limit"],
            limited_by=limited_by(after),
        )

    def latencies(self) -> list[float]:
        self.reader.send(True)
        found: list[float] = self.reader.recv()
        return found


def limited_by(cluster: Any) -> str:
    name: str = cluster["qos"].get("batch_performance_limited_by", {}).get("name", "workload")
    return name


def started(cluster: Any, priority: str) -> int:
    count: int = cluster["workload"]["transactions"][f"started_{priority}_priority"]["counter"]
    return count


def quantile_ms(ordered: Sequence[float], quantile: float) -> float:
    return ordered[int(quantile * len(ordered))] * 1_000


def drill(settle_s: float, seconds: float, pairs: int = 2, *, is_control: bool = False) -> Report:
    """Raises TimeoutError if something takes too long, RuntimeError if background work fails."""
    with (
        tempfile.TemporaryDirectory(prefix="fdbqueue-squeezed-") as directory,
        Servers(
            Path(directory),
            datacenters=[""],
            coordinators=[0],
            configuration={"redundancy_mode": "single", "storage_engine": "ssd-2"},
            knobs=KNOBS,
        ) as servers,
    ):
        url, space = f"fdb:{servers.cluster_file}", Subspace(("fdbqueue-load", "squeezed"))
        load = SteadyLoad(servers.cluster_file, space)
        foreign, value = space["foreign"], os.urandom(FOREIGN_BYTES)

        def write() -> None:
            load.db[foreign[random.randrange(FOREIGN_KEYS)].key()] = value

        for number in range(FOREIGN_KEYS):
            load.db[foreign[number].key()] = value
        fill(load.db, load.root, "stock", STOCK, math.inf)
        fill(load.db, load.root, "buried", BURIED, math.inf).change(load.db, {}, do="bury")
        holder = Holder(load.db, load.root)
        with (
            load,
            repeated(FOREIGN_WRITES_PER_S, write),
            repeated(limits.BEATS_PER_TTR / HELD_TTR_S, holder.renew),
            process(read_on, url, foreign.key()) as reader,
        ):
            wait_until(
                lambda: limited_by(servers.status()["cluster"]) != "workload",
                "Ratekeeper never holds batch priority back",
            )
            run = Drill(servers, load, reader, f"{url}?priority=default" if is_control else url)
            phases = run.run(pairs, settle_s, seconds)
            lost = holder.lost()
        if run.failures:
            raise RuntimeError("; ".join(run.failures))
        report = Report(phases, run.rounds, run.batch, run.fallbacks, lost + load.lost, load.judge())
        run.filler.close()
        load.db.close()
        return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="the measured part of a phase")
    parser.add_argument("--settle", type=float, default=10.0, help="the part before it, in seconds")
    parser.add_argument("--pairs", type=int, default=2, help="how often both phases follow each other")
    parser.add_argument("--judge-latency", action="store_true", help=f"the ratio is at most {RATIO_MAX}")
    parser.add_argument("--control", action="store_true", help="background work has default priority")
    asked = parser.parse_args()
    # The binding makes a semaphore for each wait, and a process that is killed removes none.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("the drill takes too long"))
    signal.alarm(SETUP_S + round(2 * asked.pairs * (asked.settle + asked.seconds)))
    report = drill(asked.settle, asked.seconds, asked.pairs, is_control=asked.control)
    for name, value in report.rows():
        print(f"{name:32}{value}")
    broken = report.broken(is_control=asked.control, is_latency_judged=asked.judge_latency)
    for promise in broken:
        print(f"broken: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
