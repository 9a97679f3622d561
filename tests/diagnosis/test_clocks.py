"""The difference of two clocks is told at the least that two looks prove."""

import pytest

import fdbqueue
from fdbqueue import Session, Severity
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.checks import Beat, Look, check_clocks, check_sessions, look_at_beats

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
        (90.0, 90.0, Severity.FINE, None),  # it did not beat: its clock may be right
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


def test_a_session_that_opened_between_is_not_compared() -> None:
    assert told(look(100.0), look(103.0, new=50.0)) == [(Severity.FINE, None)]


def test_each_clock_that_differs_is_told() -> None:
    found = check_clocks(look(100.0, a=90.0, b=90.0, c=99.0), look(103.0, a=91.0, b=92.0, c=101.0))
    assert [check.data["place"] for check in found] == ["a", "b"]


def test_overdue_sessions_are_told() -> None:
    overdue = 100.0 - 30 - limits.OVERDUE_WARNING_S - 1
    (found,) = check_sessions(look(100.0, dead=overdue, alive=99.0))
    assert (found.severity, found.data) == (Severity.WARNING, {"overdue": 1, "live": 1})


def test_a_session_that_missed_a_heartbeat_is_told() -> None:
    """Its process may be dead, and it counts until its deadline: one of a supervisor lasts an hour."""
    (found,) = check_sessions(look(100.0, quiet=79.0, alive=99.0))
    assert (found.severity, found.data) == (Severity.FINE, {"live": 2, "silent": 1})
    assert found.text == "2 sessions before their deadlines; 1 has missed a heartbeat, such as that of quiet"
    (found,) = check_sessions(look(100.0, alive=99.0))
    assert (found.text, found.data) == ("1 session before its deadline", {"live": 1, "silent": 0})


class Ahead(RealRuntime):
    def now(self) -> float:
        return super().now() + 60


def test_a_session_with_a_clock_ahead_is_found(tmp_path) -> None:
    """Host and process of a session are those that it has stored."""
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db, fdbqueue.open(url, runtime=Ahead()) as ahead, Session(ahead):
        first = look_at_beats(db, KEYS)
        (found,) = check_clocks(first, look_at_beats(db, KEYS))
        assert found.severity == Severity.FAILURE
        assert found.data["difference_s"] == pytest.approx(60, abs=15)
        assert f"process {RealRuntime().process_id()}" in found.text
