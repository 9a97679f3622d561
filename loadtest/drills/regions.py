"""A region dies under load: python -m loadtest.drills.regions [--lag SECONDS] [--no-satellite] [--back]

Five servers, of two regions and a satellite, run on 127.0.0.1. Clients put and take. The remote region stands
still for some seconds, so that only the primary one and its satellite have the last commits. Then all servers
of the primary region are killed, and a worker. The remote region must take over by itself, with all that was
confirmed. After a loss or another broken promise the exit status is 1.

With --no-satellite the takeover is forced, and loses the last commits. With --back the primary
region is started again, and must take over.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Session, Task, TaskQueue
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import deadline_of
from fdbqueue.operate.checks import check_cluster, see_status
from loadtest.drills.load import Load
from loadtest.drills.servers import PATIENCE_S, Servers, wait_until
from loadtest.ledger import Verdict

PRIMARY, SATELLITE, REMOTE = "east", "near-east", "west"
DATACENTERS = (PRIMARY, PRIMARY, SATELLITE, REMOTE, REMOTE)
COORDINATORS = (0, 2, 3)
"""One in each datacenter: two are left when the primary one is dead."""
CLIENTS = 2
LONGEST_S = 900
LAG_S = 2.0
GOES_ON_ITEMS = 200
ANSWERS_WITHIN_S = 0.5
DEAD_TTR_S = 20.0
LIVING_TTR_S = 60.0
# Others end an overdue session within a few seconds, and the machine may be slow.
SWEPT_WITHIN_S = 15.0


def configuration(satellite: bool) -> dict[str, Any]:
    """Of `fileconfigure`: the primary region commits in its satellite, too, and the remote one follows."""
    primary: dict[str, Any] = {"datacenters": [{"id": PRIMARY, "priority": 1}]}
    if satellite:
        primary["datacenters"].append({"id": SATELLITE, "priority": 1, "satellite": 1})
        primary |= {"satellite_redundancy_mode": "one_satellite_single", "satellite_logs": 1}
    remote = {"datacenters": [{"id": REMOTE, "priority": 0}]}
    return {
        "redundancy_mode": "single",
        "storage_engine": "ssd-2",
        "usable_regions": 2,
        "regions": [primary, remote],
    }


@dataclass(frozen=True)
class Report:
    """Times in seconds after the kill, counts, and the judgement."""

    puts_before: int
    first_commit_s: float
    lease_due_s: float
    """When the lease of the killed worker was over, by its last heartbeat."""
    lease_ended_s: float
    lease_kept: bool
    warned: bool
    """True if `doctor` told that a region was away."""
    returned_s: float | None
    silence_s: float
    unknown_results: int
    verdict: Verdict

    @property
    def broken(self) -> list[str]:
        """The promises that do not hold."""
        latest_s = max(self.lease_due_s, self.first_commit_s) + SWEPT_WITHIN_S
        promises = {
            "nothing is lost, and nothing comes twice": self.verdict.holds,
            "each call that puts has an answer": not self.verdict.doubtful,
            "the lease of a killed worker ends in time": self.lease_due_s <= self.lease_ended_s <= latest_s,
            "a living worker keeps its lease": self.lease_kept,
            "the doctor tells that a region is away": self.warned,
        }
        return [promise for promise, holds in promises.items() if not holds]

    def rows(self) -> Iterator[tuple[str, str]]:
        verdict = self.verdict
        yield "puts confirmed before the kill", f"{self.puts_before:,}"
        yield "first commit after the kill", f"{self.first_commit_s:.1f} s"
        yield "longest time without a confirmed put", f"{self.silence_s:.1f} s"
        yield (
            "lease of the killed worker ended",
            f"{self.lease_ended_s:.1f} s, and was due at {self.lease_due_s:.1f} s",
        )
        yield "lease of a living worker kept", "yes" if self.lease_kept else "no"
        yield "doctor warns that a region is away", "yes" if self.warned else "no"
        if self.returned_s is not None:
            yield "primary region active again", f"{self.returned_s:.1f} s after its start"
        yield "puts confirmed", f"{verdict.produced:,}"
        yield "puts without an answer", f"{verdict.doubtful:,}"
        yield "unknown results, settled by receipts", f"{self.unknown_results:,}"
        yield "lost", f"{verdict.lost:,}"
        yield "given twice", f"{verdict.twice:,}"
        yield "findings of verify", f"{len(verdict.findings):,}"


HOLD = "import sys; from loadtest.drills.regions import hold; hold(*sys.argv[1:])"


def hold(url: str, root: str) -> None:
    """A worker, in a process of its own. It takes the task, names its session, and waits for its death."""
    space = Subspace(rawPrefix=bytes.fromhex(root))
    with fdbqueue.open(url) as db:
        session = Session(db, ttr=DEAD_TTR_S, root=space)
        if TaskQueue.open(db, "held", root=space).take(db, PATIENCE_S, session=session) is None:
            raise TimeoutError("the worker takes no task")
        print(session.id.hex(), flush=True)
        signal.pause()


@contextmanager
def dying_worker(db: fdbqueue.Database, root: Subspace) -> Iterator[Callable[[], float]]:
    """A worker with a task. The function that is yielded kills it; it returns the deadline of its lease."""
    command = [sys.executable, "-c", HOLD, db.url, root.key().hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:

        def kill() -> float:
            worker.kill()
            worker.wait()
            return deadline_of(db[RootKeys(root).heartbeat(session)]) / 1e6

        try:
            assert worker.stdout is not None
            session = bytes.fromhex(worker.stdout.readline())
            yield kill
        finally:
            worker.kill()


class Drill:
    def __init__(self, servers: Servers, load: Load, lag_s: float, satellite: bool) -> None:
        self.servers = servers
        self.load = load
        self.lag_s = lag_s
        self.satellite = satellite
        self.held = TaskQueue.create(load.db, "held", "fifo", root=load.root)
        self.kept = TaskQueue.create(load.db, "kept", "fifo", root=load.root)

    def run(self, back: bool) -> Report:
        db, load, returned_s = self.load.db, self.load, None
        self.held.put(db, "of the killed worker")
        self.kept.put(db, "of the living worker")
        living = Session(db, ttr=LIVING_TTR_S, root=load.root)
        with load:
            kept = self.kept.take(db, PATIENCE_S, session=living)
            with dying_worker(db, load.root) as kill_worker:
                self.goes_on()
                killed, lease_due_s = self.kill_primary(kill_worker)
            first_commit_s = self.until_taken_over(killed)
            lease_kept = self.is_acked(kept, living)
            lease_ended_s = self.until_given_again() - killed
            warned = any("one region has no logs" in check.text for check in check_cluster(see_status(db)))
            self.goes_on()
            if back:
                returned_s = self.bring_back()
        living.end()
        return Report(
            puts_before=sum(moment < killed for moment in load.witness.times()),
            first_commit_s=first_commit_s,
            lease_due_s=lease_due_s,
            lease_ended_s=lease_ended_s,
            lease_kept=lease_kept,
            warned=warned,
            returned_s=returned_s,
            silence_s=load.silence(),
            unknown_results=db.counters.unknown,
            verdict=load.judge(),
        )

    def goes_on(self) -> None:
        goal = self.load.progress() + GOES_ON_ITEMS
        wait_until(lambda: self.load.progress() >= goal, "the load stands still")

    def kill_primary(self, kill_worker: Callable[[], float]) -> tuple[float, float]:
        """Kill the worker and the primary region, which the remote one lags behind. Return the time, and how
        much later the lease of the worker is due.
        """
        for number in self.servers.of(REMOTE):
            self.servers.freeze(number)
        # Acks and puts; the takes of these tasks follow after the kill.
        time.sleep(self.lag_s / 2)
        self.load.taking.clear()
        time.sleep(self.lag_s / 2)
        deadline = kill_worker()
        for number in self.servers.of(PRIMARY):
            self.servers.kill(number)
        killed, due_s = time.monotonic(), deadline - time.time()
        for number in self.servers.of(REMOTE):
            self.servers.thaw(number)
        return killed, due_s

    def until_taken_over(self, killed: float) -> float:
        """The time from the kill to the next confirmed put."""
        if not self.satellite:
            self.servers.ask(f"force_recovery_with_data_loss {REMOTE}")
        self.servers.until_active(REMOTE)
        # A call of before the kill may get its answer right after it.
        behind = killed + ANSWERS_WITHIN_S
        wait_until(lambda: self.load.witness.times()[-1] > behind, "no commit after the takeover")
        self.load.taking.set()
        return next(moment for moment in self.load.witness.times() if moment > behind) - killed

    def is_acked(self, task: Task | None, session: Session) -> bool:
        """True if the task is still this session's."""
        if task is None:
            return False
        try:
            self.kept.ack(self.load.db, task, session=session)
        except NotTaken:
            return False
        return True

    def until_given_again(self) -> float:
        """Wait for the task of the killed worker; return the time."""
        task = self.held.take(self.load.db, PATIENCE_S)
        if task is None:
            raise TimeoutError("the task of the killed worker never returns")
        self.held.ack(self.load.db, task)
        return time.monotonic()

    def bring_back(self) -> float:
        """Start the primary region again. The time until it is active."""
        began = time.monotonic()
        for number in self.servers.of(PRIMARY):
            self.servers.start(number)
        self.servers.until_active(PRIMARY)
        self.goes_on()
        return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lag", type=float, default=LAG_S, help="how far the remote region lags, in seconds")
    parser.add_argument("--no-satellite", action="store_true", help="force the takeover, and lose the lag")
    parser.add_argument("--back", action="store_true", help="start the primary region again")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("the drill takes too long"))
    signal.alarm(LONGEST_S)
    report = drill(asked.lag, satellite=not asked.no_satellite, back=asked.back)
    for name, value in report.rows():
        print(f"{name:40}{value}")
    print(f"verdict: {report.verdict}")
    for promise in report.broken:
        print(f"broken: {promise}")
    return 1 if report.broken else 0


def drill(lag_s: float = LAG_S, *, satellite: bool = True, back: bool = False) -> Report:
    """Raises TimeoutError if something takes too long."""
    with (
        tempfile.TemporaryDirectory(prefix="fdbqueue-regions-") as directory,
        Servers(
            Path(directory),
            datacenters=DATACENTERS,
            coordinators=COORDINATORS,
            configuration=configuration(satellite),
        ) as servers,
    ):
        load = Load(servers.cluster_file, Subspace(("fdbqueue-load", "regions")), CLIENTS)
        report = Drill(servers, load, lag_s, satellite).run(back)
        load.db.close()
        return report


if __name__ == "__main__":
    sys.exit(main())
