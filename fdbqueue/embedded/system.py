"""The calls by which the processes of a directory meet: locks, shared memory, LMDB, sockets.

The commit path and the watches make these calls through the `System` of their store. The simulation gives
each simulated process a System of its own: each call may stop or end the process (testing/processes.py).
In production each field is the function itself, so the seam costs nothing.
"""

import mmap
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lmdb

from fdbqueue.embedded.bytelocks import LockFile
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.environment import open_base
from fdbqueue.runtime import Event, Lock, RealRuntime


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _numbers(mapped: mmap.mmap, begin: int, end: int, kind: str) -> Any:
    return memoryview(mapped)[begin:end].cast(kind)  # type: ignore[call-overload]  # typed for literal kinds only


@dataclass(frozen=True)
class System:
    """The calls of one process; by default those of this one.

    `lock` and `event` are for the threads of one process, all others for the processes of a directory.
    `numbers` shows a part of a map as numbers: `Q` of 8 bytes, `i` of 4 bytes with a sign.
    """

    lock: Callable[[], Lock] = RealRuntime.lock
    event: Callable[[], Event] = RealRuntime.event
    open_environment: Callable[..., Any] = lmdb.open
    open_base: Callable[[str, int], Any] = open_base
    lock_file: Callable[[Directory, str], LockFile] = LockFile
    numbers: Callable[[mmap.mmap, int, int, str], "memoryview[int]"] = _numbers
    pread: Callable[[int, int, int], bytes] = os.pread
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    flush: Callable[[int], None] = os.fdatasync
    stat: Callable[[str], os.stat_result] = os.stat
    open_socket: Callable[[], socket.socket] = _datagram_socket
    poll: Callable[[], select.poll] = select.poll


SYSTEM = System()
