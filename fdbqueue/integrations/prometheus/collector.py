"""QueueCollector: the queues of a database in a registry of prometheus-client. Metrics of this process.

docs/metrics.md lists the families of queues. The calls, transactions and attempts of this process
(docs/observing.md lists them) are counters and histograms of prometheus-client, so its mode for several
processes has them, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fdbqueue.core import limits, observing
from fdbqueue.core.database import as_database, run
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.logger import logger
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
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase, engine_errors
from fdbqueue.core.version import __version__
from fdbqueue.core.visible import shortened, told, visible
from fdbqueue.operate.backlog import Pace
from fdbqueue.operate.figures import Figures, LimitFigures, QueueFigures, ScheduleFigures, TaskFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.options import IN_ORDER_OF_ARRIVAL
from fdbqueue.tasks.times import Durations

T = TypeVar("T")

_log = logger("fdbqueue.metrics")

_STATES = ("ready", "taken", "buried", "delayed")
KEY_LABEL_LENGTH_MAX = 100

Sample = tuple[Sequence[str], float]
"""The values of the labels behind `queue`, and the number."""
Samples = Callable[[QueueFigures], Iterable[Sample]]


_NONE: Mapping[str, float] = {}
_BACKLOG = "Time in which the ready tasks of a queue end, at the rate of the last five minutes."


class _Family(NamedTuple):
    """A family with any number of samples for each queue."""

    name: str
    text: str
    samples: Samples
    labels: Sequence[str] = ()


class _Numbers(NamedTuple, Generic[T]):
    """A family with at most one sample for each limit, or each schedule."""

    name: str
    text: str
    number: Callable[[T], float | None]


def families(found: Figures, look_s: float, backlogs: Mapping[str, float] = _NONE) -> Iterator[Metric]:
    """`backlogs`: of queues, in seconds."""
    yield from (up(True), _build(), *_alone(found, look_s))
    # Two names may have one text. Prometheus refuses a page that tells a sample twice.
    queues = {visible(queue.name): queue for queue in found.queues}
    for family in _FAMILIES:
        filled = _empty(family.name, family.text, ("queue", *family.labels))
        for name, queue in queues.items():
            for labels, number in family.samples(queue):
                filled.add_metric((name, *labels), float(number))
        yield filled
    backlog = GaugeMetricFamily("fdbqueue_backlog_seconds", _BACKLOG, labels=("queue",))
    for name in set(map(visible, backlogs)) & set(queues):
        backlog.add_metric((name,), backlogs[queues[name].name])
    yield backlog
    yield from _of_rows(_LIMITS, ("limit",), {visible(one.name): one for one in found.limits})
    yield from _of_rows(_SCHEDULES, ("schedule",), {visible(one.name): one for one in found.schedules})


def _empty(name: str, text: str, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
    made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return made(f"fdbqueue_{name}", text, labels=labels)


def _of_rows(
    wanted: Iterable["_Numbers[T]"], labels: Sequence[str], rows: Mapping[str, T]
) -> Iterator[Metric]:
    for one in wanted:
        filled = _empty(one.name, one.text, labels)
        for label, row in rows.items():
            number = one.number(row)
            if number is not None:
                filled.add_metric((label,), float(number))
        yield filled


def up(answered: bool) -> Metric:
    text = "1 if the database has answered the last look, else 0; then there are no other figures."
    return GaugeMetricFamily("fdbqueue_up", text, value=float(answered))


def _build() -> Metric:
    build = GaugeMetricFamily(
        "fdbqueue_build_info", "The release of fdbqueue; always 1.", labels=("version",)
    )
    build.add_metric((__version__,), 1.0)
    return build


def _alone(found: Figures, look_s: float) -> Iterator[Metric]:
    """The families with one sample."""
    groups = found.groups
    for name, text, number in (
        ("look_duration_seconds", "Time that the last look at the database took.", look_s),
        ("live_workers", "Live workers of all queues.", found.workers),
        (
            "stale_receipts",
            "Receipts of dead processes that lie for more than a day; an estimate above 100 receipts.",
            found.stale_receipts,
        ),
        (
            "clock_difference_seconds",
            "The largest difference of a worker's clock from that of the look, at the least.",
            found.clock_difference_s,
        ),
        (
            "left_out",
            "1 if there are more queues, limits or schedules than a look tells, else 0.",
            not found.is_whole,
        ),
        (
            "unfinished_groups",
            "Groups that have not ended, among those that a look reads.",
            groups.unfinished,
        ),
        ("held_groups", "Groups among them that buried members hold.", groups.held),
        ("groups_left_out", "1 if there are more groups than a look reads, else 0.", not groups.is_whole),
    ):
        yield GaugeMetricFamily(f"fdbqueue_{name}", text, value=float(number))


def _always(number: Callable[[QueueFigures], float]) -> Samples:
    return lambda queue: [((), number(queue))]


def _tasks(number: Callable[[TaskFigures], float]) -> Samples:
    return _of_tasks(lambda tasks: [((), number(tasks))])


def _of_tasks(samples: Callable[[TaskFigures], Iterable[Sample]]) -> Samples:
    return lambda queue: () if queue.tasks is None else samples(queue.tasks)


def _oldest(queue: QueueFigures) -> Iterator[Sample]:
    # The bound of a kind, not of this look: a label that changed from scrape to scrape would end its series.
    if queue.tasks is not None:
        is_in_order = queue.kind == IN_ORDER_OF_ARRIVAL and not queue.tasks.task_limits
        bound = "exact" if is_in_order else "at_most"
        yield (bound,), queue.tasks.oldest_age_s or 0.0


def _partitioned(number: Callable[[TaskFigures], float]) -> Samples:
    return _of_tasks(lambda tasks: [] if tasks.fullest_ready is None else [((), number(tasks))])


def _partitions(queue: QueueFigures) -> Iterable[Sample]:
    """The number of partitions of a queue that has some, of tasks or of items."""
    tasks = queue.tasks
    if tasks is None:
        return [] if queue.fullest_items is None else [((), queue.partitions)]
    return [] if tasks.fullest_ready is None else [((), tasks.partitions)]


def _busiest(tasks: TaskFigures) -> Iterable[Sample]:
    ready: Counter[str] = Counter()
    for key in tasks.busiest:
        ready[key_label(key.key)] += key.ready  # 1 and "1" have one label
    return (((label,), number) for label, number in ready.items())


def _first_ages(tasks: TaskFigures) -> Iterable[Sample]:
    ages: dict[str, float] = {}
    for key in tasks.busiest:
        if key.first_age_s is not None:
            label = key_label(key.key)
            ages[label] = max(ages.get(label, 0.0), key.first_age_s)
    return (((label,), age_s) for label, age_s in ages.items())


def _quantiles(part: str) -> Samples:
    """Those of the whole queue, which has an empty key, and of its busiest keys; `part`: a field of Times."""

    def samples(tasks: TaskFigures) -> Iterator[Sample]:
        found = {key_label(key.key): key.times for key in tasks.busiest} | {"": tasks.times}
        for label, times in found.items():
            durations: Durations | None = None if times is None else getattr(times, part)
            if durations is not None:
                yield (label, "0.5"), durations.p50_s
                yield (label, "0.99"), durations.p99_s

    return _of_tasks(samples)


_LASTED = "of the attempts of the last hour, of queues with the option chronicle; without a key, of all keys."
_QUANTILE = ("key", "quantile")


def key_label(key: object) -> str:
    """A task key as the value of a label: short, and without control characters."""
    return shortened(told(key), KEY_LABEL_LENGTH_MAX)


_FAMILIES = (
    _Family("queue_info", "A queue and its kind; always 1.", lambda queue: [((queue.kind,), 1.0)], ("kind",)),
    _Family(
        "unreadable_queue",
        "1 if this process cannot read the queue, else 0.",
        _always(lambda queue: queue.error is not None),
    ),
    _Family(
        "items", "Items, elements or tasks of a queue, in all states.", _always(lambda queue: queue.items)
    ),
    _Family(
        "unreadable_values",
        "Stored values of a queue that were set aside because they could not be read.",
        _always(lambda queue: queue.unreadable),
    ),
    _Family(
        "tasks",
        "Tasks of a queue by their stored state.",
        _of_tasks(lambda tasks: [((state,), getattr(tasks, state)) for state in _STATES]),
        ("state",),
    ),
    _Family(
        "calls_total",
        "Calls of a queue by all processes since it was created; ttl and ttr count ended tasks and leases.",
        _of_tasks(lambda tasks: [((call,), number) for call, number in tasks.calls.items()]),
        ("call",),
    ),
    _Family(
        "next_task_age_seconds",
        "Time since the put of the next task to be taken, its delays and attempts included; 0 without one.",
        _tasks(lambda tasks: tasks.next_age_s or 0.0),
    ),
    _Family(
        "oldest_ready_task_age_seconds",
        "Time since the put of the oldest ready task, or with the label at_most an upper bound of it.",
        _oldest,
        ("bound",),
    ),
    _Family(
        "sweep_lag_seconds",
        "Time for which the first task that is due has waited for a sweep.",
        _tasks(lambda tasks: tasks.sweep_lag_s),
    ),
    _Family("workers", "Live workers that may take from a queue.", _tasks(lambda tasks: tasks.workers)),
    _Family(
        "hung_tasks",
        "Tasks that have run 10 times as long as their class usually does, and a minute, 10 at most.",
        _tasks(lambda tasks: len(tasks.hung)),
    ),
    _Family(
        "workers_full_seconds",
        "Time since which no worker of a queue has had a free thread; 0 if one has.",
        _tasks(lambda tasks: tasks.full_s),
    ),
    _Family("paused", "1 if a queue is paused, else 0.", _tasks(lambda tasks: tasks.paused)),
    _Family(
        "capacity_tasks",
        "The largest number of tasks that a queue takes; missing without a bound.",
        _of_tasks(lambda tasks: [] if tasks.capacity is None else [((), tasks.capacity)]),
    ),
    _Family("partitions", "Open partitions of a queue that has some.", _partitions),
    _Family(
        "repartition",
        "1 while a repartition of a queue with partitions is under way, else 0.",
        _partitioned(lambda tasks: bool(tasks.partitions_before)),
    ),
    _Family(
        "fullest_partition_ready_tasks",
        "Ready tasks of the partition that has the most.",
        _partitioned(lambda tasks: tasks.fullest_ready or 0),
    ),
    _Family(
        "fullest_partition_items",
        "Items of the partition that has the most, of a queue of items.",
        lambda queue: [] if queue.fullest_items is None else [((), queue.fullest_items)],
    ),
    _Family(
        "key_ready_tasks", "Ready tasks of the busiest task keys of a queue.", _of_tasks(_busiest), ("key",)
    ),
    _Family(
        "key_first_task_age_seconds",
        "Time since the put of the first ready task of these keys; missing in the first scrape with a key.",
        _of_tasks(_first_ages),
        ("key",),
    ),
    _Family("waiting_seconds", f"Quantiles of the waits {_LASTED}", _quantiles("waiting"), _QUANTILE),
    _Family("running_seconds", f"Quantiles of the run times {_LASTED}", _quantiles("running"), _QUANTILE),
)
_LIMITS: Sequence[_Numbers[LimitFigures]] = (
    _Numbers(
        "limit_slots", "Slots of a limit; of each key, if it counts them apart.", lambda limit: limit.slots
    ),
    _Numbers(
        "limit_used_slots",
        "Slots of a limit that tasks hold, of all keys together.",
        lambda limit: None if limit.slots is None else limit.used,
    ),
    _Numbers(
        "limit_starts_per_second",
        "The rate of a limit of starts.",
        lambda limit: None if limit.rate is None or not limit.per_s else limit.rate / limit.per_s,
    ),
    _Numbers("limit_burst_tokens", "Tokens for which a limit has room.", lambda limit: limit.burst),
    _Numbers("limit_tokens", "Tokens that a limit has now.", lambda limit: limit.tokens),
    _Numbers(
        "limit_reached",
        "1 if no task may start now, else 0.",
        lambda limit: None if limit.free is None or limit.per_key else limit.free == 0,
    ),
    _Numbers(
        "limit_waiting_tasks",
        "Ready tasks of the queues that name a limit, while no task may start.",
        lambda limit: None if limit.free is None else limit.waiting,
    ),
    _Numbers(
        "limit_missing",
        "1 for a limit that a queue names and that does not exist, or that cannot be read; else 0.",
        lambda limit: limit.free is None,
    ),
)
_SCHEDULES: Sequence[_Numbers[ScheduleFigures]] = (
    _Numbers(
        "schedule_next_due_timestamp_seconds",
        "The next due time of a schedule; missing while it is paused.",
        lambda schedule: schedule.due,
    ),
    _Numbers(
        "schedule_late_seconds",
        "Time since a due time of a schedule that has not been fired; 0 without one.",
        lambda schedule: schedule.late_s,
    ),
    _Numbers("schedule_paused", "1 if a schedule is paused, else 0.", lambda one: one.paused),
    _Numbers(
        "schedule_failing",
        "1 if the last try to fire a schedule has failed, else 0.",
        lambda one: one.error is not None,
    ),
    _Numbers("schedule_tasks_total", "Tasks that a schedule has put.", lambda one: one.fired),
)


class QueueCollector:
    """A collector of prometheus-client with the figures of the queues with these names, or of all queues.

    Each scrape is one look at the database, of one round trip, or two after a queue was created. The numbers
    count for all processes, so one process of a deployment collects them. If the database does not answer,
    `fdbqueue_up` is 0, and the other families are missing.
    """

    __slots__ = ("_database", "_overview", "_paces")

    def __init__(self, db: AnyDatabase, *names: str, keys: int = 10, root: Any = DEFAULT_ROOT) -> None:
        """`keys` is the number of busiest task keys that are told of a queue with task keys.

        Raises: InvalidArgument, WrongType, NotADatabase.
        """
        self._database = as_database(db)
        self._overview = Overview(*names, keys=keys, root=root)
        self._paces: dict[str, Pace] = {}

    def describe(self) -> Iterable[Metric]:
        """The families without samples: a registry asks for their names when the collector is registered."""
        return list(families(Figures(0.0, (), 0), 0.0))

    def collect(self) -> Iterable[Metric]:
        """The families, from one snapshot.

        Reads: as Overview.figures, within limits.LOOK_TIMEOUT_S.
        Conflicts: none.
        """
        database = self._database
        began = database.runtime.monotonic()
        try:
            found = run(database.at("look"), self._overview.figures, timeout_s=limits.LOOK_TIMEOUT_S)
        except failures() as error:
            database.troubles.met(_log, "the queues could not be looked at", error)
            return [up(False)]
        return list(families(found, database.runtime.monotonic() - began, self._backlogs(found)))

    def _backlogs(self, found: Figures) -> dict[str, float]:
        """By queue, from the second look on. A queue that ends none counts as one that ends a task in
        limits.PACE_S, so that an autoscaler gets a number.
        """
        there = {queue.name: queue.tasks for queue in found.queues if queue.tasks is not None}
        self._paces = {name: self._paces.get(name) or Pace() for name in there}
        backlogs = {name: self._paces[name].backlog(tasks, found.now) for name, tasks in there.items()}
        most = {name: tasks.ready * limits.PACE_S for name, tasks in there.items()}
        return {
            name: most[name] if one.seconds is None else min(one.seconds, most[name])
            for name, one in backlogs.items()
            if one is not None
        }


def failures() -> tuple[type[Exception], ...]:
    return (FdbQueueError, OSError, *engine_errors())


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
        count = partial(PrometheusCounter, registry=registry)
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
        self._fallbacks = count(
            "fdbqueue_process_fallbacks",
            "Transactions of this process that went on at default priority, as batch priority starved.",
        )

    def call(self, call: Call) -> Ended:  # noqa: ARG002
        return self._ended

    def attempt(self, attempt: Attempt) -> Watcher:
        self._attempts.began(attempt)
        return self._attempts

    def committed(self) -> None:
        self._commits.inc()

    def fell_back(self) -> None:
        self._fallbacks.inc()

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
        self._calls = PrometheusCounter(
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
