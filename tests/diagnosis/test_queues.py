"""Checks of queues, from their figures at two looks."""

from dataclasses import replace

import pytest

from fdbqueue import Figures, KeyFigures, QueueFigures, Severity, TaskFigures
from fdbqueue.core import limits
from fdbqueue.operate.diagnosis import check_queues
from fdbqueue.tasks.stored.records import CALL_NAMES

IDLE = TaskFigures(
    ready=0,
    taken=0,
    buried=0,
    delayed=0,
    calls=dict.fromkeys(CALL_NAMES, 0),
    paused=False,
    capacity=None,
    next_age_s=None,
    oldest_age_s=None,
    oldest_is_exact=True,
    sweep_lag_s=0.0,
    workers=0,
    busiest=(),
)


def figures(now: float, tasks: TaskFigures | None = None, **fields: object) -> Figures:
    queue = QueueFigures("my mails", "fifo", items=0, unreadable=0, tasks=tasks)
    return Figures(now, (replace(queue, **fields),), workers=0)


def calls(**counts: int) -> dict[str, int]:
    return {**IDLE.calls, **counts}


def found(before: TaskFigures, now: TaskFigures) -> list[tuple[Severity, str]]:
    return [
        (one.severity, one.cure.removeprefix("fdbqueue ").partition(" ")[0])
        for one in check_queues(figures(0, before), figures(2, now))
    ]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [(Severity.FINE, "")]),
        ({"ready": 3}, [(Severity.WARNING, "work")]),
        ({"ready": 3, "workers": 1}, [(Severity.FINE, "")]),
        ({"ready": 3, "calls": calls(take=1)}, [(Severity.FINE, "")]),  # a program without a worker takes
        ({"ready": 3, "paused": True, "workers": 1}, [(Severity.WARNING, "resume")]),
        ({"paused": True}, [(Severity.FINE, "")]),
        ({"buried": 1}, [(Severity.WARNING, "dead")]),
        ({"sweep_lag_s": 60.0}, [(Severity.WARNING, "Start")]),
        ({"ready": 1, "workers": 1, "delayed": 1, "capacity": 2}, [(Severity.WARNING, "Start")]),
        ({"buried": 2, "capacity": 2}, [(Severity.WARNING, "dead"), (Severity.WARNING, "First")]),
        ({"calls": calls(put=2_001)}, [(Severity.WARNING, "Take")]),
        ({"calls": calls(put=1_999)}, [(Severity.FINE, "")]),
        ({"calls": calls(put=3_999), "partitions": 2}, [(Severity.FINE, "")]),
        ({"calls": calls(put=4_001), "partitions": 2}, [(Severity.WARNING, "Take")]),
    ],
)
def test_a_queue_in_trouble_is_told(changes: dict[str, object], wanted: list[tuple[Severity, str]]) -> None:
    """The looks are two seconds apart. Only the first word of a cure is compared."""
    assert found(IDLE, replace(IDLE, **changes)) == wanted


def test_a_queue_full_of_buried_tasks_tells_the_command() -> None:
    full = replace(IDLE, buried=2, ready=1, capacity=3)
    *_, check = check_queues(figures(0, full), figures(1, full))
    assert check.cure == (
        "First mend or stop what fails, which `fdbqueue dead classes 'my mails'` tells, or else it fills"
        " again. Then `fdbqueue delete 'my mails' --where state=buried --where class=CLASS` makes room."
    )


def test_a_long_wait_of_a_key_is_told() -> None:
    """The longest wait of a key, and none of a paused queue."""
    keys = (KeyFigures("a", 3, first_age_s=60.0), KeyFigures("b", 2, first_age_s=1_000.0), KeyFigures("c", 1))
    busy = replace(IDLE, workers=1, busiest=keys)
    (check,) = check_queues(figures(0, busy), figures(1, busy))
    assert check.text == "my mails has 2 ready tasks of the key b, the first one for 1000 s"
    assert check.cure == "fdbqueue stats 'my mails'"
    assert found(busy, replace(busy, busiest=keys[:1])) == [(Severity.FINE, "")]
    assert found(busy, replace(busy, paused=True)) == [(Severity.FINE, "")]


STARVING = (KeyFigures("acme", 900, taken=2, first_age_s=70.0), KeyFigures("bolt", 50, first_age_s=70.0))


