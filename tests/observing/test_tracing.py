"""Traces: the spans of calls and attempts, and their links."""

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` and opentelemetry-sdk are not installed")

from opentelemetry import baggage, context, propagate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from fdbqueue import (
    Bury,
    Failure,
    FairQueue,
    Hooks,
    NotTaken,
    Queue,
    Session,
    Snooze,
    TaskQueue,
    Worker,
    transactional,
)
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.integrations.opentelemetry import trace, tracing
from tests.fleet.conftest import SOON


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    with trace(made.provider):
        yield made


def told(span: ReadableSpan) -> dict[str, object]:
    """The attributes without those of every span."""
    found = dict(span.attributes)
    assert found.pop("messaging.system") == "fdbqueue"
    assert ":" in str(found.pop("messaging.client.id"))
    return {name.removeprefix("messaging."): value for name, value in found.items()}


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_the_spans_of_calls_follow_the_conventions(db, queue, spans):
    put = queue.put(db, "a")
    queue.ack(db, queue.take(db, 0))
    assert [(span.name, span.kind) for span in spans.all()] == [
        ("put jobs", SpanKind.PRODUCER),
        ("take jobs", SpanKind.CLIENT),
        ("ack jobs", SpanKind.CLIENT),
    ]
    types = ["send", "receive", "settle"]
    for span, name, type_ in zip(spans.all(), ["put", "take", "ack"], types, strict=True):
        assert told(span) == {
            "operation.name": name,
            "operation.type": type_,
            "destination.name": "jobs",
            "message.id": put.id,
        }
        assert span.start_time <= span.end_time
        assert span.status.status_code is StatusCode.UNSET


def test_each_verb_that_ends_a_task_settles_it(db, queue, spans):
    queue.put_many(db, list("abcdef"))
    queue.release(db, queue.take(db, 0))
    queue.release(db, queue.take(db, 0), failure=Failure("odd"))
    for end in (queue.give_back, queue.bury, queue.delete, queue.cancel):
        end(db, queue.take(db, 0))
    names = ["release", "retry", "give_back", "bury", "delete", "cancel"]
    settled = [span for span in spans.all() if span.attributes["messaging.operation.type"] == "settle"]
    assert [span.name for span in settled] == [f"{name} jobs" for name in names]


def test_a_take_links_to_the_puts_of_its_tasks(db, queue, spans):
    queue.put_many(db, ["a", "b"])
    queue.put(db, "c")
    queue.take_many(db, 5)
    batch, single = spans.named("put jobs")
    [take] = spans.named("take jobs")
    assert linked(take) == [batch.context.span_id, single.context.span_id]
    assert [told(span).get("batch.message_count") for span in (batch, single, take)] == [2, None, 3]


def test_the_span_of_a_take_begins_with_the_call(db, queue, spans, monkeypatch):
    """Though it is made at its end."""

    class Then(RealRuntime):
        now = staticmethod(lambda: 1_000.0)

    queue.put(db, "a")
    monkeypatch.setattr(tracing, "RealRuntime", Then)
    queue.take(db, 0)
    [take] = spans.named("take jobs")
    assert take.start_time == 1_000 * 10**9
    assert take.end_time > take.start_time


def test_a_take_that_finds_nothing_has_no_span(db, queue, spans):
    assert queue.take(db, 0.01) is None
    assert spans.all() == ()


def test_an_attempt_links_to_the_put_of_its_task(db, space, queue, spans):
    """Its span is above those of its handler, and above the span of the ack."""
    queue.put(db, "a")
    mine = spans.provider.get_tracer("mine")

    def handler(_):
        with mine.start_as_current_span("in the handler"):
            pass

    Worker(db, queue, handler, threads=1, root=space).run(until_empty=True)
    [put], [process] = spans.named("put jobs"), spans.named("process jobs")
    assert (process.kind, process.parent, linked(process)) == (SpanKind.CONSUMER, None, [put.context.span_id])
    assert told(process) == {
        "operation.name": "process",
        "operation.type": "process",
        "destination.name": "jobs",
        "message.id": told(put)["message.id"],
        "fdbqueue.message.delivery_attempt": 1,
        "fdbqueue.outcome": "succeeded",
    }
    below = [*spans.named("in the handler"), *spans.named("ack jobs")]
    assert [span.parent.span_id for span in below] == [process.context.span_id] * 2


def test_an_attempt_reads_the_context_of_its_task_once(db, space, queue, spans, monkeypatch):
    read, extract = [], propagate.extract
    queue.put(db, "a")
    worker = Worker(db, queue, lambda _: None, threads=1, root=space)
    monkeypatch.setattr(propagate, "extract", lambda *given: read.append(given) or extract(*given))
    worker.run(until_empty=True)
    assert len(read) == 2  # by the take, which links to all its tasks, and by the attempt
    assert linked(spans.named("process jobs")[0]) == [spans.named("put jobs")[0].context.span_id]


def test_by_option_the_put_is_the_parent_of_the_attempt(db, space, queue):
    made = Spans()
    with trace(made.provider), trace(made.provider, parent=True):  # the second replaces the first
        queue.put(db, "a")
        Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    [put], [process] = made.named("put jobs"), made.named("process jobs")
    assert process.parent.span_id == put.context.span_id
    assert process.context.trace_id == put.context.trace_id
    assert linked(process) == [put.context.span_id]


@pytest.mark.parametrize("transactional_", [False, True])
def test_a_put_of_a_handler_is_below_its_attempt(db, space, queue, spans, transactional_):
    """Through a pipeline of queues, each step links to the one before."""
    second = TaskQueue.create(db, "second", root=space)
    queue.put(db, "a")

    def handler(*arguments):
        second.put(arguments[0] if transactional_ else db, "b")

    Worker(db, queue, handler, threads=1, transactional=transactional_, root=space).run(until_empty=True)
    [process], [put] = spans.named("process jobs"), spans.named("put second")
    assert put.parent.span_id == process.context.span_id
    assert told(put).get("fdbqueue.within_transaction") == (transactional_ or None)


def test_failed_attempts_have_the_status_of_their_error(db, space, queue, spans):
    queue.put_many(db, ["raises", "buries", "snoozes"])

    def handler(task):
        if task.data == "raises":
            raise ValueError("odd")
        if task.data == "buries":
            raise Bury("no such address")
        if task.attempts == 1:
            raise Snooze(0, "too early")

    Worker(db, queue, handler, threads=1, backoff=SOON, attempts=2, root=space).run(until_empty=True)
    seen = {
        (told(span)["fdbqueue.outcome"], span.attributes.get("error.type"), span.status.status_code)
        for span in spans.named("process jobs")
    }
    assert seen == {
        ("retried", "ValueError", StatusCode.ERROR),
        ("buried", "ValueError", StatusCode.ERROR),
        ("buried", "Bury", StatusCode.ERROR),
        ("snoozed", None, StatusCode.UNSET),
        ("succeeded", None, StatusCode.UNSET),
    }
    [first, *_] = [span for span in spans.named("process jobs") if span.events]
    assert first.events[0].attributes["exception.message"] == "odd"
    settled = [*spans.named("retry jobs"), *spans.named("bury jobs"), *spans.named("release jobs")]
    assert len(settled) == 4


def test_the_span_of_a_hanging_handler_ends_at_its_timeout(db, space, queue, spans):
    ended, go_on = threading.Event(), threading.Event()
    queue.put(db, "a")
    options = {"threads": 1, "timeout_s": 0.05, "attempts": 1, "root": space}
    worker = Worker(db, queue, lambda _: go_on.wait(60), hooks=Hooks(buried=lambda _: ended.set()), **options)
    worker.start()
    assert ended.wait(60)
    [process] = spans.named("process jobs")
    go_on.set()
    worker.stop()
    assert worker.join(60)
    assert process.attributes["error.type"] == "TimeoutError"
    assert len(spans.named("process jobs")) == 1


def test_a_call_that_fails_has_the_status_of_its_error(db, queue, spans):
    task = queue.put(db, "a")
    with pytest.raises(NotTaken):
        queue.ack(db, task.id)
    [ack] = spans.named("ack jobs")
    assert ack.attributes["error.type"] == "NotTaken"
    assert ack.attributes["messaging.message.id"] == task.id
    assert ack.status.status_code is StatusCode.ERROR


def test_a_put_in_a_transaction_stores_its_context(db, space, queue, spans):
    session = Session(db, root=space)
    transactional(lambda tr: queue.put(tr, "a"))(db)
    taken = transactional(lambda tr: queue.take(tr, session=session))(db)
    [put] = spans.named("put jobs")
    assert taken.trace["traceparent"].split("-")[2] == f"{put.context.span_id:016x}"
    assert linked(spans.named("take jobs")[0]) == [put.context.span_id]


def test_baggage_goes_with_the_task(db, space, queue, spans):
    seen = []
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    queue.put(db, "a")
    context.detach(token)
    handler = lambda _: seen.append(baggage.get_baggage("tenant"))  # noqa: E731
    Worker(db, queue, handler, threads=1, root=space).run(until_empty=True)
    assert seen == ["blue"]
    assert baggage.get_baggage("tenant") is None
    assert spans.all()


def test_a_plain_queue_stores_no_context(db, space, spans):
    items = Queue.named(db, "items", root=space)
    items.enqueue(db, 1)
    items.dequeue(db)
    Queue(space["no name"]).enqueue(db, 1)
    FairQueue(space["fair"], key=str, root=space).put(db, 1)
    assert [(span.name, span.kind, linked(span)) for span in spans.all()] == [
        ("enqueue items", SpanKind.CLIENT, []),
        ("dequeue items", SpanKind.CLIENT, []),
        ("enqueue", SpanKind.CLIENT, []),
        ("put", SpanKind.CLIENT, []),
    ]
    assert told(spans.all()[-1])["destination.anonymous"] is True


def test_an_unsampled_put_is_told_as_unsampled(db, queue):
    """So the consumer's sampler may leave out the rest of the trace, too."""
    with trace(TracerProvider(sampler=ALWAYS_OFF)):
        queue.put(db, "a")
    flags = queue.take(db, 0).trace["traceparent"].split("-")[3]
    assert int(flags, 16) & TraceFlags.SAMPLED == 0


def test_without_a_provider_nothing_is_stored(db, queue):
    with trace():
        queue.put(db, "a")
        assert queue.take(db, 0).trace is None


def test_a_damaged_context_costs_only_the_link(db, space, queue, spans, notes):
    notes.trace = b"\x81\xabtraceparent\xa3odd"  # the last observer decides
    queue.put(db, "a")
    Worker(db, queue, lambda _: None, threads=1, root=space).run(until_empty=True)
    [process] = spans.named("process jobs")
    assert linked(process) == []
    assert told(process)["fdbqueue.outcome"] == "succeeded"
