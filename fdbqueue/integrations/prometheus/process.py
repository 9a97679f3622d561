"""Metrics of this process: its calls, transactions and attempts (docs/observing.md lists them).

They are counters and histograms of prometheus-client, so its mode for several processes has them, too.
"""

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from fdbqueue.core import limits, observing
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.observing import (
    MAYBE_COMMITTED,
    NOT_COMMITTED,
    Attempt,
    Call,
    Ended,
    Observation,
    Observer,
    Watcher,
)
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.visible import visible

OTHER_QUEUES = "(other queues)"
"""The label of the queues beyond the first limits.QUEUES_LABELLED_MAX."""
NO_NAME = "(no name)"
"""The label of queues over a subspace."""

CALL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)
RUN_BUCKETS_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600)

Label = Callable[[str], str]
"""Gives the label of a queue."""
Count = Callable[[], None]
Observe = Callable[[float], None]

_measuring = RealRuntime.lock()
_measured: "WeakKeyDictionary[CollectorRegistry, ProcessMetrics]" = WeakKeyDictionary()


def measure(registry: CollectorRegistry = REGISTRY) -> Observation:
    """Count the calls, transactions and attempts of this process in `registry`, until the result is ended.

    A second call with the same registry goes on with the same metrics.
    """
    with _measuring:
        metrics = _measured.get(registry)
        if metrics is None:
            metrics = _measured[registry] = ProcessMetrics(registry)
    return observing.observe(metrics)


class ProcessMetrics(Observer):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._labels: dict[str, str] = {}
        self._calls = _Calls(registry, self._label)
        self._attempts = _Attempts(registry, self._label)
        self._ended: Ended = self._calls.ended
        count = partial(Counter, registry=registry)
        self._commits = count("fdbqueue_process_commits", "Transactions of this process that have committed.")
        self._retries = count(
            "fdbqueue_process_retries",
            "Transactions of this process that ended in an error of the database, conflicts included.",
        )
        self._conflicts = count(
            "fdbqueue_process_conflicts",
            "Commits of this process that were refused, as another transaction had changed what they read.",
        )
        self._unknown = count(
            "fdbqueue_process_unknown_results", "Commits of this process with an unknown result."
        )

    def call(self, call: Call) -> Ended:  # noqa: ARG002
        return self._ended

    def attempt(self, attempt: Attempt) -> Watcher:
        self._attempts.began(attempt)
        return self._attempts

    def committed(self) -> None:
        self._commits.inc()

    def failed(self, code: int) -> None:
        self._retries.inc()
        if code == NOT_COMMITTED:
            self._conflicts.inc()
        elif code in MAYBE_COMMITTED:
            self._unknown.inc()

    def _label(self, queue: str) -> str:
        label = self._labels.get(queue)
        if label is None:
            if len(self._labels) >= limits.QUEUES_LABELLED_MAX:
                return OTHER_QUEUES
            label = self._labels[queue] = visible(queue) or NO_NAME
        return label


class _Calls:
    def __init__(self, registry: CollectorRegistry, label: Label) -> None:
        self._label = label
        self._calls = Counter(
            "fdbqueue_process_calls",
            "Calls of this process, by outcome: ok, nothing, or the name of an error.",
            ("queue", "call", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "fdbqueue_process_call_seconds",
            "Duration of the calls of this process that were given a database and did not wait.",
            ("queue", "call"),
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        # To find the metrics of labels costs more than to count, so those of a few queues are kept.
        self._known: dict[tuple[str, str, str, bool], tuple[Count, Observe | None]] = {}

    def ended(self, call: Call) -> None:
        outcome = ("ok" if call.count else "nothing") if call.error is None else _outcome_of(call.error)
        labels = (call.queue, call.name, outcome, not (call.within or call.waits))
        count, observe = self._known.get(labels) or self._found(*labels)
        count()
        if observe is not None:
            observe(call.seconds)

    def _found(self, queue: str, name: str, outcome: str, timed: bool) -> tuple[Count, Observe | None]:
        label = self._label(queue)
        count = self._calls.labels(label, name, outcome).inc
        found = count, self._seconds.labels(label, name).observe if timed else None
        if label != OTHER_QUEUES:
            self._known[queue, name, outcome, timed] = found
        return found


class _Attempts(Watcher):
    def __init__(self, registry: CollectorRegistry, label: Label) -> None:
        self._label = label
        self._wait = Histogram(
            "fdbqueue_process_task_wait_seconds",
            "Time from the put of a task, its delay included, to its first take, by a worker.",
            ("queue",),
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._run = Histogram(
            "fdbqueue_process_task_run_seconds",
            "Run time of handlers in this process, by the outcome of the attempt.",
            ("queue", "outcome"),
            buckets=RUN_BUCKETS_S,
            registry=registry,
        )

    def began(self, attempt: Attempt) -> None:
        wait_s = attempt.wait_s
        if wait_s is not None:
            self._wait.labels(self._label(attempt.queue)).observe(wait_s)

    def ended(self, attempt: Attempt) -> None:
        self._run.labels(self._label(attempt.queue), attempt.outcome).observe(attempt.seconds)


def _outcome_of(error: BaseException) -> str:
    known = isinstance(error, (FdbQueueError, *engine_errors()))
    return type(error).__name__ if known else "other error"  # a program may raise any: labels are bounded
