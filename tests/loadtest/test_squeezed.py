"""Each promise of the drill of a squeezed cluster can be broken."""

from dataclasses import replace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Session, Task
from loadtest.drills import squeezed
from loadtest.drills.load import Witness
from loadtest.ledger import Verdict, judge

OFF = squeezed.Phase(
    False,
    reads=1_000,
    p50_ms=1.0,
    p99_ms=10.0,
    puts=100,
    default_started=5_000,
    batch_started=0,
    batch_limit_per_s=20.0,
    limited_by="storage_server_write_queue_size",
)
ON = replace(OFF, is_background_on=True, p99_ms=10.5)
SOUND = squeezed.Report(
    (OFF, ON, OFF, ON),
    {"verifications": 1},
    batch=10,
    fallbacks=9,
    lost=[],
    verdict=Verdict(produced=200, consumed=200),
)


def test_a_sound_run_breaks_no_promise() -> None:
    assert SOUND.broken(is_latency_judged=True) == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"phases": (replace(OFF, limited_by="workload"), ON)}, "holds batch priority back"),
        ({"phases": (OFF, replace(ON, puts=0))}, "default priority goes on"),
        ({"phases": (OFF, replace(ON, p99_ms=11.1))}, "foreign reads"),
        ({"batch": 0, "fallbacks": 0}, "asks at batch priority"),
        ({"fallbacks": 0}, "while it is held back"),
        ({"lost": ["the lease of task 7"]}, "keep their leases"),
        ({"verdict": Verdict(produced=200, consumed=201, twice=1)}, "runs twice"),
        ({"verdict": Verdict(produced=200, consumed=199, lost=1)}, "is lost"),
        ({"verdict": Verdict(produced=200, consumed=200, doubtful=1)}, "is lost"),
    ],
)
def test_each_broken_promise_is_told(change: dict[str, Any], broken: str) -> None:
    assert broken in replace(SOUND, **change).broken(is_latency_judged=True)[0]


def test_the_latency_is_judged_on_demand_by_the_medians() -> None:
    slow = replace(SOUND, phases=(OFF, ON, OFF, replace(ON, p99_ms=30.0), OFF, ON))
    assert slow.ratio == 1.05
    assert replace(SOUND, phases=(OFF, replace(ON, p99_ms=30.0))).broken() == []


class Forged(squeezed.SteadyLoad):
    """The load on an engine in memory, without its threads."""

    def __init__(self, db: fdbqueue.Database) -> None:
        self.db = db
        self.witness = Witness(Subspace(("effects",)))
        self.lost = []
        self._tasks = fdbqueue.TaskQueue.create(db, "tasks", "fifottl", ttr=60)

    def run(self, task: Task, session: Session) -> None:
        self._run(task, session)


def test_a_run_after_a_lost_lease_is_a_second_one() -> None:
    """The first run loses its lease while it works, so another worker runs the task, too."""
    with fdbqueue.open("memory:") as db:
        load = Forged(db)
        load.witness.confirms(("task", load._tasks.put(db, 7).data))
        first, second = (Session(db, ttr=60) for _ in range(2))
        task = load._tasks.take(db, 0, session=first)
        assert task is not None
        load._tasks.release_all(db)
        load.run(task, first)
        again = load._tasks.take(db, 0, session=second)
        assert again is not None
        load.run(again, second)
        assert load.lost == ["the lease of task 7"]
        assert judge(db, load.witness).twice == 1


def test_a_held_task_that_another_one_can_take_is_a_lost_lease() -> None:
    with fdbqueue.open("memory:") as db:
        holder = squeezed.Holder(db, Subspace(("root",)))
        fdbqueue.TaskQueue.open(db, "held", root=Subspace(("root",))).release_all(db)
        assert len(holder.lost()) == 2 * squeezed.HELD
