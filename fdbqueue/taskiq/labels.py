"""The labels of a message that tell its queue, its delay and its priority: those of taskiq-aio-pika."""

from collections.abc import Mapping
from typing import Any

from taskiq import BrokerMessage

from fdbqueue.errors import InvalidArgument

QUEUE_NAME, DELAY, PRIORITY = "queue_name", "delay", "priority"
PRIORITY_MAX = 255
"""The highest priority, as in AMQP. The queue has the lowest number first."""


def queue_name_of(labels: Mapping[str, Any], default: str) -> str:
    """The name of the queue of a message, or of the messages of a task."""
    return str(labels.get(QUEUE_NAME) or default)


def put_options(message: BrokerMessage) -> dict[str, Any]:
    """`pri`, `delay` and headers of a message. Raises: InvalidArgument."""
    return {
        "pri": PRIORITY_MAX - priority_of(message.labels),
        "delay": delay_s_of(message.labels),
        "headers": {"task": message.task_name, "message": message.task_id},
    }


def priority_of(labels: Mapping[str, Any]) -> int:
    """Raises: InvalidArgument."""
    given = labels.get(PRIORITY)
    found = _number(PRIORITY, given)
    if found != int(found) or not 0 <= found <= PRIORITY_MAX:
        raise InvalidArgument(name=PRIORITY, wanted=f"a whole number from 0 to {PRIORITY_MAX}", got=given)
    return int(found)


def delay_s_of(labels: Mapping[str, Any]) -> float:
    """Raises: InvalidArgument."""
    return max(0.0, _number(DELAY, labels.get(DELAY)))


def _number(name: str, given: Any) -> float:
    """The number in a label; labels of a sent message are texts. 0 for none."""
    try:
        found = float(given or 0)
    except (TypeError, ValueError):
        found = float("nan")
    if not abs(found) < float("inf"):
        raise InvalidArgument(name=name, wanted="a label with a number", got=given)
    return found