def test_a_key_that_gets_nearly_all_takes_is_told() -> None:
    before = replace(IDLE, workers=1, taken=2, ready=950, busiest=STARVING)
    now = replace(before, calls=calls(take=4))
    (check,) = check_queues(figures(0, before), figures(1, now))
    assert check.text == (
        "my mails has 50 ready tasks of the key bolt, the first one for 70 s, while the key acme gets nearly"
        " all takes"
    )
    assert check.cure == "fdbqueue explain 'my mails'"


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": calls(take=3)},  # too few for two turns of each key
        {"taken": 3},  # another key has the third
        {"busiest": (STARVING[0], replace(STARVING[1], ready=49))},  # its turn came
        {"busiest": (STARVING[0], replace(STARVING[1], taken=1))},
        {"busiest": (STARVING[0], replace(STARVING[1], first_age_s=limits.STARVED_WARNING_S))},
        {"busiest": (STARVING[0], replace(STARVING[1], is_exact=False))},
    ],
)
def test_no_key_starves_while_turns_come(changes: dict[str, object]) -> None:
    before = replace(IDLE, workers=1, taken=2, ready=950, busiest=STARVING)
    now = replace(before, calls=calls(take=4))
    assert found(before, replace(now, **changes)) == [(Severity.FINE, "")]


def test_a_queue_that_cannot_be_read_is_a_failure() -> None:
    broken = figures(0, error="unknown kind")
    assert [check.severity for check in check_queues(broken, broken)] == [Severity.FAILURE]


def test_unreadable_values_are_told_with_the_command() -> None:
    (check,) = check_queues(figures(0), figures(1, unreadable=2))
    assert check.cure == "fdbqueue aside 'my mails'"


def test_a_queue_that_was_created_between_has_no_rates() -> None:
    """Its calls before the second look were not made within the time between them."""
    second = figures(1, replace(IDLE, calls=calls(put=1_000_000)))
    assert [check.severity for check in check_queues(Figures(0, (), 0), second)] == [Severity.FINE]


@pytest.mark.parametrize(("rate", "wanted"), [(1_001, "4"), (10_000_000, str(limits.PARTITIONS_MAX))])
def test_the_wanted_number_of_partitions_has_a_bound(rate: int, wanted: str) -> None:
    """A repartition into more of them would be refused."""
    hot = replace(IDLE, calls=calls(take=rate))
    [check] = check_queues(figures(0, IDLE), figures(1, hot))
    assert f"repartition 'my mails' {wanted}`" in check.cure


def test_a_name_with_a_dash_in_front_is_no_option() -> None:
    paused = replace(IDLE, ready=1, paused=True)
    (check,) = check_queues(figures(0, paused, name="-q"), figures(1, paused, name="-q"))
    assert check.cure == "fdbqueue resume -- -q"


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        ({}, [(Severity.WARNING, "partitions")]),
        ({"taken": 1}, [(Severity.WARNING, "partitions")]),
        ({"calls": calls(ack=1)}, [(Severity.FINE, "")]),
        ({"partitions_before": 0}, [(Severity.FINE, "")]),
    ],
)
def test_a_repartition_that_stands_still_is_told(now: dict[str, object], wanted: object) -> None:
    under_way = replace(IDLE, partitions=2, partitions_before=4)
    assert found(under_way, replace(under_way, **now)) == wanted


def test_a_repartition_that_has_just_begun_is_fine() -> None:
    """It began between the looks: its tasks have not stood still."""
    begun = replace(IDLE, partitions=4, partitions_before=2)
    assert found(IDLE, begun) == [(Severity.FINE, "")]


@pytest.mark.parametrize(
    ("now", "is_told"),
    [
        ({"calls": calls(take=200)}, True),
        ({"calls": calls(take=200), "ready": 7}, True),
        ({"calls": calls(take=200), "ready": 8}, False),  # takes find a task at their homes
        ({"calls": calls(take=200), "partitions": 2}, False),
        ({"calls": calls(take=3_000)}, False),  # 1,500 a second need as many
        ({}, False),  # an idle queue has no conflicts
    ],
)
def test_many_partitions_with_few_tasks_are_told(now: dict[str, object], is_told: bool) -> None:
    before = replace(IDLE, partitions=8, workers=1)
    [check] = check_queues(figures(0, before), figures(2, replace(before, **now)))
    assert ("conflict less" in check.text, check.severity) == (is_told, Severity.FINE)


def test_partitions_whose_ready_tasks_went_between_are_not_told() -> None:
    """At the first look, each of them had some."""
    before = replace(IDLE, partitions=8, workers=1, ready=20)
    [check] = check_queues(figures(0, before), figures(2, replace(before, ready=0, calls=calls(take=200))))
    assert "conflict less" not in check.text
