"""A dashboard tells first which queue is in trouble, since when, and the command that ends it."""

from typing import Any

import pytest

from fdbqueue import QueueFigures, TaskFigures
from fdbqueue.operate.dashboard.looks import Trend
from fdbqueue.operate.dashboard.views import SHOWN_MAX, Finding, Level, command, findings_of, verdict_of

QUIET = {"put": 0, "take": 0, "ack": 0, "delete": 0, "cancel": 0}


def queue(name: str = "emails", error: str | None = None, unreadable: int = 0, **tasks: Any) -> QueueFigures:
    """A queue of tasks, fine but for the given figures."""
    fine: dict[str, Any] = {
        "ready": 0,
        "taken": 0,
        "buried": 0,
        "delayed": 0,
        "calls": QUIET,
        "paused": False,
    }
    fine |= {"capacity": None, "next_age_s": None, "oldest_age_s": None, "oldest_is_exact": True}
    fine |= {"sweep_lag_s": 0.0, "workers": 1, "busiest": ()}
    return QueueFigures(name, "fifottl", 0, unreadable, TaskFigures(**fine | tasks), error)


def found(trend: Trend | None = None, **given: Any) -> list[tuple[str, str]]:
    """The levels and words of the findings."""
    return [(str(one.level), one.word) for one in findings_of(queue(**given), trend or Trend())]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({}, []),
        ({"ready": 5, "next_age_s": 60.0}, []),
        ({"ready": 5, "next_age_s": 9.0, "workers": 0}, []),
        ({"ready": 5, "next_age_s": 10.0, "workers": 0}, [("bad", "No worker")]),
        ({"ready": 5, "next_age_s": 10.0, "workers": 0, "taken": 1}, []),
        ({"ready": 5, "next_age_s": 301.0}, [("warn", "Slow")]),
        ({"ready": 5, "next_age_s": 301.0, "paused": True}, [("hold", "Paused")]),
        ({"paused": True}, [("hold", "Paused")]),
        ({"buried": 1}, [("warn", "Buried")]),
        ({"sweep_lag_s": 5.0}, []),
        ({"sweep_lag_s": 5.1}, [("warn", "Not swept")]),
        ({"capacity": 10, "taken": 8}, []),
        ({"capacity": 10, "taken": 9}, [("warn", "Nearly full")]),
        ({"capacity": 10, "taken": 9, "delayed": 1}, [("bad", "Full")]),
        ({"unreadable": 2}, [("warn", "Unreadable")]),
        ({"error": "no such codec", "buried": 1}, [("bad", "Unreadable"), ("warn", "Buried")]),
        (
            {"buried": 1, "ready": 1, "next_age_s": 99.0, "workers": 0},
            [("bad", "No worker"), ("warn", "Buried")],
        ),
    ],
)
def test_a_queue_has_findings_by_its_figures(
    figures: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert found(**figures) == expected


def test_takes_of_other_programs_count_as_workers() -> None:
    waiting: dict[str, Any] = {"ready": 5, "next_age_s": 60.0, "workers": 0}
    assert found(Trend(takes=1), **waiting) == []
    assert found(Trend(takes=0), **waiting) == [("bad", "No worker")]


def test_a_queue_that_was_empty_a_moment_ago_is_not_slow() -> None:
    old: dict[str, Any] = {"ready": 5, "next_age_s": 3600.0}
    assert found(Trend(ready=(0, 3, 5)), **old) == []
    assert found(Trend(ready=(1, 3, 5)), **old) == [("warn", "Slow")]


def test_a_queue_without_leases_has_no_task_findings() -> None:
    assert findings_of(QueueFigures("notes", "queue", items=9, unreadable=0), Trend()) == ()


def test_a_finding_tells_its_cure_as_it_is_typed() -> None:
    alone = {"ready": 1, "next_age_s": 99.0, "workers": 0}
    (one,) = findings_of(queue("two words", **alone), Trend())
    assert one.text == "has 1 ready task, the next one for 1m39s, and no worker takes it."
    assert one.command == "fdbqueue work 'two words' MODULE:FUNCTION"
    assert command("resume", "-x") == "fdbqueue resume -- -x"


def finding(name: str, level: Level, since_s: float = 0.0) -> Finding:
    return Finding(level, "word", name, "text", "cure", since_s=since_s)


def test_the_verdict_begins_with_the_worst_and_the_longest() -> None:
    given = [
        finding("held", Level.HOLD),
        finding("new", Level.BAD, 1.0),
        finding("old", Level.BAD, 9.0),
        finding("warned", Level.WARN, 99.0),
    ]
    verdict = verdict_of(9, given)
    assert verdict.level == Level.BAD
    assert verdict.text == "3 queues need attention"
    assert [one.queue for one in verdict.findings] == ["old", "new", "warned", "held"]


@pytest.mark.parametrize(
    ("queues", "given", "text", "level"),
    [
        (0, [], "No queues yet", Level.OK),
        (3, [], "All is well", Level.OK),
        (3, [finding("a", Level.HOLD)], "All is well; 1 paused", Level.HOLD),
        (3, [finding("a", Level.WARN), finding("a", Level.BAD)], "1 queue needs attention", Level.BAD),
    ],
)
def test_the_verdict_counts_queues(queues: int, given: list[Finding], text: str, level: Level) -> None:
    verdict = verdict_of(queues, given)
    assert (verdict.text, verdict.level) == (text, level)


def test_the_verdict_shows_a_bounded_number_of_findings() -> None:
    verdict = verdict_of(50, [finding(f"q{number}", Level.WARN) for number in range(50)])
    assert (len(verdict.findings), verdict.more) == (SHOWN_MAX, 50 - SHOWN_MAX)
