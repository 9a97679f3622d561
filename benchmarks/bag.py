"""Waits and conflicts of a bag, as counts: python -m benchmarks.bag
[--seeds N] [--takes N] [--quick] [--url URL] [--attempts N]

The waits come from a model: a sorted list of places, a put for each take, and the bag's own decision which
entry is next. The conflicts are those of the embedded engine, or of the cluster that --url names (then there
are no waits): in each round every taker begins a transaction and takes a task, and then all of them commit.
No taker stands in the waiting line.
"""

import argparse
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import fdbqueue
from benchmarks.fresh import SPACE
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core.observing import NOT_COMMITTED
from fdbqueue.core.seam import engine_errors
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.stored.discipline import PLACE_BYTES, Bag, around

BACKLOG, SMALL, TAKES, SEEDS, ATTEMPTS = 10_000, 1_000, 300_000, 100, 6_400
BACKLOGS = (100, SMALL, BACKLOG)
TAKERS = (1, 4, 16, 64)
ROOT = SPACE["bag"]


class Entry(NamedTuple):
    key: bytes
    put_at: int
    """The number of takes before it."""


@dataclass
class Model:
    """A bag, and takers that walk around it, or that start each take at a random place."""

    random: Random
    walks: bool
    backlog: int
    takers: int = 1

    def __post_init__(self) -> None:
        self.takes = self.lost = self.longest = 0
        self.entries: list[Entry] = []
        self.hands = [self._place() for _ in range(self.takers)]
        for _ in range(self.backlog):
            self._put()

    def round(self) -> None:
        """Every taker chooses its next entry, and then the takers commit in a random order."""
        chosen = [(taker, self._next(taker)) for taker in range(self.takers)]
        self.random.shuffle(chosen)
        for taker, entry in chosen:
            at = bisect_left(self.entries, entry)
            if self.entries[at : at + 1] == [entry]:
                del self.entries[at]
                self._taken(taker, entry)
            else:
                self.lost += 1
                self.hands[taker] = self._place()

    @property
    def oldest(self) -> int:
        """The wait of the oldest entry so far, in takes."""
        return self.takes - min(entry.put_at for entry in self.entries)

    def _next(self, taker: int) -> Entry:
        hand = self.hands[taker] if self.walks else self._place()
        at = bisect_left(self.entries, (hand,))
        return around(self.entries[at : at + 1], self.entries[: min(at, 1)], 1)[0]

    def _taken(self, taker: int, entry: Entry) -> None:
        self.takes += 1
        self.longest = max(self.longest, self.takes - entry.put_at)
        self.hands[taker] = entry.key
        self._put()

    def _put(self) -> None:
        insort(self.entries, Entry(self._place(), self.takes))

    def _place(self) -> bytes:
        return self.random.randbytes(PLACE_BYTES)


def longest_wait(seed: int, takes: int, backlog: int, takers: int = 1, *, walks: bool = True) -> int:
    """The longest wait of a task in `takes` takes, over or not; in takes."""
    model = Model(Random(seed), walks, backlog, takers)
    while model.takes < takes:
        model.round()
    return max(model.longest, model.oldest)


