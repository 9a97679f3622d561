"""The messages between a supervisor and a worker process, as lines of JSON: orders, and reports.

`AtWork` is beside them: the tasks that the handlers of the process run, in a file.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.hooks import Event, Hook, Hooks
from fdbqueue.fleet.options import WorkerOptions
from fdbqueue.fleet.status import Running, Tally

KILL_AFTER_S = 10.0
"""Time beyond its grace after which a process is killed by its supervisor, or ends itself without one."""


@dataclass(frozen=True)
class Orders:
    url: str
    root: str
    """The root's prefix, in hexadecimal."""
    queues: Mapping[str, int]
    handler: str
    options: WorkerOptions = WorkerOptions()  # noqa: RUF009  # a value
    until_empty: bool = False
    recycle_tasks: int | None = None
    recycle_mb: float | None = None
    hooks: str | None = None
    argument: Any = None
    log_level: str = "info"
    run: str = ""
    """The run that counts its outcomes, in hexadecimal."""


@dataclass(frozen=True)
class Report:
    """The state of a worker process. The last report is `ended`, or `refused` with a reason."""

    state: str
    """"working", "retiring", "stopping", "ended", "refused"."""
    tally: Tally = Tally()  # noqa: RUF009  # a value
    running: tuple[Running, ...] = ()
    rss_bytes: int = 0
    reason: str = ""
    emptied: bool = False
    """True if the process ended because its queues were empty."""
    retired: bool = False
    """True if the process ends to be replaced."""


def checked_argument(argument: Any) -> Any:
    """Raises InvalidArgument for a value that does not come back equal from a line of JSON."""
    try:
        carried = msgspec.json.decode(msgspec.json.encode(argument)) == argument
    except Exception:  # errors of msgspec, RecursionError, and errors of the comparison
        carried = False
    if not carried:
        raise InvalidArgument(name="argument", wanted="a value that JSON can carry", got=argument)
    return argument


def to_line(message: Orders | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def orders_of(line: bytes) -> Orders:
    return msgspec.json.decode(line, type=Orders)


def report_of(line: bytes) -> Report:
    return msgspec.json.decode(line, type=Report)


SLOT_BYTES = 640
_FREE = bytes(SLOT_BYTES)


class AtWork:
    """The tasks that the handlers of a process run, in a file that outlives a killed process. A process
    reports to its supervisor twice a second, and may die between two reports. So each of its threads writes
    its task into a slot of this file before it calls the handler: one system call.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        self._descriptor = descriptor
        self._slots = slots
        self._lock = RealRuntime.lock()
        self._free = list(range(slots))
        self._used: dict[str, int] = {}

    @classmethod
    def create(cls, slots: int) -> "AtWork":
        """Make a file without a name, for a process that inherits its descriptor."""
        if hasattr(os, "memfd_create"):  # needs no disk, which may be full, or read-only
            return cls(os.memfd_create("fdbqueue-at-work"), slots)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), slots)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def tasks(self) -> list[str]:
        """Return the running tasks, each as "task ID of QUEUE"."""
        written = os.pread(self._descriptor, self._slots * SLOT_BYTES, 0)
        slots = [written[at : at + SLOT_BYTES] for at in range(0, len(written), SLOT_BYTES)]
        return [slot.rstrip(b"\x00").decode(errors="replace") for slot in slots if slot.strip(b"\x00")]

    def told_to(self, hooks: Hooks) -> Hooks:
        """Return hooks that write the slots, and then call `hooks`."""
        return Hooks(**{field.name: self._before(getattr(hooks, field.name)) for field in fields(Hooks)})

    def _before(self, hook: Hook | None) -> Hook:
        def both(event: Event) -> object:
            with self._lock:
                if event.name == "started":
                    self._begin(event)
                elif event.task.id in self._used:
                    self._write(slot := self._used.pop(event.task.id), _FREE)
                    self._free.append(slot)
            return None if hook is None else hook(event)

        return both

    def _begin(self, event: Event) -> None:
        if self._free:  # a thread that overran may keep a slot for ever
            slot = self._used[event.task.id] = self._free.pop()
            text = f"task {event.task.id} of {event.task.queue}".encode()
            self._write(slot, text[:SLOT_BYTES].ljust(SLOT_BYTES, b"\x00"))

    def _write(self, slot: int, text: bytes) -> None:
        with suppress(OSError):  # the disk is full: the log will name fewer tasks
            os.pwrite(self._descriptor, text, slot * SLOT_BYTES)


def named(tasks: list[str], shown: int = 3) -> str:
    """Return a text with the first `shown` tasks; empty if there are none."""
    more = len(tasks) - shown
    return ", ".join(tasks[:shown]) + (f" and {more} more" if more > 0 else "")
