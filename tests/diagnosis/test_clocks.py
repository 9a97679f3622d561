"""The difference of two clocks is told at the least that two looks prove."""

from dataclasses import replace

import pytest

import fdbqueue
from fdbqueue import Session, Severity, TaskState
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate import checks
from fdbqueue.operate.checks import Beat, Look, check_clocks, check_sessions, look_at_beats, without_beats
from fdbqueue.tasks.ending import held_by
from tests.tasks.support import StillClock

KEYS = RootKeys(DEFAULT_ROOT)


def look(began: float, **beats: float) -> Look:
    """A look of 0.1 s at sessions that last beat at these times."""
    return Look(began, began + 0.1, {id_: Beat(at, at + 30, id_) for id_, at in beats.items()})


def told(first: Look, second: Look) -> list[tuple[Severity, float | None]]:
    return [(one.severity, one.data.get("difference_s")) for one in check_clocks(first, second)]


@pytest.mark.parametrize(
    ("before", "after", "severity", "difference_s"),
    [
        (95.0, 101.0, Severity.FINE, None),  # it beat between the looks
        (90.0, 90.0, Severity.WARNING, None),  # it did not beat, and could not be checked
        (90.0, 98.0, Severity.WARNING, -2.0),  # it beat after 100.0, and says 98.0
        (80.0, 90.0, Severity.FAILURE, -10.0),
        (105.6, 105.6, Severity.WARNING, 2.5),  # a time that has not come
        (105.6, 115.6, Severity.FAILURE, 12.5),
    ],
)
def test_only_a_proven_difference_is_told(
    before: float, after: float, severity: Severity, difference_s: float | None
) -> None:
    """The looks are at 100.0 and at 103.0 to 103.1."""
    ((found, least_s),) = told(look(100.0, a=before), look(103.0, a=after))
    assert (found, None if least_s is None else round(least_s, 3)) == (severity, difference_s)


@pytest.mark.parametrize(
    ("at", "severity", "difference_s"),
    [
        (93.0, Severity.FINE, None),
        (91.2, Severity.FINE, None),  # versions lag, and may run slower
        (89.0, Severity.WARNING, -2.0),
        (83.0, Severity.FAILURE, -8.0),
        (99.1, Severity.WARNING, 4.0),
        (103.1, Severity.FAILURE, 8.0),
    ],
)
def test_the_age_of_a_heartbeat_tells_its_clock(
    at: float, severity: Severity, difference_s: float | None
) -> None:
    """The look is at 103.0 to 103.1. The session beat ten seconds before, by the clock of the database."""
    found = replace(look(103.0), beats={"a": Beat(at, at + 30, "a", age_s=10.0)})
    ((found_severity, least_s),) = told(look(100.0), found)
    assert (found_severity, None if least_s is None else round(least_s, 3)) == (severity, difference_s)


def test_a_session_that_opened_between_is_not_compared() -> None:
    assert told(look(100.0), look(103.0, new=90.0)) == [(Severity.WARNING, None)]


def of_host(at: float, host: str, age_s: float | None = None, ttr: float = 30.0) -> Beat:
    return Beat(at, at + ttr, f"{host}, process 7", ((host, 7),), age_s)


def test_a_host_whose_clock_tells_no_time_is_a_warning() -> None:
    """One session of a host is enough; one past its deadline is dead, and told elsewhere."""
    supervisor = of_host(-1_000.0, "there", ttr=3_600)
    beats = {"a": of_host(93.0, "here", 10.0), "b": of_host(90.0, "here"), "dead": of_host(9.0, "gone")}
    (found,) = check_clocks(look(100.0), replace(look(103.0), beats=beats))
    assert (found.severity, found.data) == (Severity.FINE, {"compared": 1, "unchecked": 1, "sessions": 3})
    assert found.text == "1 of 3 sessions agrees with this clock; 1 tells no time"
    beats |= {"run": supervisor}
    (found,) = check_clocks(look(100.0), replace(look(103.0), beats=beats))
    assert found.severity == Severity.WARNING
    assert found.text == (
        "the clock of 1 session could not be checked, that of there, process 7; 1 of 4 sessions agrees"
        " with this clock; 2 tell no time"
    )
    assert found.cure == "fdbqueue doctor --watch 1201"


def test_a_wrong_clock_hides_no_clock_that_was_not_checked() -> None:
    beats = {"wrong": of_host(33.0, "here", 10.0), "b": of_host(90.0, "there")}
    found = check_clocks(look(100.0), replace(look(103.0), beats=beats))
    assert [one.severity for one in found] == [Severity.FAILURE, Severity.WARNING]
    assert found[0].text == "the clock of here, process 7 is behind this one by at least 58.0 s"


def test_one_wrong_clock_of_a_host_is_that_of_its_process() -> None:
    """Each process has the clock of its host: if others are right there, it has changed its own."""
    wrong, right = of_host(33.0, "here", 10.0), of_host(90.0, "here", 10.0)
    for beats, cure in (
        ({"a": wrong}, checks.CLOCK_CURE),
        ({"a": wrong, "b": wrong, "c": replace(right, process_ids=(("there", 8),))}, checks.CLOCK_CURE),
        ({"a": wrong, "b": right}, "fdbqueue fleet drain here:7"),
    ):
        found = check_clocks(replace(look(100.0), beats=beats), replace(look(103.0), beats=beats))
        assert found[0].cure.startswith(cure)


