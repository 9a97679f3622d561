"""Starting: which of the tasks that one take returned a worker begins; a pure decision.

The last lease of a *suspect* task ended without an outcome: the task may have killed its process. Such a
process loses the tasks of its other threads too, and all of them come back together as suspects. If one
worker began them all again, the next death would count against each of them, until all were buried. So a
worker runs one suspect at a time, up to the commit of its outcome, and puts the others off.
"""

from collections.abc import Sequence
from enum import Enum, auto

from fdbqueue.fleet.held import Hold


class Start(Enum):
    BEGIN = auto()
    GIVE_BACK = auto()  # ready again at once
    PUT_OFF = auto()  # ready again after about limits.SUSPECT_DELAY_S


class Starting:
    """Remembers the suspect that runs; for the one thread that begins tasks."""

    def __init__(self) -> None:
        self._suspect: Hold | None = None

    def decide(self, holds: Sequence[Hold], room: int, stopping: bool) -> list[Start]:
        """Return a decision for each of `holds`, for a worker with `room` idle threads."""
        found = []
        for number, hold in enumerate(holds):
            # If the next suspect kills this process during the commit of this one, both are lost.
            has_suspect = self._suspect is not None and not self._suspect.settled
            found.append(start_of(hold, number < room, has_suspect, stopping))
            if found[-1] is Start.BEGIN and hold.task.orphaned:
                self._suspect = hold
        return found


def start_of(hold: Hold, has_room: bool, has_suspect: bool, stopping: bool) -> Start:
    """Decide about one task, by the first case that applies.

    1. The worker is stopping, or the task was cancelled: give the task back. A cancelled one ends with that.
    2. The task is a suspect, and cannot begin now: put it off.
    3. No thread is idle (several queues gave a task each), or the lease has ended: give the task back.
    4. Otherwise begin.
    """
    may_begin = has_room and not hold.lost
    if stopping or hold.cancelled:
        return Start.GIVE_BACK
    if hold.task.orphaned and not (may_begin and not has_suspect):
        return Start.PUT_OFF
    return Start.BEGIN if may_begin else Start.GIVE_BACK
