"""A kombu message as the data of a task, and the options of its put."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from fdbqueue.task import Task

PRIORITY_MAX = 255
"""The highest priority of a message, as in AMQP; the queue has the lowest number first."""

_MS = 1000


def put_options(message: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """`pri`, `delay` and `ttl` of a message: its priority, the `eta` of its task, and its expiration."""
    properties, headers = message["properties"], message["headers"]
    delay_s = delay_of(headers.get("eta"), now_s)
    options: dict[str, Any] = {"pri": PRIORITY_MAX - priority_of(properties.get("priority"))}
    if delay_s > 0:
        options["delay"] = delay_s
    expiration_ms = properties.get("expiration")
    if expiration_ms is not None:
        # The life of a message begins with its publication, that of a task at the end of its delay.
        options["ttl"] = max(1 / _MS, float(expiration_ms) / _MS - delay_s)
    return options


def priority_of(given: Any) -> int:
    """The priority within its bounds; 0 for none."""
    with suppress(TypeError, ValueError):
        return max(0, min(int(given), PRIORITY_MAX))
    return 0


def delay_of(eta: Any, now_s: float) -> float:
    """Seconds until the `eta` of a task; 0 for none, and for one without a time zone.

    The worker holds such a task itself, as it knows the time zone of the application.
    """
    with suppress(TypeError, ValueError):
        due = datetime.fromisoformat(eta)
        return 0.0 if due.tzinfo is None else max(0.0, due.timestamp() - now_s)
    return 0.0


def is_message(data: Any) -> bool:
    """True if the data of a task are a message."""
    return isinstance(data, dict) and isinstance(data.get("properties"), dict) and "body" in data


def delivered(queue: str, task: Task) -> dict[str, Any]:
    """The message of a taken task, with a delivery tag that no other delivery has."""
    properties = dict(task.data["properties"])
    delivery = dict(properties.get("delivery_info") or {})
    if task.attempts > 1:
        delivery["redelivered"] = True
    properties |= {"delivery_info": delivery, "delivery_tag": tag_of(queue, task)}
    return {**task.data, "properties": properties}


def tag_of(queue: str, task: Task) -> str:
    return f"{queue}/{task.id}/{task.attempts}"
