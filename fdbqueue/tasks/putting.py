"""Puts into a task queue."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fdbqueue import observing
from fdbqueue.arguments import (
    checked_batch,
    checked_items,
    checked_payload,
    checked_stop,
    checked_wait,
    writable,
)
from fdbqueue.codec import encoded_each
from fdbqueue.database import is_transaction
from fdbqueue.errors import UnsupportedOption
from fdbqueue.runtime import Stop
from fdbqueue.seam import DatabaseOrTransaction
from fdbqueue.task import Task
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.kinds import Draft


class Putting(TaskHandle):
    """The verbs of a producer."""

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
        timeout: float = 0,
        stop: Stop | None = None,
    ) -> Task:
        """Add a task. It lives `ttl` seconds after its `delay`, and each of its leases lasts `ttr` seconds.

        In a fair queue it counts as `cost` tasks of its task key. `headers` are texts by name that stay
        beside the data, at most limits.HEADERS_BYTES_MAX bytes together. `result_ttl`: seconds for which the
        result of its ack is kept, for `result`; None keeps none.

        Given a database, the call waits up to `timeout` seconds for room, and ends overdue sessions before it
        raises QueueFull. Given a transaction, the stored state decides. When `stop`, an event, is set, the
        call raises WaitStopped and has put nothing.
        Reads: the last task and the counters by snapshot; in a keyed queue, how the task key stands.
        Writes: the task, its payload, its index and timer keys, the counters.
        Conflicts: none. With a capacity: other puts near the bound. With task keys: a change that empties or
        fills the task key.
        Raises: QueueFull with `item`, the first item without room, and `current_size`; UnsupportedOption,
        InvalidArgument, PayloadTooLarge; TypeError for data that the codec cannot carry; UnknownSession in a
        temporary queue of an ended session; WaitStopped.
        """
        options = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "key": key, "cost": cost}
        if headers is not None:
            options["headers"] = headers
        if result_ttl is not None:
            options["result_ttl"] = result_ttl
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

        Raises: TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if there are several,
        more than limits.BATCH_BYTES_MAX bytes.
        """
        items = checked_items("data", data)
        payloads = checked_batch([*map(checked_payload, encoded_each(self._shape.codec, items))])
        drafts = [self._shape.draft(*pair, options) for pair in zip(items, payloads, strict=True)]
        return self._put(tr, drafts, timeout, stop) if drafts else []

    def _draft(self, data: Any, options: Mapping[str, Any]) -> Draft:
        return self._shape.draft(data, checked_payload(self._shape.codec.encode(data)), options)

    def _put(
        self, target: DatabaseOrTransaction, drafts: Sequence[Draft], timeout: float, stop: Stop | None
    ) -> list[Task]:
        timeout_s = checked_wait(timeout, target)
        checked_stop(stop, target)
        if timeout_s and not self._shape.kind.supports("capacity"):
            raise UnsupportedOption(kind=self.kind, option="a timeout of a put: it is never full")
        calls = self._watched(target, "put") if observing.observers else self._calls(target)
        if is_transaction(target):
            return calls.put_within(writable(target), drafts)
        return calls.put(drafts, timeout_s, stop)
