"""Names, kinds and attributes of spans, after OpenTelemetry's semantic conventions for messaging.

A call that sends, receives or settles messages has a span, and so has each attempt. Other calls have none.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.trace import SpanKind

from fdbqueue.core.observing import Attempt, Call
from fdbqueue.core.task import Task

SEND, RECEIVE, PROCESS, SETTLE = "send", "receive", "process", "settle"
OPERATIONS = {
    "put": SEND,
    "enqueue": SEND,
    "take": RECEIVE,
    "get": RECEIVE,
    "dequeue": RECEIVE,
    **dict.fromkeys(("ack", "release", "retry", "give_back", "bury", "delete", "cancel"), SETTLE),
}
"""The operation of each call that has a span."""

FAILED = frozenset({"retried", "buried", "lease_lost"})
"""The outcomes of attempts that failed."""

MESSAGE_ID = "messaging.message.id"

Attributes = dict[str, str | int | bool]


def kind_of(call: Call) -> SpanKind:
    """PRODUCER if the context of the span is stored with the messages, else CLIENT."""
    return SpanKind.PRODUCER if call.stores_trace else SpanKind.CLIENT


def name_of(operation_name: str, queue: str) -> str:
    return f"{operation_name} {queue}" if queue else operation_name


def attributes_of_call(call: Call, client_id: str) -> Attributes:
    """The attributes that are known now: those of a take at its end."""
    found = _attributes(OPERATIONS[call.name], call.name, call.queue, client_id)
    if call.within:
        found["messaging.fdbqueue.within_transaction"] = True
    if call.count > 1:
        found["messaging.batch.message_count"] = call.count
    elif call.task_id:
        found[MESSAGE_ID] = call.task_id
    elif call.tasks:
        found[MESSAGE_ID] = call.tasks[0].id
    return found


def attributes_of_attempt(attempt: Attempt, client_id: str) -> Attributes:
    return _attributes(PROCESS, PROCESS, attempt.queue, client_id) | {
        MESSAGE_ID: attempt.task.id,
        "messaging.fdbqueue.message.delivery_attempt": attempt.task.attempts,
    }


def error_type_of(error: BaseException) -> str:
    """The name of the class; of an error of the database, its code, too."""
    code = getattr(error, "code", None)
    name = type(error).__name__
    return f"{name} {code}" if isinstance(code, int) else name


def carriers_of(tasks: Sequence[Task]) -> list[Mapping[str, str]]:
    """The trace contexts of the puts of `tasks`; each once."""
    found = {tuple(task.trace.items()): task.trace for task in tasks if task.trace is not None}
    return list(found.values())


def _attributes(operation: str, name: str, queue: str, client_id: str) -> Attributes:
    found: Attributes = {
        "messaging.system": "fdbqueue",
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
        "messaging.client.id": client_id,
    }
    if queue:
        found["messaging.destination.name"] = queue
    else:
        found["messaging.destination.anonymous"] = True
    return found
