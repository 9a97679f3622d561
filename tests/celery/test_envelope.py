"""Messages of kombu as tasks: their priority, their delay, and their end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fdbqueue.core.task import Task, TaskState
from fdbqueue.integrations.celery.channel import delivered, is_message, put_options

NOW_S = 1_000_000.0


def message(headers: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {"body": "[]", "headers": headers or {}, "properties": properties}


@pytest.mark.parametrize(
    ("given", "pri"), [(None, 255), (0, 255), (9, 246), (255, 0), (300, 0), (-1, 255), ("x", 255)]
)
def test_a_high_priority_is_a_low_number_of_the_queue(given: Any, pri: int) -> None:
    assert put_options(message(priority=given), NOW_S) == {"pri": pri}


def test_an_eta_is_a_delay_and_the_expiration_goes_on_meanwhile() -> None:
    eta = (datetime.fromtimestamp(NOW_S, UTC) + timedelta(seconds=10)).isoformat()
    options = put_options(message({"eta": eta}, expiration="15000"), NOW_S)
    assert options["delay"] == pytest.approx(10)
    assert options["ttl"] == pytest.approx(5)


@pytest.mark.parametrize("eta", [None, 5, "soon", "1970-01-01T00:00:00", "1970-01-01T00:00:00+00:00"])
def test_an_eta_in_the_past_or_without_a_time_zone_is_no_delay(eta: Any) -> None:
    assert put_options(message({"eta": eta}), NOW_S) == {"pri": 255}


def test_a_second_delivery_says_so_and_has_another_tag() -> None:
    first = Task("id", TaskState.TAKEN, message(delivery_info={"exchange": "e"}), attempts=1)
    second = Task("id", TaskState.TAKEN, first.data, attempts=2)
    one, two = (delivered("queue", task)["properties"] for task in (first, second))
    assert one["delivery_info"] == {"exchange": "e"}
    assert two["delivery_info"] == {"exchange": "e", "redelivered": True}
    assert one["delivery_tag"] != two["delivery_tag"]
    assert first.data == message(delivery_info={"exchange": "e"})


@pytest.mark.parametrize("data", [None, 1, [], {}, {"body": ""}, {"properties": 1, "body": ""}])
def test_data_of_other_programs_are_no_message(data: Any) -> None:
    assert not is_message(data)
