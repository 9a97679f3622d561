"""Group: tasks that are counted together, and a task that starts when all of them have ended.

A wait for a group is a watch of the definition, which the end writes, or of the counts, which every end of a
member changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_event, checked_positive, checked_take_timeout, writable
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, as_database, is_transaction, run, runtime_in
from fdbqueue.core.errors import GroupNotFound, GroupTimeout, InvalidArgument
from fdbqueue.core.once import run_in
from fdbqueue.core.page import Page, checked_limit, place_bytes, place_text
from fdbqueue.core.partitions import GROUP_BYTES, TIME_BYTES
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Future, ReadTransaction, Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.group_settling import (
    Counts,
    GroupRow,
    Then,
    checked_group,
    counts_of,
    readable_row,
    row_to_bytes,
    sweep_groups,
)
from fdbqueue.tasks.handle import Putting, TaskHandle
from fdbqueue.tasks.options import OF_ONE_TASK
from fdbqueue.tasks.stored.records import id_bytes, id_text


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The counts of a group at one version. Times are seconds since the epoch."""

    id: str
    total: int
    """Number of tasks that were put into it."""
    done: int
    """Those that were acked."""
    failed: int
    """Those that ended in another way; in a group that does not wait for buried members, these, too."""
    left: int
    """Those for which it waits."""
    buried: int
    """Members that are buried now."""
    open: bool
    """True before its close: it takes more members."""
    cancelled: bool
    """True after its cancel; `left` tells how many members no sweep has ended yet."""
    created: float
    ended: float | None
    """The time at which it ended; None before."""
    waits_for_buried: bool
    then: str | None = None
    """The id of the task that starts when it ends."""
    then_queue: str | None = None
    parent: str | None = None
    """The one member of a group that a put with `after` has made."""


def progress_of(group: bytes, row: GroupRow, counts: Counts, *, cancelled: bool) -> GroupProgress:
    return GroupProgress(
        id=group.hex(),
        total=counts.put,
        done=counts.done,
        failed=counts.failed,
        left=counts.left,
        buried=counts.buried,
        open=row.is_open and not cancelled,
        cancelled=cancelled,
        created=row.created_us / 1_000_000,
        ended=row.ended_us / 1_000_000 if row.ended_us else None,
        waits_for_buried=row.holds,
        then=None if row.then is None else id_text(row.then.task),
        then_queue=None if row.then is None else row.then.queue,
        parent=id_text(row.parent) if row.parent else None,
    )


def ask_progress(tr: ReadTransaction, keys: RootKeys, group: bytes) -> Callable[[], GroupProgress | None]:
    """Ask for the progress of a group. The reply is None if there is no such group."""
    row, counts = tr.get(keys.group(group)), tr.get(keys.group_counts(group))
    cancelled = tr.get(keys.group_cancelled(group))

    def reply() -> GroupProgress | None:
        found = readable_row(row.value)
        if found is None:
            return None
        return progress_of(group, found, counts_of(counts.value), cancelled=cancelled.present())

    return reply


def groups_after(
    tr: ReadTransaction, keys: RootKeys, after: bytes, limit: int
) -> tuple[list[GroupProgress], bytes | None]:
    """The next groups in order of their ids, without unreadable ones, and the last id; None at the end.

    Reads: by snapshot, one key of each of `limit` groups, and then its rows.
    """
    found: list[bytes] = []
    start = keys.rows_of_group(after).stop if after else keys.groups.start
    while len(found) < limit and (first := tr.get_range(start, keys.groups.stop, limit=1).to_list()):
        group = keys.group_in(first[0].key)
        if group is None:  # a key that no group has
            start = first[0].key + b"\x00"
            continue
        found.append(group)
        start = keys.rows_of_group(group).stop
    asked = [ask_progress(tr, keys, group) for group in found]
    readable = [progress for reply in asked if (progress := reply()) is not None]
    return readable, found[-1] if len(found) == limit else None


def present(tr: Transaction, keys: RootKeys, group: bytes) -> GroupProgress:
    """The progress of a group, by snapshot. Raises: GroupNotFound."""
    found = ask_progress(tr.snapshot, keys, group)()
    if found is None:
        raise GroupNotFound(id=group.hex())
    return found


