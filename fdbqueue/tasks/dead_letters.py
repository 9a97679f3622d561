"""DeadLetters: the buried tasks of a queue by class of failure, browsed, mended, and sent back.

docs/dead-letters.md is their page. A page of buried tasks has their last failures.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_payload, checked_positive, checked_stop
from fdbqueue.core.database import as_database, at_pace, is_transaction
from fdbqueue.core.page import Page, checked_limit, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.registry import Registry, checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.tasks import redrive, verbs
from fdbqueue.tasks.change import Change, shown_tasks
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.failures import ask_last, class_in
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.redrive import (
    DeadLetter,
    FailureClass,
    Matching,
    Place,
    Redrive,
    RedriveState,
    RedriveStep,
    ahead,
    ask_rows,
    buried_under,
    failure_classes,
    places_of,
)
from fdbqueue.tasks.stored.records import Record, id_in, id_of, sound_record
from fdbqueue.tasks.verbs import Target, require_few

ROWS_MAX = limits.BATCH_BYTES_MAX // limits.FAILURE_DETAIL_BYTES_MAX
"""Tasks that one page looks at: a failure may have some eight kilobytes."""


class _End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page in the order of a class of failure; None is the order of all."""

    error: str | None
    place: bytes
    partition: int = 0


def place_after(matching: Matching, after: str | None) -> Place:
    given = place_bytes(after)
    if given is None:
        return Place()
    try:
        end = msgspec.msgpack.decode(given, type=_End)
    except msgspec.MsgspecError:
        raise no_place(after) from None
    if end.error != matching.error:
        raise no_place(after)
    return Place(end.partition, end.place)


def next_after(matching: Matching, place: Place | None) -> str | None:
    if place is None:
        return None
    return place_text(_to_bytes(_End(matching.error, place.key, place.partition)))


def page(changes: Sequence[Change], matching: Matching, limit: int, after: Place) -> Page[DeadLetter]:
    """The next buried tasks that match, as of now, swept or not: those of the first partition behind the
    place that has some, or that has an empty page.

    Reads: by snapshot one key of each partition; then the keys of a page, its tasks and their last failures,
    and limits.BATCH_BYTES_MAX bytes of payloads. A page has up to `limit` keys; with a text, ROWS_MAX.
    """
    there = ahead(changes, matching.error, after)
    for at, (change, start) in enumerate(there):
        found = _page(change, matching, limit, start)
        if found.next is not None:
            return found
        if at + 1 < len(there):
            found.next = next_after(matching, Place(there[at + 1][0].shape.keys.partition))
        if found:
            return found
    return Page()


def _page(change: Change, matching: Matching, limit: int, after: bytes) -> Page[DeadLetter]:
    tr, keys = change.tr, change.shape.keys
    most = ROWS_MAX if matching.text is not None else min(limit, ROWS_MAX)
    rows = ask_rows(change, matching.error, after, most).to_list()
    places = places_of(change, matching.error, rows)
    there = list(zip(places, _buried(change, [id_in(row.key) for row in rows]), strict=True))
    asked = [(place, record, ask_last(tr, keys, record)) for place, record in there if record is not None]
    told = [(place, record, reply()) for place, record, reply in asked]
    found = [row for row in told if matching.matches(row[2])]
    count = min(limit, within_bytes([record.size_bytes for _, record, _ in found]))
    tasks = shown_tasks(tr, keys, change.shape.codec, [record for _, record, _ in found[:count]])
    letters = [
        DeadLetter(task, class_in(record), failure)
        for task, (_, record, failure) in zip(tasks, found[:count], strict=True)
    ]
    last = places[-1] if len(rows) == most else None
    end = found[count - 1][0] if count < len(found) else last
    return Page(letters, next_after(matching, None if end is None else Place(keys.partition, end)))


def _buried(change: Change, ids: Sequence[bytes]) -> list[Record | None]:
    asked = [(id_, change.tr.snapshot.get(change.shape.keys.task(id_))) for id_ in ids]
    read = [sound_record(task.value, id_) for id_, task in asked]
    current = [None if record is None else as_of(record, change.now_us) for record in read]
    return [record if record and record.state == TaskState.BURIED else None for record in current]


_to_bytes = msgspec.msgpack.Encoder().encode


RATE_PER_S = 100.0


