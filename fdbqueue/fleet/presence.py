"""Presence: the state of each worker, in the database, for listings of all workers (`fdbqueue top`).

One key per worker, which goes with its session. The worker writes it when its state has changed, at most
every limits.PRESENCE_EVERY_S seconds. The value is a Presence as JSON.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, TypeVar

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.database import Database, is_transaction, run
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.registry.registry import checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.fleet.status import Running, Tally, WorkerStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Presence:
    """The state of one worker. Times are seconds since the epoch."""

    host: str
    process_id: int
    queues: tuple[str, ...]
    handler: str
    threads: int
    since: float
    tally: Tally
    running: tuple[Running, ...]
    """The first limits.RUNNING_SHOWN running tasks, or fewer if their texts are long."""
    seen: float
    more_queues: int = 0
    """Number of queues that `queues` has no room for."""


def presence_of(
    runtime: Runtime, queues: Sequence[str], handler: str, threads: int, since: float, status: WorkerStatus
) -> Presence:
    told = fitting(queues)
    return Presence(
        host=runtime.host_name(),
        process_id=runtime.process_id(),
        queues=told,
        handler=handler,
        threads=threads,
        since=since,
        tally=status.tally,
        running=fitting(status.running[: limits.RUNNING_SHOWN]),
        seen=runtime.now(),
        more_queues=len(queues) - len(told),
    )


_to_bytes = msgspec.json.Encoder().encode
_from_bytes = msgspec.json.Decoder(Presence).decode


def workers(
    tr: DatabaseOrTransaction, queue: str | None = None, *, root: Any = DEFAULT_ROOT
) -> list[Presence]:
    """Return the workers that take from `queue`, or from any queue.

    A dead worker is listed until the ttr of its session is over. A worker with many queues is found by the
    names in `Presence.queues` only. Given a database, several transactions read limits.WORKERS_LISTED_MAX
    workers each; a transaction reads at most that number.

    Reads: the presences, by snapshot.
    Conflicts: none.
    """
    if queue is not None:
        checked_name(queue)
    under = RootKeys(root).presences
    found: list[Any] = []
    start, whole = under.start, is_transaction(tr)
    while more := run(tr, partial(_rows, start=start, stop=under.stop)):
        found += more
        if whole or len(more) < limits.WORKERS_LISTED_MAX:
            break
        start = more[-1].key + b"\x00"
    listed = [_read(row.value) for row in found]
    return [worker for worker in listed if worker is not None and (queue is None or queue in worker.queues)]


def _read(value: bytes) -> Presence | None:
    """Return None for a damaged value, or one of a newer release: its worker writes it again."""
    try:
        return _from_bytes(value)
    except DAMAGED:
        return None


def _rows(tr: Any, start: bytes, stop: bytes) -> list[Any]:
    found: list[Any] = writable(tr).snapshot.get_range(start, stop, limit=limits.WORKERS_LISTED_MAX).to_list()
    return found


def fitting(items: Sequence[T]) -> tuple[T, ...]:
    """Return the first items that together are at most limits.PRESENCE_PART_BYTES_MAX bytes when stored."""
    sizes = accumulate(len(_to_bytes(item)) + 1 for item in items)
    count = sum(1 for _ in takewhile(lambda size: size <= limits.PRESENCE_PART_BYTES_MAX, sizes))
    return tuple(items[:count])


class Appearance:
    """The writer of the presence of one worker."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        session: Callable[[], Session],
        current: Callable[[], Presence],
    ) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._session = session
        self._current = current
        self._shown: tuple[bytes, Any] = (b"", None)
        self._due_at = float("-inf")

    def tick(self) -> float:
        """Write the presence if it is due and has changed; return the time of the next tick."""
        now = self._runtime.monotonic()
        if now >= self._due_at:
            self._due_at = now + limits.PRESENCE_EVERY_S
            self._show(self._session(), self._current())
        return self._due_at

    def _show(self, session: Session, current: Presence) -> None:
        running = tuple((one.id, one.cancelled, one.fraction) for one in current.running)
        news = (session.id, (current.tally, running))
        if news == self._shown or session.lost:
            return

        def body(tr: Any) -> None:
            check = session.ask(tr)
            check()
            bypass_storage_quota(tr)  # also on a full disk: workers make room there
            tr.set(self._root.presence(session.id), _to_bytes(current))

        # A worker that was stalled may find its session over: it is shown again with its next session.
        with suppress(UnknownSession):
            run(self._database, body, timeout_s=limits.CLOSE_TIMEOUT_S)
            self._shown = news
