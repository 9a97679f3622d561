"""Keeps all tests out of a cluster's own data: the cluster may be a user's.

- `FDB_CLUSTER_FILE` is taken out of the environment, so no program finds the cluster unless a test names it.
- The default root is moved below a random prefix of this run, in the tests and in each program they start.
- A write that leaves the prefixes of tests raises `OutsideOfTests` before it reaches the cluster.

`guarded/sitecustomize.py` does the second and the third in programs: Python imports it when it starts.
"""

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import ClientLibraryMissing
from fdbqueue.core.root_keys import DEFAULT_ROOT
from tests import buggify

TEST_ROOT = Subspace(("fdbqueue-test",))
_ROOTS = (TEST_ROOT, Subspace(("fdbqueue-test-cli",)), Subspace(("fdbqueue-load",)))
_PREFIXES = tuple(root.key() for root in _ROOTS)
_CLUSTER, _RUN = "FDBQUEUE_TEST_CLUSTER_FILE", "FDBQUEUE_TEST_RUN"
_TREE = Path(__file__).parents[1]
# Beyond it a cluster refuses every write, unless an option is set that no test sets.
_USER_END = b"\xff"
_CLEARED_S = 10.0
_SET_VERSIONSTAMPED_KEY, _STAMP_BYTES = 14, 14


class OutsideOfTests(BaseException):
    """A test is about to write keys that are not its own. No `except Exception` hides it."""


def take_cluster() -> str | None:
    """The cluster file that the tests were given, out of reach for all that does not ask here."""
    given = os.environ.pop("FDB_CLUSTER_FILE", "") or os.environ.get(_CLUSTER)
    if not given:
        return None
    if _CLUSTER not in os.environ:
        # Workers of pytest-xdist, and all programs, inherit these.
        os.environ |= {_CLUSTER: given, _RUN: os.urandom(8).hex()}
        paths = [str(_TREE / "tests" / "guarded"), str(_TREE), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    enter()
    return given


def enter() -> None:
    """Move the default root of this process, and guard its writes. No effect without a cluster."""
    run = os.environ.get(_RUN)
    if run is None:
        return
    DEFAULT_ROOT.rawPrefix = TEST_ROOT["root"][bytes.fromhex(run)].key()
    try:
        binding = importlib.import_module("fdb.impl")
    except Exception:  # bare, without the client library: then this process cannot reach a cluster
        return
    guard(binding.Transaction)


def clear_default_root(url: str) -> None:
    """Clear the default root of this run. Raises the error of the cluster, also if it does not answer."""
    # Client buggify ends a transaction that has a timeout with 1031 at once, now and then.
    timeout_s = _CLEARED_S if buggify.percent() is None else None
    with suppress(ClientLibraryMissing), fdbqueue.open(url) as db:
        run(db, lambda tr: tr.clear_range_startswith(DEFAULT_ROOT.key()), timeout_s=timeout_s)


def guard(transaction: Any) -> None:
    """Have the four writing methods of a transaction class refuse keys outside of the tests' prefixes."""

    def replace(name: str, keys_of: Callable[..., tuple[Any, Any]]) -> None:
        write = getattr(transaction, name)

        def guarded(self: Any, *arguments: Any) -> Any:
            begin, end = (key_of(self, key) for key in keys_of(*arguments))
            if begin is not None and end is not None:
                require_own(begin, end)
            return write(self, *arguments)

        setattr(transaction, name, guarded)

    replace("set", lambda key, _: (key, key))
    replace("clear", lambda key: (key, key))
    replace("clear_range", lambda begin, end: (begin or b"", _USER_END if end is None else end))
    replace("_atomic_operation", lambda opcode, key, _: (key, key) if has_room(opcode, key) else (None, None))


def key_of(tr: Any, key: Any) -> bytes | None:
    """A key as bytes, also that of a selector; None for a type that the binding refuses."""
    if hasattr(key, "or_equal"):
        return bytes(tr.get_key(key))
    key = key.as_foundationdb_key() if hasattr(key, "as_foundationdb_key") else key
    return bytes(key) if isinstance(key, bytes) else None


def has_room(opcode: int, key: Any) -> bool:
    """False for a versionstamped key that the client refuses, as the stamp does not fit into it."""
    return opcode != _SET_VERSIONSTAMPED_KEY or len(key) >= _STAMP_BYTES


def require_own(begin: bytes, end: bytes) -> None:
    """Raises OutsideOfTests if a write from `begin` to `end` changes a key that is not of the tests."""
    is_refused = begin > end or begin >= _USER_END or end > _USER_END
    is_own = any(p < begin[: len(p) + 1] and begin.startswith(p) and end.startswith(p) for p in _PREFIXES)
    if not is_refused and not is_own:
        raise OutsideOfTests(f"a test would write from {begin!r} to {end!r}")
