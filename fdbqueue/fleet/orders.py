"""The messages between a supervisor and a worker process, as lines of JSON: orders, and reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue.errors import InvalidArgument
from fdbqueue.fleet.options import WorkerOptions
from fdbqueue.fleet.status import Running, Tally


@dataclass(frozen=True)
class Orders:
    """The one message from the supervisor to a worker process."""

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
