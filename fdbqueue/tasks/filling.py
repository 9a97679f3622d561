"""Filling: takes that follow the first one, until enough tasks have come or the time for them is over.

Each take is a transaction, so there are few, with pauses between them: tasks that come one by one would
otherwise cost a take each.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_seconds
from fdbqueue.core.database import Database, is_transaction
from fdbqueue.core.errors import InvalidArgument, WaitStopped
from fdbqueue.core.logger import logger
from fdbqueue.core.runtime import Stop
from fdbqueue.core.task import Task

T = TypeVar("T")
_log = logger("fdbqueue")


def checked_fill(fill: Any, target: Any) -> float:
    """The time for which a take waits for more. Raises InvalidArgument."""
    seconds = checked_seconds("fill", fill)
    if seconds and is_transaction(target):
        raise InvalidArgument(name="fill", wanted="0 in a transaction, which cannot wait", got=fill)
    return seconds


def filled(
    found: list[T],
    count: int,
    fill_s: float,
    monotonic: Callable[[], float],
    more: Callable[[int], Sequence[T] | None],
    pause: Callable[[float], bool],
) -> list[T]:
    """Add tasks to `found`, up to `count`, for `fill_s` seconds.

    `more(n)` takes up to n further tasks; None ends the fill. So does a `pause` that returns False.
    """
    until = monotonic() + fill_s
    while len(found) < count and (further := more(count - len(found))) is not None:
        found.extend(further)
        left_s = until - monotonic()
        if len(found) == count or left_s <= 0 or not pause(min(left_s, fill_s / limits.FILL_LOOKS)):
            break
    return found


def fill_for(
    database: Database,
    found: list[Task],
    count: int,
    fill_s: float,
    stop: Stop | None,
    take: Callable[[int], Sequence[Task]],
    undo: Callable[[Sequence[Task]], None],
) -> None:
    """`filled` for a call of a program, which knows the tasks by the answer alone.

    A stop, or an error, ends the fill, and the tasks so far stay the answer. An interrupt is raised, after
    an `undo` of the takes.
    """
    try:
        with database.waiter(stop) as waiter:

            def pause(seconds: float) -> bool:
                waiter.pause(seconds)
                return True

            filled(found, count, fill_s, database.runtime.monotonic, take, pause)
    except WaitStopped:
        return
    except Exception as error:  # the tasks so far are leased: raised, it would hide them
        database.troubles.met(_log, "take_many returns the tasks so far, as no more can be taken", error)
    except BaseException:
        undo(found)
        raise
