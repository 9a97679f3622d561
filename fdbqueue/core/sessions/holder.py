"""The holder of a task: its session, and the processes behind that.

A session without a name has one process, and its record names it. Each opener of a session with a name
writes its process beside its own heartbeat (openers.py). Behind the process stands the key layout that it
writes, for processes of newer releases.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import KeyValue, ReadTransaction
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