class DeadLetters(TaskHandle, KeepsAside):
    """The buried tasks of a task queue. A value: threads may share it.

    Every method takes a database or a transaction first, as those of TaskQueue do. `error` names a class of
    failure, None for all; "" is the class of tasks that were buried without a failure. `text` is a text in
    the error, the message or the detail of the last failure, None for all.
    Raises: NotADatabase for any other first argument; QueueDropped after the queue was dropped.
    """

    __slots__ = ()

    @classmethod
    def open(
        cls, db: DatabaseOrTransaction, name: str, *, type: Any = None, root: Any = DEFAULT_ROOT
    ) -> "DeadLetters":
        """The buried tasks of the task queue of that name, with data of that `type`.

        Reads: the definition.
        Raises: QueueNotFound, UnknownKind, InvalidArgument for the type.
        """
        registry = Registry(root)
        return cls(db, registry, registry.find(db, name), type)

    # Looking.

    def classes(self, tr: DatabaseOrTransaction, limit: int = 20) -> list[FailureClass]:
        """The classes of failure with the most buried tasks: their exact numbers, and the first task of each.

        The choice is exact while there are at most limits.CLASSES_READ_MAX classes.
        Reads: by snapshot.
        Conflicts: none.
        Round trips: 3.
        """
        most = checked_limit(limit)
        return self._see_all(tr, lambda changes: failure_classes(changes, most))

    def tasks(
        self,
        tr: DatabaseOrTransaction,
        limit: int,
        *,
        error: str | None = None,
        text: str | None = None,
        after: str | None = None,
    ) -> Page[DeadLetter]:
        """A page of buried tasks with their last failures, in order.

        The page's `next` is the `after` of the following page, None at the end. A page may be shorter than
        `limit`, even empty, and not be the last.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        Round trips: 3; 4 if a payload lies beside its record.
        """
        most, matching = checked_limit(limit), Matching.of(error, text)
        place = place_after(matching, after)
        self.require_codec()
        return self._see_all(tr, lambda changes: page(changes, matching, most, place))

    # One task.

    def kick(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """Make a buried task ready. Its failures so far no longer count.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound, NotBuried, RecordUnreadable.
        """
        target = Target(id_of(task))
        return self._once(tr, "kick", lambda change: verbs.kick_one(change, target), task)

    def edit(self, tr: DatabaseOrTransaction, task: Task | str, data: Any, *, kick: bool = False) -> Task:
        """Give a buried task other data. It keeps its id, its place and its failures. With `kick`, it becomes
        ready in the same transaction.

        Reads: the task.
        Writes: the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound, NotBuried, RecordUnreadable, PayloadTooLarge; TypeError for data that the codec
        cannot carry.
        """
        target, payload = Target(id_of(task)), checked_payload(self._shape.codec.encode(data))
        return self._once(tr, "edit", lambda change: verbs.edit(change, target, data, payload, kick), task)

    # Many tasks.

    def kick_matching(
        self, tr: DatabaseOrTransaction, *, error: str | None = None, text: str | None = None
    ) -> int:
        """Make the buried tasks that match ready, at once. Return their number.

        A task that is buried again meanwhile stays. Given a database, the call uses transactions of at most
        limits.VERB_BATCH tasks, and may stop between two.
        Reads: the tasks; with a text their last failures.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH tasks of that class.
        """
        matching = Matching.of(error, text)
        if is_transaction(tr):
            self._see_all(tr, partial(require_few, under=partial(buried_under, error=matching.error)))
        kicked, after = self.kick_some(tr, error=error, text=text)
        later = tr if after is None else at_pace(tr, "background")
        while after is not None:
            more, after = self.kick_some(later, error=error, text=text, after=after)
            kicked += more
        return kicked

    def kick_some(
        self,
        tr: DatabaseOrTransaction,
        *,
        error: str | None = None,
        text: str | None = None,
        after: str | None = None,
    ) -> tuple[int, str | None]:
        """Kick those that match among the next limits.VERB_BATCH buried tasks. Return their number, and the
        `after` of the next call, None at the end.

        Reads: the tasks; with a text their last failures.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: InvalidArgument.
        """
        matching = Matching.of(error, text)
        place = place_after(matching, after)
        body = partial(redrive.kick_some, matching=matching, after=place, limit=limits.VERB_BATCH)
        kicked, end = self._once_in_all(tr, "kick", body, wrote=itemgetter(0))
        return kicked, next_after(matching, end)

    def begin_redrive(
        self,
        tr: DatabaseOrTransaction,
        *,
        error: str | None = None,
        text: str | None = None,
        rate_per_s: float = RATE_PER_S,
        into: str | None = None,
        limit: int | None = None,
    ) -> Redrive:
        """Begin to send the buried tasks that match back, at most `limit` and `rate_per_s` of them a second.

        They become ready in their queue, or are put `into` another one with the same codec, as new tasks.
        There they keep their failures, and their priority, task key and cost, as far as its kind has these.
        This call moves none: `run_redrive` does, in any process. It ends after as many tasks as are buried
        now.
        Reads: the redrive; the number of buried tasks by snapshot; the definition of the other queue.
        Writes: the redrive.
        Conflicts: another change of the redrive.
        Raises: RedriveUnderWay, QueueNotFound, QueueKindMismatch, InvalidArgument.
        """
        matching = Matching.of(error, text)
        wanted = Redrive(
            RedriveState.RUNNING,
            checked_positive("rate_per_s", rate_per_s, "tasks"),
            matching.error,
            matching.text,
            None if into is None else checked_name(into),
            None if limit is None else checked_count("limit", limit),
        )
        database = self._of(tr)
        return self._once_in_all(
            tr, "begin_redrive", lambda changes: redrive.begin(changes, database, wanted)
        )

    def redrive(self, tr: DatabaseOrTransaction) -> Redrive | None:
        """The last redrive of the queue with its counts; None if there was none.

        Reads: the redrive.
        Conflicts: a change of the redrive.
        """
        return self._see(tr, lambda change: redrive.stored(change.tr, change.shape.keys.redrive))

    def run_redrive(self, db: Any, *, stop: Stop | None = None) -> Redrive:
        """Move tasks until the redrive is done, paused or stopped. Return it.

        Any number of processes may do so at a time: they share its rate. The call waits while the other queue
        has no room.
        Raises: NoRedrive; WaitStopped once `stop` is set; QueueNotFound if the other queue was dropped. Then
        the redrive stays as it is, and any process may run it.
        """
        database = as_database(db)
        checked_stop(stop, database)
        paced = database.at("background")
        with database.waiter(stop) as waiter:
            while True:
                done = self.step_redrive(paced)
                if done.redrive.state != RedriveState.RUNNING:
                    return done.redrive
                waiter.pause(min(done.wait_s, limits.REDRIVE_LOOK_S))

    def step_redrive(self, tr: DatabaseOrTransaction) -> RedriveStep:
        """One step of `run_redrive`, for programs that wait in their own way. It moves nothing if the redrive
        is not running, or if it is too early.

        Reads: the redrive; the tasks; with a text their last failures; the other queue, as a put.
        Writes: moves the tasks; the redrive.
        Conflicts: another change of the redrive, a change of the tasks.
        Raises: NoRedrive, QueueNotFound.
        """
        step = partial(redrive.step, database=self._of(tr))
        return self._once_in_all(tr, "redrive", step, wrote=lambda done: done.moved > 0)

    def pause_redrive(self, tr: DatabaseOrTransaction) -> Redrive:
        """Let it move no task until `resume_redrive`.

        Reads: the redrive.
        Writes: the redrive.
        Conflicts: another change of the redrive.
        Raises: NoRedrive.
        """
        return self._turn(tr, "pause", RedriveState.PAUSED)

    def resume_redrive(self, tr: DatabaseOrTransaction) -> Redrive:
        """Let it go on. `run_redrive` then moves its tasks.

        Reads: the redrive.
        Writes: the redrive.
        Conflicts: another change of the redrive.
        Raises: NoRedrive.
        """
        return self._turn(tr, "resume", RedriveState.RUNNING)

    def stop_redrive(self, tr: DatabaseOrTransaction) -> Redrive:
        """End it for good. Another may begin then.

        Reads: the redrive.
        Writes: the redrive.
        Conflicts: another change of the redrive.
        Raises: NoRedrive.
        """
        return self._turn(tr, "stop", RedriveState.STOPPED)

    # How it is done.

    def _turn(self, tr: DatabaseOrTransaction, verb: str, state: RedriveState) -> Redrive:
        return self._once(tr, f"{verb}_redrive", partial(redrive.turned, state=state))
