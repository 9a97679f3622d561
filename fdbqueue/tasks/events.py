"""on_task_change: a callback in this process, called for changes after they have been committed.

A transaction knows its versionstamp once it has committed, and never otherwise. The events wait for that
future. So a callback can neither undo nor delay a change, and hears of no change that did not happen. It does
not hear of a change with an unknown commit result.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fdbqueue.core.arguments import checked_function, require_finished
from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.database import Database
from fdbqueue.core.logger import logger
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import shown
from fdbqueue.core.visible import SURVIVED
from fdbqueue.tasks.change import Told, task_of
from fdbqueue.tasks.stored.records import Record

Callback = Callable[[Task, str], None]
Events = Sequence[Told]

_log = logger("fdbqueue")


class Callbacks:
    """The callback of one queue in this process, and a thread while there is something to tell it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runtime = database.runtime
        self._lock = database.runtime.lock()
        self._waiting: list[Told] = []
        self._telling = False
        self._codec: PayloadCodec | None = None
        self.callback: Callback | None = None

    def close(self) -> None:
        """Does nothing: the thread ends when all events are delivered."""

    def install(self, callback: Callback | None, codec: PayloadCodec) -> Callback | None:
        """Set the callback. Return the one before it. `codec` decodes the payloads for it."""
        if callback is not None:
            checked_function("callback", callback)
        previous, self.callback, self._codec = self.callback, callback, codec
        return previous

    def after_commit(self, tr: Transaction, events: Events) -> None:
        tr.get_versionstamp().on_ready(lambda stamp: self._committed(stamp, events))

    def _committed(self, stamp: Any, events: Events) -> None:
        try:
            stamp.wait()
        except engine_errors():
            return
        with self._lock:
            self._waiting.extend(events)
            start, self._telling = not self._telling, True
        if start:
            self._start_telling()

    def _start_telling(self) -> None:
        try:
            self._runtime.spawn(self._tell, "fdbqueue-callbacks")
        except RuntimeError as error:  # no thread to be had: the next change tries again
            self._telling = False
            self._met("on_task_change is told later", error)

    def _met(self, title: str, error: BaseException) -> None:
        self._database.troubles.met(_log, title, error)

    def _tell(self) -> None:
        try:
            self._tell_all()
        except BaseException:
            self._start_telling()  # another thread goes on: something ends this one (GreenletExit)
            raise

    def _tell_all(self) -> None:
        while True:
            with self._lock:
                events, self._waiting = self._waiting, []
                self._telling = bool(events)
            if not events:
                return
            left = iter(events)
            try:
                for told in left:
                    self._tell_one(*told)
            finally:
                with self._lock:
                    self._waiting[:0] = left

    def _tell_one(self, record: Record, event: str, payload: bytes) -> None:
        try:
            if self.callback is not None and self._codec is not None:
                task = task_of(record, shown(self._codec, lambda: payload))
                require_finished("on_task_change", self.callback(task, event))
        except SURVIVED as error:
            self._met(f"on_task_change failed for the event {event!r}", error)
