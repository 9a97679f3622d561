"""As `exact`, with defaults of the queue: puts leave an option out, or give 0 or "for ever" beside one."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.exact import Kinds, one_process
from tests.system.workloads.exact_many import Many

NAME = "exact_defaults"
PRIORITIES = ("fifottl", "limfifottl", "utubettl")
SPANS: Sequence[dict[str, Any]] = (
    {"ttl": 3},
    {"ttr": 1},
    {"ttl": 3, "ttr": inf},
    {"ttl": 10, "ttr": 2},
    {"ttl": inf},
)
KINDS: Kinds = tuple(
    (kind, {**options, **spans})
    for kind, options in (
        ("fifottl", {"pri": 1}),
        ("limfifottl", {"pri": 2, "capacity": 6}),
        ("utubettl", {"pri": 1}),
        ("utubettl", {"key_concurrency": 2}),
        ("fair", {}),
        ("bag", {}),
    )
    for spans in SPANS
)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_defaults(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact defaults")
    simulation.limit(
        DUE_BATCH=random.choice((1, 3, 8)),
        VERB_BATCH=random.choice((2, 8)),
        TAKEN_READ_MAX=random.choice((1, 2, 50)),
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=0,
    )
    return one_process(simulation, size, NAME, random, KINDS, Defaulted)


class Defaulted(Many):
    def _options(self) -> dict[str, Any]:
        options, random = super()._options(), self.random
        for name in ("ttl", "ttr"):
            if random.random() < 0.2:
                options[name] = inf
        if self.q.kind in PRIORITIES and random.random() < 0.3:
            options["pri"] = None
        return options
