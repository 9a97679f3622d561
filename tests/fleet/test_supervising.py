"""Decisions of a supervisor about its processes, which are stand-ins on a clock set by hand."""

import errno
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Fleet, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.errors import FleetRefused
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import RUN_ENDS
from fdbqueue.embedded import FDBError
from fdbqueue.fleet import supervisor
from fdbqueue.fleet.status import Report, Run, Tally
from fdbqueue.fleet.supervisor import ProcessStatus
from fdbqueue.tasks.stored.records import packed
from tests.support import TIMED_OUT, ManualClock


class StandIn:
    """A process that ends by the hand of the test, and notes its stops."""

    id = 7

    def __init__(self, clock: ManualClock) -> None:
        self.report = Report("working")
        self.unheard: Report | None = None
        """A report that its end has overtaken."""
        self.started_at = clock.now()
        self.status_at_end: int | None = None
        self.told: list[int] = []
        self.killed_at: float | None = None
        self._clock = clock
        self._reading, self._writing = os.pipe()

    def fileno(self) -> int:
        return self._reading

    def listen(self) -> None:
        self.report, self.unheard = self.unheard or self.report, None

    def exit_status(self) -> int | None:
        return self.status_at_end

    def stop(self, times: int) -> None:
        self.told.append(times)

    def kill(self) -> None:
        self.killed_at = self._clock.now()
        self.status_at_end = -9

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)

    def at_work(self) -> int:
        return 1

    def ending(self, status: int) -> str:
        return f"it ended with status {status}"

    def status(self, _: float) -> ProcessStatus:
        return ProcessStatus(self.id, self.report.state, Tally(), (), 0, 0.0)


class Watched:
    """Runs a fleet with stand-ins. Each round takes a second of its clock."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.processes: list[StandIn] = []
        self.missing = 0
        """Number of starts that fail from now on."""
        self.tried_at: list[float] = []
        self.url = url
        monkeypatch.setattr(supervisor, "TICK_S", 0.0)
        monkeypatch.setattr(supervisor, "Process", self._start)

    def _start(self, *_: object) -> StandIn:
        self.tried_at.append(self.clock.now())
        if self.missing:
            self.missing -= 1
            raise OSError(errno.EAGAIN, "no process")
        self.processes.append(StandIn(self.clock))
        return self.processes[-1]

    def run(self, each_second: Callable[[Fleet, int], object], processes: int = 1, **options: Any) -> Fleet:
        """Run a fleet; `each_second` is called with it and the seconds so far."""
        fleet = Fleet(self.url, "jobs", "builtins:id", processes=processes, **options)
        fleet._monotonic = self.clock.monotonic
        begun = self.clock.now()

        def tick(_: object) -> None:
            self.clock.advance(1)
            each_second(fleet, round(self.clock.now() - begun))

        fleet.run(tick)
        return fleet


def end(fleet: Fleet, *processes: StandIn) -> None:
    """Stop a fleet whose processes end well at once."""
    fleet.stop()
    for process in processes:
        process.status_at_end = 0


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    url = f"embedded:{tmp_path}"
    with fdbqueue.open(url) as db:
        TaskQueue.create(db, "jobs")
        yield Watched(url, monkeypatch)


def test_a_process_has_its_grace_before_it_is_killed(watched: Watched) -> None:
    begun = watched.clock.now()
    watched.run(lambda fleet, second: fleet.stop() if second == 1 else None, grace_s=60)
    [process] = watched.processes
    assert set(process.told) == {1}
    assert process.killed_at is not None
    assert process.killed_at - begun > 60 + supervisor.KILL_AFTER_S


def test_a_process_that_worked_is_replaced_soon(watched: Watched) -> None:
    """Deaths at a start put the next one off, longer each time; later ones do not add to them."""

    def die(fleet: Fleet, _: int) -> None:
        if len(watched.processes) == 12:
            fleet.stop()
        if len(watched.processes) == 11:
            watched.processes[-1].report = Report("working", Tally(failed=1))
        watched.processes[-1].status_at_end = 1

    watched.run(die)
    begun = [process.started_at for process in watched.processes]
    pauses = [later - one for one, later in pairwise(begun)]
    assert pauses[9] > 10
    assert pauses[10] <= 2


@pytest.mark.parametrize(
    ("is_seen", "status"), [(True, 0), (False, 0), (True, 1)], ids=["seen", "too fast to be seen", "dies"]
)
def test_a_recycled_process_is_replaced_once(watched: Watched, is_seen: bool, status: int) -> None:
    """The next one starts while it finishes its tasks."""

    def recycle(fleet: Fleet, second: int) -> None:
        first, last = watched.processes[0], watched.processes[-1]
        if second == 1 and is_seen:
            first.report = Report("retiring", retired=True)
        elif second == 5:
            if not status:
                first.report = Report("ended", retired=True)
            first.status_at_end = status
        elif second == 9:
            end(fleet, last)

    fleet = watched.run(recycle)
    assert len(watched.processes) == 2
    assert (fleet.status().recycled, fleet.status().restarts) == (1, 0)


def test_a_stopped_fleet_starts_no_process_that_is_due_later(watched: Watched) -> None:
    """Its process has died, and the next one was put off."""

    def die_and_stop(fleet: Fleet, second: int) -> None:
        watched.processes[-1].status_at_end = 1
        if second == 2:
            fleet.stop()

    watched.run(die_and_stop)
    assert len(watched.processes) == 1


def test_a_stop_at_once_leaves_time_to_give_tasks_back(watched: Watched) -> None:
    """It comes long after the first stop."""

    def stop(fleet: Fleet, second: int) -> None:
        if second in (1, 30):
            fleet.stop(at_once=second == 30)

    begun = watched.clock.now()
    watched.run(stop, grace_s=60)
    [process] = watched.processes
    assert set(process.told) == {1, 2}
    assert process.killed_at is not None
    assert process.killed_at - begun > 30 + supervisor.KILL_AFTER_S


@pytest.mark.parametrize("lost", ["its session", "the database"])
def test_a_run_that_cannot_be_read_tells_the_reported_counts(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The exact ones have gone with the session; or the database is away from the first second on."""

    def away(*_: object) -> None:
        raise FDBError(TIMED_OUT)

    def report(fleet: Fleet, second: int) -> None:
        [process] = watched.processes
        process.report = Report("working", Tally(done=3))
        if second == 2:
            if lost == "its session":
                with fdbqueue.open(watched.url) as db:
                    del db[RootKeys(DEFAULT_ROOT).session(bytes.fromhex(fleet._orders.run))]
            end(fleet, process)

    if lost == "the database":
        monkeypatch.setattr(Run, "tally", away)
    assert watched.run(report).status().tally == Tally(done=3)


