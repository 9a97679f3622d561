"""Queues: the figures of all queues at two looks, and groups that buried members hold, as checks."""

from collections.abc import Iterator
from math import ceil

from fdbqueue.core import limits
from fdbqueue.core.visible import counted
from fdbqueue.operate.diagnosis.check import Check, failure, fine, warning
from fdbqueue.operate.overview.figures import Figures, GroupsFigures, QueueFigures, TaskFigures
from fdbqueue.operate.verify.values import command

CHECK = "queues"


def check_queues(first: Figures, second: Figures) -> list[Check]:
    """The results for all queues that exist at both looks; one that counts them if all are fine."""
    before, seconds = first.by_name, max(second.now - first.now, 0.001)
    found = [
        result
        for queue in second.queues
        for result in _of_queue(before.get(queue.name, queue), queue, seconds)
    ]
    text = f"{counted(len(second.queues), 'queue')}, {counted(second.workers, 'live worker')}"
    return found or [fine(CHECK, text, queues=len(second.queues), workers=second.workers)]


def _of_queue(before: QueueFigures, queue: QueueFigures, seconds: float) -> Iterator[Check]:
    name = queue.name
    if queue.error is not None:
        cure = "Read it with the release, or the codec, that made it."
        yield failure(CHECK, f"{name} cannot be read: {queue.error}", cure, queue=name)
    if queue.unreadable:
        text = f"{name} has set aside {counted(queue.unreadable, 'value')} that could not be read"
        yield warning(CHECK, text, command("aside", name), queue=name, unreadable=queue.unreadable)
    if queue.tasks is not None and before.tasks is not None:
        yield from _idle(name, before.tasks, queue.tasks)
        yield from _stored(name, queue.tasks)
        yield from _hot(name, before.tasks, queue.tasks, seconds)
        yield from _repartition(name, before.tasks, queue.tasks)
        yield from _sparse(name, before.tasks, queue.tasks, seconds)


def _idle(name: str, before: TaskFigures, now: TaskFigures) -> Iterator[Check]:
    """A queue with ready tasks of which none is taken: it is paused, or nothing takes from it."""
    if not now.ready or now.calls["take"] != before.calls["take"]:
        return
    if now.paused:
        text = f"{name} is paused, with {counted(now.ready, 'ready task')}"
        yield warning(CHECK, text, command("resume", name), queue=name, ready=now.ready)
    elif not now.workers:
        text = f"{name} has {counted(now.ready, 'ready task')} and no live worker"
        yield warning(CHECK, text, command("work", name, "MODULE:FUNCTION"), queue=name, ready=now.ready)


def _stored(name: str, now: TaskFigures) -> Iterator[Check]:
    if now.sweep_lag_s > limits.SWEEP_LAG_WARNING_S:
        text = f"{name} was last swept {now.sweep_lag_s:.0f} s too late: due tasks and dead leases wait"
        cure = "Start a worker: every process that takes from the queue sweeps it."
        yield warning(CHECK, text, cure, queue=name, sweep_lag_s=now.sweep_lag_s)
    if now.buried:
        text = f"{name} has {counted(now.buried, 'buried task')} to decide on"
        cure = command("tasks", name, "--state", "buried")
        yield warning(CHECK, text, cure, queue=name, buried=now.buried)
    stored = now.ready + now.taken + now.buried + now.delayed
    if now.capacity is not None and stored >= now.capacity:
        text = f"{name} is full, with {counted(stored, 'task')}: puts wait or are refused"
        yield warning(CHECK, text, "Start more workers.", queue=name, capacity=now.capacity)


def _hot(name: str, before: TaskFigures, now: TaskFigures, seconds: float) -> Iterator[Check]:
    rate = _rate(before, now, seconds)
    if rate > limits.HOT_TASKS_PER_S * now.partitions:
        what = "of one storage team" if now.partitions == 1 else f"of its {now.partitions} partitions"
        text = f"{name} is hot: {rate:.0f} tasks a second, near the limit {what}"
        wanted = min(limits.PARTITIONS_MAX, 2 * ceil(rate / limits.HOT_TASKS_PER_S))
        cure = f"Take and put in batches, or `{command('repartition', name, str(wanted))}` (docs/scaling.md)."
        yield warning(CHECK, text, cure, queue=name, tasks_per_s=rate, partitions=now.partitions)


def _sparse(name: str, before: TaskFigures, now: TaskFigures, seconds: float) -> Iterator[Check]:
    """A queue with many partitions and few tasks. Nothing to cure: its peaks may need them."""
    rate, ready = _rate(before, now, seconds), max(before.ready, now.ready)
    enough = max(1.0, 2 * rate / limits.HOT_TASKS_PER_S)
    if rate and ready < now.partitions and now.partitions >= limits.SPARSE_PARTITIONS * enough:
        text = (
            f"{name} has {now.partitions} partitions for {rate:.0f} tasks a second, and few ready tasks: with"
            " fewer of them its calls conflict less, unless its peaks need as many (docs/scaling.md)"
        )
        yield fine(CHECK, text, queue=name, tasks_per_s=rate, partitions=now.partitions)


def _rate(before: TaskFigures, now: TaskFigures, seconds: float) -> float:
    """Tasks a second."""
    return max(now.calls[call] - before.calls[call] for call in ("put", "take")) / seconds


def _repartition(name: str, before: TaskFigures, now: TaskFigures) -> Iterator[Check]:
    """A repartition that waits for tasks of the old partitions while none is taken and none ends."""
    is_open = before.partitions_before and now.partitions_before
    if not is_open or any(now.calls[call] != before.calls[call] for call in ("take", "ack")):
        return
    held_by = counted(now.taken, "taken task") if now.taken else counted(now.ready, "ready task")
    text = (
        f"{name} is under repartition from {now.partitions_before} to {now.partitions}, and its tasks stand"
        f" still: it ends with those of the old partitions, with {held_by} in all"
    )
    yield warning(CHECK, text, command("partitions", name), queue=name, partitions=now.partitions)


GROUPS = "groups"


def check_groups(found: GroupsFigures) -> list[Check]:
    """One result; none if there is no group that has not ended."""
    if not found.first_held:
        least = "" if found.is_whole else "at least "
        count = f"{least}{counted(found.unfinished, 'unfinished group')}"
        return [fine(GROUPS, count, unfinished=found.unfinished)] if found.unfinished else []
    first = found.first_held[0]
    are = "1 group is" if found.held == 1 else f"{found.held:,} groups are"
    text = f"{are} held by buried members, such as {first.id} by {first.buried:,} of them: it does not end"
    return [warning(GROUPS, text, command("group", "show", first.id), held=found.held, group=first.id)]
