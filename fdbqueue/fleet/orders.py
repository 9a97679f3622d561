"""What passes between a supervisor and its processes, as lines of JSON: orders one way, reports the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue.errors import InvalidArgument
from fdbqueue.fleet.options import WorkerOptions
from fdbqueue.fleet.status import Running, Tally


@dataclass(frozen=True)
class Orders:
    """What a worker process is to do; all that it is told."""

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
    """The run that its leases count for, in hexadecimal."""


@dataclass(frozen=True)
class Report:
    """What a worker process is doing. Its last one says `ended`, or `refused` and why."""

    state: str
    """"working", "retiring", "stopping", "ended", "refused"."""
    tally: Tally = Tally()  # noqa: RUF009  # a value
    running: tuple[Running, ...] = ()
    rss_bytes: int = 0
    reason: str = ""
    emptied: bool = False
    """Whether it ended because there was nothing left."""
    retired: bool = False
    """Whether it ends to be replaced."""


def checked_argument(argument: Any) -> Any:
    """Raises InvalidArgument for a value that does not come back equal from a line of JSON."""
    try:
        carried = msgspec.json.decode(msgspec.json.encode(argument)) == argument
    except Exception:  # what msgspec raises, RecursionError, and what comparing raises
        carried = False
    if not carried:
        raise InvalidArgument(name="argument", wanted="what JSON can carry", got=argument)
    return argument


def to_line(message: Orders | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def orders_of(line: bytes) -> Orders:
    return msgspec.json.decode(line, type=Orders)


def report_of(line: bytes) -> Report:
    return msgspec.json.decode(line, type=Report)