def wait_for_end(
    database: Database, keys: RootKeys, group: bytes, until: float, waiter: Waiter
) -> GroupProgress:
    """Raises: GroupTimeout, GroupNotFound; WaitStopped, DatabaseClosed, if the wait is ended."""
    found = _wait(database, keys, group, until, waiter, None)
    if found.ended is None:
        raise GroupTimeout(id=found.id, left=found.left, open="open" if found.open else "closed")
    return found


def wait_for_change(
    database: Database, keys: RootKeys, group: bytes, seen: GroupProgress, until: float, waiter: Waiter
) -> GroupProgress | None:
    """None if the group is as it was. Raises: as `wait_for_end`, but GroupTimeout."""
    found = _wait(database, keys, group, until, waiter, seen)
    return None if found == seen else found


def _wait(
    database: Database,
    keys: RootKeys,
    group: bytes,
    until: float,
    waiter: Waiter,
    seen: GroupProgress | None,
) -> GroupProgress:
    """Wait until the group is not as `seen`; without it, until its end. Return its last progress."""
    look = partial(_look, keys=keys, group=group, seen=seen)
    while True:
        found, watches = run(database, look)
        patience_s = until - database.runtime.monotonic()
        if not watches or patience_s <= 0:
            for watch in watches:
                watch.cancel()
            return found
        waiter.sleep(watches, min(limits.LOOK_EVERY_S, patience_s))


def _look(
    tr: Transaction, keys: RootKeys, group: bytes, seen: GroupProgress | None
) -> tuple[GroupProgress, list[Future]]:
    found = present(tr, keys, group)
    if seen is not None:
        rows = [keys.group(group), keys.group_counts(group), keys.group_cancelled(group)]
        return found, [tr.watch(key) for key in rows] if found == seen else []
    return found, [tr.watch(keys.group(group))] if found.ended is None else []


REFUSED = OF_ONE_TASK | {"timeout", "stop"}
"""Options that a task of `then` has not."""
ThenPut = tuple[Putting, Any] | tuple[Putting, Any, Mapping[str, Any]]
"""A queue and the data of the task that starts when a group has ended; options of its put."""


