"""Two calls, of which one begins and ends just before the other one commits: answers and store equal those of
one of the two serial orders.

The calls happen up to three times from the same rows. First the second call happens in the middle of the
first one, between its last read and its commit. Then it happens before that transaction, or after it. So a
conflict that is missing is found for sure. The code itself, in a serial order, has the right answer.

Each workload has the worlds of a row in the table: queues, with the calls that are made of them.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from fdbqueue.testing.cases import Build, Size, workload
from fdbqueue.testing.simulation import MEMORY, Checker, Client, Simulation
from tests.system.workloads.common import draw_limits, unswept
from tests.system.workloads.paired_groups import Groups, Schedules
from tests.system.workloads.paired_items import Elements, FairItems, Items, Requests
from tests.system.workloads.paired_process import AT_ONCE, Doubts, Process, Spread, Together
from tests.system.workloads.paired_queues import Limits, Persistent, Sessions
from tests.system.workloads.paired_tasks import Moves, Tasks
from tests.system.workloads.paired_world import NEVER, Twins, World

ANY: Sequence[type[World]] = (*(Tasks,) * 8, Items, Items, FairItems, Elements)


class Pairs(NamedTuple):
    """A workload: each run has one of its worlds. `bounds`: limits, each with one of these values."""

    name: str
    what: str
    steps: int
    worlds: Sequence[type[World]]
    bounds: Mapping[str, Sequence[int]] = {}
    process: Callable[[Twins, World], Process] = Process


TABLE = (
    Pairs(
        "paired",
        "Two calls of two processes meet in a queue of any kind: they equal one of the two serial orders.",
        12,
        ANY,
    ),
    Pairs(
        "paired_groups",
        "As `paired`, with members of groups: the last one, the close, the cancel, the drop of a queue.",
        10,
        [Groups],
    ),
    Pairs(
        "paired_limits",
        "As `paired`, with slots and starts of limits: the last slot, fewer slots than tasks, removals.",
        10,
        [Limits],
    ),
    Pairs(
        "paired_line",
        "As `paired`, with items and requests in their line: looks, withdrawals, readers that hold items.",
        16,
        [Requests],
        {"SERVE_MAX": (1, 2, 20)},
    ),
    Pairs(
        "paired_partitions",
        "As `paired`, in the middle of a repartition: a task key leaves its old partition.",
        8,
        [Moves],
    ),
    Pairs(
        "paired_persistent",
        "As `paired`, with a persistent queue: acks, kept items and puts, beside the loss of an item.",
        12,
        [Persistent],
    ),
    Pairs(
        "paired_schedules",
        "As `paired`, with schedules that are due: firings, changes, pauses, runs by hand, a drop.",
        12,
        [Schedules],
    ),
    Pairs(
        "paired_sessions",
        "As `paired`, with two sessions at a deadline: heartbeats, ends, openings, sweeps, takes and acks.",
        12,
        [Sessions],
        {"VERB_BATCH": (1, 200), "DEAD_SESSIONS_MAX": (1, 100)},
    ),
    Pairs(
        "doubted",
        "Each commit of a call is in doubt in turn: answer and queue equal those of the call without doubt.",
        16,
        (*ANY, Groups, Limits, Moves, Persistent, Schedules),
        process=Doubts,
    ),
    Pairs(
        "together",
        "Calls of several threads of one process combine: answers and queue equal those of one order.",
        16,
        AT_ONCE,
        process=Together,
    ),
    Pairs(
        "together_partitions",
        "As `together`, in the middle of a repartition: the process knows the plan of a moment before.",
        10,
        [Spread],
        process=Together,
    ),
)


def built(pairs: Pairs) -> Build:
    def build(simulation: Simulation, size: Size) -> Sequence[Checker]:
        random = Random(f"{simulation.seed} {pairs.name}")
        bound(simulation, random)
        simulation.limit(**{name: random.choice(values) for name, values in pairs.bounds.items()})
        simulation.limit(SESSION_HOLD_SHARE=0)  # their clock stands still, and that of the database does not

        def use(client: Client) -> None:
            client.calm()
            twins = Twins(client, MEMORY)
            try:
                process = pairs.process(twins, drawn(pairs.worlds, random)(random, twins))
                process.prepare()
                for _ in range(size.steps):
                    client.call(pairs.name, "pair", None, process.step)
            finally:
                twins.close()

        for number in range(size.clients):
            simulation.client(use, f"user-{number}")
        return []

    build.__name__, build.__doc__ = pairs.name, pairs.what
    return build


def bound(simulation: Simulation, random: Random) -> None:
    """Let no process sweep by itself, and draw the levels at which tasks of a key are counted."""
    unswept(simulation)
    draw_limits(simulation, random, KEY_LEVEL_MIN=(1, 64), FAILURES_KEPT=(1, 3))


def drawn(worlds: Sequence[type[World]], random: Random) -> Any:
    return random.choice(worlds) if len(worlds) > 1 else worlds[0]


for row in TABLE:
    workload(clients=1, steps=row.steps, never=NEVER)(built(row))
