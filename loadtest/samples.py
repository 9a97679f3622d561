"""The seconds of a run as numbers: users, latencies, operations and conflicts."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from locust.env import Environment

from fdbqueue.core.observing import Counters

_RATE_OVER = 3


@dataclass(frozen=True)
class Sample:
    """One second. `operations` and `conflicts` are sums since the beginning."""

    seconds: float
    users: int
    consumers: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    operations: int
    conflicts: int


def sample_of(environment: Environment, seconds: float, counters: Counters) -> Sample:
    """This moment, as Locust's statistics have it: of a fleet on the master, of this process elsewhere."""
    assert environment.runner is not None
    total = environment.runner.stats.total
    p50, p95, p99 = (total.get_current_response_time_percentile(share) or 0 for share in (0.50, 0.95, 0.99))
    counts = users_by_class(environment)
    consumers = sum(
        counts.get(users.__name__, 0)
        for users in environment.user_classes
        if getattr(users, "consumes", False)
    )
    return Sample(
        seconds,
        sum(counts.values()),
        consumers,
        p50,
        p95,
        p99,
        total.num_requests,
        counters.conflicts,
    )


def users_by_class(environment: Environment) -> dict[str, int]:
    runner = environment.runner
    counts: dict[str, int] = getattr(runner, "reported_user_classes_count", None) or getattr(
        runner, "user_classes_count", {}
    )
    return counts


def together(parts: Iterable[Counters]) -> Counters:
    """The counters of several processes, added up."""
    sums: dict[str, int] = defaultdict(int)
    for part in parts:
        for name, value in asdict(part).items():
            sums[name] += value
    return Counters(**sums)


def conflicts_by_consumers(samples: Sequence[Sample]) -> list[tuple[int, float]]:
    """Conflicts per operation, for each number of consumers that held from one sample to the next."""
    operations: dict[int, int] = defaultdict(int)
    conflicts: dict[int, int] = defaultdict(int)
    for before, after in pairwise(samples):
        if before.consumers == after.consumers:
            operations[after.consumers] += after.operations - before.operations
            conflicts[after.consumers] += after.conflicts - before.conflicts
    return [
        (count, conflicts[count] / operations[count]) for count in sorted(operations) if operations[count]
    ]


def rates_of(samples: Sequence[Sample]) -> list[float]:
    """Operations per second at each sample, over the last few: workers report every three seconds."""
    earlier = [samples[max(0, number - _RATE_OVER)] for number in range(len(samples))]
    return [
        (now.operations - before.operations) / (now.seconds - before.seconds) if now is not before else 0.0
        for before, now in zip(earlier, samples, strict=True)
    ]