class Group:
    """Tasks of any queues of one root that are counted together. A value: threads may share it.

    The end of a member counts in its own transaction, whatever the verb. A group ends when it is closed and
    no member is left; then the task of `then` is made ready, once. Every method takes a database or a
    transaction first.
    Raises: GroupNotFound once the group has ended and its `retain_s` is over.
    """

    __slots__ = ("_group", "_keys")

    def __init__(self, id: str, *, root: Any = DEFAULT_ROOT) -> None:
        """The group with that id, which may be in use by other processes. Reads nothing.

        Raises: InvalidArgument.
        """
        self._group = checked_group(id)
        self._keys = RootKeys(root)

    @property
    def id(self) -> str:
        return self._group.hex()

    def __repr__(self) -> str:
        return f"Group({self.id!r})"

    @classmethod
    def create(
        cls,
        tr: DatabaseOrTransaction,
        *,
        then: ThenPut | None = None,
        wait_for_buried: bool = True,
        retain_s: float = limits.GROUP_RETAIN_S,
        root: Any = DEFAULT_ROOT,
    ) -> "Group":
        """Make an open group.

        `then`: a queue, the data of a task, and perhaps a mapping of options of its put. The task is put now,
        and is delayed until the group has ended; its ttl begins then. `wait_for_buried`: if false, a buried
        member has ended for the group, as failed. `retain_s`: time for which the counts of an ended group are
        kept.
        Reads: as a put of that task.
        Writes: the group, and that task.
        Conflicts: none.
        Raises: InvalidArgument; as a put of that task.
        """
        keys, then_put = RootKeys(root), None if then is None else _checked_then(then, RootKeys(root))
        retain_us = round(min(checked_positive("retain_s", retain_s, "seconds"), limits.SPAN_MAX_S) * 1e6)
        runtime = runtime_in(tr)
        group = runtime.random_bytes(GROUP_BYTES)

        def body(tr: Transaction) -> None:
            put = None if then_put is None else _put_then(tr, then_put, group)
            row = GroupRow(runtime.now_us(), bool(wait_for_buried), then=put, retain_us=retain_us)
            tr.set(keys.group(group), row_to_bytes(row))

        _once(tr, keys, body)
        return cls(group.hex(), root=root)

    @classmethod
    def open(cls, tr: DatabaseOrTransaction, id: str, *, root: Any = DEFAULT_ROOT) -> "Group":
        """The group with that id.

        Reads: the group, by snapshot.
        Raises: GroupNotFound, InvalidArgument.
        """
        found = cls(id, root=root)
        found.progress(tr)
        return found

    def put(self, tr: DatabaseOrTransaction, queue: Putting, data: Any, /, **options: Any) -> Task:
        """Put a task that is a member: `queue.put(tr, data, group=self, **options)`.

        Raises: GroupClosed; as a put.
        """
        self._require_root(queue)
        return queue.put(tr, data, group=self, **options)

    def put_many(
        self, tr: DatabaseOrTransaction, queue: Putting, data: Iterable[Any], /, **options: Any
    ) -> list[Task]:
        """Put tasks that are members: `queue.put_many(tr, data, group=self, **options)`.

        Raises: GroupClosed; as a put.
        """
        self._require_root(queue)
        return queue.put_many(tr, data, group=self, **options)

    def _require_root(self, queue: Putting) -> None:
        _require_root(queue, self._keys, "queue")

    def close(self, tr: DatabaseOrTransaction) -> None:
        """Let the group take no more members. Without a member that is left, it ends.

        Reads: the group.
        Writes: the group.
        Conflicts: puts of members.
        Raises: GroupNotFound.
        """
        _once(tr, self._keys, self._close)

    def _close(self, tr: Transaction) -> None:
        row = self._row(tr)
        if row.is_open:
            tr.set(self._keys.group(self._group), row_to_bytes(replace(row, is_open=False)))
            tr.set(self._keys.doubt(self._group), b"")

    def cancel(self, tr: DatabaseOrTransaction) -> None:
        """Cancel all members, and the task of `then`; the group takes no more members.

        From now on no take gives a member to a caller. Sweeps end the members in bounded steps, whatever
        their number; taken ones are marked, as by `TaskQueue.cancel`. A group that has ended stays as it is.
        Reads: the group.
        Writes: two keys.
        Conflicts: puts and takes of members.
        Raises: GroupNotFound.
        """
        now_us = runtime_in(tr).now_us()

        def body(tr: Transaction) -> None:
            cancelled = tr.get(self._keys.group_cancelled(self._group))
            if not self._row(tr).ended_us and not cancelled.present():
                tr.set(self._keys.group_cancelled(self._group), now_us.to_bytes(TIME_BYTES, "big"))
                tr.set(self._keys.cancelling(self._group), b"")

        _once(tr, self._keys, body)

    def progress(self, tr: DatabaseOrTransaction) -> GroupProgress:
        """The counts of the group.

        Reads: three keys, by snapshot, whatever the number of members.
        Conflicts: none.
        Raises: GroupNotFound.
        """
        return run(tr, lambda tr: present(writable(tr), self._keys, self._group))

    def wait(
        self, db: AnyDatabase, timeout: float | None = None, *, stop: Stop | None = None
    ) -> GroupProgress:
        """Wait until the group has ended, up to `timeout` seconds, None for ever.

        When `stop`, an event, is set, the call raises WaitStopped.
        Reads: as `progress`; a watch of the group.
        Conflicts: none.
        Raises: GroupTimeout, a TimeoutError; GroupNotFound, WaitStopped.
        """
        database, until = self._waits(db, timeout)
        checked_event("stop", stop)
        with database.waiter(stop) as waiter:
            return wait_for_end(database, self._keys, self._group, until, waiter)

    def wait_for_progress(
        self,
        db: AnyDatabase,
        seen: GroupProgress,
        timeout: float | None = None,
        *,
        stop: Stop | None = None,
    ) -> GroupProgress | None:
        """Wait until the progress is another one than `seen`, and return it; None if it is the same after
        `timeout` seconds, None for ever.

        Reads: as `progress`; watches, which each end of a member fires.
        Conflicts: none.
        Raises: GroupNotFound, WaitStopped.
        """
        database, until = self._waits(db, timeout)
        checked_event("stop", stop)
        with database.waiter(stop) as waiter:
            return wait_for_change(database, self._keys, self._group, seen, until, waiter)

    def _waits(self, db: AnyDatabase, timeout: float | None) -> tuple[Any, float]:
        """The database, and the end of a wait. This process sweeps groups meanwhile."""
        database = as_database(db)
        sweep_groups(database, self._keys)
        return database, database.runtime.monotonic() + checked_take_timeout(timeout)

    def _row(self, tr: Transaction) -> GroupRow:
        """The definition, serialisably. Raises: GroupNotFound."""
        row = readable_row(tr.get(self._keys.group(self._group)).value)
        if row is None:
            raise GroupNotFound(id=self.id)
        return row


