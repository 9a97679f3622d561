"""The load of a queue on a cluster, and the cluster that carries it: pure functions over values.

Counts of calls are data here: what each writes and reads, without contention. tests/test_estimate.py measures
them. Rates of a storage process are FoundationDB's own, those of other processes are measured
(docs/sizing.md).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_positive, checked_whole, too_much
from fdbqueue.core.errors import InvalidArgument


class Cost(NamedTuple):
    """The writes and reads of a transaction, or of each task in it. Bytes are of keys and values.

    A payload is in none of them: `payloads_written` and `payloads_read` count it.
    """

    mutations: float = 0
    bytes_written: float = 0
    payloads_written: float = 0
    reads: float = 0
    bytes_read: float = 0
    payloads_read: float = 0

    def plus(self, other: "Cost", times: float = 1) -> "Cost":
        return Cost(*(own + times * more for own, more in zip(self, other, strict=True)))


class Call(NamedTuple):
    """A call with several tasks: the cost of its transaction, and that of each task."""

    transaction: Cost = Cost()
    task: Cost = Cost()

    def plus(self, other: "Call") -> "Call":
        return Call(*(own.plus(more) for own, more in zip(self, other, strict=True)))


class Calls(NamedTuple):
    put: Call = Call()
    take: Call = Call()
    ack: Call = Call()

    def plus(self, other: "Calls") -> "Calls":
        return Calls(*(own.plus(more) for own, more in zip(self, other, strict=True)))


_FIFO = Calls(
    Call(Cost(2, 204, 0, 2, 249, 1), Cost(2, 246, 2)),
    Call(Cost(1, 160, 0, 6, 159), Cost(3, 284, 1, 0, 123, 1)),
    Call(Cost(2, 204, 0, 1, 126), Cost(2, 178, 0, 1, 123, 1)),
)
_MICRO = Calls(
    Call(Cost(2, 204, 0, 5, 257, 1), Cost(5, 549, 3)),
    Call(Cost(1, 160, 0, 6, 159), Cost(6, 500, 1, 4, 368, 2)),
    Call(Cost(2, 204, 0, 1, 126), Cost(5, 347, 0, 3, 139, 1)),
)
_FAIR = Calls(
    Call(Cost(2, 204, 0, 6, 256, 1), Cost(5, 549, 3)),
    Call(Cost(1, 160, 0, 6, 159), Cost(7, 543, 1, 5, 368, 2)),
    Call(Cost(2, 204, 0, 2, 134), Cost(4, 294, 0, 1, 130, 1)),
)
_BAG = _FIFO.plus(Calls(take=Call(Cost(reads=1))))
_CAPACITY = _FIFO.plus(Calls(put=Call(Cost(reads=1, bytes_read=147))))
_PLAIN = Calls(
    Call(Cost(2, 69, 0, 3, 61, 1), Cost(1, 31, 1)),
    Call(Cost(2, 66, 0, 3, 29), Cost(1, 63, 0, 0, 31, 1)),
)
KINDS: Mapping[str, Calls] = {
    "queue": _PLAIN,
    "fifo": _FIFO,
    "fifottl": _FIFO,
    "limfifottl": _CAPACITY,
    "bag": _BAG,
    "utube": _MICRO,
    "utubettl": _MICRO,
    "fair": _FAIR,
}
"""By kind. Each task of a keyed kind has a task key of its own: that costs most."""

OPTIONS: Mapping[str, Calls] = {
    "ttr": Calls(take=Call(task=Cost(1, 44)), ack=Call(task=Cost(1, 89))),
    "ttl": Calls(Call(task=Cost(1, 44)), Call(task=Cost(2, 133)), Call(task=Cost(1, 89))),
    "unique": Calls(
        Call(Cost(bytes_read=23), Cost(1, 89, reads=1)),
        Call(task=Cost(0, 23, bytes_read=23)),
        Call(task=Cost(1, 43, bytes_read=23)),
    ),
    "result": Calls(
        Call(Cost(bytes_read=16), Cost(0, 32)),
        Call(task=Cost(0, 16, bytes_read=16)),
        Call(task=Cost(2, 100, bytes_read=16)),
    ),
    "retain": Calls(ack=Call(Cost(1, 24), Cost(2, 137))),
}
"""The costs that an option of tasks, or of their queue, adds. A ttl has those of a ttr, too."""
_RETAINED_KEY = Calls(ack=Call(task=Cost(1, 65)))
_PARTITIONED = Calls(*(Call(Cost(reads=1, bytes_read=9), Cost(0, 13)) for _ in Calls._fields))

_RECEIPTS = 2
"""Of each task: those of a put and an ack, or of an enqueue and a dequeue."""
_KEYED_KINDS = ("utube", "utubettl", "fair")
_TTR_KINDS = ("fifottl", "limfifottl", "bag", "utubettl")
_PIECE_KEY_BYTES = 40
_PAGE_BYTES = 4_096
"""A storage process counts each page that is written as one more write."""
_LOG_BYTES = 32
"""Added to each mutation in a log, for each of its copies."""
COPIES_MAX = 5
BUSY_MOST = 0.5
"""The part of its rate to which a process is used: the rest is for peaks, failures and moving data."""
CPU_S = {"put": (1.9e-3, 0.08e-3), "take": (2.3e-3, 0.09e-3), "ack": (0.9e-3, 0.9e-3)}
"""Processor time of a client: of a transaction, and of each task in it (`python -m benchmarks.sizing`)."""


@dataclass(frozen=True)
class Server:
    """The rates at which a process of a cluster is full.

    Those of a storage process are FoundationDB's, for a core and the engine ssd. That of a log is in
    FoundationDB's paper, of a machine. That of a proxy is an assumption.
    """

    storage_writes: float = 20_000
    storage_reads: float = 55_000
    log_bytes: float = 50_000_000
    proxy_commits: float = 10_000


@dataclass(frozen=True)
class Plan:
    """The work of one queue. Raises InvalidArgument, TooMuchForOneTransaction."""

    tasks_per_second: float
    payload: int = 100
    kind: str = "fifo"
    partitions: int = 1
    batch: int = 1
    replication: int = 3
    options: Sequence[str] = ()
    receipts: int = 1
    """Parts of the receipts of the root, as `fdbqueue spread --receipts` makes them."""
    server: Server = field(default_factory=Server)

    def __post_init__(self) -> None:
        checked_positive("tasks_per_second", self.tasks_per_second, "tasks a second")
        checked_whole("payload", self.payload, 0, limits.PAYLOAD_BYTES_MAX)
        checked_count("partitions", self.partitions, limits.PARTITIONS_MAX)
        checked_count("batch", self.batch, limits.BATCH_ITEMS_MAX)
        checked_count("replication", self.replication, COPIES_MAX)
        checked_count("receipts", self.receipts, limits.PARTITIONS_MAX)
        _require("kind", self.kind, KINDS)
        for option in self.options:
            _require("options", option, OPTIONS)
            _require("kind", self.kind, _kinds_with(option), f", with {option}")
        if self.batch > 1 and self.batch * self.payload > limits.BATCH_BYTES_MAX:
            raise too_much(self.batch, self.batch * self.payload)


def _require(name: str, got: str, known: Collection[str], told: str = "") -> None:
    if got not in known:
        raise InvalidArgument(name=name, wanted=f"one of {', '.join(known)}{told}", got=got)


def _kinds_with(option: str) -> Collection[str]:
    return _TTR_KINDS if option in ("ttr", "ttl") else [kind for kind in KINDS if kind != "queue"]


@dataclass(frozen=True)
class Load:
    """Of one task that is put, taken and acked, or of one second."""

    mutations: float
    bytes_written: float
    log_bytes: float
    reads: float
    bytes_read: float
    commits: float
    receipts: float

    def times(self, number: float) -> "Load":
        return Load(*(number * value for value in vars(self).values()))


LOADS = ("mutations", "bytes_written", "log_bytes", "reads", "bytes_read", "commits")
"""The parts of a load that the status of a cluster tells."""


@dataclass(frozen=True)
class Bound:
    """A part of the cluster that ends a queue, and the rate at which it does."""

    part: str
    tasks_per_second: float


@dataclass(frozen=True)
class Estimate:
    task: Load
    second: Load
    storage_teams: int
    """Each has as many processes as there are copies."""
    logs: int
    commit_proxies: int
    client_cores: float
    partitions: int | None
    """Those that carry the rate; None if no number does."""
    bounds: Sequence[Bound]
    """The lowest one first."""


def calls_of(kind: str, options: Sequence[str] = (), partitions: int = 1) -> Calls:
    calls = KINDS[kind]
    for option in options:
        if not (option == "ttr" and "ttl" in options):
            calls = calls.plus(OPTIONS[option])
    if "retain" in options and kind in _KEYED_KINDS:
        calls = calls.plus(_RETAINED_KEY)
    return calls.plus(_PARTITIONED) if partitions > 1 else calls


def cost_of(call: Call, name: str, payload: int, batch: int, kind: str) -> Cost:
    """The cost of a call with `batch` tasks of this size."""
    cost = call.transaction.plus(call.task, batch)
    if kind == "queue" or payload <= limits.RECORD_PAYLOAD_BYTES_MAX:
        return cost._replace(
            bytes_written=cost.bytes_written + payload * cost.payloads_written,
            bytes_read=cost.bytes_read + payload * cost.payloads_read,
        )
    pieces = math.ceil(payload / limits.PAYLOAD_PIECE_BYTES_MAX)
    apart = {
        "put": Cost(pieces, payload + pieces * _PIECE_KEY_BYTES),
        "take": Cost(reads=1, bytes_read=payload),
        "ack": Cost(1, 2 * _PIECE_KEY_BYTES + 1),
    }
    return cost.plus(apart[name], batch)


def load_of(plan: Plan) -> Load:
    """The load of one task of the plan."""
    calls = calls_of(plan.kind, plan.options, plan.partitions)._asdict()
    made = [name for name in calls if calls[name] != Call()]
    sums = Cost()
    for name in made:
        sums = sums.plus(cost_of(calls[name], name, plan.payload, plan.batch, plan.kind), 1 / plan.batch)
    logged = sums.bytes_written + _LOG_BYTES * sums.mutations
    commits = len(made) / plan.batch
    return Load(
        sums.mutations,
        sums.bytes_written,
        logged,
        sums.reads,
        sums.bytes_read,
        commits,
        _RECEIPTS / plan.batch,
    )


def storage_use(load: Load, server: Server, copies: int) -> float:
    """The part of its time that one process of a team is busy, if the team has all of this load."""
    writes = load.mutations + load.bytes_written / _PAGE_BYTES
    return writes / server.storage_writes + load.reads / copies / server.storage_reads


def bounds_of(task: Load, plan: Plan, partitions: int) -> list[Bound]:
    """The rates at which parts of a cluster are half busy with this queue, the lowest first.

    The partitions have even parts of the load, each on a team of its own. Beside a single one lie receipts
    and definition.
    """
    server, copies = plan.server, plan.replication
    if partitions == 1 and plan.receipts == 1:
        return [Bound("partitions", BUSY_MOST / storage_use(task, server, copies))]
    apart = replace(task, mutations=task.mutations - task.receipts)
    bounds = {
        "partitions": partitions / storage_use(apart, server, copies),
        "receipts": plan.receipts * server.storage_writes / task.receipts,
        "definition": copies * server.storage_reads / task.commits,
    }
    found = [Bound(part, BUSY_MOST * rate) for part, rate in bounds.items()]
    return sorted(found, key=lambda bound: bound.tasks_per_second)


def partitions_for(task: Load, plan: Plan) -> int | None:
    """The least power of two of partitions that carries the rate of the plan; None if no number does."""
    numbers = [2**power for power in range(limits.PARTITIONS_MAX.bit_length())]
    rates = [bounds_of(task, plan, number)[0].tasks_per_second for number in numbers]
    enough = (number for number, rate in zip(numbers, rates, strict=True) if rate >= plan.tasks_per_second)
    return next(enough, None)


def estimate(plan: Plan) -> Estimate:
    """The load of the plan, and the processes that carry it half busy."""
    task, server, copies = load_of(plan), plan.server, plan.replication
    second = task.times(plan.tasks_per_second)
    made = [CPU_S[name] for name in CPU_S if (plan.kind, name) != ("queue", "ack")]
    cores = sum(each / plan.batch + more for each, more in made) * plan.tasks_per_second
    return Estimate(
        task,
        second,
        storage_teams=_processes(storage_use(second, server, copies)),
        logs=max(copies, _processes(copies * second.log_bytes / server.log_bytes)),
        commit_proxies=_processes(second.commits / server.proxy_commits),
        client_cores=cores,
        partitions=partitions_for(task, plan),
        bounds=bounds_of(task, plan, plan.partitions),
    )


def _processes(use: float) -> int:
    """The number of half-busy processes with this work, in processes that are always busy."""
    return max(1, math.ceil(use / BUSY_MOST))
