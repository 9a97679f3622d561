"""Rows: the stored keys of a feature, as verify, exports and imports meet them; and reasons, for `explain`.

Each of these asks the table of features (feature.py), and names none of them. By default a feature has no
keys of its own.

Reasons are pure: a look has read all that they need.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.columns import Column
from fdbqueue.core.rows import (
    Check,
    ContentLine,
    Count,
    Excuse,
    Finder,
    NotOurs,
    OfColumn,
    Row,
    Section,
    Under,
)
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.task import Explanation, HeldKey, Holder, LongRun, Reason, TaskPlace, TaskState, Why
from fdbqueue.core.visible import counted, shortened, visible
from fdbqueue.tasks.feature import OF_TASKS, all_features, feature_of_tasks
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import DETACHED_MARK, HANDED_OFF, Record, Statistics, partition_of


class OfShape(Finder):
    """Tells the contradictions of one queue of tasks, or of one partition."""

    def __init__(self, shape: Shape, mending: str) -> None:
        super().__init__(mending)
        self._shape = shape
        self._keys = shape.keys
        self._shared = shape.shared


class Told(NamedTuple):
    """A feature tells this of a task that is not running."""

    fields: Mapping[str, Any] = {}
    """Fields of the explanation."""
    reasons: Sequence[Reason] = ()


class FeatureRows(OfShape):
    """The rows of a feature in one queue, or in one partition."""

    name = ""
    """That of rows beside a task, in an export."""
    copied: Sequence[Column[*tuple[Any, ...]]] = ()
    """Columns of each partition that an export copies as they are."""
    lines: Sequence[type[ContentLine]] = ()
    """The lines that it adds to an export; `place` takes them back."""

    # Verify.

    def columns(self) -> dict[int, OfColumn]:
        """The checks of its columns in each partition."""
        return {}

    def shared(self) -> dict[int, OfColumn]:
        """The checks of its columns among the keys that all partitions share."""
        return {}

    def task(self, row: Row, record: Record) -> Check:
        """The check of a task with extra parts."""
        return self.nothing(row, record)

    def weight(self, column: int, row: Row, rest: bytes) -> int:  # noqa: ARG002
        """The bytes of the keys that a row of its columns names, as far as they may be many."""
        return 0

    def weight_of_task(self, record: Record) -> int:  # noqa: ARG002
        """The bytes of the keys that a task with extra parts names."""
        return 0

    def note(self, column: int, row: Row, rest: bytes) -> None:
        """Count a row of its columns, which was judged."""

    def counts(self) -> Iterator[Count]:
        """Its counters in a partition, known after the scan of that."""
        yield from ()

    def shared_counts(self) -> Iterator[Count]:
        """Its counters of the queue, known after the scan of all partitions."""
        yield from ()

    # Looks.

    def ask_statistics(self, tr: ReadTransaction) -> Callable[[], Statistics]:  # noqa: ARG002
        """Ask for its numbers in a partition, which stand among those of the queue."""
        return dict

    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:  # noqa: ARG002
        """Ask why it keeps a task from running. Round trips: 1."""
        return Told

    # Exports and imports.

    def part(self, number: int) -> Shape:
        """A partition that a line names. Raises: NotOurs if the queue has none of that number."""
        plan = self._shape.plan
        if not 0 <= number < (1 if plan is None else plan.high):
            raise NotOurs(f"partition {number}")
        return self._shape.partition(number)

    def shared_sections(self) -> Iterator[Section]:
        """Its sections of a queue. They come before the tasks: a task that ends meanwhile is in the file, or
        its end, and never both.
        """
        yield from ()

    def sections(self) -> Iterator[Section]:
        """Its sections of a partition, before the tasks."""
        yield from ()

    def beside(self, record: Record) -> slice | None:  # noqa: ARG002
        """The rows that a task has beside its record; None for a task without any."""
        return None

    def leaving(self, record: Record, leave_out: bool) -> Record:  # noqa: ARG002
        """A task as an export has it. Raises: ExportRefused, unless the caller wants to `leave_out` much."""
        return record

    def place(self, tr: Transaction, lines: Sequence[ContentLine]) -> None:
        """Write the contents of its lines, before the tasks of a batch. Raises: NotOurs."""

    def ask_welcome(self, tr: Transaction, record: Record, now_us: int) -> Callable[[], bool]:  # noqa: ARG002
        """Ask if a task may come with all that it has."""
        return lambda: True

    def arriving(self, tr: Transaction, records: Sequence[Record], now_us: int) -> Sequence[Record]:  # noqa: ARG002
        """Tasks of an import, as they are to be stored."""
        return records


def task_in(shape: Shape, id_: bytes, partition: int | None = None) -> bytes:
    """The record of a task in a partition, by default in that of its put."""
    return shape.partition(partition_of(id_) if partition is None else partition).keys.task(id_)


def unless_elsewhere(shape: Shape, id_: bytes, is_it: Callable[[bytes], bool]) -> list[Excuse]:
    """It is no contradiction if the task has moved, and its record in another partition is the right one."""
    plan = shape.plan
    if plan is None or not plan.may_have_moved:
        return []

    def is_there(rows: Sequence[Row]) -> bool:
        return any(is_it(row.value) for row in rows)

    tasks = [task_in(shape, id_, number) for number in range(plan.high)]
    return [Excuse(Under(task, task + b"\x00"), is_there) for task in tasks]


def rows_in_use(shape: Shape) -> list[FeatureRows]:
    """Those of the features that the queue, or some of its tasks, may have."""
    features = (*map(feature_of_tasks, OF_TASKS), *shape.features)
    return [feature.rows(shape, "") for feature in features if feature.rows is not None]


def rows_of_features(shape: Shape, mending: str = "") -> list[FeatureRows]:
    """Those of all features: a key of a feature that the queue does not have is a contradiction, too."""
    return [feature.rows(shape, mending) for feature in all_features() if feature.rows is not None]


_SWEEP = "Any take, any worker, or a look at the statistics sweeps it."
_GIVEN_BACK = "The next sweep or take gives it back."
_TURN_COMES = "Its turn comes."
_MORE = "More workers, or more threads in each."
_STOPPED = "Look at that process: is it dead, stopped (SIGCONT wakes it), or hanging?"
_TIMEOUT = "`--timeout` ends such attempts."
_END = f"If it hangs, bury it, or else another worker takes it; then end that process. {_TIMEOUT}"
_OF_ITS_KEY = "The tasks of its key before it end."


def reasons_of(
    found: Explanation, of_features: Sequence[Reason], overtaken: Reason | None = None
) -> tuple[Reason, ...]:
    """The reasons in order of weight, with those of features. A task runs when the last of them has ended.
    More workers cure nothing while one key takes nearly all of them.
    """
    reasons: Iterable[Reason] = _of_state(found, of_features)
    if overtaken is not None:
        reasons = (replace(one, cure=_TURN_COMES) if one.cure == _MORE else one for one in reasons)
        reasons = (overtaken, *reasons)
    return (*_pauses(found), *reasons)


def _pauses(found: Explanation) -> Iterator[Reason]:
    if found.paused:
        yield Reason(Why.PAUSED, "The queue is paused.", command(found.queue, "resume"))
    if found.fleet_paused:
        yield Reason(
            Why.FLEET_PAUSED, "The fleet is paused: no worker takes a task.", "fdbqueue fleet resume"
        )


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
        Why.BURIED,
        f"It is buried{_after(found)}.{_counted_failures(found)}",
        command(found.queue, "dead kick", found.task.id),
    )


def _taken(found: Explanation) -> Iterator[Reason]:
    task, holder = found.task, found.holder
    at = _back_at(found.now, task.taken, task.until, holder)
    if task.cancel_asked is not None:
        text = f"It was cancelled {span(found.now - task.cancel_asked)} ago, and ends with its lease."
        yield Reason(Why.CANCELLED, text, f"Its handler ends. Its lease lasts {span(at - found.now)}.", at)
        return
    if task.handed_to is not None:
        yield _handed_off(found)
        return
    if _has_ended(holder, found.now):
        text = f"{told(holder)} holds it, and has ended or is overdue."
        yield Reason(Why.HOLDER_ENDED, text, _GIVEN_BACK, at)
        return
    since = "" if task.taken is None else f" for {span(found.now - task.taken)}"
    who, ends = told(holder), "Its handler ends. Without a renewal"
    if holder is not None and holder.session.startswith(DETACHED_MARK.hex()):
        who, ends = f"A detached lease that {who} took", "Its token ends the lease. Otherwise"
    cure = f"{ends} it comes back in {span(at - found.now)}."
    hangs = ""
    if found.run is not None and found.run.is_hung:
        hangs, cure = f", where its like take {span(found.run.usual_s or 0.0)}", f"{_END} {cure}"
    if silent_s := _silent_s(holder, found.now):
        hangs, cure = f" and has not beaten for {span(silent_s)}{hangs}", f"{_STOPPED} {cure}"
    yield Reason(Why.TAKEN, f"{who} has held it{since}{hangs}{_progress(found)}.", cure, at)


def _silent_s(holder: Holder | None, now: float) -> float:
    """The time since the last heartbeat of a holder that has missed one; else 0."""
    if holder is None or holder.seen is None or holder.dies is None:
        return 0.0
    silent_s = now - holder.seen
    return silent_s if silent_s > 2 * (holder.dies - holder.seen) / limits.BEATS_PER_TTR else 0.0


def _handed_off(found: Explanation) -> Reason:
    task = found.task
    text = f"It was handed off, and waits for {visible(task.handed_to or 'the outside')}."
    return Reason(Why.HANDED_OFF, text, command(found.queue, "complete", task.id), task.until)


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
    text = f"It is delayed{_after(found)}.{_counted_failures(found)}"
    yield Reason(Why.DELAYED, text, f"It is due in {span(until - found.now)}.", until)


def _ready(found: Explanation, of_features: Sequence[Reason]) -> Iterator[Reason]:
    place = found.place or TaskPlace()
    if not found.swept:
        text = "It has become ready, and no process has swept it."
        if silent_s := _silent_s(found.holder, found.now):
            text += f" {told(found.holder)} held it, and has not beaten for {span(silent_s)}."
        yield Reason(Why.UNSWEPT, text, _SWEEP, found.now)
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
    if found.waiting or not found.fleet_paused:
        yield _takers(found, is_held=bool(of_features))


def not_in_line(queue: str) -> Reason:
    text = "It is ready, but its key in the line is lost: no take finds it."
    return Reason(Why.NOT_IN_LINE, text, command(queue, "verify --mend"))


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
        return Reason(Why.NEXT, text, _TURN_COMES)
    if found.workers:
        busy = f"{_counted(found.workers, 'worker')} of the queue, and none of them waits for a task"
        return Reason(Why.WORKERS_BUSY, f"{busy}{_busy_with(found)}.", _cure_of_busy(found))
    work = command(found.queue, "work", "MODULE:FUNCTION")
    text, failed = "No worker takes from the queue, and no call waits.", found.last_failure
    if failed is not None and failed.error == "LeaseLost" and not failed.worker:
        text += " Its last lease ended by its time: `fdbqueue doctor` names processes that are silent."
    return Reason(Why.NO_WORKER, text, work)


def _busy_with(found: Explanation) -> str:
    if not found.runs:
        return ""
    each = (f"{run.id} of {visible(run.queue)} for {span(run.for_s)}" for run in found.runs)
    return f": for {span(found.full_s)} no thread has been free. The longest runs are {', '.join(each)}"


def _cure_of_busy(found: Explanation) -> str:
    hung = next((run for run in found.runs if run.is_hung or run.for_s > limits.FULL_WARNING_S), None)
    if hung is not None and hung.lost:
        return cure_of_hung([hung])
    return _MORE if hung is None else command(hung.queue, "explain", hung.id)


def cure_of_hung(runs: Sequence[LongRun]) -> str:
    """What to do with the tasks, and with the process of the first one."""
    first, held = runs[0], [run.id for run in runs if not run.lost]
    end = f"SIGKILL process {first.process_id} on {visible(first.host)}: its other tasks come back"
    # A command with a comment is one that a shell takes.
    return f"{command(first.queue, 'bury', *held)}  # then {end}" if held else f"{end}. {_TIMEOUT}"


def _is_next(place: TaskPlace | None) -> bool:
    return place is not None and place.key_is_open and not place.ahead and not place.ahead_in_key


def command(queue: str, verb: str, *arguments: str) -> str:
    """The command as it is typed: a name may have characters of a shell, or begin with a dash."""
    if not queue.startswith("-"):
        return typed("fdbqueue", *verb.split(), queue, *arguments)
    options = arguments if arguments and arguments[0].startswith("-") else ()
    return typed("fdbqueue", *verb.split(), *options, "--", queue, *arguments[len(options) :])


def typed(*words: str) -> str:
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """Quote a word with control characters for bash and zsh: a terminal would not show them."""
    return "$'" + "".join(map(_as_shown, word)) + "'"


def _as_shown(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


def cure_of_buried(queue: str, error: str | None = None, count: int = 0) -> str:
    """Of a full queue, if most of its tasks are buried: `count` of them by that class of failure."""
    what = f"which `{command(queue, 'dead classes')}` tells"
    if error:
        what = f"{counted(count, 'failure')} of {visible(error)}"
    where = ("--where", "state=buried", "--where", f"class={'CLASS' if error is None else error}")
    return (
        f" First mend or stop what fails, {what}, or else it fills again."
        f" Then `{command(queue, 'delete', *where)}` makes room."
    )


def _after(found: Explanation) -> str:
    failed = found.last_failure
    if failed is None:
        return ""
    told_first = f"{failed.error}: {failed.message}" if failed.message else failed.error
    holder = f" ({visible(failed.worker)})" if failed.error == "LeaseLost" and failed.worker else ""
    return f" after {shortened(visible(' '.join(told_first.split())).removesuffix('.'))}{holder}"


def _counted_failures(found: Explanation) -> str:
    """The failures that count, and the number that buries the task, if it or its queue says one."""
    if not found.task.failures or found.attempts_max is None:
        return ""
    most = "any number" if found.attempts_max == math.inf else f"{found.attempts_max:g}"
    who = "put" if found.attempts_from == "task" else found.attempts_from
    return f" It has failed {counted(found.task.failures, 'time')}; its {who} allows {most}."


def told(holder: Holder | None) -> str:
    """The holder in a few words: its processes, or else its session."""
    if holder is None:
        return "A session"
    processes = ", ".join(f"{visible(process.host)}:{process.process_id}" for process in holder.processes)
    if holder.session == HANDED_OFF.hex() and holder.name is not None:
        return visible(holder.name)
    return processes or f"Session {holder.session}"


def span(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def _counted(count: int, what: str) -> str:
    number = str(count) if count < limits.EXPLAINED_MAX else f"{count:,} or more"
    return f"There is 1 {what}" if count == 1 else f"There are {number} {what}s"
