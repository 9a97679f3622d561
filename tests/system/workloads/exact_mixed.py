"""As `exact`, with several features of a queue at once: states in which two of them meet.

Each run draws its own verbs, and how often it makes each. So some runs bury and never ack, some cancel, some
change the number of partitions with every third call. Unique keys, groups, tasks that wait for others,
pauses, partitions, a capacity and redrives into another queue meet in one model.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import RepartitionUnderWay
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.groups import Group, GroupProgress
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.common import cramped, draw_limits, unswept
from tests.system.workloads.exact import Kinds, Process, one_process
from tests.system.workloads.exact_calls import Caller, caught, require_equal
from tests.system.workloads.exact_groups_model import Gathered
from tests.system.workloads.exact_mixed_model import DeadDeeds, MixedModel, MixedPuts, rivals
from tests.system.workloads.exact_model import Life
from tests.system.workloads.exact_verbs import KEYED, LEASES, Many, of_holder

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
NAME = "exact_mixed"
PARTITIONS = (1, 2, 3, 5)
UNUSUAL = 0.6


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
    unswept(simulation)
    draw_limits(
        simulation,
        random,
        DUE_BATCH=(1, 3, 8),
        VERB_BATCH=(2, 8),
        FAILURES_KEPT=(1, 3),
        MOVED_BYTES_MAX=(60, 4_000_000),
        GROUPS_SWEPT_MAX=(1, 8),
    )
    return one_process(simulation, size, NAME, random, KINDS, Mixed, MixedModel, MixedProcess)


# Calls.


class Mixed(DeadDeeds, MixedPuts, Many):
    model: MixedModel

    def __init__(self, caller: Caller, q: TaskQueue, model: MixedModel, sessions: dict[str, Session]) -> None:
        super().__init__(caller, q, model, sessions)
        weights = {name: self.random.choice((0.2, 1, 1, 4)) for name in LEASES}
        self._lease_verbs, self._lease_weights = [*weights], [*weights.values()]

    # Tasks by lease and by id.

    def use_a_lease(self) -> None:
        """As in `exact`. Cancelled tasks, and those that have failed before, have more of the calls."""
        if not self.leases:
            return
        odd = [task for task in self.leases if self._is_unusual(self.model.lives.get(task.id))]
        task = self.random.choice(odd if odd and self.random.random() < UNUSUAL else self.leases)
        [name] = self.random.choices(self._lease_verbs, self._lease_weights)
        verb, answer = LEASES[name](self, task)
        self._call(f"{name} of {task.id}", verb, of_holder(self.model, task, answer))

    def by_id(self) -> None:
        if self.ids:
            name, id_ = self.random.choice(("bury", "bury", "delete", "cancel", "cancel")), self.any_id()
            self._call(
                f"{name} {id_}", lambda tr: getattr(self.q, name)(tr, id_), partial(self._by_id, name, id_)
            )

    def any_id(self) -> str:
        """An id, which is that of a task in an unusual state in most calls."""
        odd = [life.id for life in self.model.lives.values() if self._is_unusual(life)]
        there = [*self.model.lives]
        if odd and self.random.random() < UNUSUAL:
            return self.random.choice(odd)
        return self.random.choice(there if there and self.random.random() < 0.7 else self.ids[-8:])

    def _is_unusual(self, life: Life | None) -> bool:
        return life is not None and (
            life.state == "!" or life.cancelled is not None or life.failures > 0 or bool(life.groups)
        )

    # Takes.

    def _least(self) -> int:
        """None at least, while a task key may be held (tasks/parted.py)."""
        return 0 if self.is_under_way() and self.q.kind in KEYED else super()._least()

    def _require_next(self, task: Task, ready: list[Life], number: int) -> None:
        if self.is_under_way():
            waiting = [life.id for life in self.model.in_state("r")]
            assert task.id in waiting, f"taken: {task}, of {waiting}"
        else:
            super()._require_next(task, ready, number)

    # The queue.

    def is_under_way(self) -> bool:
        plan = self.q._calls(self.caller.client.db).parts.plan
        return plan is not None and bool(plan.before)

    def repartition(self) -> None:
        count = self.random.choice(PARTITIONS)
        found = caught(partial(self.q.repartition, partitions=count), self.caller.client.db)
        if isinstance(found, RepartitionUnderWay):
            assert self.model.lives, "a repartition of an empty queue has not ended"
            return
        assert not isinstance(found, Exception), f"repartition: {found!r}"
        if found.before != count or self.model.is_parted:
            self.model.options["partitions"] = count

    def winners_first(self, lives: list[Life]) -> list[Life]:
        """Of tasks that have come back together, in several partitions, those first that have their unique
        keys now: the order of partitions has decided it.
        """
        if not self.model.is_parted or not rivals([life for life in lives if life.scope == "queued"]):
            return lives
        peek = partial(self._have_keys, [life.id for life in lives])
        have = run(self.caller.client.db, peek)
        return sorted(lives, key=lambda life: life.id not in have)

    def _have_keys(self, ids: list[str], tr: Any) -> set[str]:
        found = [caught(partial(self.q.peek, task=id_), tr) for id_ in ids]
        return {one.id for one in found if isinstance(one, Task) and one.unique is not None}

    # Groups.

    def gather(self) -> None:
        holds = self.random.random() < 0.5
        made = self.caller.answer(lambda tr: Group.create(tr, wait_for_buried=holds))
        self.model.groups[made.id] = Gathered(made.id, holds)

    def end_group(self) -> None:
        """Close a group, or cancel it."""
        mine = [group for group in self.model.groups.values() if group.ended is None]
        if not mine:
            return
        group, verb = self.random.choice(mine), self.random.choice(("close", "close", "cancel"))
        found = self.caller.answer(getattr(Group(group.id), verb))
        assert not isinstance(found, Exception), f"{verb}: {found!r}"
        group.is_open, group.cancelled = False, group.cancelled or verb == "cancel"


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


# Looks.


def look_at_groups(user: Mixed) -> None:
    """Compare the counts of the groups that have not ended.

    Raises: AssertionError.
    """
    model, db = user.model, user.caller.client.db
    for group in [group for group in model.groups.values() if group.ended is None][-3:]:
        found = run(db, partial(_progress, group.id))
        counts = (found.total, found.done, found.failed, found.left, found.buried, found.open)
        wanted = (
            group.total, group.done, group.failed, group.left, model.buried(group), group.is_open,
        )  # fmt: skip
        require_equal(f"the group {group.id}", counts, wanted)


def _progress(id_: str, tr: Transaction) -> GroupProgress:
    return Group(id_).progress(tr)
