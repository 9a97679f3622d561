"""Cases: a workload with a seed and a size. Runs a case, and finds the smallest case that still fails.

To add a workload, write a module with a function under `@workload(...)`, and `--load` it.

A case may have small constants. Then a sweep has several batches, a page ends early, and bytes cut a batch
short, though few tasks reach them. The seed decides which constants, and their values. A workload that sets
one of them itself keeps its own value.

The report of a failed run has its violations, and the transactions of its trace that matter. A transaction
matters if its operation, or a value that it writes, names a value of a violation. It also matters if it wrote
a key that such a transaction wrote. A key that a third of all transactions write (a counter, a doorbell) does
not count here: it would connect all of them.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.testing.engine import Faults
from fdbqueue.testing.simulation import Checker, Result, Simulation
from fdbqueue.testing.trace import Footprint, Operation, Trace

_COMMON_SHARE = 1 / 3
_SHOWN_CHARS = 60
_VALUES_MAX = 12


def described(result: Result) -> str:
    """Return the whole report; `result` must come from a detailed run."""
    subjects = re.findall(r"'([^']+)'", " ".join(result.violations))[:_VALUES_MAX]
    matters = _that_matter(result.trace, subjects)
    lines = [
        f"seed {result.seed}: {len(result.violations)} violations",
        *(f"  * {v}" for v in result.violations),
        f"bounds: {', '.join(f'{name}={value:g}' for name, value in result.bounds.items()) or 'as always'}",
    ]
    lines += ["", f"{len(matters)} of {len(result.trace.transactions)} transactions matter:", ""]
    return "\n".join([*lines, *_story(result.trace, matters, subjects)])


def _names(operation: Operation | None, subjects: list[str]) -> bool:
    if operation is None:
        return False
    words = f"{operation.argument!r} {operation.result!r}"
    return any(f"'{subject}'" in words for subject in subjects)


def _that_matter(trace: Trace, subjects: list[str]) -> set[int]:
    """Return the positions of the transactions that matter; of all, if the violations name no value."""
    everything = set(range(len(trace.transactions)))
    if not subjects:
        return everything
    writers: dict[bytes, set[str]] = {}
    uses: Counter[bytes] = Counter()
    for tr in trace.transactions:
        for key in {key for _, key, _ in tr.writes}:
            uses[key] += 1
            writers.setdefault(key, set()).add(tr.who.partition("/")[0])
    # A key that one machine writes alone (a receipt) does not connect it with another one.
    telling = {
        key
        for key, count in uses.items()
        if len(writers[key]) > 1 and count <= len(trace.transactions) * _COMMON_SHARE
    }
    about = {i for i in everything if _is_about(trace.transactions[i], subjects)}
    keys = {key for i in about for _, key, _ in trace.transactions[i].writes} & telling
    touching = {i for i in everything if any(key in keys for _, key, _ in trace.transactions[i].writes)}
    return about | touching or everything


def _is_about(transaction: Footprint, subjects: list[str]) -> bool:
    if _names(transaction.operation, subjects):
        return True
    values = [value for _, _, value in transaction.writes if isinstance(value, bytes)]
    return any(subject.encode() in value for subject in subjects for value in values)


def _story(trace: Trace, matters: set[int], subjects: list[str]) -> Iterator[str]:
    transactions = iter(enumerate(trace.transactions))
    told = {op.client for i in matters if (op := trace.transactions[i].operation)} | {
        op.client for op in trace.operations if _names(op, subjects)
    }
    for at_s, who, what, particulars in trace.events:
        if what.startswith("transaction "):
            position, transaction = next(transactions)
            if position in matters:
                yield from _transaction_lines(transaction)
        elif who in told or (what == "fault" and any(client.startswith(f"{who}/") for client in told)):
            yield f"{at_s:10.4f}  {who:<16} {what} {shortened(' '.join(map(repr, particulars)))}"


def _transaction_lines(transaction: Footprint) -> Iterator[str]:
    yield (
        f"{transaction.at_s:10.4f}  {transaction.who:<16} transaction {transaction.number} "
        f"{transaction.outcome}"
    )
    lines = (
        f"{what} {readable(key)}{_assigned(value)}"
        for what, key, value in [*transaction.reads, *transaction.writes]
    )
    yield from (f"{'':12}{'':16} | {line}" for line in dict.fromkeys(lines))


def _assigned(value: Any) -> str:
    if isinstance(value, str):
        return f": {value}"
    return "" if value is None else f" = {readable(value)}"


def readable(key: Any) -> str:
    """Return a key or value as text: as a tuple, if it is a packed one."""
    if not isinstance(key, bytes):
        return shortened(repr(key))
    try:
        items = layer.unpack(key)
    except Exception:  # bytes that are no tuple fail in many ways
        return shortened(repr(key))
    return f"({', '.join(map(_item, items))})"


def _item(item: Any) -> str:
    return item.hex()[:6] if isinstance(item, bytes) else shortened(repr(item))


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


@dataclass(frozen=True)
class Size:
    """The size of a scenario: clients of each role, and steps of each client."""

    clients: int
    steps: int


Build = Callable[[Simulation, Size], Sequence[Checker]]


@dataclass(frozen=True)
class Workload:
    """A scenario. `never`: faults that its checkers do not allow for. `more`: faults that only some workloads
    have. `wide`: names of bounds that are never small in it.
    """

    name: str
    build: Build
    size: Size
    never: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


_workloads: dict[str, Workload] = {}


def workload(
    *, clients: int, steps: int, never: Sequence[str] = (), more: Sequence[str] = (), wide: Sequence[str] = ()
) -> Callable[[Build], Workload]:
    """Make the decorated function a workload, known by its name, with the size that it has by default."""

    def register(build: Build) -> Workload:
        size = Size(clients, steps)
        made = Workload(build.__name__, build, size, tuple(never), tuple(more), tuple(wide))
        _workloads[made.name] = made
        return made

    return register


def all_workloads() -> dict[str, Workload]:
    """Those registered so far, by name."""
    return dict(_workloads)


_RUNS_P, _EACH_P = 0.3, 0.5
CHOICES: Mapping[str, tuple[int, ...]] = {
    # Batches of sweeps and verbs.
    "DUE_BATCH": (1, 2, 4),
    "VERB_BATCH": (2, 3, 8),
    "TAKEN_READ_MAX": (1, 2),
    "DEAD_SESSIONS_MAX": (1, 2),
    "QUEUES_PER_TRANSACTION": (1, 2),
    # Bytes.
    "BATCH_BYTES_MAX": (100, 400, 4_000),
    "BATCH_RECORDS_BYTES_MAX": (1_000, 10_000),
    "BATCH_HOLDERS_BYTES_MAX": (100, 1_000),
    "SERVE_BYTES_MAX": (20, 100, 1_000),
    "MOVED_BYTES_MAX": (100, 10_000),
    "RECORD_PAYLOAD_BYTES_MAX": (0, 3),
    "NOTICE_BYTES_MAX": (0, 40),
    # The line.
    "SERVE_MAX": (2, 5),
    "RESULTS_RETURNED_MAX": (1, 2),
    "OFFERS_TO_SPARE": (0, 1),
    # Groups and schedules.
    "GROUPS_SWEPT_MAX": (1, 3),
    "GROUPS_ENDED_MAX": (1, 2),
    "GROUPS_REMEMBERED_MAX": (1, 3),
    "SCHEDULE_FIRED_MAX": (1, 3),
    "SCHEDULES_DUE_READ": (1, 2),
    # Lanes and keys of limits.
    "LANES_READ_MAX": (1, 2),
    "LANE_TASKS_FIRST": (1, 2),
    "LANES_KEPT": (0, 1),
    "LANES_TURNED": (0, 2),
    "KEYS_SETTLED": (1, 2),
    "KEY_ROWS_WALKED": (2, 5),
    "KEYS_PASSED": (1, 3),
    "LIMITS_READ_TOGETHER": (1, 2),
    # Task keys with many tasks, acks of one process, and partitions.
    "KEY_LEVEL_MIN": (1, 2),
    "ATTEMPTS_TOGETHER_MAX": (1,),
    "LOOKS_PER_CLEARING": (1, 3),
    "TAKES_PER_VISIT": (1, 2),
    "HOME_SESSIONS_MAX": (1, 2),
    "AMENDS_PER_BEAT": (1, 2),
    # The memory of a process, and the reads of a pass.
    "SERVICES_REMEMBERED": (1, 2),
    "NAMES_READ_FIRST": (1, 3),
    "SLICE_KEYS_MAX": (3, 20),
    "COUNTED_ROWS": (2, 10),
    # The embedded engine.
    "WATCHED_KEYS_LOOKED_AT_MAX": (0, 1),
    "RINGS_AT_ONCE": (1, 2),
    "KEYS_RUNG_MAX": (0, 3),
    "LOG_TRIMMED_MAX": (1, 4),
    "LOG_TRIMMED_EVERY_VERSIONS": (1, 3),
}


def drawn(seed: int) -> dict[str, float]:
    """The bounds of a run with their values; none in most runs."""
    random = Random(f"{seed} small bounds")
    if random.random() >= _RUNS_P:
        return {}
    return {name: random.choice(values) for name, values in CHOICES.items() if random.random() < _EACH_P}


_SEEDS_PER_SIZE = 12


@dataclass(frozen=True)
class Case:
    """One repeatable run. `without` names the faults that are switched off. `small_bounds`: true if the seed
    may choose small bounds.
    """

    workload: Workload
    seed: int
    size: Size
    without: tuple[str, ...] = ()
    small_bounds: bool = False

    @classmethod
    def of(cls, workload: Workload, seed: int) -> "Case":
        return cls(workload, seed, workload.size)

    @property
    def faults(self) -> Faults:
        found = Faults.drawn(Random(f"{self.seed} faults"), self.workload.more)
        return found.without(*self.workload.never, *self.without)

    @property
    def bounds(self) -> dict[str, float]:
        """The small bounds of this run."""
        found = drawn(self.seed) if self.small_bounds else {}
        return {name: value for name, value in found.items() if name not in self.workload.wide}

    def run(self, detailed: bool = False) -> Result:
        simulation = Simulation(self.seed, faults=self.faults, detailed=detailed)
        simulation.limit(**self.bounds)
        return simulation.run(self.workload.build(simulation, self.size))

    def command(self) -> str:
        """Return the command line that repeats this case."""
        words = [
            f"--load {self.workload.build.__module__} --workload {self.workload.name} --seed {self.seed}"
        ]
        words += [f"--clients {self.size.clients} --steps {self.size.steps}"]
        words += [f"--without {name}" for name in self.without]
        words += ["--small-bounds"] if self.small_bounds else []
        return f"python -m fdbqueue.testing.simulate {' '.join(words)} --trace"


def shrunk(case: Case, patience_s: float = 30.0) -> Case:
    """Return the smallest case that still fails: first fewer clients and steps, then no small bounds, then
    fewer faults. The search ends after `patience_s`. A smaller scenario has other interleavings, so it tries
    several seeds for each size.
    """
    until = time.monotonic() + patience_s
    smallest = next((c for c in _smaller(case) if time.monotonic() < until and c.run().failed), case)
    if smallest.bounds:
        smallest = _if_it_fails(replace(smallest, small_bounds=False), smallest, until)
    for name in smallest.run().faults.active:
        smallest = _if_it_fails(replace(smallest, without=(*smallest.without, name)), smallest, until)
    return smallest


def _if_it_fails(smaller: Case, case: Case, until: float) -> Case:
    return smaller if time.monotonic() < until and smaller.run().failed else case


def _smaller(case: Case) -> Iterator[Case]:
    sizes = [Size(c, s) for c in range(1, case.size.clients + 1) for s in range(1, case.size.steps + 1)]
    for size in sorted(sizes, key=lambda size: size.clients * size.steps)[:-1]:
        for seed in range(case.seed, case.seed + _SEEDS_PER_SIZE):
            yield replace(case, seed=seed, size=size)


def check(workload: Workload, seeds: Iterable[int]) -> None:
    """Run `workload` once per seed.

    Raises: AssertionError with the smallest failing case and its trace.
    """
    for seed in seeds:
        case = Case.of(workload, seed)
        if case.run().failed:
            smallest = shrunk(case)
            raise AssertionError(f"{smallest.command()}\n{described(smallest.run(detailed=True))}")
