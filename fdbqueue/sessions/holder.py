"""The holder of a task: its session, and the processes behind that.

A session without a name has one process, and its record names it. Each opener of a session with a name
writes its process beside its own heartbeat (openers.py). Behind the process stands the key layout that it
writes: an upgrade waits for the end of processes without one.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.holder import Holder, HolderProcess
from fdbqueue.key_layout import LAYOUT, LAYOUT_BEFORE
from fdbqueue.root_keys import RootKeys
from fdbqueue.runtime import Runtime
from fdbqueue.seam import KeyValue, ReadTransaction

_UNREADABLE = (ValueError, IndexError, TypeError, struct.error)


Process = tuple[str, int, int]
"""Host, process id, key layout."""


def process_of(runtime: Runtime) -> Process:
    """The parts of a stored value that name this process."""
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
        _, name, ttr_us, *process = padded_parts(record.value, 3)
        deadline_us, *_ = padded_parts(heartbeat.value, 1)
        openers = [padded_parts(row.value, 1)[1:] for row in _listed(rows)]
        return Holder(
            session.hex(),
            name if isinstance(name, str) else None,
            tuple(HolderProcess(*parts[:2]) for parts in [process, *openers] if _is_process(parts)),
            _seconds(deadline_us, ttr_us),
            _seconds(deadline_us, 0),
        )

    return holder


def layouts_in(record: bytes, rows: Sequence[bytes], now_us: int) -> list[int]:
    """The key layouts of the processes of a session: its own, or with a name those of its live openers.

    Processes of earlier releases tell none; they count as layout 0. So does a session without live openers.
    """
    parts = padded_parts(record, 3)
    if not isinstance(parts[1], str):
        return [_layout_of(parts[3:])]
    openers = [padded_parts(row, 1) for row in rows]
    live = [each for each in openers if isinstance(each[0], int) and each[0] > now_us]
    return [_layout_of(each[1:]) for each in live] or [LAYOUT_BEFORE]


def _layout_of(process: Sequence[Any]) -> int:
    return process[2] if len(process) > 2 and isinstance(process[2], int) else LAYOUT_BEFORE


def _listed(rows: Any) -> Sequence[KeyValue]:
    found: Sequence[KeyValue] = rows.to_list()
    return found


def padded_parts(value: bytes | None, count: int) -> list[Any]:
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