class Members:
    """The puts of a group in one transaction; `group` makes it, and closes the group behind it."""

    __slots__ = ("_tr", "group")

    def __init__(self, tr: DatabaseOrTransaction, group: Group) -> None:
        self.group = group
        self._tr = tr

    @property
    def id(self) -> str:
        """That of the group."""
        return self.group.id

    def put(self, queue: Putting, data: Any, /, **options: Any) -> Task:
        """As Group.put, in the transaction of the group."""
        return self.group.put(self._tr, queue, data, **options)

    def put_many(self, queue: Putting, data: Iterable[Any], /, **options: Any) -> list[Task]:
        """As Group.put_many, in the transaction of the group."""
        return self.group.put_many(self._tr, queue, data, **options)


@contextmanager
def group(
    tr: DatabaseOrTransaction,
    *,
    then: ThenPut | None = None,
    wait_for_buried: bool = True,
    retain_s: float = limits.GROUP_RETAIN_S,
    root: Any = DEFAULT_ROOT,
) -> Iterator[Members]:
    """Make a group in the transaction of the caller, put its members, and close it at the end of the block.

    Options: as `Group.create`.
    Raises: InvalidArgument for a database: a group of many transactions is made by `Group.create`.
    """
    if not is_transaction(tr):
        raise InvalidArgument(name="tr", wanted="a transaction; for a database, use Group.create", got=tr)
    made = Group.create(tr, then=then, wait_for_buried=wait_for_buried, retain_s=retain_s, root=root)
    yield Members(tr, made)
    made.close(tr)


def list_groups(
    tr: DatabaseOrTransaction, limit: int = 100, after: str | None = None, *, root: Any = DEFAULT_ROOT
) -> Page[GroupProgress]:
    """The groups in the order of their ids, a page at a time: pass the page's `next` as `after`. Unreadable
    ones are passed over.

    Reads: by snapshot.
    Conflicts: none.
    """
    keys, count, place = RootKeys(root), checked_limit(limit), place_bytes(after) or b""
    found, last = run(tr, lambda tr: groups_after(writable(tr).snapshot, keys, place, count))
    return Page(found, None if last is None else place_text(last))


def _once(target: DatabaseOrTransaction, keys: RootKeys, body: Any) -> None:
    """Run `body` in the transaction; given a database, once, and let this process sweep groups."""
    if not is_transaction(target):
        sweep_groups(as_database(target), keys)
    run_in(target, keys, body)


def _checked_then(then: Any, keys: RootKeys) -> tuple[Putting, Any, Mapping[str, Any]]:
    if not isinstance(then, tuple) or len(then) not in (2, 3) or not isinstance(then[0], Putting):
        wanted = "a tuple of a task queue, data, and perhaps a mapping of options of its put"
        raise InvalidArgument(name="then", wanted=wanted, got=then)
    _require_root(then[0], keys, "then")
    return then[0], then[1], then[2] if len(then) == 3 else {}


def _require_root(queue: Any, keys: RootKeys, name: str) -> None:
    if not isinstance(queue, TaskHandle) or queue._shape.root.prefix != keys.prefix:
        raise InvalidArgument(name=name, wanted="a task queue under the root of the group", got=queue)


def _put_then(tr: Transaction, then: tuple[Putting, Any, Mapping[str, Any]], group: bytes) -> Then:
    queue, data, options = then
    if not isinstance(options, Mapping) or REFUSED.intersection(options):
        wanted = "options of a put, without unique and after"
        raise InvalidArgument(name="then", wanted=wanted, got=options)
    [task] = queue._put(tr, [queue._draft(data, {**options, "waits": group})], 0, None)
    definition = queue._shape.definition
    return Then(definition.id, definition.name, id_bytes(task.id))
