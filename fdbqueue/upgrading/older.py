"""Live sessions of earlier releases: an upgrade is refused, as their processes write the older layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue import limits
from fdbqueue.database import Database, run, runtime_of
from fdbqueue.errors import OlderSessions
from fdbqueue.key_layout import LAYOUT
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.sessions.holder import layouts_in, padded_parts
from fdbqueue.sessions.openers import deadline_if_readable


@dataclass(frozen=True)
class OlderSession:
    """A live session of a release that writes an older layout. `host` and `process_id`, if it tells them."""

    session: str
    name: str | None
    host: str | None
    process_id: int | None
    alive_s: float
    """Seconds until it counts as dead, if it is not renewed."""

    def __str__(self) -> str:
        named = self.session if self.name is None else repr(self.name)
        where = "" if self.host is None else f", process {self.process_id} on {self.host}"
        return f"session {named}{where}, dead in {self.alive_s:.0f} s"


def older_sessions(database: Database, keys: RootKeys) -> list[OlderSession]:
    """The live sessions of earlier releases, at most limits.OLDER_SESSIONS_SHOWN.

    Reads: all sessions with their heartbeats and openers, by snapshot.
    Conflicts: none.
    Round trips: 2 for each limits.BATCH_ITEMS_MAX sessions.
    """
    found: list[OlderSession] = []
    begin: bytes | None = keys.sessions.start
    while begin is not None and len(found) < limits.OLDER_SESSIONS_SHOWN:
        older, begin = run(database, partial(_next, keys, begin))
        found += older
    return found[: limits.OLDER_SESSIONS_SHOWN]


def require_none_older(database: Database, keys: RootKeys) -> None:
    """Raises: OlderSessions."""
    found = older_sessions(database, keys)
    if found:
        raise OlderSessions(sessions=tuple(found), told="; ".join(map(str, found)))


def _next(keys: RootKeys, begin: bytes, tr: Transaction) -> tuple[list[OlderSession], bytes | None]:
    now_us, most = runtime_of(tr).now_us(), limits.BATCH_ITEMS_MAX
    rows = tr.snapshot.get_range(begin, keys.sessions.stop, limit=most).to_list()
    asked = []
    for row in rows:
        session = keys.session_of(row.key)
        under = keys.openers(session)
        openers = tr.snapshot.get_range(under.start, under.stop, limit=limits.OPENERS_READ_MAX)
        asked.append((session, row.value, tr.snapshot.get(keys.heartbeat(session)), openers))
    judged = [
        _judge(session, record, beat.value, [each.value for each in openers], now_us)
        for session, record, beat, openers in asked
    ]
    older = [one for one in judged if one is not None]
    return older, None if len(rows) < most else bytes(rows[-1].key) + b"\x00"


def _judge(
    session: bytes, record: bytes, heartbeat: bytes | None, openers: Sequence[bytes], now_us: int
) -> OlderSession | None:
    """The session, if it is alive and one of its processes writes an older layout."""
    deadline_us = deadline_if_readable(heartbeat or b"") or 0
    if deadline_us <= now_us or min(layouts_in(record, openers, now_us)) >= LAYOUT:
        return None
    _, name, _, host, process_id = padded_parts(record, 5)[:5]
    alive_s = (deadline_us - now_us) / 1_000_000
    return OlderSession(session.hex(), name, host, process_id, alive_s)
