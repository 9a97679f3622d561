"""The reasons why a task is not running: a pure function of what a look has found."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from fdbqueue.core import limits
from fdbqueue.core.task import Explanation, HeldKey, Holder, Reason, TaskPlace, TaskState, Why
from fdbqueue.core.visible import counted, shortened, visible

_SWEEP = "Any take, any worker, or a look at the statistics sweeps it."
_GIVEN_BACK = "The next sweep or take gives it back."
_MORE = "More workers, or more threads in each."
_OF_ITS_KEY = "The tasks of its key before it end."


def reasons_of(found: Explanation, of_features: Sequence[Reason]) -> tuple[Reason, ...]:
    """The reasons in order of weight, with those of features. A task runs when the last of them has ended."""
    paused = (
        (Reason(Why.PAUSED, "The queue is paused.", command(found.queue, "resume")),) if found.paused else ()
    )
    return (*paused, *_of_state(found, of_features))


def _of_state(found: Explanation, of_features: Sequence[Reason]) -> Iterable[Reason]:
    match found.task.state:
        case TaskState.READY:
            return _ready(found, of_features)
        case TaskState.DELAYED:
            return of_features or _delayed(found)
        case TaskState.TAKEN:
            return _taken(found)
    return _buried(found)


def _buried(found: Explanation) -> Iterator[Reason]:
    yield Reason(
        Why.BURIED, f"It is buried{_after(found)}.", command(found.queue, "dead kick", found.task.id)
    )


def _taken(found: Explanation) -> Iterator[Reason]:
    task, holder = found.task, found.holder
    at = _back_at(found.now, task.taken, task.until, holder)
    if task.cancel_asked is not None:
        text = f"It was cancelled {span(found.now - task.cancel_asked)} ago, and ends with its lease."
        yield Reason(Why.CANCELLED, text, f"Its handler ends. Its lease lasts {span(at - found.now)}.", at)
        return
    if _has_ended(holder, found.now):
        text = f"{told(holder)} holds it, and has ended or is overdue."
        yield Reason(Why.HOLDER_ENDED, text, _GIVEN_BACK, at)
        return
    since = "" if task.taken is None else f" for {span(found.now - task.taken)}"
    cure = f"Its handler ends. Without a renewal it comes back in {span(at - found.now)}."
    yield Reason(Why.TAKEN, f"{told(holder)} holds it{since}{_progress(found)}.", cure, at)


def _progress(found: Explanation) -> str:
    task = found.task
    if task.fraction is None or task.fraction_told is None:
        return ""
    return f", and told {task.fraction:.0%} {span(found.now - task.fraction_told)} ago"


def _has_ended(holder: Holder | None, now: float) -> bool:
    return holder is None or holder.dies is None or holder.dies <= now


def _back_at(now: float, taken: float | None, until: float | None, holder: Holder | None) -> float:
    """The time at which a taken task comes back at the latest, unless its holder renews its lease."""
    if holder is None or holder.dies is None:
        # The end of a session goes in bounded steps. Besides, the line hands tasks to waiting calls: if such
        # a call has died, a take that passes by returns the task at the end of its request.
        return max(now, (now if taken is None else taken) + limits.REQUEST_DEADLINE_S)
    return max(now, holder.dies if until is None else min(until, holder.dies))


def _delayed(found: Explanation) -> Iterator[Reason]:
    until = found.task.until or found.now
    text = f"It is delayed{_after(found)}."
    yield Reason(Why.DELAYED, text, f"It is due in {span(until - found.now)}.", until)


def _ready(found: Explanation, of_features: Sequence[Reason]) -> Iterator[Reason]:
    place = found.place or TaskPlace()
    if not found.swept:
        yield Reason(Why.UNSWEPT, "It has become ready, and no process has swept it.", _SWEEP, found.now)
    yield from of_features
    if found.held is not None:
        yield _key_held(found.held)
    if not place.key_is_open:
        yield _key_busy(found)
    if place.ahead_in_key:
        cure = _OF_ITS_KEY if place.round is None else _MORE
        yield Reason(Why.KEY_BEHIND, f"{_counted(place.ahead_in_key, 'task')} of its key before it.", cure)
    if place.ahead or (place.round or 0) > (place.current_round or 0) + 1:
        yield Reason(Why.BEHIND, _behind(place), _MORE)
    yield _takers(found, is_held=bool(of_features))


def _key_held(held: HeldKey) -> Reason:
    text = (
        f"Its key waits for {counted(held.tasks, 'task')} of it in partition {held.partition}, since a"
        f" repartition from {held.before} to {held.partitions}."
    )
    return Reason(Why.KEY_HELD, text, "These tasks end.")


def _key_busy(found: Explanation) -> Reason:
    times = [_back_at(found.now, one.taken, one.until, one.holder) for one in found.key_holders]
    names = ", ".join(dict.fromkeys(told(one.holder) for one in found.key_holders))
    over = any(
        _has_ended(one.holder, found.now) or (one.until is not None and one.until <= found.now)
        for one in found.key_holders
    )
    text = f"Its key is busy{': ' if names else ''}{names}."
    cure = f"A taken task of its key ends.{f' {_GIVEN_BACK}' if over else ''}"
    return Reason(Why.KEY_BUSY, text, cure, min(times, default=None))


def _behind(place: TaskPlace) -> str:
    if place.in_any_order:
        return f"{_counted(place.ahead, 'other task')}, which come{'s' * (place.ahead == 1)} in any order."
    before = f"{_counted(place.ahead, 'key' if place.by_key else 'task')} before it."
    if place.round is None:
        return before
    return f"{before} Its turn is in round {place.round}; now is {place.current_round}."


def _takers(found: Explanation, is_held: bool) -> Reason:
    if found.waiting:
        text = f"{_counted(found.waiting, 'call')} waiting for a task of the queue."
        if found.held is None and not is_held and _is_next(found.place):
            return Reason(Why.NEXT, text, "One of them takes it.", found.now)
        return Reason(Why.NEXT, text, "Its turn comes.")
    if found.workers:
        busy = f"{_counted(found.workers, 'worker')} of the queue, and none of them waits for a task."
        return Reason(Why.WORKERS_BUSY, busy, _MORE)
    work = command(found.queue, "work", "MODULE:FUNCTION")
    return Reason(Why.NO_WORKER, "No worker takes from the queue, and no call waits.", work)


def _is_next(place: TaskPlace | None) -> bool:
    return place is not None and place.key_is_open and not place.ahead and not place.ahead_in_key


def command(queue: str, verb: str, *arguments: str) -> str:
    """The command as it is typed: a name may have characters of a shell, or begin with a dash."""
    if queue.startswith("-"):
        return shlex.join(["fdbqueue", *verb.split(), "--", queue, *arguments])
    return shlex.join(["fdbqueue", *verb.split(), queue, *arguments])


def _after(found: Explanation) -> str:
    failed = found.last_failure
    if failed is None:
        return ""
    told_first = f"{failed.error}: {failed.message}" if failed.message else failed.error
    return f" after {shortened(visible(' '.join(told_first.split())))}"


def told(holder: Holder | None) -> str:
    """The holder in a few words: its processes, or else its session."""
    if holder is None:
        return "A session"
    processes = ", ".join(f"{visible(process.host)}:{process.process_id}" for process in holder.processes)
    return processes or f"Session {holder.session}"


def span(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def _counted(count: int, what: str) -> str:
    number = str(count) if count < limits.EXPLAINED_MAX else f"{count:,} or more"
    return f"There is 1 {what}" if count == 1 else f"There are {number} {what}s"
