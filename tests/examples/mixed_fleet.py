"""A fleet of workers in Python and in Node on one queue of a cluster, killed and stalled, and its judge.

Each worker writes its calls down. The judge of histories reads the calls of each task on its own: an order
with one task is right or not whatever others do. Times are those of the machine's monotonic clock.

    python -m tests.examples.mixed_fleet SECONDS DIRECTORY

runs one on the cluster of FDB_CLUSTER_FILE, with a line each minute, and the verdict at the end.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Database, Subspace, TaskQueue
from fdbqueue.testing.history import REFUSED, Call, Leases, judge, read
from tests.conftest import CLUSTER_FILE, TEST_ROOT

CLIENT = Path(__file__).parents[2] / "clients" / "node"
PROGRAMS = Path(__file__).parents[1] / "node"
NODE = shutil.which("node") or "node"
TTR_S, LONG_TTR_S = 1.0, 600.0
LIVE_US = 900_000
"""A lease lives that long, with all delays: its ttr is longer, and so is the life of its holder's session."""
STALL_S = 1.1, 2.5
"""A stalled worker finds its task at another one, or done."""
SLACK_US = 50_000
PATIENCE_S = 120.0
FAULTS = "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_"
"""FoundationDB's own client reads options with that prefix, and injects faults: tests/buggify.py."""


def asked(n: int) -> dict[str, Any]:
    """The task n: some hold their lease for longer than its first ttr, and so have to renew it."""
    what = {3: "release", 5: "fail"}.get(n % 7, "bury" if n % 29 == 0 else "ack")
    return {
        "n": n,
        "do": what,
        "s": 0.9 if n % 50 == 0 else 0.4 if n % 10 == 0 else 0.01,
        "parts": 3 if n % 10 == 0 else 1,
    }


