"""Tracing: an observer that makes spans, after OpenTelemetry's semantic conventions for messaging.

A call that sends, receives or settles messages has a span, and so has each attempt. Other calls have none.

A put stores the context of its span with the task. The span of an attempt links to it, or has it as its
parent. The span of a call is never the current one: a call runs no code of the program. That of an attempt
is, in the thread of the handler, so all spans of the handler are below it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field
from functools import partial

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from fdbqueue.core import observing
from fdbqueue.core.observing import Attempt, Call, Ended, Observation, Observer, Watcher
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.task import Task
from fdbqueue.core.version import __version__
from fdbqueue.core.visible import text_of
from fdbqueue.tasks.stored.records import packed_trace

HANDING = ("hand_off", "complete", "fail")
SEND, RECEIVE, PROCESS, SETTLE = "send", "receive", "process", "settle"
OPERATIONS = {
    "put": SEND,
    "enqueue": SEND,
    "take": RECEIVE,
    "get": RECEIVE,
    "dequeue": RECEIVE,
    **dict.fromkeys(("ack", "release", "retry", "give_back", "bury", "delete", "cancel", *HANDING), SETTLE),
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


SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"


def trace(tracer_provider: TracerProvider | None = None, *, parent: bool = False) -> Observation:
    """Make spans of the calls and attempts of this process, until the result is ended.

    `tracer_provider`: None is the one that the program sets, before or afterwards. With `parent`, the span of
    an attempt has the span of the put as its parent; otherwise it only links to it. A second call with the
    same provider replaces the first.
    """
    for observer in observing.observers:
        if isinstance(observer, Tracing) and observer.provider is tracer_provider:
            Observation(observer).end()
    tracer = get_tracer("fdbqueue", __version__, tracer_provider, SCHEMA_URL)
    return observing.observe(Tracing(tracer_provider, parent, tracer))


@dataclass(frozen=True, eq=False)
class Tracing(Observer):
    provider: TracerProvider | None
    parent: bool
    tracer: Tracer
    host: str = field(default_factory=RealRuntime.host_name)

    def call(self, call: Call) -> Ended | None:
        operation = OPERATIONS.get(call.name)
        if operation is None:
            return None
        if operation == RECEIVE:
            return partial(self._received, RealRuntime.now())
        span = self._span_of(call)
        if call.stores_trace:
            call.trace = packed_trace(carrier_of(span))
        return partial(end_call, span)

    def attempt(self, attempt: Attempt) -> Watcher:
        return _Attempt(self, attempt)

    def client_id(self) -> str:
        return f"{self.host}:{RealRuntime.process_id()}"

    def _received(self, began: float, call: Call) -> None:
        """Make the span of a take that has ended: only then are the tasks known that it links to. A take that
        finds nothing has no span, because idle workers ask again and again.
        """
        if call.count or call.error is not None:
            links = links_to(carriers_of(call.tasks))
            end_call(self._span_of(call, links, round(began * 1e9)), call)

    def _span_of(self, call: Call, links: list[Link] | None = None, began_ns: int | None = None) -> Span:
        return self.tracer.start_span(
            name_of(call.name, call.queue),
            kind=kind_of(call),
            attributes=attributes_of_call(call, self.client_id()),
            links=links,
            start_time=began_ns,
            record_exception=False,
            set_status_on_exception=False,
        )


class _Attempt(Watcher):
    def __init__(self, tracing: Tracing, attempt: Attempt) -> None:
        carrier = attempt.task.trace
        ambient = contexts.get_current()
        sent = ambient if carrier is None else propagate.extract(carrier, ambient)
        # Baggage of the put holds for the handler in both cases.
        here, put = get_current_span(ambient), get_current_span(sent)
        around = sent if tracing.parent else set_span_in_context(here, sent)
        links = [] if put is here else links_between([put])  # a damaged carrier names no span
        if tracing.parent and carrier is not None:
            links += links_between([here])
        self._span = tracing.tracer.start_span(
            name_of(PROCESS, attempt.queue),
            context=around,
            kind=SpanKind.CONSUMER,
            attributes=attributes_of_attempt(attempt, tracing.client_id()),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )
        self._token: Token[Context] = contexts.attach(set_span_in_context(self._span, around))

    def ended(self, attempt: Attempt) -> None:
        try:
            self._span.set_attribute("messaging.fdbqueue.outcome", attempt.outcome)
            if attempt.outcome in FAILED:
                note_error(self._span, attempt.error, attempt.outcome)
        finally:
            self._span.end()

    def left(self) -> None:
        contexts.detach(self._token)


def carrier_of(span: Span) -> dict[str, str]:
    """The names and texts of the span's context, as the program's propagators write them."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, set_span_in_context(span))
    return carrier


def links_to(carriers: list[Mapping[str, str]]) -> list[Link]:
    return links_between(get_current_span(propagate.extract(carrier, Context())) for carrier in carriers)


def links_between(found: Iterable[Span]) -> list[Link]:
    """A link to each span that has a valid context."""
    contexts_ = [span.get_span_context() for span in found]
    return [Link(context) for context in contexts_ if context.is_valid]


def end_call(span: Span, call: Call) -> None:
    try:
        if OPERATIONS[call.name] == SEND and call.count == 1 and call.tasks:
            span.set_attribute(MESSAGE_ID, call.tasks[0].id)  # known only now
        if call.error is not None:
            note_error(span, call.error)
    finally:
        span.end()


def note_error(span: Span, error: BaseException | None, outcome: str = "") -> None:
    if error is None:
        span.set_attribute("error.type", outcome)
        span.set_status(Status(StatusCode.ERROR))
        return
    span.set_attribute("error.type", error_type_of(error))
    span.set_status(Status(StatusCode.ERROR, text_of(error)))
    span.record_exception(error)
