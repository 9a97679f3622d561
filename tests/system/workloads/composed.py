"""Transactions of callers that compose several calls of a task queue with writes of their own.

Each transaction writes its calls into notes. A model (task_world.py) goes through the notes in the
order of the commits, and knows the right answers of each call.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import SPACE, cramped, draw_limits, or_a_bag
from tests.system.workloads.composed_calls import HUNDREDS, PLANS, Attempt, Rollback
from tests.system.workloads.stage import ENOUGH_S, total
from tests.system.workloads.task_model import Notes, Rules
from tests.system.workloads.task_world import Judge

ROLLED_BACK, IDLE, RARE, LATE = 0.15, 0.3, 0.25, 0.08
USER = "user-"
FIRST = f"{USER}0"
KINDS: Sequence[tuple[str, bool, dict[str, Any]]] = (
    ("fifo", False, {}),
    ("fifottl", False, {}),
    ("fifottl", True, {"ttr": 2}),
    ("limfifottl", False, {"capacity": 5}),
    ("limfifottl", True, {"capacity": 5, "ttr": 2}),
    ("utube", False, {}),
    ("utube", False, {"key_concurrency": 2}),
    ("utubettl", False, {"key_concurrency": 2}),
    ("utubettl", True, {"ttr": 2}),
    ("fair", False, {"weights": {"a": 3}}),
    ("fair", True, {"ttr": 2}),
)
"""Kinds, with times or without, and options. Without times no sweep changes a task: the model is exact."""
NAME = "composed"
NOTES = Notes(SPACE[NAME])
ROUND = b"\x03"  # the round of a fair queue stays (stored/keyed.py)


# In some runs, one call puts 12 tasks, and another removes 149.
# A take gives as many tasks as it may, and some have long keys.
@workload(
    clients=3,
    steps=16,
    more=("version_changed",),
    wide=("VERB_BATCH", "BATCH_BYTES_MAX", "BATCH_RECORDS_BYTES_MAX", "SERVE_BYTES_MAX"),
)
def composed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(FAILURES_KEPT=2, KEY_LEVEL_MIN=1)
    draw_limits(simulation, random, DUE_BATCH=(1, 1, 3), SWEEP_EVERY_S=(limits.SWEEP_EVERY_S, 30))
    kind, timed, options = random.choice(KINDS)
    kind = or_a_bag(simulation, kind)
    # From other dice, so that all else of a seed is as it would be without.
    chance = Random(f"{simulation.seed} values").random()
    rare, late = chance < RARE, chance < LATE
    rules = Rules(kind, timed, options, simulation.faults.clock_skew_s, rare)
    ids: list[str] = []

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, kind, if_not_exists=True, **options)

    def use(client: Client) -> None:
        user = User(client, opened(client), rules, ids)
        if late and not timed and "capacity" not in options and client.name == FIRST:
            for verbs in HUNDREDS:
                user.transact(verbs)
        for _ in range(size.steps):
            user.transact(client.random.choice(PLANS[rules.timed]), ROLLED_BACK)
            client.pause(0.3)
            if rules.timed and client.random.random() < IDLE:
                client.runtime.sleep(2.2)  # leases and lives end
        while user.held:
            user.transact(("give_back",))

    def survive(client: Client) -> None:
        user = User(client, opened(client), rules, ids)
        until = client.runtime.monotonic() + ENOUGH_S
        user.transact(("resume", *(() if rules.timed else ("release_all",))))
        while total(user.q, client.db) and client.runtime.monotonic() < until:
            user.transact(("kick", "take"))
            while user.held:
                user.transact(("ack",))
            client.runtime.sleep(1.0)
        client.call(NAME, "end", rules, lambda: user.q.statistics(client.db)["calls"])

    for number in range(size.clients):
        simulation.client(use, f"{USER}{number}")
    simulation.afterwards(survive, "survivor")
    return [each_answer_is_right, counted_by_the_notes, nothing_is_left, no_watch_left_behind]


class User:
    """A client that holds tasks between its transactions."""

    def __init__(self, client: Client, q: TaskQueue, rules: Rules, ids: list[str]) -> None:
        self.q = q
        self.held: list[Task] = []
        self._client, self._rules, self._ids = client, rules, ids
        self._session = Session(client.db, ttr=inf)  # no sweep ends it: the notes have every release
        self._steps = 0

    def transact(self, verbs: Sequence[str], rolled_back: float = 0.0) -> None:
        """Call `verbs` in one transaction. Roll it back, or repeat it until its result is known."""
        client, step = self._client, f"{self._client.name}.{self._steps}"
        self._steps += 1
        seed, attempts = client.random.random(), dict[bytes, Attempt]()
        rolls_back = client.random.random() < rolled_back

        def body(tr: Transaction) -> bytes:
            committed = NOTES.committed(tr, step)
            if committed is not None:
                return committed
            nonce = client.runtime.random_bytes(4)
            made = attempts[nonce] = Attempt(client, self.q, self._session, self._rules, seed, self._ids)
            made.call(tr, verbs, self.held)
            if rolls_back:
                raise Rollback
            NOTES.write(tr, step, nonce, made.ops)
            return nonce

        with suppress(Rollback):
            nonce = client.call(NAME, "transact", verbs, partial(run, client.db, body))
            self.held = attempts[nonce].held
            self._ids += attempts[nonce].put


# Checkers.


def each_answer_is_right(trace: Trace, database: Database) -> Iterator[str]:
    """Check each call of each committed transaction against the model, in the order of the commits."""
    for op in trace.of(NAME, "end"):
        judge = Judge(op.argument)
        judge.judge(NOTES.entries(database))
        yield from judge.errors[:5]


def counted_by_the_notes(trace: Trace, database: Database) -> Iterator[str]:
    """Check the counters of the calls against the notes, and that no other task is left than expired
    ones.
    """
    for op in trace.of(NAME, "end"):
        judge = Judge(op.argument)
        judge.judge(NOTES.entries(database))
        judge.close()
        yield from judge.errors[:5]
        sure, most = judge.sure, judge.sure + judge.maybe
        for name, count in (op.result or {}).items():
            if not sure[name] <= count <= most[name]:
                yield f"{count} calls of {name} are counted, the notes have {sure[name]} to {most[name]}"


def nothing_is_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that the empty queue has no key of a task, and no task is counted."""
    q = TaskQueue.open(database, NAME)
    keys = TaskKeys(q.contents)
    for under in (keys.contents, keys.failures, keys.classed, keys.class_counts):
        for row in database.get_range(under.start, under.stop):
            if row.key != keys.beside + ROUND and any(row.value):
                yield f"left behind: {row.key!r} = {row.value!r}"
    live = Counter(q.statistics(database)["tasks"])
    if live["total"]:
        yield f"an empty queue counts {dict(live)}"
