"""Overhead of metrics and traces on put, take and ack: python -m benchmarks.observing [--url URL] [--quick]

One thread. The modes take turns, PER_TURN tasks each, so that the load of the machine meets all of them. Each
figure is the median time of a call, the part that a mode adds to it, and the time of the processor that it
adds. Spans go to a batch processor with an exporter that drops them.
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
from fdbqueue.core.observing import Observation
from fdbqueue.integrations.opentelemetry import trace
from fdbqueue.integrations.prometheus import measure

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


class Times:
    """Of one kind of call in one mode: the time of each call, and of each turn the time of the processor."""

    def __init__(self) -> None:
        self.calls_s: list[float] = []
        self.turns_cpu_s: list[float] = []

    def note(self, operation: Callable[[], object]) -> None:
        cpu = time.thread_time()
        for _ in range(PER_TURN):
            began = time.perf_counter()
            operation()
            self.calls_s.append(time.perf_counter() - began)
        self.turns_cpu_s.append(time.thread_time() - cpu)

    @property
    def call_us(self) -> float:
        return statistics.median(self.calls_s) * 1e6

    @property
    def cpu_us(self) -> float:
        """The time of the processor in the thread of the caller, of one call."""
        return statistics.median(self.turns_cpu_s) / PER_TURN * 1e6


def turn(db: Database, queue: TaskQueue, times: dict[str, Times]) -> None:
    """Put, take and ack PER_TURN tasks."""
    taken: list[Task] = []

    def take() -> None:
        task = queue.take(db, 0)
        assert task is not None
        taken.append(task)

    times["put"].note(lambda: queue.put(db, VALUE))
    times["take"].note(take)
    times["ack"].note(lambda: queue.ack(db, taken.pop()))


def measured(db: Database, turns: int) -> dict[str, dict[str, Times]]:
    """The times of each call, by mode."""
    queue = fresh_queue(db)
    times: dict[str, dict[str, Times]] = defaultdict(lambda: defaultdict(Times))
    with modes() as known:
        turn(db, queue, defaultdict(Times))  # the first calls make services
        for _ in range(turns):
            for name, begin in known.items():
                with ExitStack() as observing:
                    for observation in begin():
                        observing.enter_context(observation)
                    turn(db, queue, times[name])
    return times


def cell(of: Times, base: Times) -> str:
    added = of.call_us / base.call_us - 1
    return f"{of.call_us:6,.0f} us {added:+6.1%} {of.cpu_us - base.cpu_us:+4.0f} us cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="memory:")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    with leaving_nothing(arguments.url), fdbqueue.open(arguments.url) as db:
        found = measured(db, 10 if arguments.quick else 50)
    base = found["nothing"]
    print(f"{'':22}" + "".join(f"{call:>30}" for call in CALLS))
    for mode, of in found.items():
        cells = [cell(of[call], base[call]) for call in CALLS]
        print(f"{mode:22}" + "".join(f"{text:>30}" for text in cells))
    print(f"wanted: at most {ADDED_WANTED:+.0%}")


if __name__ == "__main__":
    main()