def test_the_counts_so_far_stay_without_the_session_of_the_run(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUN_READ_TIMEOUT_S", 20.0)
    counts: list[int] = []

    def count(fleet: Fleet, second: int) -> None:
        [process], run, keys = watched.processes, bytes.fromhex(fleet._orders.run), RootKeys(DEFAULT_ROOT)
        with fdbqueue.open(watched.url) as db:
            if second == 1:
                db[keys.run(run)] = packed(RUN_ENDS, {"done": 3})
            elif second == 3:
                del db[keys.session(run)]
        counts.append(fleet.status().tally.done)
        if second == 5:
            end(fleet, process)

    watched.run(count)
    assert (counts[0], set(counts[1:])) == (0, {3})


def test_the_last_report_of_a_process_is_heard_after_its_end(watched: Watched) -> None:
    """It tells why the process could not start: the next one could not, either."""

    def refuse(*_: object) -> None:
        [process] = watched.processes
        process.unheard = Report("refused", reason="no such handler")
        process.status_at_end = 2

    with pytest.raises(FleetRefused, match="no such handler"):
        watched.run(refuse)


def test_a_refusal_is_told_alone(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """The other process is ended for it, by a signal."""

    def refuse(*_: object) -> None:
        first, second = watched.processes
        first.unheard = Report("refused", reason="no such handler")
        first.status_at_end, second.status_at_end = 2, -15

    with pytest.raises(FleetRefused, match="no such handler"):
        watched.run(refuse, processes=2)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_emptied_fleet_replaces_no_process(watched: Watched) -> None:
    """It has died in the moment in which the other one found the queues empty."""

    def empty(fleet: Fleet, second: int) -> None:
        if second == 1:
            watched.processes[0].report = Report("ended", emptied=True)
        elif len(watched.processes) > 2:
            fleet.stop()
        for process, status in zip(watched.processes, (0, 1, 0), strict=False):
            process.status_at_end = status

    watched.run(empty, processes=2, until_empty=True)
    assert len(watched.processes) == 2


def test_a_process_that_ran_for_long_is_replaced_soon(watched: Watched) -> None:
    """Its queues were empty: it has ended no attempt."""

    def die(fleet: Fleet, _: int) -> None:
        process = watched.processes[-1]
        if watched.clock.now() - process.started_at > supervisor.STABLE_S:
            process.status_at_end = 1
        if len(watched.processes) == 9:
            end(fleet, process)

    watched.run(die)
    begun = [process.started_at for process in watched.processes]
    assert max(later - one for one, later in pairwise(begun)) <= supervisor.STABLE_S + 3


def test_starts_that_fail_are_further_and_further_apart(watched: Watched) -> None:
    watched.missing = 10

    def stop(fleet: Fleet, _: int) -> None:
        if watched.processes:
            end(fleet, watched.processes[0])

    watched.run(stop)
    pauses = [later - one for one, later in pairwise(watched.tried_at)]
    assert len(pauses) == 10
    assert pauses[0] <= 1
    assert pauses[-1] > 10


def test_a_fleet_that_fails_leaves_no_recycled_process(watched: Watched) -> None:
    def fail(_: Fleet, second: int) -> None:
        if second == 1:
            watched.processes[0].report = Report("retiring", retired=True)
        elif second == 5:
            raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        watched.run(fail)
    assert [process.status_at_end for process in watched.processes] == [-9, -9]


def test_a_fleet_ends_well_though_its_run_cannot_be_removed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row goes with the ttr of the session."""

    def time_out(*_: object) -> None:
        raise FDBError(TIMED_OUT)

    def stop(fleet: Fleet, _: int) -> None:
        monkeypatch.setattr(Session, "end_within", time_out)
        watched.processes[0].report = Report("ended", Tally(done=2))
        end(fleet, watched.processes[0])

    assert watched.run(stop).status().restarts == 0
