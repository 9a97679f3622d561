"""Openers: the Session objects that share a session by its name, each with a heartbeat of its own.

    R[6, session, opener]   (deadline_us, host, process id,   read by each heartbeat and each end of an
                            layout)                           opener

The session lives as long as one of its openers. Its own heartbeat, R[6, session], is the latest of their
deadlines. So a sweep need not know of openers, and a session without a name has no rows.
"""

import struct
from collections.abc import Callable

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction, Value


def deadline_of(heartbeat: bytes) -> int:
    deadline_us: int = layer.unpack(heartbeat)[0]
    return deadline_us


def deadline_if_readable(heartbeat: bytes) -> int | None:
    try:
        deadline_us = deadline_of(heartbeat)
    except (ValueError, IndexError, TypeError, struct.error):
        return None
    return deadline_us if isinstance(deadline_us, int) else None


def renew(tr: Transaction, keys: RootKeys, session: bytes, last: Value, deadline_us: int) -> None:
    """Move the deadline of a session from its `last` heartbeat, which has been asked for.

    A damaged heartbeat is written anew; a sweep clears the entry that belonged to it.
    Writes: the heartbeat and its entry.
    Conflicts: the end of the session.
    """
    last_us = deadline_if_readable(last.value) if last.present() else None
    if last_us is not None:
        tr.clear(keys.beat_due(last_us, session))
    tr.set(keys.heartbeat(session), layer.pack((deadline_us,)))
    tr.set(keys.beat_due(deadline_us, session), b"")


def row(deadline_us: int, process: tuple[str, int, int]) -> bytes:
    value: bytes = layer.pack((deadline_us, *process))
    return value


def beat(
    tr: Transaction, keys: RootKeys, session: bytes, opener: bytes, last: Value, row: bytes, now_us: int
) -> None:
    """Renew one opener by its new `row`, and the session with it. Clear openers that are dead.

    An opener that was only slow writes its row again at its next heartbeat, and has lost nothing.
    Reads: the rows of the openers.
    Writes: these rows.
    Conflicts: the heartbeats and ends of the openers.
    """
    others = _ask_others(tr, keys, session, opener)()
    for key, deadline in others.items():
        if deadline <= now_us:
            tr.clear(key)
    tr.set(keys.opener(session, opener), row)
    renew(tr, keys, session, last, max([deadline_of(row), *others.values()]))


def leave(tr: Transaction, keys: RootKeys, session: bytes, opener: bytes, now_us: int) -> bool:
    """Remove an opener. False if no other opener lives: then the session has to be ended.

    Reads: the rows of the openers.
    Conflicts: the heartbeats and ends of the openers.
    """
    last, others = tr.get(keys.heartbeat(session)), _ask_others(tr, keys, session, opener)()
    tr.clear(keys.opener(session, opener))
    latest_us = max(others.values(), default=now_us)
    if latest_us <= now_us and len(others) < limits.OPENERS_READ_MAX - 1:
        return False
    if latest_us > now_us:  # else an opener behind those that were read may live, and its beats count
        renew(tr, keys, session, last, latest_us)
    return True


def _ask_others(
    tr: Transaction, keys: RootKeys, session: bytes, opener: bytes
) -> Callable[[], dict[bytes, int]]:
    """Ask for the deadlines of the other openers, by key: the first limits.OPENERS_READ_MAX."""
    under, own = keys.openers(session), keys.opener(session, opener)
    rows = tr.get_range(under.start, under.stop, limit=limits.OPENERS_READ_MAX)
    # A damaged one counts as dead: the next heartbeat of its opener makes it anew.
    return lambda: {row.key: deadline_if_readable(row.value) or 0 for row in rows if row.key != own}
