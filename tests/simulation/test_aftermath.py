"""The aftermath of a run: the time that it allows, and the sentences that it tells of stuck things."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest

from fdbqueue import Group, GroupNotFound, Queue, Schedule, Session, Subspace, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import Keeper
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing import Case, Client, Simulation
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.scheduler import EPOCH_S, Scheduler
from fdbqueue.testing.simulation import Result
from fdbqueue.testing.trace import Commit, sound
from tests.system.aftermath.aftermath import Moments
from tests.system.aftermath.contents import SETTLED_S, Contents, last_deadline_us, slack_s
from tests.system.aftermath.watching import Watching
from tests.system.audit.model import Mirror
from tests.system.workloads import all_workloads

ROOT = RootKeys(DEFAULT_ROOT)
NOW_US = 1_700_000_000_000_000
WITHOUT = {
    "bank": "it has no queue",
    **dict.fromkeys(
        [
            *("doubted", "paired", "paired_groups", "paired_limits", "paired_line", "paired_partitions"),
            *("paired_persistent", "paired_schedules", "paired_sessions"),
            *("receipts", "together", "together_partitions"),
        ],
        "its calls have databases of their own, and none of them waits",
    ),
    **dict.fromkeys(
        ["direct", "processes", "rings", "unflushed"],
        "it tests the engine below; its checkers bound the time of each answer and of each ring",
    ),
}
"""Workloads without an aftermath, each with the reason."""
ITEMS = Queue(Subspace(("items",)))


def outlived(function: Callable[[Client], object], *spaces: Queue) -> Result:
    """Run one client, which dies at the end of `function`, and the aftermath of that death."""
    seed = next(seed for seed in range(100) if is_at_the_end(seed))
    simulation = Simulation(seed, faults=NONE)

    def live(client: Client) -> None:
        function(client)
        simulation.scheduler.die(client.runtime.host)

    simulation.client(live, "mortal")
    return simulation.run([sound(*spaces)])


def is_at_the_end(seed: int) -> bool:
    """True if the aftermath of a seed begins with the end of the clients."""
    moments = Moments(Random(f"{seed} moment"), Scheduler(Random(0), 1))
    moments.committed(commit(1), Mirror())
    was_before = moments.chosen is not None
    moments.over(Mirror())
    return moments.chosen is not None and not was_before


def commit(version: int) -> Commit:
    return Commit(version, None, "client", "machine", version, "", NOW_US)


def take_and_die(client: Client) -> None:
    q = TaskQueue.create(client.db, "jobs")
    q.put(client.db, 1)
    assert q.take(client.db, 0) is not None


def test_a_task_of_a_dead_holder_is_taken_again() -> None:
    result = outlived(take_and_die)
    assert result.violations == ()
    assert "second" in {who for _, who, what, _ in result.trace.events if what == "begins"}


def test_a_session_that_is_never_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_end_the_dead", lambda _: None)
    monkeypatch.setattr(Keeper, "ended_overdue", lambda *_: False)
    told = "\n".join(outlived(take_and_die).violations)
    assert "is taken, and its holder is gone" in told
    assert "a heartbeat is left of a process that is gone" in told


def test_a_session_with_a_later_deadline_is_left_alone() -> None:
    def hold(client: Client) -> None:
        q = TaskQueue.create(client.db, "jobs")
        q.put(client.db, 1)
        assert q.take(client.db, 0, session=Session(client.db, ttr=float("inf"))) is not None

    assert outlived(hold).violations == ()


def test_an_entry_beside_a_take_that_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the dead session makes its task ready, and here no watch wakes a take."""
    monkeypatch.setattr("fdbqueue.core.line.taking.Place._wait", slept)
    monkeypatch.setattr(limits, "LOOK_EVERY_S", 8.0)
    assert any("lay beside a take that waits" in text for text in outlived(take_and_die).violations)


def slept(place: object, watches: Sequence[object], patience_s: float, _: bytes) -> None:
    """A sleep in the line that no watch ends."""
    for watch in watches:
        watch.cancel()  # type: ignore[attr-defined]
    place._runtime.sleep(patience_s)  # type: ignore[attr-defined]


