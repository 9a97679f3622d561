"""One process with a clock that stands still in each call: every answer equals that of a plain model.

The clock moves between calls, mostly to the very microsecond at which a lease, a delay, a ttl or a unique key
ends. Commits conflict and have unknown results; the process does not die, but its sessions do.
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.errors import RepartitionUnderWay
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, draw_limits, unswept
from tests.system.workloads.exact_model import Caller, Model, caught, step_by_step
from tests.system.workloads.exact_verbs import KEYED, Looks, Many

Kinds = Sequence[tuple[str, dict[str, Any]]]
"""Kinds of queues, with the options of each."""
NAME = "exact"
KINDS: Kinds = (
    ("fifo", {}),
    ("fifottl", {}),
    ("fifottl", {}),
    ("limfifottl", {"capacity": 6}),
    ("utube", {}),
    ("utube", {"key_concurrency": 2}),
    ("utubettl", {"key_concurrency": 2}),
    ("fair", {}),
    ("bag", {}),
)
VERBS = ("put", "put", "put", "put_many", "take", "take", "take", *("use_a_lease",) * 8, "by_id", "kick")
RARE = ("release_all", "truncate", "pause", "end_session", "let_a_session_die", "forget_result")
LOOKED, SWEPT = 0.35, 0.75
DEFAULTS = "exact_defaults"
PRIORITIES = ("fifottl", "limfifottl", "utubettl")
SPANS: Sequence[dict[str, Any]] = (
    {"ttl": 3},
    {"ttr": 1},
    {"ttl": 3, "ttr": inf},
    {"ttl": 10, "ttr": 2},
    {"ttl": inf},
)
WITH_DEFAULTS: Kinds = tuple(
    (kind, {**options, **spans})
    for kind, options in (
        ("fifottl", {"pri": 1, "result_ttl": 7}),
        ("limfifottl", {"pri": 2, "capacity": 6}),
        ("utubettl", {"pri": 1}),
        ("utubettl", {"key_concurrency": 2, "result_ttl": 20}),
        ("fair", {}),
        ("bag", {}),
    )
    for spans in SPANS
)
PARTS = "exact_partitions"
WITH_PARTITIONS: Kinds = (
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
def exact(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """One process with a clock that stands still in each call: every answer equals that of a plain model."""
    cramped(simulation)
    random = Random(f"{simulation.seed} exact")
    unswept(simulation)
    draw_limits(
        simulation,
        random,
        DUE_BATCH=(1, 3, 8),
        VERB_BATCH=(2, 8),
        FAILURES_KEPT=(1, 3),
        RETAINED_MAX=(3, 100),
    )
    return one_process(simulation, size, NAME, random, KINDS, Many)


def one_process(
    simulation: Simulation,
    size: Size,
    name: str,
    random: Random,
    kinds: Kinds,
    user: type[Many],
    model_of: type[Model] = Model,
    process_of: "type[Process] | None" = None,
) -> Sequence[Checker]:
    """A process that calls one queue, of a kind by chance, and its model."""
    kind, options = random.choice(kinds)
    retains: dict[str, Any] = random.choice(({}, {"retain_s": 5.0}))

    def made(client: Client) -> Process:
        caller = Caller(client)
        q = TaskQueue.create(client.db, name, kind, if_not_exists="any", **options, **retains)
        model = model_of(kind, {**options, **retains})
        model.now = caller.clock.now
        sessions = {one: Session(client.db, ttr=inf) for one in "ab"}
        return (process_of or Process)(user(caller, q, model, sessions))

    step_by_step(simulation, size, made, name)
    return [no_watch_left_behind]


class Process:
    def __init__(self, user: Many) -> None:
        self._user, self._caller, self._model = user, user.caller, user.model
        self._random = user.random
        self._looks = Looks(user)
        self._swept = True

    def step(self) -> None:
        random = self._random
        self._move()
        if random.random() < LOOKED:
            self._looks.look(self._swept)
        verb = self._verb()
        if not self._may_be_unswept(verb):
            self._sweep()
        getattr(self._user, verb)()
        self._model.sweep()
        self._swept = False
        if random.random() < SWEPT:
            self._sweep()

    def _verb(self) -> str:
        return self._random.choice(RARE) if self._random.random() < 0.12 else self._random.choice(VERBS)

    def _may_be_unswept(self, verb: str) -> bool:
        return verb in ("use_a_lease", "by_id")

    def _move(self) -> None:
        """Move the clock: mostly to the next change of a task, or to just before it."""
        model, random = self._model, self._random
        chance, following = random.random(), model.next_change()
        to = model.now
        if chance < 0.3 and following is not None:
            to = following - random.choice((0, 0, 1))
        elif chance < 0.4:
            to += random.choice((1, 250_000, 1_000_000, 4_000_000))
        if to > model.now and self._may_move_to(to):
            self._sweep()  # at the time that the model has
            self._caller.clock.move_to(to)
            model.now, self._swept = to, False
            contested = model.is_contested()
            model.sweep()
            if contested or random.random() < SWEPT:
                self._sweep()

    def _may_move_to(self, _: int) -> bool:
        return True

    def _sweep(self) -> None:
        if not self._swept:
            partial(self._caller.tick)()
            self._swept = True


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_defaults(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `exact`, with defaults of the queue: puts leave an option out, or overrule it."""
    cramped(simulation)
    random = Random(f"{simulation.seed} exact defaults")
    unswept(simulation)
    draw_limits(simulation, random, DUE_BATCH=(1, 3, 8), VERB_BATCH=(2, 8), TAKEN_READ_MAX=(1, 2, 50))
    return one_process(simulation, size, DEFAULTS, random, WITH_DEFAULTS, Defaulted)


class Defaulted(Many):
    def _options(self) -> dict[str, Any]:
        options, random = super()._options(), self.random
        for name in ("ttl", "ttr"):
            if random.random() < 0.2:
                options[name] = inf
        if self.q.kind in PRIORITIES and random.random() < 0.3:
            options["pri"] = None
        return options


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `exact`, with a queue of several partitions, the number of which changes.

    The order of two tasks in different partitions is left open. All else is as in one queue.
    """
    random = Random(f"{simulation.seed} exact partitions")
    unswept(simulation)
    draw_limits(simulation, random, DUE_BATCH=(1, 3, 8), VERB_BATCH=(2, 8))
    return one_process(simulation, size, PARTS, random, WITH_PARTITIONS, Parted)


class Parted(Many):
    def kick(self) -> None:
        """Bury some tasks first: a kick goes on from one partition to the next."""
        there = [*self.model.lives]
        for id_ in self.random.sample(there, min(4, len(there))):
            self._call(f"bury {id_}", partial(self.q.bury, task=id_), partial(self._by_id, "bury", id_))
        super().kick()

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
