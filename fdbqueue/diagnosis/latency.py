"""Latency of a read version, and of a commit.

The commit clears the key of a receipt that does not exist. It takes the way of every commit, and leaves
nothing behind.
"""

from collections.abc import Callable
from statistics import median

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.diagnosis.check import Check, fine, warning
from fdbqueue.root_keys import RootKeys

CHECK = "latency"


def see_latency(database: Database, keys: RootKeys) -> dict[str, float]:
    """The median seconds of limits.PROBES transactions of each kind.

    Writes: a clear of a random key without a value, limits.PROBES times.
    """
    probes = [keys.receipt(database.runtime.random_bytes(16), 0) for _ in range(limits.PROBES)]
    read_versions = [_timed(database, _read_version(database)) for _ in probes]
    commits = [_timed(database, _clear(database, probe)) for probe in probes]
    return {"read_version_s": median(read_versions), "commit_s": median(commits)}


def check_latency(seen: dict[str, float]) -> list[Check]:
    """A warning for each latency above its limit."""
    wanted = {
        "read_version_s": ("a read version", limits.READ_VERSION_LATE_S),
        "commit_s": ("a commit", limits.COMMIT_LATE_S),
    }
    return [_check(name, *wanted[name], seconds) for name, seconds in seen.items()]


def _check(name: str, title: str, late_s: float, seconds: float) -> Check:
    data = {name: seconds}
    if seconds <= late_s:
        return fine(CHECK, f"{title} takes {_told(seconds)}", **data)
    text = f"{title} takes {_told(seconds)}, more than {_told(late_s)}"
    cure = "Look at the load of the machines and disks: each call of a queue waits for one of each."
    return warning(CHECK, text, cure, **data)


def _told(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _timed(database: Database, act: Callable[[], object]) -> float:
    began = database.runtime.monotonic()
    act()
    return database.runtime.monotonic() - began


def _read_version(database: Database) -> Callable[[], object]:
    return lambda: run(database, lambda tr: tr.get_read_version().wait(), timeout_s=limits.CLOSE_TIMEOUT_S)


def _clear(database: Database, key: bytes) -> Callable[[], object]:
    return lambda: run(database, lambda tr: tr.clear(key), timeout_s=limits.CLOSE_TIMEOUT_S)
