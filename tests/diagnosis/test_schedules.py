"""The check of schedules: errors, due times that no process has passed, clocks that are ahead."""

from dataclasses import replace

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Overview, Schedule, ScheduleStatus, Severity, TaskQueue, diagnose
from fdbqueue.core import limits
from fdbqueue.operate.diagnosis import Examination, check_schedules

NOW = 1_000_000.0
SOUND = ScheduleStatus("nightly", "reports", every=60.0, due=NOW + 5, next_try=NOW + 5, last_fired=NOW - 55)


def told(found: ScheduleStatus) -> list[tuple[Severity, str, str]]:
    return [(one.severity, one.text, one.cure) for one in check_schedules([found], NOW)]


def test_sound_schedules_are_counted() -> None:
    assert told(SOUND) == [(Severity.FINE, "1 schedule", "")]
    assert check_schedules([], NOW) == []
    assert check_schedules([SOUND, SOUND], NOW)[0].text == "2 schedules"


def test_an_error_of_a_schedule_is_told() -> None:
    [(severity, text, cure)] = told(replace(SOUND, error="QueueFull: it is full", tries=3))
    assert severity == Severity.WARNING
    assert text == "the schedule nightly is not fired: QueueFull: it is full"
    assert cure == "fdbqueue schedule show nightly"


def test_a_schedule_that_no_process_passes_is_told() -> None:
    late = replace(SOUND, next_try=NOW - limits.SWEEP_LAG_WARNING_S - 1)
    [(severity, text, _)] = told(late)
    assert (severity, "is due since 6 s" in text) == (Severity.WARNING, True)
    assert told(replace(SOUND, next_try=NOW - 5))[0][0] == Severity.FINE
    assert told(replace(SOUND, due=None, next_try=None, paused=True))[0][0] == Severity.FINE


def test_a_schedule_without_its_queue_is_told() -> None:
    assert check_schedules([SOUND], NOW, {"reports"})[0].severity == Severity.FINE
    for one in (SOUND, replace(SOUND, error="QueueNotFound")):
        [found] = check_schedules([one], NOW, {"mails"})
        assert found.severity == Severity.WARNING
        assert found.text == "the queue reports of the schedule nightly does not exist"
        assert "fdbqueue schedule delete nightly" in found.cure
    [unreadable] = check_schedules([ScheduleStatus("odd", error="damaged")], NOW, {"mails"})
    assert unreadable.text == "the schedule odd is not fired: damaged"


def test_a_clock_that_is_ahead_is_told() -> None:
    [(severity, text, cure)] = told(replace(SOUND, last_fired=NOW + 3_600))
    assert (severity, "3600 s ahead" in text) == (Severity.WARNING, True)
    assert "fdbqueue schedule pause nightly" in cure


def test_a_diagnosis_looks_at_all_schedules(db: Database, space: Subspace) -> None:
    TaskQueue.create(db, "reports", root=space)
    for number in range(limits.SCHEDULES_LISTED_MAX + 1):
        Schedule.create(db, f"s{number}", every=600, queue="reports", root=space)
    found = [one for one in diagnose(db, watch_s=0, root=space).checks if one.name == "schedules"]
    assert [one.data["schedules"] for one in found] == [limits.SCHEDULES_LISTED_MAX + 1]


def test_a_queue_beyond_the_listed_ones_is_not_missing(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diagnosis that has not seen all queues knows of none that it does not exist."""
    for name in ("a", "reports"):
        TaskQueue.create(db, name, root=space)
    Schedule.create(db, "nightly", every=600, queue="reports", root=space)
    monkeypatch.setattr(limits, "QUEUES_LISTED_MAX", 1)
    examination = Examination(db, space, Overview(limit=1, root=space))
    [found] = [one for one in examination.checks(0) if one.name == "schedules"]
    assert (found.severity, found.text) == (Severity.FINE, "1 schedule")
