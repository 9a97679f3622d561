"""Sessions, awaited."""

from fdbqueue.aio.opened import Opened, opened_as
from fdbqueue.aio.verbs import awaited
from fdbqueue.core.sessions.session import Session as BlockingSession


class Session(Opened[BlockingSession]):
    """`fdbqueue.Session`, awaited: `async with aio.Session(db, "worker-1") as session`."""

    __slots__ = ()

    @opened_as(BlockingSession)
    def __init__(self) -> None: ...

    end = awaited(BlockingSession.end, finishes=True)
    end_within = awaited(BlockingSession.end_within, finishes=True)
    beat = awaited(BlockingSession.beat)
    beat_if_due = awaited(BlockingSession.beat_if_due)

    @property
    def name(self) -> str | None:
        return self._blocking.name

    @property
    def ttr(self) -> float:
        """Seconds after the last heartbeat for which its tasks stay taken."""
        return self._blocking.ttr

    @property
    def lost(self) -> bool:
        """True once the session has ended, or was taken away."""
        return self._blocking.lost

    @staticmethod
    def _undo(blocking: BlockingSession) -> None:
        blocking.end()

    async def __aexit__(self, *exc: object) -> None:
        await self.end()
