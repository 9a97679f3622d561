"""Timing: how long the tasks of a worker waited and ran, for queues with the option `chronicle`.

A worker counts in its memory, and the keeper of its process adds the counts once a minute: no task pays for
that. A kill loses the counts of a minute at most. So does a commit with an unknown result: the counts are
then not added again, as they might count twice.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, is_away, run
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.keeper import Round, keeper_of
from fdbqueue.core.visible import SURVIVED
from fdbqueue.fleet.held import Hold
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.times import BUCKETS, Counts, add_times, bucket_of

Counted = dict[bytes, list[int]]
"""By task key; those of the whole queue without one."""


class Timing:
    """A chore of the keeper, for the time of one worker."""

    name = "the count of waits and runs"

    def __init__(self, database: Database, keys: RootKeys, queues: Sequence[TaskQueue]) -> None:
        self._database, self._runtime = database, database.runtime
        self._keeper = keeper_of(database, keys)
        self._queues = {queue.name: queue for queue in queues}
        self._lock = database.runtime.lock()
        self._counted: dict[str, Counted] = {}
        self._due_at = self._runtime.monotonic() + limits.TIMES_ADDED_EVERY_S

    def start(self) -> None:
        self._keeper.add_chore(self)

    def note(self, hold: Hold, seconds: float) -> None:
        """An attempt has ended, which ran for this long."""
        task = hold.task
        if task.queue not in self._queues or hold.began_at is None:
            return
        places = [BUCKETS + bucket_of(seconds)]
        if task.attempts == 1 and task.taken is not None:  # no record has the time of the last release
            places.append(bucket_of(task.taken - task.created))
        with self._lock:
            counted = self._counted.setdefault(task.queue, {})
            for key in (b"",) if task.key is None else (b"", key_bytes(task.key)):
                if key in counted or len(counted) < limits.KEYS_COUNTED:
                    numbers = counted.setdefault(key, [0] * 2 * BUCKETS)
                    for place in places:
                        numbers[place] += 1

    def do(self, round_: Round) -> None:
        if self._runtime.monotonic() >= self._due_at:
            self._due_at = self._runtime.monotonic() + limits.TIMES_ADDED_EVERY_S
            self._add(round_.ask)

    def end(self) -> None:
        """The worker ends: add what is left. Best effort."""
        self._keeper.end_chore(self)
        with suppress(*SURVIVED):
            self._add(partial(run, self._database, timeout_s=limits.CLOSE_TIMEOUT_S))

    def _add(self, ask: Callable[[Callable[[Transaction], None]], None]) -> None:
        """If the transaction of a queue fails, the counts of the others are added. Raises: the last error."""
        failed: Exception | None = None
        for name in tuple(self._counted):
            with self._lock:
                numbers = self._counted.pop(name, None)
            try:
                if numbers is not None:  # else the end of the worker, beside a round, has taken them
                    ask(Adding(self._queues[name], heaviest(numbers), self._runtime.now_us))
            except QueueNotFound:
                continue
            except Exception as error:
                if is_away(error):  # the others wait for the next time
                    raise
                failed = error
        if failed is not None:
            raise failed


def heaviest(counted: Counted) -> dict[bytes, Counts]:
    """The counts of the whole queue, and those of the task keys with the most attempts."""
    keys = sorted(counted.keys() - {b""}, key=lambda key: -sum(counted[key][BUCKETS:]))
    return {key: counted[key] for key in (b"", *keys[: limits.KEYS_TIMED])}


class Adding:
    """A body that adds once: after an attempt to commit, another one adds nothing.

    Without the option, it adds nothing: no process would clear the counts.
    """

    def __init__(self, queue: TaskQueue, counts: Mapping[bytes, Counts], now_us: Callable[[], int]) -> None:
        self._queue, self._counts, self._now_us = queue, counts, now_us
        self._is_added = False

    def __call__(self, tr: Transaction) -> None:
        shape = self._queue._calls(tr).shape
        shape.guard(tr)()  # a change of the options, too, begins the attempt again
        if shape.settings.chronicle and not self._is_added:
            self._is_added = True
            add_times(tr, shape.shared, self._counts, self._now_us())
