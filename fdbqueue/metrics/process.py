"""Metrics of this process: its calls, transactions and attempts (docs/observing.md lists them).

They are counters and histograms of prometheus-client, so its mode for several processes has them, too.
"""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from fdbqueue import limits, observing
from fdbqueue.counters import MAYBE_COMMITTED, NOT_COMMITTED
from fdbqueue.database import engine_errors
from fdbqueue.errors import FdbQueueError
from fdbqueue.observing import Attempt, Call, Observation, Observer, Watcher

OTHER_QUEUES = "(other queues)"
"""The label of the queues beyond the first limits.QUEUES_LABELLED_MAX."""
NO_NAME = "(no name)"
"""The label of queues over a subspace."""

CALL_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)
RUN_BUCKETS_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600, 21_600)

M = TypeVar("M", Counter, Histogram)

Label = Callable[[str], str]
"""Gives the label of a queue."""

_measured: "WeakKeyDictionary[CollectorRegistry, ProcessMetrics]" = WeakKeyDictionary()


def measure(registry: CollectorRegistry = REGISTRY) -> Observation:
    """Count the calls, transactions and attempts of this process in `registry`, until the result is ended.

    A second call with the same registry goes on with the same metrics.
    """
    metrics = _measured.get(registry)
    if metrics is None:
        metrics = _measured[registry] = ProcessMetrics(registry)
    return observing.observe(metrics)


class ProcessMetrics(Observer):
    """The metrics of this process in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._labels: dict[str, str] = {}
        self._calls = _Calls(registry, self._label)
        self._attempts = _Attempts(registry, self._label)
        self._commits = Counter(
            "fdbqueue_process_commits", "Transactions of this process that have committed.", registry=registry
        )
        self._retries = Counter(
            "fdbqueue_process_retries",
            "Transactions of this process that ended in an error of the database, conflicts included.",
            registry=registry,
        )
        self._conflicts = Counter(
            "fdbqueue_process_conflicts",
            "Commits of this process that were refused, as another transaction had changed what they read.",
            registry=registry,
        )
        self._unknown = Counter(
            "fdbqueue_process_unknown_results",
            "Commits of this process with an unknown result.",
            registry=registry,
        )

    def call(self, call: Call) -> Watcher[Call]:  # noqa: ARG002
        return self._calls

    def attempt(self, attempt: Attempt) -> Watcher[Attempt]:
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
            label = self._labels[queue] = queue or NO_NAME
        return label


class _Kept(Generic[M]):
    """A metric with labels. It keeps those of each combination, as finding them costs more than a count."""

    _metric: M

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], M] = {}

    def of(self, *labels: str) -> M:
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._metric.labels(*labels)
        return found


class _Calls(Watcher[Call]):
    def __init__(self, registry: CollectorRegistry, label: Label) -> None:
        self._label = label
        calls = Counter(
            "fdbqueue_process_calls",
            "Calls of this process, by outcome: ok, nothing, or the name of an error.",
            ("queue", "call", "outcome"),
            registry=registry,
        )
        seconds = Histogram(
            "fdbqueue_process_call_seconds",
            "Duration of the calls of this process that were given a database and did not wait.",
            ("queue", "call"),
            buckets=CALL_BUCKETS_S,
            registry=registry,
        )
        self._calls, self._seconds = _Kept(calls), _Kept(seconds)

    def ended(self, seen: Call) -> None:
        queue = self._label(seen.queue)
        self._calls.of(queue, seen.name, _outcome_of(seen)).inc()
        if not (seen.within or seen.waits):
            self._seconds.of(queue, seen.name).observe(seen.seconds)


class _Attempts(Watcher[Attempt]):
    def __init__(self, registry: CollectorRegistry, label: Label) -> None:
        self._label = label
        wait = Histogram(
            "fdbqueue_process_task_wait_seconds",
            "Time from the put of a task, its delay included, to its first take, by a worker.",
            ("queue",),
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        run = Histogram(
            "fdbqueue_process_task_run_seconds",
            "Run time of handlers in this process, by the outcome of the attempt.",
            ("queue", "outcome"),
            buckets=RUN_BUCKETS_S,
            registry=registry,
        )
        self._wait, self._run = _Kept(wait), _Kept(run)

    def began(self, attempt: Attempt) -> None:
        wait_s = attempt.wait_s
        if wait_s is not None:
            self._wait.of(self._label(attempt.queue)).observe(wait_s)

    def ended(self, seen: Attempt) -> None:
        self._run.of(self._label(seen.queue), seen.outcome).observe(seen.seconds)


def _outcome_of(call: Call) -> str:
    if call.error is None:
        return "ok" if call.count else "nothing"
    if isinstance(call.error, (FdbQueueError, *engine_errors())):
        return type(call.error).__name__
    return "other error"  # a program may raise any: a bounded set of labels
