"""As `exact`, with several features of a queue at once: states in which two of them meet.

Each run draws its own verbs, and how often it makes each. So some runs bury and never ack, some cancel, some
change the number of partitions with every third call. Unique keys, groups, tasks that wait for others,
pauses, partitions, a capacity and redrives into another queue meet in one model.
"""

from collections.abc import Mapping, Sequence
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.exact import Kinds, Process, one_process
from tests.system.workloads.exact_mixed_deeds import NAME, Mixed
from tests.system.workloads.exact_mixed_looks import look_at_groups
from tests.system.workloads.exact_mixed_model import MixedModel

KINDS: Kinds = tuple(
    (kind, {**options, **parts})
    for kind, options in (
        ("fifo", {}),
        ("fifottl", {}),
        ("limfifottl", {"capacity": 6}),
        ("limfifottl", {"capacity": 4}),
        ("utube", {}),
        ("utubettl", {"key_concurrency": 2}),
        ("fair", {}),
        ("bag", {}),
    )
    for parts in ({}, {"partitions": 2}, {"partitions": 3})
)
VERBS: Mapping[str, float] = {
    "put": 4,
    "put_many": 1,
    "take": 4,
    "use_a_lease": 6,
    "by_id": 4,
    "dead_letter": 1.5,
    "kick": 1,
    "repartition": 1,
    "pause": 0.5,
    "gather": 1,
    "end_group": 0.7,
    "redrive": 0.3,
    "use_the_other_queue": 0.5,
    "release_all": 0.2,
    "truncate": 0.1,
    "end_session": 0.2,
    "let_a_session_die": 0.3,
    "forget_result": 0.2,
    "verify": 0.15,
}
ALWAYS = ("put", "take", "by_id")
SHARES = (0, 0.5, 1, 1, 4)


# The model lets all groups end at once, and takes all that a call asks for.
@workload(
    clients=1,
    steps=50,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=(
        "BATCH_BYTES_MAX",
        "BATCH_RECORDS_BYTES_MAX",
        "SERVE_BYTES_MAX",
        "BATCH_HOLDERS_BYTES_MAX",
        "GROUPS_ENDED_MAX",
    ),
)
def exact_mixed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact mixed")
    simulation.limit(
        DUE_BATCH=random.choice((1, 3, 8)),
        VERB_BATCH=random.choice((2, 8)),
        FAILURES_KEPT=random.choice((1, 3)),
        MOVED_BYTES_MAX=random.choice((60, 4_000_000)),
        GROUPS_SWEPT_MAX=random.choice((1, 8)),
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=0,
    )
    return one_process(simulation, size, NAME, random, KINDS, Mixed, MixedModel, MixedProcess)


class MixedProcess(Process):
    _user: Mixed
    _model: MixedModel

    def __init__(self, user: Mixed) -> None:
        super().__init__(user)
        rare = {name: share * self._random.choice(SHARES) for name, share in VERBS.items()}
        shares = {**rare, **{name: max(rare[name], 1) for name in ALWAYS}}
        self._verbs, self._weights = [*shares], [*shares.values()]

    def step(self) -> None:
        super().step()
        if self._model.groups:
            self._sweep()
            if self._random.random() < 0.2:
                look_at_groups(self._user)

    def _verb(self) -> str:
        [verb] = self._random.choices(self._verbs, self._weights)
        self._user.is_swept = self._swept
        return verb

    def _may_be_unswept(self, verb: str) -> bool:
        """True, too, for a put: a put into a full queue sweeps, and one after a task reads that task."""
        return verb in ("use_a_lease", "by_id", "dead_letter", "put")

    def _may_move_to(self, to: int) -> bool:
        return self._model.is_open_to(to)

    def _sweep(self) -> None:
        """Sweep the end of a member, that of its group, and that of the next one, until nothing is left."""
        if self._swept:
            return
        for _ in range(4 if self._model.groups else 1):
            before = self._caller.client.commits
            self._caller.tick()
            if self._caller.client.commits == before:
                break
        self._swept = True
