"""Puts into a task queue."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    checked_batch,
    checked_items,
    checked_payload,
    checked_stop,
    checked_wait,
    too_much,
    writable,
)
from fdbqueue.core.codec import encoded_each
from fdbqueue.core.database import is_transaction
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.core.partitions import GROUP_BYTES
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.options import OF_ONE_TASK
from fdbqueue.tasks.records.extra import extra_to_bytes

if TYPE_CHECKING:
    from fdbqueue.tasks.records.groups import AnyGroup


class Putting(TaskHandle):
    """The verbs of a producer."""

    __slots__ = ()

    def put(
        self,
        tr: DatabaseOrTransaction,
        data: Any,
        *,
        ttl: float | None = None,
        ttr: float | None = None,
        pri: int | None = None,
        delay: float = 0,
        key: Any = None,
        cost: int | None = None,
        headers: Mapping[str, str] | None = None,
        result_ttl: float | None = None,
        unique: Any = None,
        scope: str | float = "unfinished",
        on_conflict: str = "skip",
        debounce_max: float | None = None,
        group: "AnyGroup | str | None" = None,
        limits: Iterable[str] | Mapping[str, Any] | None = None,
        after: Task | str | None = None,
        timeout: float = 0,
        stop: Stop | None = None,
    ) -> Task:
        """Add a task. It lives `ttl` seconds after its `delay`, and each of its leases lasts `ttr` seconds.

        In a fair queue it counts as `cost` tasks of its task key. `headers`: texts by name beside the data,
        at most limits.HEADERS_BYTES_MAX bytes together. `result_ttl`: seconds for which the result of its ack
        is kept, for `result`; None keeps none. `group`: an open group, or its id, that counts the task.
        `limits`: names out of the `task_limits` of the queue; a mapping gives one of them its key
        (docs/limits.md). `after`: a task of this queue; this one waits for its end (docs/groups.md).

        If another task has the value `unique`, none is made. With `on_conflict` "skip" the call returns that
        task. "replace" gives it this data, headers, limits, ttr and ttl, at its place. "debounce" also makes
        it due after `delay`, but never later than `debounce_max` seconds after its put. A task has its
        unique key in its `scope`: "queued", as long as it waits; "unfinished", until it is gone; or for that
        number of seconds (docs/unique.md). `Task.existed` tells if the task was there before.
        Given a database, the call waits up to `timeout` seconds for room, and ends overdue sessions before it
        raises QueueFull. Given a transaction, the stored state decides. A set `stop` raises WaitStopped.
        Reads: the last task and the counters by snapshot; in a keyed queue, how the task key stands; the
        entry of the unique key, and its task by snapshot, or serialisably to change it; the group, `after`.
        Writes: the task, its payload, index, timer, and counters; entries of the unique key and the member.
        Conflicts: none. With a capacity: other puts near the bound. With task keys: a change that empties or
        fills the task key. With a unique key: another put with it, and the end of the scope of its task.
        With a group: its close or cancel, and a truncate. With `after`: a change of that task.
        Raises: QueueFull with `item`, the first item without room, and `current_size`; UnsupportedOption,
        InvalidArgument, PayloadTooLarge, GroupNotFound, GroupClosed; UniqueTaskBusy if a taken or buried
        task has the unique key and `on_conflict` is not "skip"; TypeError for data that the codec cannot
        carry; UnknownSession in a temporary queue of an ended session; WaitStopped.
        """
        options: dict[str, Any] = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "limits": limits}
        options |= {"key": key, "cost": cost, "headers": headers, "result_ttl": result_ttl, "group": group}
        if unique is not None:
            options |= {"unique": unique, "scope": scope}
            options |= {"on_conflict": on_conflict, "debounce_max": debounce_max}
        elif (scope, on_conflict, debounce_max) != ("unfinished", "skip", None):
            raise InvalidArgument(name="unique", wanted="a unique key for these options", got=None)
        if after is not None:
            group_id = self._database.runtime.random_bytes(GROUP_BYTES)
            options |= {"after": after, "waits": group_id}
        return self._put(tr, [self._draft(data, options)], timeout, stop)[0]

    def put_many(
        self,
        /,
        tr: DatabaseOrTransaction,
        data: Iterable[Any],
        *,
        timeout: float = 0,
        stop: Stop | None = None,
        **options: Any,
    ) -> list[Task]:
        """Add tasks with the same `options`, in order, all or none. All else is as in `put`.

        Raises: QueueFull with `wanted`, the number of the tasks. BatchOverCapacity for more tasks than the
        capacity of the queue, without a wait.
        TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if there are several, more
        than limits.BATCH_BYTES_MAX bytes, or limits.PUT_BYTES_MAX bytes with task keys and headers.
        """
        for name in OF_ONE_TASK.intersection(options):
            if options[name] is not None:
                wanted = "None: it is for one task, so put each by itself"
                raise InvalidArgument(name=name, wanted=wanted, got=options[name])
        items = checked_items("data", data)
        payloads = checked_batch([*map(checked_payload, encoded_each(self._shape.codec, items))])
        drafts = [self._shape.draft(*pair, options) for pair in zip(items, payloads, strict=True)]
        if not drafts:
            return []
        _require_fits(drafts)
        return self._put(tr, drafts, timeout, stop)

    def _draft(self, data: Any, options: Mapping[str, Any]) -> Draft:
        return self._shape.draft(data, checked_payload(self._shape.codec.encode(data)), options)

    def _put(
        self, target: DatabaseOrTransaction, drafts: Sequence[Draft], timeout: float, stop: Stop | None
    ) -> list[Task]:
        timeout_s = checked_wait(timeout, target)
        if stop is not None:
            checked_stop(stop, target)
        if timeout_s and not self._shape.kind.supports("capacity"):
            raise UnsupportedOption(kind=self.kind, option="a timeout of a put: it is never full")
        calls = self._calls(target)
        if target is not self._database and is_transaction(target):
            put = partial(calls.put_within, writable(target))
        else:
            put = partial(calls.put, timeout_s=timeout_s, stop=stop)
        if not observing.observers:
            return put(drafts)
        waits = timeout_s > 0
        with self._observed(target, "put", count=len(drafts), waits=waits, stores_trace=True) as call:
            tasks = put([replace(draft, trace=call.trace) for draft in drafts] if call.trace else drafts)
            call.tasks = tasks
            return tasks


def _require_fits(drafts: Sequence[Draft]) -> None:
    """Refuse tasks with equal options, with all that is written for them, before the database does it."""
    first = drafts[0]
    if len(drafts) > 1 and (first.key or first.extra is not None):
        trace_bytes = limits.TRACE_BYTES_MAX if observing.observers else 0
        record_bytes = len(extra_to_bytes(first.extra)) + trace_bytes
        key_bytes = sum(map(len, first.extra.limit_keys.values())) if first.extra is not None else 0
        beside = (
            limits.TASK_BYTES + 2 * key_bytes + limits.BUSY_KEY_COPIES * len(first.key) + 2 * record_bytes
        )
        size_bytes = sum(len(draft.payload) for draft in drafts) + len(drafts) * beside
        if size_bytes > limits.PUT_BYTES_MAX:
            raise too_much(len(drafts), size_bytes, limits.PUT_BYTES_MAX)
