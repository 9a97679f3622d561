"""This process: its versions, the latency of its transactions, and its open files and those of workers here.

The commit that is timed clears the key of a receipt that does not exist. It takes the way of every commit,
and leaves nothing behind. An embedded database, each connection and each watched socket is an open file. A
process at its limit can neither connect nor commit.
"""

import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from operator import methodcaller
from statistics import median

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.version import __version__
from fdbqueue.operate.diagnosis.check import Check, fine, warning

VERSIONS = "versions"
_PACKAGES = ("foundationdb", "lmdb", "msgspec", "click")


def check_versions() -> list[Check]:
    """The versions that a report of a defect needs."""
    packages = {name: found for name in _PACKAGES if (found := _version_of(name)) is not None}
    told = {"fdbqueue": __version__, "Python": platform.python_version(), **packages}
    return [fine(VERSIONS, ", ".join(f"{name} {number}" for name, number in told.items()), **told)]


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a distribution without metadata, such as a zipped program
        return None


LATENCY = "latency"


def see_latency(database: Database, keys: RootKeys) -> dict[str, float]:
    """The median seconds of limits.PROBES transactions of each kind.

    Writes: a clear of a random key without a value, limits.PROBES times.
    """
    probes = [keys.receipt(database.runtime.random_bytes(16), 0) for _ in range(limits.PROBES)]
    read_versions = [_timed(database, lambda tr: tr.get_read_version().wait()) for _ in probes]
    commits = [_timed(database, methodcaller("clear", probe)) for probe in probes]
    return {"read_version_s": median(read_versions), "commit_s": median(commits)}


def check_latency(seen: dict[str, float]) -> list[Check]:
    wanted = {
        "read_version_s": ("a read version", limits.READ_VERSION_LATE_S),
        "commit_s": ("a commit", limits.COMMIT_LATE_S),
    }
    return [_check(name, *wanted[name], seconds) for name, seconds in seen.items()]


def _check(name: str, title: str, late_s: float, seconds: float) -> Check:
    data = {name: seconds}
    if seconds <= late_s:
        return fine(LATENCY, f"{title} takes {_told(seconds)}", **data)
    text = f"{title} takes {_told(seconds)}, more than {_told(late_s)}"
    cure = "Look at the load of the machines and disks: each call of a queue waits for one of each."
    return warning(LATENCY, text, cure, **data)


def _told(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _timed(database: Database, body: Callable[[Transaction], object]) -> float:
    began = database.runtime.monotonic()
    run(database, body, timeout_s=limits.CLOSE_TIMEOUT_S)
    return database.runtime.monotonic() - began


OPEN_FILES = "open files"
_LIMIT = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)


@dataclass(frozen=True)
class OpenFiles:
    process_id: int
    count: int
    limit: int


def see_open_files(process_ids: Iterable[int]) -> list[OpenFiles]:
    """The open files of the processes that live on this host and may be read."""
    return [seen for process_id in process_ids if (seen := _see(process_id)) is not None]


def check_open_files(seen: Iterable[OpenFiles]) -> list[Check]:
    """A warning for each process that has used most of its limit."""
    listed = list(seen)
    near = [one for one in listed if one.count > limits.OPEN_FILES_SHARE_MAX * one.limit]
    if near:
        return [_near(one) for one in near]
    if not listed:
        return []
    most = max(listed, key=lambda one: one.count / one.limit)
    text = f"{most.count} of {most.limit} in process {most.process_id}, of {len(listed)} looked at"
    return [fine(OPEN_FILES, text, process_id=most.process_id, count=most.count, limit=most.limit)]


def _near(one: OpenFiles) -> Check:
    text = f"process {one.process_id} has {one.count} open files, of at most {one.limit}"
    cure = "Raise its limit (`ulimit -n`, or LimitNOFILE= of its unit), then start it again."
    return warning(OPEN_FILES, text, cure, process_id=one.process_id, count=one.count, limit=one.limit)


def _see(process_id: int) -> OpenFiles | None:
    """None for a process that has ended, or that belongs to another user."""
    try:
        count = len(os.listdir(f"/proc/{process_id}/fd"))
        with open(f"/proc/{process_id}/limits", encoding="ascii") as file:
            found = _LIMIT.search(file.read())
    except OSError:
        return None
    if found is None or found[1] == "unlimited":
        return None
    return OpenFiles(process_id, count, int(found[1]))
