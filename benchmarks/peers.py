"""Other queues at the same work, beside ours: python -m benchmarks.peers [--url URL] [--quick]

The work: put small tasks for some seconds, then take each and be done with it, or as many as some seconds
allow; one client, then eight processes, then eight threads of one, where a peer is made for them. All are
flushed to the same disk. Each round measures a peer in turn with as many raw one-key transactions of the
engine; a figure is the median of the rounds, beside the median of its ratios to them. The table is Markdown.

Without --url: the embedded engine, durable, in a temporary directory.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.peer_queues import PEERS, Client, Peer, Where, free_port
from benchmarks.queue import OUT, erased, fresh_space, somewhere

Layout = tuple[int, str]
LAYOUTS: Sequence[Layout] = ((1, "processes"), (8, "processes"), (8, "threads"))


@dataclass(frozen=True)
class Plan:
    seconds: float
    rounds: int

    @classmethod
    def of(cls, quick: bool) -> "Plan":
        return cls(0.3, 1) if quick else cls(1.0, 5)


@dataclass(frozen=True)
class Count:
    """What clients did together."""

    operations: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0

    @classmethod
    def together(cls, parts: Sequence["Count"]) -> "Count":
        return cls(sum(part.operations for part in parts), max(part.seconds for part in parts))


def work(operation: Callable[[], object], seconds: float, start: float) -> Count:
    """`operation` again and again, for `seconds` from `start`, or until it answers False."""
    time.sleep(max(0.0, start - time.monotonic()))
    done, began = 0, time.monotonic()
    while (now := time.monotonic()) - began < seconds and operation() is not False:
        done += 1
    return Count(done, now - began)


def serve(peer: int, where: Where, threads: int, orders: Connection) -> None:
    """A process with `threads` clients of one peer, which share a connection."""
    client = PEERS[peer].connect(where)
    client.put()  # the extra work of a first call is not measured
    client.take()
    orders.send("ready")
    while (order := orders.recv()) is not None:
        try:
            orders.send(measured(client, threads, *order))
        except Exception as error:
            orders.send(PeerFailed(f"{type(error).__name__}: {error}"))


def measured(client: Client, threads: int, what: str, seconds: float, start: float) -> Count:
    operation: Callable[[], object] = client.put if what == "put" else client.take
    if threads == 1:
        return work(operation, seconds, start)
    counts: list[Count] = []

    def run() -> None:
        counts.append(work(operation, seconds, start))

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Count.together(counts)


class PeerFailed(Exception):
    """A client of a peer could not go on: the peer has no figure, the others have theirs."""


class Clients:
    """The clients of one peer: processes, or one with as many threads. A context manager that ends them."""

    def __init__(self, peer: Peer, where: Where, count: int, layout: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Connection]] = []
        processes, threads = (1, count) if layout == "threads" else (count, 1)
        for _ in range(processes):
            ours, theirs = context.Pipe()
            arguments = (PEERS.index(peer), where, threads, theirs)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        for _, orders in self._workers:
            orders.recv()

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *exc: object) -> None:
        for process, orders in self._workers:
            if process.is_alive():
                orders.send(None)
            process.join()

    def do(self, what: str, seconds: float) -> Count:
        start = time.monotonic() + 0.05
        for _, orders in self._workers:
            orders.send((what, seconds, start))
        answers = [orders.recv() for _, orders in self._workers]
        for answer in answers:
            if isinstance(answer, PeerFailed):
                raise answer
        return Count.together(answers)


@dataclass
class Seen:
    """What one peer did, round by round, and what raw transactions did in the same round."""

    raw: list[float] = field(default_factory=list)
    puts: list[float] = field(default_factory=list)
    takes: list[float] = field(default_factory=list)


def compared(peer: Peer, raw: Clients, url: str, folder: Path, layout: Layout, plan: Plan) -> Seen:
    """The peer and raw transactions in turn; no other peer's processes are there meanwhile."""
    seen = Seen()
    with ready(peer, url, folder, layout) as clients:
        for _ in range(plan.rounds):
            seen.raw.append(raw.do("put", plan.seconds).per_second)
            seen.puts.append(clients.do("put", plan.seconds).per_second)
            seen.takes.append(clients.do("take", plan.seconds).per_second)
    return seen


@contextmanager
def ready(peer: Peer, url: str, folder: Path, layout: Layout) -> Iterator[Clients]:
    folder.mkdir(parents=True)
    space = fresh_space()
    where = Where(str(folder), url, free_port() if peer.server else 0, space.key())
    is_ours = peer.module == "fdbqueue" and peer.server is None
    erasing = erased(url, space) if is_ours else nullcontext()
    with erasing, peer.running(where), Clients(peer, where, *layout) as clients:
        yield clients


def row(peer: Peer, seen: Seen, layout: Layout) -> str:
    count, kind = layout
    clients = "1" if count == 1 else f"{count} {kind}"
    cells = [peer.name, peer.flushes, clients, *rate(seen.puts, seen.raw), *rate(seen.takes, seen.raw)]
    return f"| {' | '.join(cells)} |"


def rate(mine: Sequence[float], raw: Sequence[float]) -> tuple[str, str]:
    ratio = statistics.median(one / unit for one, unit in zip(mine, raw, strict=True))
    return f"{statistics.median(mine):,.0f}", f"{ratio:.2f}"


def table(peers: Sequence[Peer], url: str, plan: Plan) -> Iterator[str]:
    yield "| | flushed by | clients | put/s | of raw | take + ack/s | of raw |"
    yield "|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory(prefix="fdbqueue-peers-") as name:
        for layout in LAYOUTS:
            folder = Path(name, "-".join(map(str, layout)))
            with ready(PEERS[0], url, folder / "raw", layout) as raw:
                for number, peer in enumerate(peers):
                    if layout[0] == 1 or layout[1] in peer.layouts:
                        yield measured_row(peer, raw, url, folder / str(number), layout, plan)


def measured_row(peer: Peer, raw: Clients, url: str, folder: Path, layout: Layout, plan: Plan) -> str:
    try:
        return row(peer, compared(peer, raw, url, folder, layout, plan), layout)
    except PeerFailed as failed:
        return f"| {peer.name} | {peer.flushes} | {layout[0]} {layout[1]} | failed: {failed} | | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a database that processes share; default: a temporary directory")
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs")
    parser.add_argument("--only", default="", help="peers with this text in their names")
    arguments = parser.parse_args()
    plan = Plan.of(arguments.quick)
    chosen = [peer for peer in PEERS if arguments.only in peer.name]
    OUT.mkdir(exist_ok=True)
    with somewhere(arguments.url) as url, (OUT / "peers.md").open("w") as kept:
        for peer in chosen:
            if reason := peer.missing():
                print(f"left out: {peer.name}: {reason}", flush=True)
        present = [peer for peer in chosen if peer.missing() is None]
        for line in table(present, url, plan):
            print(line, flush=True)
            print(line, file=kept)


if __name__ == "__main__":
    main()