def test_an_item_that_no_take_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the take returns at once, so no entry lies beside it for long before the scan."""
    monkeypatch.setattr(Queue, "dequeue", lambda *given: given[2])
    monkeypatch.setattr("tests.system.aftermath.watching.PROMPT_S", 1000.0)
    told = outlived(lambda client: ITEMS.enqueue(client.db, 1), ITEMS).violations
    assert any("are available, and no take finds them" in text for text in told)


def test_a_schedule_that_no_process_fires_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(client: Client) -> None:
        TaskQueue.create(client.db, "jobs")
        Schedule.create(client.db, "hourly", every=1, queue="jobs")

    assert outlived(create).violations == ()
    monkeypatch.setattr("fdbqueue.tasks.firing.Pass.do", lambda *_: None)
    assert any("has not fired its due time" in text for text in outlived(create).violations)


def test_a_timer_that_stays_behind_a_new_one_is_told() -> None:
    """The first timer has just come, and the second one is over for a minute."""
    keys = TaskKeys(Subspace(("jobs",)))
    timers = [keys.timer(round(EPOCH_S) * 1_000_000 + number, bytes(8)) for number in (1, 2)]
    scheduler = Scheduler(Random(0), 1)
    queue = Contents("jobs", lambda _: lambda *_: False, (), (), [keys])
    watching = Watching(scheduler, 0.0, Mirror.holding(dict.fromkeys(timers, b"")))
    watching.begin(queue)
    scheduler.now = 60.0
    watching.changed_s[timers[0]] = 60.0
    watching.end()
    assert watching.violations == ["jobs: no sweep has moved a task that is due, for 60.0 s"]


def test_a_thread_that_raises_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(TaskQueue, "take", fail)
    told = outlived(lambda client: TaskQueue.create(client.db, "jobs").put(client.db, 1)).violations
    assert told[0] == "aftermath: waiter-0 raised ValueError('broken')"


def test_a_wait_for_a_group_that_is_gone_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is kept for a short time only may go before the wait looks again."""

    def put(client: Client) -> None:
        q = TaskQueue.create(client.db, "jobs")
        members = Group.create(client.db)
        members.put(client.db, q, 1)
        members.close(client.db)

    def gone(group: Group, *_: object) -> None:
        raise GroupNotFound(id=group.id)

    monkeypatch.setattr(Group, "wait", gone)
    assert outlived(put).violations == ()


def test_a_thread_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(keeper: Keeper) -> None:
        """Wait for ever."""
        keeper._runtime.event().wait(None)

    monkeypatch.setattr(Keeper, "_run", wait)
    told = outlived(take_and_die).violations
    assert told == ("aftermath: all tasks wait for ever: fdbqueue-keeper did not end",)


def test_the_aftermath_changes_nothing_in_its_run() -> None:
    def live(client: Client) -> None:
        take_and_die(client)

    def events(is_over: bool) -> Iterator[object]:
        simulation = Simulation(next(filter(is_at_the_end, range(100))), faults=NONE)
        (judge,) = simulation._watches
        judge._moments._is_over |= is_over  # type: ignore[attr-defined]
        simulation.client(live, "mortal")
        for event in simulation.run().trace.events:
            if event[2] == "begins":
                return
            yield event

    assert list(events(False)) == list(events(True))


def test_a_moment_is_a_commit_the_end_or_none() -> None:
    found: set[int | None] = set()
    for seed in range(100):
        moments = Moments(Random(seed), Scheduler(Random(0), 1))
        for version in (1, 2, 3):
            moments.committed(commit(version), Mirror.holding({b"version": bytes((version,))}))
        moments.over(Mirror.holding({b"version": b"\x09"}))
        moments.committed(commit(4), Mirror.holding({b"version": b"\x04"}))
        found.add(None if moments.chosen is None else moments.chosen.rows[b"version"][0])
    assert found == {None, 1, 2, 3, 9}


def test_the_last_deadline_is_that_of_a_session() -> None:
    rows = Mirror.holding({ROOT.beat_due(NOW_US + 7, b"a"): b"", ROOT.beat_due(NOW_US + 3, b"b"): b""})
    assert last_deadline_us(rows, ROOT, [], NOW_US) == NOW_US + 7
    far = Mirror.holding({ROOT.beat_due(NOW_US * 2, b"a"): b""})
    assert last_deadline_us(far, ROOT, [], NOW_US) == NOW_US


def test_the_slack_grows_with_the_processes_that_sweep() -> None:
    each_s = limits.SESSIONS_SWEPT_EVERY_S + limits.SWEEP_EVERY_S
    alive = Mirror.holding({ROOT.beat_due(NOW_US + 7, b"a"): b""})
    assert slack_s(Mirror(), ROOT, NOW_US) == SETTLED_S + each_s
    assert slack_s(alive, ROOT, NOW_US) == SETTLED_S + 2 * each_s


@pytest.mark.parametrize("name", sorted(set(all_workloads()) - set(WITHOUT)))
def test_a_workload_has_an_aftermath_in_some_runs(name: str) -> None:
    workload = all_workloads()[name]
    traces = (Case.of(workload, seed).run().trace for seed in range(12))
    assert any(what == "begins" for trace in traces for _, _, what, _ in trace.events)