@dataclass
class Fleet:
    """Workers at one queue. `client` is the folder of the client in Node, `faults` the share of places in
    FoundationDB's client that fail in its workers, in per cent.
    """

    db: Database
    space: Subspace
    directory: Path
    client: Path = CLIENT
    faults: int = 0
    patience_s: float = PATIENCE_S
    size: int = 4
    started: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    stalls: int = 0
    puts: list[Call] = field(default_factory=list)
    workers: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.queue = TaskQueue.create(
            self.db, "shared", "fifottl", ttr=TTR_S, attempts=float("inf"), root=self.space["root"]
        )

    def _start(self, kind: str) -> tuple[str, subprocess.Popen[bytes]]:
        self.started += 1
        history = self.directory / f"{kind}-{self.started}.history"
        places = [self.space[name].key().hex() for name in ("root", "effects")]
        if kind == "node":
            program = [
                NODE,
                str(PROGRAMS / "fleet_worker.js"),
                str(self.client),
                str(CLUSTER_FILE),
            ]
        else:
            program = [sys.executable, "-m", "tests.examples.fleet_worker", f"fdb:{CLUSTER_FILE}"]
        faults = self._faults() if kind == "node" and self.faults else {}
        return kind, subprocess.Popen([*program, *places, str(history)], env=os.environ | faults)

    def _faults(self) -> dict[str, str]:
        shares = {"ENABLE": "", "SECTION_ACTIVATED_PROBABILITY": "100"}
        shares["SECTION_FIRED_PROBABILITY"] = str(self.faults)
        return {FAULTS + name: value for name, value in shares.items()}

    def put(self, count: int) -> None:
        first = len(self.puts)
        tasks = [asked(n) for n in range(first, first + count)]
        begin_us = time.monotonic_ns() // 1000
        for is_long in (False, True):
            some = [task for task in tasks if is_held_long(task["n"]) == is_long]
            self.queue.put_many(self.db, some, ttr=LONG_TTR_S if is_long else TTR_S)
        end_us = time.monotonic_ns() // 1000
        self.puts += [Call("fleet", "put", task["n"], begin_us, end_us) for task in tasks]

    def kill_one(self) -> None:
        kind, process = self.workers.pop(self.dice.randrange(self.size))
        assert process.poll() is None, f"a worker in {kind} has ended by itself: {process.returncode}"
        process.kill()
        process.wait()
        self.kills[kind] += 1
        self.workers.append(self._start(kind))

    def stall_one(self) -> None:
        """For longer than a lease lasts. The others work on."""
        self._stall([self.dice.choice(self.workers)])

    def stall_all(self) -> None:
        """All workers: then leases end without a sweep."""
        self._stall(self.dice.sample(self.workers, len(self.workers)))

    def _stall(self, workers: list[tuple[str, subprocess.Popen[bytes]]]) -> None:
        for _, process in workers:
            process.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(*STALL_S))
        for _, process in workers:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        self.stalls += 1

    def run(self, seconds: float, strikes_a_second: float, ready: int = 30) -> Iterator[str]:
        """A line for each minute; then the tasks are worked off."""
        self.workers = [self._start("node" if at % 2 else "python") for at in range(self.size)]
        told = time.monotonic()
        last = told + seconds
        while time.monotonic() < last:
            if self.queue.statistics(self.db)["tasks"]["ready"] < ready:
                self.put(5)
            if self.dice.random() < 0.2 * strikes_a_second:
                self.dice.choice([self.kill_one, self.stall_one, self.stall_all])()
            time.sleep(0.2)
            if time.monotonic() >= told + 60:
                told += 60
                yield self.summary()
        while (
            self.queue.statistics(self.db)["tasks"]["total"] > self.buried
            and time.monotonic() < last + self.patience_s
        ):
            time.sleep(0.2)
        self.end()
        yield self.summary()

    @property
    def buried(self) -> int:
        return int(self.queue.statistics(self.db)["tasks"]["buried"])

    def end(self) -> None:
        for _, process in self.workers:
            process.kill()
            process.wait()

    def summary(self) -> str:
        counts = self.queue.statistics(self.db)
        tasks = {state: counts["tasks"][state] for state in ("ready", "taken", "delayed", "buried", "done")}
        calls = {name: counts["calls"][name] for name in ("take", "ack", "release", "bury", "ttr")}
        struck = f"kills {dict(self.kills)} stalls {self.stalls}"
        return f"{time.strftime('%H:%M:%S')} {len(self.puts)} put, {tasks} {calls} {struck}"

    def effects(self) -> dict[int, tuple[int, int]]:
        """For each task with effects: their number, and how many of them are of workers in Python."""
        rows = self.db.get_range_startswith(self.space["effects"].key())
        words = ((row.key[-4:], row.value[:4], row.value[4:8]) for row in rows)
        return {
            int.from_bytes(n, "big"): (int.from_bytes(a, "little"), int.from_bytes(b, "little"))
            for n, a, b in words
        }

    def broken(self) -> list[str]:
        """One sentence for each promise that is broken."""
        calls = read(self.directory)
        counts = self.queue.statistics(self.db)
        found = [*wrong_histories([*self.puts, *calls])]
        found += wrong_ends(calls)
        found += wrong_effects([call.argument for call in self.puts], calls, self.effects())
        found += wrong_counts(calls, counts, len(self.puts))
        if not fdbqueue.verify(self.db, root=self.space["root"]).sound:
            found.append("verify: the queue is not sound")
        return found


def is_held_long(n: int) -> bool:
    """Such a lease is over because its holder's session has died."""
    return n % 9 == 0


def wrong_histories(calls: list[Call]) -> Iterator[str]:
    """Each task by the model of leases. An end of whatever kind but a release ends the task; a failed
    attempt is a release.
    """
    model = Leases(LIVE_US)
    histories = defaultdict(list)
    attempts = defaultdict(list)
    for call in calls:
        if call.name == "take":
            if call.result is not None:
                n, token, attempt = call.result
                histories[n].append(replace(call, result=[n, token]))
                attempts[n].append((attempt, call))
        else:
            n = call.argument if call.name == "put" else call.argument[0]
            name = {"fail": "release", "bury": "ack"}.get(call.name, call.name)
            histories[n].append(replace(call, name=name))
    for n, history in histories.items():
        verdict = judge(history, model)
        if not verdict.is_sound:
            yield f"task {n}: {verdict}"
    yield from wrong_attempts(attempts, sum(call.name == "take" and not call.is_known for call in calls))


