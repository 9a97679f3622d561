"""Redrive: buried tasks go back, at a bounded rate, one bounded transaction after the other.

The key S[19] of the queue has the redrive: which tasks, the rate, and the cursor, the place of the last task
that was looked at, with its partition. A step moves tasks and the cursor in one transaction. So a task is
moved once, whatever dies meanwhile, and any process goes on where another has stopped. A task that is buried
again in its partition keeps its place, and lies behind the cursor: no redrive moves it twice.

All processes that run a redrive share its key, so they share its rate. The rate bounds the tasks of any span
of time to that of the span and limits.REDRIVE_STEP_S more, and one step. Times are of the clocks of these
processes. A time farther ahead than clocks may differ is that of a wrong clock, and does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NoRedrive, RedriveUnderWay
from fdbqueue.core.seam import ReadTransaction
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.dead.elsewhere import Chosen, Elsewhere, by_partition
from fdbqueue.tasks.dead.reading import Matching, Place, Redrive, RedriveState, RedriveStep, Row, buried_after
from fdbqueue.tasks.failures import moved_bytes
from fdbqueue.tasks.records.statistics import LIVE, unpacked


@dataclass(frozen=True)
class Turn:
    """The next step: `count` tasks now, or none before `wait_s` are over."""

    count: int
    wait_s: float = 0.0


def turn_of(redrive: Redrive, now: float) -> Turn:
    wait_s = redrive.due - now
    count = step_size(redrive)
    if 0 < wait_s <= count / redrive.rate_per_s + limits.CLOCK_SKEW_S:
        return Turn(0, wait_s)
    left = redrive.left if redrive.limit is None else min(redrive.left, redrive.limit - redrive.moved)
    return Turn(min(count, left))


def step_size(redrive: Redrive) -> int:
    """The tasks of one step: those of limits.REDRIVE_STEP_S, at least one."""
    return max(1, min(limits.VERB_BATCH, int(redrive.rate_per_s * limits.REDRIVE_STEP_S)))


def stepped(
    redrive: Redrive, now: float, places: Sequence[Place], moved: int, passed: int, *, is_last: bool
) -> Redrive:
    """The redrive after a step that has looked at the tasks at `places`."""
    last = places[-1] if places else Place(redrive.partition, redrive.cursor)
    after = replace(
        redrive,
        left=max(0, redrive.left - len(places)),
        moved=redrive.moved + moved,
        passed=redrive.passed + passed,
        cursor=last.key,
        partition=last.partition,
        due=_due(redrive, now, moved),
    )
    is_over = is_last or not after.left or after.moved == after.limit
    return replace(after, state=RedriveState.DONE) if is_over else after


def _due(redrive: Redrive, now: float, moved: int) -> float:
    """The time of the next step. A step that came late makes up for at most limits.REDRIVE_STEP_S."""
    if not moved:
        return redrive.due
    earliest = now - limits.REDRIVE_STEP_S
    begun = now if redrive.due > now else max(redrive.due, earliest)
    return begun + moved / redrive.rate_per_s


_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Redrive).decode


def stored(tr: ReadTransaction, key: bytes) -> Redrive | None:
    """The redrive of a queue. A damaged one counts as none: no task depends on it."""
    value = tr.get(key).value
    try:
        return None if value is None else _from_bytes(value)
    except msgspec.MsgspecError:
        return None


def begin(changes: Sequence[Change], database: Database, wanted: Redrive) -> Redrive:
    """Store a new redrive, of the tasks that are buried now."""
    change = changes[0]
    before = stored(change.tr, change.shape.keys.redrive)
    if before is not None and before.is_open:
        raise RedriveUnderWay(name=change.shape.name, state=before.state.value)
    if wanted.into is not None:
        Elsewhere.find(change, database, wanted.into)
    left, now = _number(changes, wanted.error), change.now_us / 1_000_000
    state = RedriveState.RUNNING if left else RedriveState.DONE
    return _store(change, replace(wanted, state=state, left=left, began=now, due=now))


def turned(change: Change, state: RedriveState) -> Redrive:
    found = stored(change.tr, change.shape.keys.redrive)
    if found is None or not found.is_open:
        raise NoRedrive(name=change.shape.name)
    return _store(change, replace(found, state=state))


def step(changes: Sequence[Change], database: Database) -> RedriveStep:
    """Move the next tasks of a running redrive, if it is time.

    Reads: the redrive; the tasks; with a text their last failures; the other queue, as a put.
    Writes: moves the tasks; the redrive.
    Conflicts: another change of the redrive, a change of the tasks.
    Raises: NoRedrive; as Elsewhere.find and Elsewhere.move.
    """
    change = changes[0]
    found = stored(change.tr, change.shape.keys.redrive)
    if found is None:
        raise NoRedrive(name=change.shape.name)
    if found.state != RedriveState.RUNNING:
        return RedriveStep(found)
    turn = turn_of(found, change.now_us / 1_000_000)
    if turn.wait_s:
        return RedriveStep(found, wait_s=turn.wait_s)
    elsewhere = None if found.into is None else Elsewhere.find(change, database, found.into)
    count = turn.count if elsewhere is None else elsewhere.room(change.tr, turn.count)
    if not count:
        return RedriveStep(found, wait_s=limits.REDRIVE_LOOK_S, is_full=True)
    return _moved(changes, found, Turn(count), elsewhere)


def _moved(changes: Sequence[Change], found: Redrive, turn: Turn, elsewhere: Elsewhere | None) -> RedriveStep:
    change, matching = changes[0], Matching(found.error, found.text)
    most = turn.count if found.text is None else min(found.left, limits.VERB_BATCH)
    rows = buried_after(changes, matching, Place(found.partition, found.cursor), most)
    looked_at, chosen = choose(rows, matching, turn.count)
    moved = _kick(changes, chosen) if elsewhere is None else elsewhere.move(changes, chosen)
    passed = sum(row.record is not None for row in rows[:looked_at]) - moved
    places = [row.place for row in rows[:looked_at]]
    is_last = looked_at == len(rows) < most
    now = change.now_us / 1_000_000
    after = _store(change, stepped(found, now, places, moved, passed, is_last=is_last))
    return RedriveStep(after, moved, max(0.0, after.due - now) if after.is_open else 0.0)


def kick_some(
    changes: Sequence[Change], matching: Matching, after: Place, limit: int
) -> tuple[int, Place | None]:
    """Kick those tasks that match among the first behind `after`.

    Return their number, and the place of the last task that was looked at; None at the end.
    Reads: the tasks; with a text their last failures.
    Conflicts: a change of the tasks.
    """
    rows = buried_after(changes, matching, after, limit)
    looked_at, chosen = choose(rows, matching, limit)
    is_last = looked_at == len(rows) < limit
    return _kick(changes, chosen), None if is_last else rows[looked_at - 1].place


def _kick(changes: Sequence[Change], chosen: Sequence[Chosen]) -> int:
    return sum(len(edges.kick(changes[number], records)) for number, records in by_partition(chosen))


def choose(rows: Sequence[Row], matching: Matching, count: int) -> tuple[int, list[Chosen]]:
    """The number of rows that were looked at, and the tasks among them that match: at most `count`, and
    limits.MOVED_BYTES_MAX bytes of payloads and failures, or one larger task. A kick may move them into
    another partition.
    """
    chosen: list[Chosen] = []
    size_bytes = 0
    for looked_at, row in enumerate(rows):
        if row.record is not None and matching.matches(row.failure):
            size_bytes += moved_bytes(row.record)
            if chosen and size_bytes > limits.MOVED_BYTES_MAX:
                return looked_at, chosen
            chosen.append(Chosen(row.place.partition, row.record))
        if len(chosen) == count:
            return looked_at + 1, chosen
    return len(rows), chosen


def _number(changes: Sequence[Change], error: str | None) -> int:
    """The number of buried tasks of a class, or of all. Reads: its counter in each partition, by snapshot."""
    if error is None:
        asked = [change.tr.snapshot.get(change.shape.keys.live) for change in changes]
        return sum(unpacked(LIVE, live.value)["buried"] for live in asked)
    asked = [change.tr.snapshot.get(change.shape.keys.class_count(error)) for change in changes]
    return sum(int.from_bytes(count.value or b"", "little") for count in asked)


def is_readable(value: bytes) -> bool:
    try:
        _from_bytes(value)
    except msgspec.MsgspecError:
        return False
    return True


def _store(change: Change, redrive: Redrive) -> Redrive:
    change.tr.set(change.shape.keys.redrive, _to_bytes(redrive))
    return redrive
