"""Homes: the partitions from which a process takes first.

Each partition belongs to one of the live sessions. Most takes of a session begin at a partition of its own,
so they meet few others. Some begin at another one, in turn: no partition waits for its session.
"""

from collections.abc import Sequence
from itertools import count

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.partitions.plan import homes_of
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction


class Homes:
    def __init__(self, database: Database, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self._turns = Turns(self._runtime.now_us())
        self._sessions: list[bytes] = []
        self._looked_at = float("-inf")
        self._chosen: dict[tuple[bytes, int], list[int]] = {}

    def next(self, shared: int, drained: int, session: bytes) -> int:
        """The partition at which the next take of `session` begins. `shared`: the number of partitions that
        are homes. `drained`: the number of partitions that may have items.

        Round trips: 1 in limits.HOMES_CHOSEN_EVERY_S, for the live sessions; else 0.
        """
        if drained == 1:
            return 0
        homes = self._homes(shared, session) if shared > 1 else (0,)
        return self._turns.next(homes, shared, drained, self._runtime.monotonic())

    def found_nothing(self, number: int) -> None:
        """A take has found nothing in this partition."""
        self._turns.found_nothing(number, self._runtime.monotonic())

    def _homes(self, count: int, session: bytes) -> list[int]:
        now = self._runtime.monotonic()
        if now >= self._looked_at + limits.HOMES_CHOSEN_EVERY_S:
            self._looked_at = now
            self._sessions = run(self._database, self._live)
            self._chosen = {}
        known = self._chosen.get((session, count))
        if known is None:
            known = self._chosen[session, count] = homes_of(session, self._sessions, count)
        return known

    def _live(self, tr: Transaction) -> list[bytes]:
        """Live sessions, at most limits.HOME_SESSIONS_MAX. Reads by snapshot."""
        beats = self._root.beats_due_after(self._runtime.now_us())
        found = tr.snapshot.get_range(beats.start, beats.stop, limit=limits.HOME_SESSIONS_MAX)
        return [beat[1] for row in found if (beat := self._root.beat_of(row.key)) is not None]


class Turns:
    """The partitions at which the takes of a process begin, one after the other."""

    def __init__(self, first: int) -> None:
        """`first` differs from process to process. Many may take one item each: from one number on, none of
        them would visit.
        """
        self._takes = count(first)
        self._empty_until: dict[int, float] = {}

    def next(self, homes: Sequence[int], shared: int, drained: int, now: float) -> int:
        """One of `homes`, each in its turn. One take of limits.TAKES_PER_VISIT begins at one of all `drained`
        partitions, each in its turn; not at one from `shared` on in which nothing was found lately.
        """
        take = next(self._takes)
        visits, is_at_home = divmod(take, limits.TAKES_PER_VISIT)
        visited = visits % drained
        if is_at_home or (visited >= shared and now < self._empty_until.get(visited, now)):
            return homes[(take - visits) % len(homes)]
        return visited

    def found_nothing(self, number: int, now: float) -> None:
        """A take has found nothing in this partition. Those below `shared` are visited all the same."""
        self._empty_until[number] = now + limits.EMPTY_VISITED_EVERY_S
