"""The legal steps of sessions: one ends for good, by a process that has opened it, or past its deadline.

A member of an owner (queues/unacked.py) is ended by the next client of that name, too. The ttr of a
session is the largest of those that its openers give, so it never falls.
"""

from collections.abc import Callable, Iterator

from fdb import tuple as layer

from fdbqueue.core import root_keys as columns
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import deadline_if_readable
from tests.system.audit.commit import Step
from tests.system.audit.liveness import Liveness
from tests.system.audit.lives import SLACK_US


class Sessions:
    def __init__(self, keys: RootKeys, is_member: Callable[[bytes], bool], liveness: Liveness) -> None:
        self._is_member = is_member
        self._liveness = liveness
        self._keys = keys
        self._openers: dict[bytes, set[str]] = {}
        """The machines that have written the heartbeat of each session, or the entry of an opener: a second
        opener leaves a later heartbeat as it is.
        """
        self._ended: set[bytes] = set()

    def judge(self, step: Step) -> Iterator[str]:
        commit = step.commit
        for key, values in step.changes.items():
            column, rest = self._keys.shape_of(key)
            if column == columns.SESSION:
                yield from self.record_step(step, rest[0], values.before, values.after)
            elif column == columns.HEARTBEAT and values.after is not None:
                openers = self._openers.setdefault(rest[0], set())
                if rest[0] in self._ended:
                    yield f"the session {rest[0].hex()} has ended, and has a heartbeat again"
                openers.add(commit.machine)

    def record_step(
        self, step: Step, session: bytes, before: bytes | None, after: bytes | None
    ) -> Iterator[str]:
        commit = step.commit
        if before is None and session in self._ended:
            yield f"the session {session.hex()} has ended, and is there again"
        if after is not None:
            if before is not None and ttr_us_of(after) < ttr_us_of(before):
                yield f"the ttr of the session {session.hex()} was {ttr_us_of(before)} us: {ttr_us_of(after)}"
            return
        self._ended.add(session)
        beat = step.changes.get(self._keys.heartbeat(session))
        deadline_us = None if beat is None or beat.before is None else deadline_if_readable(beat.before)
        is_overdue = deadline_us is None or deadline_us <= commit.now_us + SLACK_US
        openers = self._openers.get(session, set())
        is_own = commit.machine in openers
        if is_own or self._is_member(session):
            return
        if not is_overdue:
            yield (
                f"the session {session.hex()} is ended by {commit.machine}, and lives until {deadline_us}: "
                f"it is {commit.now_us}"
            )
        elif name_of(before) is None and any(map(self._liveness.is_in_time, openers)):
            yield f"the session {session.hex()} ends as dead, and {min(openers)} goes on without a fault"


def name_of(record: bytes | None) -> str | None:
    name: str | None = None if record is None else layer.unpack(record)[1]
    return name


def ttr_us_of(record: bytes) -> int:
    ttr_us: int = layer.unpack(record)[2]
    return ttr_us
