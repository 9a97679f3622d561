"""Suspect: of the tasks whose last attempt ended without a word, a worker is at one at a time.

A task that kills its process takes with it whatever the other threads were at. All of that comes back
together, to the head of the queue: had one worker it all again, the poison would drag its neighbours along
until they were buried with it. So a worker begins one such task at a time and puts the others off, and a
neighbour comes to the end of its attempts only if one poison after another happens to meet it.
"""

from fdbqueue.fleet.held import Hold


class Suspect:
    """For the one thread that begins tasks."""

    def __init__(self) -> None:
        self._hold: Hold | None = None

    def claim(self, hold: Hold) -> bool:
        """Whether it may be begun, which makes it the one."""
        if self._hold is not None and self._hold.open:
            return False
        self._hold = hold
        return True
