"""The checkers of the workload `several`."""

from collections import Counter
from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.effects import effects_in

NAME = "several"
QUEUES = ("red", "green", "blue")
DOOMED = "doomed"
FIRST, SECOND = "urgent", "bulk"
WEIGHTS = {FIRST: 3, SECOND: 1}
THREADS = 2
CHOOSER_THREADS = 2
GRACE_S = 10.0
LIVES_S = (0.01, 0.3, 1, 6)

# These faults delay nothing by seconds. In half of the runs there are no others.
HARMLESS = ("not_committed", "watch_spurious")
PROMPT_S = 0.8


def each_has_its_effect(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task has had its effect, and none twice."""
    effects = effects_in(database)
    yield from (f"{count} effects of {value!r}" for value, count in effects.items() if count != 1)
    for put in trace.of(NAME, "put"):
        if put.done and put.argument not in effects:
            yield f"lost: {put.argument!r}"


def weights_are_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check the shares of two queues at each moment at which both have tasks."""
    handled = [op for op in handled_by(trace, "chooser") if not op.argument.value.startswith("early")]
    order = [op.argument.queue for op in handled]
    taken: Counter[str] = Counter()
    for name in order:
        taken[name] += 1
        if taken[name] + CHOOSER_THREADS > order.count(name):
            return
        share = taken.total() * WEIGHTS[FIRST] / sum(WEIGHTS.values())
        if abs(taken[FIRST] - share) > CHOOSER_THREADS + 0.5:
            yield f"of the first {taken.total()} tasks, {taken[FIRST]} are from the queue of weight 3"


def none_waits_beside_an_idle_thread(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task is ready for `PROMPT_S` while a worker of its queue has an idle thread."""
    begun: dict[str, float] = {}
    for op in trace.of(NAME, "handle"):
        begun.setdefault(op.argument.value, op.began_s)
    for put in trace.of(NAME, "put"):
        since_s, until_s = put.ended_s, begun.get(put.argument)
        for life in lives(trace) if since_s is not None and until_s is not None else ():
            idle_s = longest_idle_s(trace, life, since_s or 0.0, until_s or 0.0)
            if idle_s > PROMPT_S:
                yield f"{put.argument!r} was ready for {idle_s:.1f} s while {life[0]} had an idle thread"


def lives(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Yield the client of each worker, and the times at which it was started and stopped."""
    stops = trace.of(NAME, "stop")
    for start in trace.of(NAME, "start"):
        stop = next((op for op in stops if op.client == start.client and start.before(op)), None)
        if stop is not None and start.ended_s is not None:
            yield start.client, start.ended_s, stop.began_s


def longest_idle_s(trace: Trace, life: tuple[str, float, float], since_s: float, until_s: float) -> float:
    """Return the longest time between two moments for which a worker had an idle thread."""
    client, since_s, until_s = life[0], max(since_s, life[1]), min(until_s, life[2])
    changes = [(since_s, 0), (until_s, 0)]
    for op in handled_by(trace, client):
        changes += [(op.began_s, 1), (op.ended_s or until_s, -1)]
    running, idle_since_s, longest_s = 0, since_s, 0.0
    for at_s, change in sorted(changes):
        if running < THREADS:
            longest_s = max(longest_s, min(at_s, until_s) - idle_since_s)
        running += change
        idle_since_s = max(at_s, since_s) if running < THREADS and change < 0 else idle_since_s
    return longest_s


def handled_by(trace: Trace, worker: str) -> list[Operation]:
    return [op for op in trace.of(NAME, "handle") if op.argument.worker == worker]


def each_is_handled_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task is handled again only if its worker was stopped at once."""
    handled = Counter(op.argument.value for op in trace.of(NAME, "handle"))
    hasty = any(stop.argument for stop in trace.of(NAME, "stop"))
    for value, count in handled.items():
        if count > 1 and not hasty:
            yield f"{value!r} was handled {count} times, and each handler had its grace"
