"""Overhead of metrics and traces on put, take and ack: python -m benchmarks.observing [--url URL] [--quick]

One thread. The modes take turns, PER_TURN tasks each, so that the load of the machine meets all of them. Each
figure is the median time of a call, and the part that a mode adds to it. Spans go to a batch processor with
an exporter that drops them.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from prometheus_client import CollectorRegistry

import fdbqueue
from benchmarks.fresh import fresh_queue, leaving_nothing
from fdbqueue import Database, Task, TaskQueue
from fdbqueue.metrics import measure
from fdbqueue.observing import Observation
from fdbqueue.tracing import trace

VALUE = "v" * 20
PER_TURN = 20
CALLS = ("put", "take", "ack")
ADDED_WANTED = 0.05

Mode = Callable[[], Sequence[Observation]]


class Dropping(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


@contextmanager
def modes() -> Iterator[dict[str, Mode]]:
    """Ways to begin to observe, by name."""
    registry, all_spans, few = CollectorRegistry(), TracerProvider(), TracerProvider(TraceIdRatioBased(0.01))
    for provider in (all_spans, few):
        provider.add_span_processor(BatchSpanProcessor(Dropping()))
    yield {
        "nothing": lambda: (),
        "metrics": lambda: (measure(registry),),
        "traces": lambda: (trace(all_spans),),
        "traces, 1 % sampled": lambda: (trace(few),),
        "both": lambda: (measure(registry), trace(all_spans)),
    }
    for provider in (all_spans, few):
        provider.shutdown()


def turn(db: Database, queue: TaskQueue, times: dict[str, list[float]]) -> None:
    """Put, take and ack PER_TURN tasks, and note the time of each call."""
    taken: list[Task] = []

    def take() -> None:
        task = queue.take(db, 0)
        assert task is not None
        taken.append(task)

    steps: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(db, VALUE),
        "take": take,
        "ack": lambda: queue.ack(db, taken.pop()),
    }
    for name in CALLS:
        for _ in range(PER_TURN):
            began = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - began)


def measured(db: Database, turns: int) -> dict[str, dict[str, float]]:
    """The median time of each call in seconds, by mode."""
    queue = fresh_queue(db)
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with modes() as known:
        turn(db, queue, defaultdict(list))  # the first calls make services
        for _ in range(turns):
            for name, begin in known.items():
                with ExitStack() as observing:
                    for observation in begin():
                        observing.enter_context(observation)
                    turn(db, queue, times[name])
    return {mode: {call: statistics.median(seen) for call, seen in of.items()} for mode, of in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as db:
        found = measured(db, 10 if arguments.quick else 100)
    base = found["nothing"]
    print(f"{'':24}" + "".join(f"{call:>22}" for call in CALLS))
    for mode, of in found.items():
        cells = [f"{of[call] * 1e6:9,.0f} us {of[call] / base[call] - 1:+8.1%}" for call in CALLS]
        print(f"{mode:24}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"wanted: at most {ADDED_WANTED:+.0%}")


if __name__ == "__main__":
    main()
