"""`python -m fdbqueue.testing.simulate`: run seeds until the time is over, or a seed fails.

Exit status 0 if all is well, 1 if a seed failed, 2 for wrong arguments, 130 after Ctrl-C.
"""

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from importlib import import_module
from itertools import product
from math import sqrt
from random import Random, SystemRandom
from typing import TextIO

from fdbqueue.testing.cases import Case, Size, Workload, all_workloads, described, shrunk
from fdbqueue.testing.engine import KINDS
from fdbqueue.testing.simulation import Result

_PROGRESS_EVERY_S = 0.5
_COLLECT_EVERY_RUNS = 50
_SEED_MAX = 2**31
_SPARED_P = 0.75
_UNHEARD = logging.NullHandler()

Shares = Callable[[Sequence[str]], Sequence[float]]


def even(names: Sequence[str]) -> Sequence[float]:
    return [1.0] * len(names)


class Totals:
    """Counts over all seeds so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seeds: Counter[str] = Counter()
        self.transactions = self.operations = 0
        self.virtual_s = 0.0
        self.faults: Counter[str] = Counter()
        self._shown = 0.0

    def add(self, case: Case, result: Result) -> None:
        self.seeds[case.workload.name] += 1
        self.transactions += len(result.trace.transactions)
        self.operations += len(result.trace.operations)
        self.virtual_s += result.trace.virtual_s
        self.faults.update(result.trace.faults)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def show(self, out: TextIO, last: bool = False) -> None:
        """Write one line, rewritten in place on a terminal; elsewhere only the last one."""
        now = time.monotonic()
        due = out.isatty() and now - self._shown > _PROGRESS_EVERY_S
        if due or last:
            self._shown = now
            start, end = ("\r", "") if out.isatty() and not last else ("\r" if out.isatty() else "", "\n")
            out.write(f"{start}{self}{end}")
            out.flush()

    def __str__(self) -> str:
        seeds = self.seeds.total()
        return (
            f"{seeds} seeds, {seeds / self.elapsed_s:.0f}/s, {self.transactions} transactions, "
            f"{self.faults.total()} faults, {self.virtual_s / 3600:.0f} virtual hours"
        )

    def table(self) -> str:
        rows = [("workload", "seeds"), *sorted(self.seeds.items())]
        rows += [("fault", "times"), *sorted(self.faults.items())]
        return "\n".join(f"  {name:<20} {number:>10}" for name, number in rows)


def main(arguments: Sequence[str] | None = None, shares: Shares = even) -> int:
    """Run the program. `shares`: the shares of workloads in the seeds, by their names."""
    parser = _parser()
    options = parser.parse_args(arguments)
    # Python prints warnings of loggers without a handler: thousands in a minute of faults.
    logging.getLogger("fdbqueue").addHandler(_UNHEARD)
    for module in options.load:
        import_module(module)
    workloads = all_workloads()
    unknown = set(options.workload) - set(workloads)
    if unknown:
        parser.error(f"no workload {unknown.pop()!r}: choose from {', '.join(workloads)}")
    chosen = [workloads[name] for name in options.workload or workloads]
    cases = _cases(chosen, options, shares)
    if options.trace:
        return _show_one(next(cases))
    return _run(cases, None if options.minutes is None else options.minutes * 60)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m fdbqueue.testing.simulate", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--minutes", type=float, help="run new seeds for this time (default: 1)")
    which.add_argument("--seeds", type=_seed_range, metavar="A:B", help="run the seeds from A to before B")
    which.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--from", type=int, dest="first", metavar="N", help="with --minutes: the first seed")
    parser.add_argument("--workload", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--load", action="append", default=[], help="a module with workloads of your own")
    parser.add_argument("--clients", type=int, help="clients of each role, instead of the workload's own")
    parser.add_argument("--steps", type=int, help="steps of each client")
    parser.add_argument("--without", action="append", default=[], choices=KINDS, help="switch a fault off")
    parser.add_argument(
        "--small-bounds", action="store_true", help="as in new seeds: small ones in 3 runs of 10"
    )
    parser.add_argument("--trace", action="store_true", help="print the trace, also without a failure")
    return parser


def _seed_range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def _cases(workloads: Sequence[Workload], options: argparse.Namespace, shares: Shares) -> Iterator[Case]:
    seeds = options.seeds if options.seed is None else (options.seed,)
    if seeds is not None:
        cases: Iterable[Case] = (Case.of(one, seed) for seed, one in product(seeds, workloads))
    else:
        cases = new_cases(workloads, _first_seed(options), shares=shares)
    for case in cases:
        size = Size(options.clients or case.size.clients, options.steps or case.size.steps)
        small = options.small_bounds or case.small_bounds
        yield replace(case, size=size, without=tuple(options.without) or case.without, small_bounds=small)


def new_cases(
    workloads: Sequence[Workload],
    first: int,
    clock: Callable[[], float] = time.process_time,
    shares: Shares = even,
) -> Iterator[Case]:
    """Yield the runs of new seeds, from `first` on and without end."""
    for seed, workload in in_turn(workloads, first, clock, shares):
        yield replace(Case.of(workload, seed), without=spared_by(seed), small_bounds=True)


def spared_by(seed: int) -> tuple[str, ...]:
    """The faults that the run of a seed goes without: in every other run most of them. Many faults at once
    end the clients of a run before they meet, and few checkers allow for all faults.
    """
    random = Random(f"{seed} spared")
    if random.random() < 0.5:
        return ()
    return tuple(kind for kind in KINDS if random.random() < _SPARED_P)


def _first_seed(options: argparse.Namespace) -> int:
    options.minutes = options.minutes or 1
    first = SystemRandom().randrange(_SEED_MAX) if options.first is None else int(options.first)
    print(f"seeds from {first} on", flush=True)
    return first


def in_turn(
    workloads: Sequence[Workload],
    first: int,
    clock: Callable[[], float] = time.process_time,
    shares: Shares = even,
) -> Iterator[tuple[int, Workload]]:
    """Yield seeds from `first` on with their workloads, without end. A workload has the more seeds the
    cheaper it is, and the larger its share.

    The costs of workloads differ by a factor of thirty. With equally many seeds, four of them would have a
    third of the time; with equal times, those four would have a seed or two a minute. So each workload has a
    number of seeds that is its share divided by the root of its cost. Each has its first seed
    before any has its second one.
    """
    heap = [(0.0, number, first) for number in range(len(workloads))]
    share_of = shares([one.name for one in workloads])
    while True:
        spent, number, seed = heappop(heap)
        began = clock()
        yield seed, workloads[number]
        spent += sqrt(clock() - began) / share_of[number]
        heappush(heap, (spent, number, seed + 1))


def _run(cases: Iterator[Case], seconds: float | None) -> int:
    totals = Totals()
    try:
        return _run_into(totals, cases, seconds)
    except KeyboardInterrupt:
        totals.show(sys.stdout, last=True)
        return 130


def _run_into(totals: Totals, cases: Iterator[Case], seconds: float | None) -> int:
    gc.freeze()  # modules and the like stay for ever, so collections between runs need not visit them
    for number, case in enumerate(cases):
        if seconds is not None and totals.elapsed_s > seconds:
            break
        result = case.run()
        totals.add(case, result)
        totals.show(sys.stdout)
        if number % _COLLECT_EVERY_RUNS == 0:
            gc.collect()
        if result.failed:
            return _show_failure(case, result, totals)
    totals.show(sys.stdout, last=True)
    print(totals.table())
    return 0


def _show_failure(case: Case, result: Result, totals: Totals) -> int:
    totals.show(sys.stdout, last=True)
    # Before the search for a smaller case, which may take minutes.
    print(f"\n{case.workload.name}, {result}\n{case.command()}\n\nshrinking ...", flush=True)
    smallest = shrunk(case)
    print("smallest: ", end="")
    _show_one(smallest)
    return 1


def _show_one(case: Case) -> int:
    result = case.run(detailed=True)
    # Those of the run: a workload may switch off some of those that the case has drawn.
    print(f"{case.command()}\nfaults: {', '.join(result.faults.active) or 'none'}\n")
    print(described(result))
    return int(result.failed)


if __name__ == "__main__":
    sys.exit(main())
