"""The holder of a task: its session, and the processes behind that.

A session without a name has one process, and its record names it. Each opener of a session with a name
writes its process beside its own heartbeat. Behind the process stands the key layout that it writes, for
processes of newer releases.

    R[6, session, opener]   (deadline_us, host, process id,   read by each heartbeat and each end of an
                            layout)                           opener

The session lives as long as one of its openers. Its own heartbeat, R[6, session], is the latest of their
deadlines. So a sweep need not know of openers, and a session without a name has no rows.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import KeyValue, ReadTransaction, Transaction, Value
from fdbqueue.core.task import Holder, HolderProcess

_UNREADABLE = (ValueError, IndexError, TypeError, struct.error)


Process = tuple[str, int, int]
"""Host, process id, key layout."""


def process_of(runtime: Runtime) -> Process:
    return runtime.host_name(), runtime.process_id(), LAYOUT


def ask_holder(tr: ReadTransaction, keys: RootKeys, session: bytes) -> Callable[[], Holder]:
    """Ask for a session and its processes. Values that cannot be read are left out.

    Reads: its record, its heartbeat, and the rows of its first limits.OPENERS_READ_MAX openers.
    Round trips: 1.
    """
    record, heartbeat = tr.get(keys.session(session)), tr.get(keys.heartbeat(session))
    under = keys.openers(session)
    rows = tr.get_range(under.start, under.stop, limit=limits.OPENERS_READ_MAX)

    def holder() -> Holder:
        _, name, ttr_us, *process = _padded_parts(record.value, 3)
        deadline_us, *_ = _padded_parts(heartbeat.value, 1)
        openers = [_padded_parts(row.value, 1)[1:] for row in _listed(rows)]
        return Holder(
            session.hex(),
            name if isinstance(name, str) else None,
            tuple(HolderProcess(*parts[:2]) for parts in [process, *openers] if _is_process(parts)),
            _seconds(deadline_us, ttr_us),
            _seconds(deadline_us, 0),
        )

    return holder


def _listed(rows: Any) -> Sequence[KeyValue]:
    found: Sequence[KeyValue] = rows.to_list()
    return found


def _padded_parts(value: bytes | None, count: int) -> list[Any]:
    """The parts of a stored tuple, and None in place of the first `count` that are missing."""
    try:
        parts = [] if value is None else list(layer.unpack(value))
    except _UNREADABLE:
        parts = []
    return parts + [None] * (count - len(parts))


def _is_process(parts: Sequence[Any]) -> bool:
    return list(map(type, parts[:2])) == [str, int]


def _seconds(deadline_us: Any, ttr_us: Any) -> float | None:
    known = isinstance(deadline_us, int) and isinstance(ttr_us, int)
    return (deadline_us - ttr_us) / 1_000_000 if known else None


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