def test_each_clock_that_differs_is_told() -> None:
    found = check_clocks(look(100.0, a=90.0, b=90.0, c=99.0), look(103.0, a=91.0, b=92.0, c=101.0))
    assert [check.data["place"] for check in found] == ["a", "b"]


def test_overdue_sessions_are_told() -> None:
    overdue = 100.0 - 30 - limits.OVERDUE_WARNING_S - 1
    (found,) = check_sessions(look(100.0, dead=overdue, alive=99.0))
    assert (found.severity, found.data) == (Severity.WARNING, {"overdue": 1, "live": 1})


def test_a_silent_session_without_tasks_is_told() -> None:
    """Its process may be dead, and its leases may have ended by time."""
    (found,) = check_sessions(look(100.0, quiet=79.0, alive=99.0), {"quiet": 0})
    assert (found.severity, found.data) == (Severity.WARNING, {"overdue": 0, "live": 2})
    assert found.text == (
        "no heartbeat of a session, such as that of quiet, for 21 s: its leases end by their times"
    )
    assert found.cure == "Look at that process: dead, stopped (SIGCONT wakes it), or hanging."


def test_the_silent_session_of_a_supervisor_is_fine() -> None:
    """It holds no task, and would be told for an hour."""
    quiet, alive = Beat(7_000.0, 7_000.0 + limits.RUN_TTR_S, "quiet"), Beat(9_999.0, 10_029.0, "alive")
    (found,) = check_sessions(Look(10_000.0, 10_000.1, {"quiet": quiet, "alive": alive}))
    assert (found.severity, found.text) == (Severity.FINE, "2 sessions alive")
    (found,) = check_sessions(look(100.0, alive=99.0))
    assert (found.text, found.data) == ("1 session alive", {"live": 1})


def test_a_silent_session_that_holds_tasks_is_told_first() -> None:
    seen = look(100.0, quiet=79.0, alive=99.0, none=78.0)
    assert without_beats(seen) == ["quiet", "none"]
    (found,) = check_sessions(seen, {"quiet": 40, "none": 0})
    assert (found.severity, found.data) == (Severity.WARNING, {"overdue": 0, "live": 3, "held": 40})
    assert found.text == (
        "no heartbeat of a session, such as that of quiet, for 21 s: its 40 tasks stay taken"
    )
    assert found.cure.startswith("Look at that process: dead, stopped")
    (found,) = check_sessions(look(100.0, dead=1.0, quiet=79.0), {"quiet": 40, "dead": 1})
    assert found.text == "1 overdue session, such as that of dead, for 99 s: its 1 task stays taken"
    assert found.cure.startswith("Start a worker")


def test_doctor_counts_the_tasks_of_a_silent_session() -> None:
    """Its process stands still: the keeper of its session does not beat."""
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = fdbqueue.TaskQueue.create(db, "q")
        queue.put_many(db, [1, 2, 3])
        session = Session(db, ttr=30)
        for _ in range(2):
            queue.take(db, session=session)
        assert held_by(db, KEYS, [session.id, bytes(16)]) == {session.id: 2, bytes(16): 0}
        clock.advance(21)
        [reason] = queue.explain(db, queue.tasks(db, TaskState.TAKEN, 1)[0]).reasons
        assert "has held it for 21 s and has not beaten for 21 s." in reason.text
        assert reason.cure.startswith("Look at that process: is it dead, stopped")
        [found] = [one for one in fdbqueue.diagnose(db, watch_s=0).checks if one.name == "sessions"]
    assert (found.severity, found.data["held"]) == (Severity.WARNING, 2)
    assert f"process {RealRuntime().process_id()}, for 21 s: its 2 tasks" in found.text


class Wrong(RealRuntime):
    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def now(self) -> float:  # type: ignore[override]
        return RealRuntime.now() + self.ahead_s


@pytest.mark.parametrize("ahead_s", [60.0, -60.0])
def test_one_look_finds_a_wrong_clock(tmp_path, ahead_s: float) -> None:
    """Host and process of a session are those that it has stored."""
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db, fdbqueue.open(url, runtime=Wrong(ahead_s)) as wrong, Session(wrong):
        first = look_at_beats(db, KEYS)
        (found,) = check_clocks(first, first)
        assert found.severity == Severity.FAILURE
        assert found.data["difference_s"] == pytest.approx(ahead_s, abs=15)
        assert f"process {RealRuntime().process_id()}" in found.text


def test_the_beat_of_a_shared_session_has_no_age(tmp_path) -> None:
    """Its deadline may be that of another opener than its hold."""
    with (
        fdbqueue.open(f"embedded:{tmp_path}/data") as db,
        Session(db) as own,
        Session(db, "shared") as shared,
    ):
        beats = look_at_beats(db, KEYS).beats
    assert (beats[own.id.hex()].age_s is None, beats[shared.id.hex()].age_s) == (False, None)
