"""As `exact`, with a queue of several partitions, the number of which changes.

The order of two tasks in different partitions is left open. All else is as in one queue.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.errors import RepartitionUnderWay
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.exact import Kinds, one_process
from tests.system.workloads.exact_calls import caught, require_equal
from tests.system.workloads.exact_many import Many
from tests.system.workloads.exact_verbs import KEYED

NAME = "exact_partitions"
KINDS: Kinds = (
    ("fifo", {"partitions": 3}),
    ("fifottl", {"partitions": 2}),
    ("limfifottl", {"partitions": 2, "capacity": 6}),
    ("utube", {"partitions": 3}),
    ("utubettl", {"partitions": 2, "key_concurrency": 2}),
    ("fair", {"partitions": 2}),
    ("bag", {"partitions": 2}),
)
PARTITIONS = (1, 2, 3, 5)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact partitions")
    simulation.limit(
        DUE_BATCH=random.choice((1, 3, 8)),
        VERB_BATCH=random.choice((2, 8)),
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=0,
    )
    return one_process(simulation, size, NAME, random, KINDS, Parted)


class Parted(Many):
    def kick(self) -> None:
        """Kick all buried tasks: the first ones are those of the first partition."""
        buried = self.model.in_state("!")
        found = self.caller.answer(lambda tr: self.q.kick(tr, 50), always_alone=True)
        require_equal("kick", found, len(buried))
        self.model.kick(buried)

    def pause(self) -> None:
        """Pause or resume the queue, or change the number of its partitions."""
        if self.q.kind in KEYED or self.random.random() < 0.3:
            super().pause()
        else:
            change = partial(self.q.repartition, partitions=self.random.choice(PARTITIONS))
            found = caught(change, self.caller.client.db)
            is_left = isinstance(found, RepartitionUnderWay) and bool(self.model.lives)
            assert is_left or not isinstance(found, Exception), f"repartition: {found!r}"

    def _unique(self, options: dict[str, Any]) -> dict[str, Any]:
        """Without the scope "queued": there, the order of sweeps of several partitions would count."""
        wish = super()._unique(options)
        return {**wish, "scope": "unfinished"} if wish["scope"] == "queued" else wish