def wrong_attempts(attempts: dict[int, list[tuple[int, Call]]], unknown: int) -> Iterator[str]:
    """Each take of a task, known or unknown, has the next number."""
    for n, takes in attempts.items():
        numbers = [0, *sorted(number for number, _ in takes)]
        unknown -= numbers[-1] - len(takes)
        by_number = sorted(takes, key=lambda take: take[0])
        for (first, before), (second, after) in pairwise(by_number):
            if first == second or (after.end_us or 0) < before.begin_us:
                yield f"task {n}: the attempts {first} and {second} of {before} and {after}"
    if unknown < 0:
        yield f"attempts are counted of {-unknown} takes that nobody has made"


def wrong_ends(calls: list[Call]) -> Iterator[str]:
    """No lease is used later than its last renewal lets it last: a holder refuses itself then."""
    leases = defaultdict(list)
    for call in calls:
        if call.is_known and call.result != REFUSED and (call.name != "take" or call.result is not None):
            n, token = (call.result if call.name == "take" else call.argument)[:2]
            leases[n, token].append(call)
    for (n, _), uses in leases.items():
        ttr_us = round(1e6 * (LONG_TTR_S if is_held_long(n) else TTR_S))
        starts = [
            (call.begin_us, (call.end_us or 0) + ttr_us) for call in uses if call.name in ("take", "renew")
        ]
        for call in uses:
            others = [end for begin, end in starts if begin < call.begin_us]
            if call.name != "take" and call.begin_us > max(others) + SLACK_US:
                yield f"task {n}: {call} uses a lease that has ended at {max(others)} us"


def wrong_effects(tasks: list[int], calls: list[Call], effects: dict[int, tuple[int, int]]) -> Iterator[str]:
    ends = {name: defaultdict(list) for name in ("ack", "bury")}
    for call in calls:
        if call.name in ends and call.result != REFUSED:
            ends[call.name][call.argument[0]].append(call)
    for n in tasks:
        count = effects.get(n, (0, 0))[0]
        acked, buried = ends["ack"][n], ends["bury"][n]
        known = sum(call.is_known for call in acked)
        if count > 1 or known > count or (count and not acked):
            yield f"task {n} has {count} effects; its acks: {acked}"
        if bool(count) == any(call.is_known for call in buried) or not (count or buried):
            yield f"task {n} is lost, or both acked and buried: {count} effects, {acked}, {buried}"


def wrong_counts(calls: list[Call], counts: dict[str, Any], put: int) -> Iterator[str]:
    """The counters of the queue lie between the calls that were answered, and those that were made."""
    for name, of in (
        ("take", ["take"]),
        ("ack", ["ack"]),
        ("bury", ["bury"]),
        ("release", ["release", "fail"]),
    ):
        made = [call for call in calls if call.name in of and call.result != REFUSED]
        known = sum(call.is_known and (name != "take" or call.result is not None) for call in made)
        unknown = sum(not call.is_known for call in made)
        count = counts["calls"][name]
        forsaken = put if name == "release" else 0  # ends of leases of the dead are releases, too
        if not known <= count <= known + unknown + forsaken:
            yield f"{count} {name} are counted, {known} were answered and {unknown} may have happened"
    tasks = counts["tasks"]
    if (
        tasks["total"] != tasks["buried"]
        or put != counts["calls"]["put"]
        or put != tasks["done"] + tasks["buried"]
    ):
        yield f"{put} tasks were put, and these are counted: {counts}"


@contextmanager
def started(db: Database, space: Subspace, directory: Path, **options: Any) -> Iterator[Fleet]:
    """No worker of it is left behind."""
    fleet = Fleet(db, space, directory, **options)
    try:
        yield fleet
    finally:
        fleet.end()


def main(seconds: str, directory: str) -> None:
    space = TEST_ROOT["mixed-fleet"][os.urandom(8)]
    Path(directory).mkdir(parents=True, exist_ok=True)
    with (
        fdbqueue.open(f"fdb:{CLUSTER_FILE}") as db,
        started(db, space, Path(directory)) as fleet,
    ):
        for line in fleet.run(float(seconds), 0.4):
            print(line, flush=True)
        found = fleet.broken()
        in_python = sum(count for _, count in fleet.effects().values())
        print(f"{len(fleet.puts)} tasks, {in_python} acked in Python; broken: {len(found)}")
        print("\n".join(found) or "nothing is broken")
        db.clear_range_startswith(space.key())


if __name__ == "__main__":
    main(*sys.argv[1:])