def waits(seeds: int, takes: int) -> Iterator[list[Any]]:
    """Of all seeds: the median, the 99th of a hundred, and the longest of the longest waits."""
    for walks in (True, False):
        found = sorted(longest_wait(seed, takes, BACKLOG, walks=walks) for seed in range(seeds))
        yield [
            "walks" if walks else "random starts",
            found[len(found) // 2],
            found[(99 * len(found) - 1) // 100],
            found[-1],
        ]


def by_takers(takes: int) -> Iterator[list[Any]]:
    """For each number of takers: the longest waits of walks and of random starts, in backlogs."""
    for takers in TAKERS:
        found = [longest_wait(0, takes, SMALL, takers, walks=walks) for walks in (True, False)]
        yield [takers, *(f"{wait / SMALL:.1f}" for wait in found)]


class Taker:
    """Takes in transactions of its own, never in the line."""

    def __init__(self, db: Database, queue: TaskQueue, number: int) -> None:
        self._runtime, self._session = db.runtime, Session(db, f"taker {number}", ttr=1e9, root=ROOT)
        self._random = Random(number)
        source, shape = calls_of(db, queue._shape).source, queue._shape
        if isinstance(shape.discipline, Bag):
            shape = shape.starting_at(self._random.randbytes(PLACE_BYTES))
            source = TaskSource(shape, db.runtime, source._callbacks)
        self._discipline = shape.discipline
        self._taker = source.taker(self._session.ask)

    def take(self, tr: Any) -> bool:
        params = self._session.id + self._random.randbytes(12)
        return bool(self._taker.take_in_turn(tr, 1, params, self._runtime.now_us()).values)

    def lose(self) -> None:
        if isinstance(self._discipline, Bag):
            self._discipline.start_at(self._random.randbytes(PLACE_BYTES))


def conflicts_each(kind: str, takers: int, backlog: int, attempts: int, url: str = "memory:") -> float:
    """Lost transactions for each task that was taken. Another one is put for each."""
    with fdbqueue.open(url) as db:
        try:
            return _conflicts_each(db, kind, takers, backlog, attempts)
        finally:
            db.clear_range_startswith(ROOT.key())


def _conflicts_each(db: Database, kind: str, takers: int, backlog: int, attempts: int) -> float:
    queue = TaskQueue.create(db, "bag", kind, root=ROOT)
    for _ in range(backlog // 100):
        queue.put_many(db, range(100))
    crew = [Taker(db, queue, number) for number in range(takers)]
    lost = 0
    for _ in range(attempts // takers):
        lost_now = _round(db, crew)
        lost += lost_now
        queue.put_many(db, range(takers - lost_now))
    return lost / (attempts - lost)


def _round(db: Database, crew: list[Taker]) -> int:
    """Number of the takers that lost the race for their task."""
    begun = []
    for taker in crew:
        tr = db.create_transaction()
        assert taker.take(tr), "filled with too few"
        begun.append((taker, tr))
    lost = [taker for taker, tr in begun if not _committed(tr)]
    for taker in lost:
        taker.lose()
    return len(lost)


def _committed(tr: Any) -> bool:
    try:
        tr.commit().wait()
    except engine_errors() as error:
        if error.code != NOT_COMMITTED:
            raise
        return False
    return True


def conflicts(attempts: int, url: str = "memory:") -> Iterator[list[Any]]:
    """For each number of takers: the conflicts of a fifo and of a bag, with each of the backlogs."""
    for takers in TAKERS:
        row: list[Any] = [takers]
        for kind in ("fifo", "bag"):
            row += [f"{conflicts_each(kind, takers, backlog, attempts, url):.3f}" for backlog in BACKLOGS]
        yield row


def show(title: str, rows: Iterator[list[Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print("".join(f"{cell:>16}" for cell in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--takes", type=int, default=TAKES)
    parser.add_argument("--quick", action="store_true", help="two seeds, a tenth of the takes")
    parser.add_argument("--url", help="the conflicts only, in this database")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="takes of each kind and backlog")
    given = parser.parse_args()
    if given.url is None:
        show_waits(given)
    title = f"conflicts for each task: takers; fifo, then bag, with {BACKLOGS} tasks"
    show(title, conflicts(given.attempts, given.url or "memory:"))


def show_waits(given: argparse.Namespace) -> None:
    seeds, takes = (2, given.takes // 10) if given.quick else (given.seeds, given.takes)
    title = f"longest wait in {takes:,} takes, {BACKLOG:,} tasks, {seeds} seeds"
    show(f"{title}: median, 99 %, longest", waits(seeds, takes))
    title = f"longest wait in {takes:,} takes, in backlogs of {SMALL:,} tasks"
    show(f"{title}: takers, walks, random starts", by_takers(takes))


if __name__ == "__main__":
    main()
