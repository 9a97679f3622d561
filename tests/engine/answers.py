"""Asks an engine for its answers to errors: predicates, `on_error`, and which of several errors is raised.

    python -m tests.engine.answers CLUSTER_FILE

prints the answers of the client library as JSON. No server needs to answer: None stands for a call that waits
for one.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fdbqueue.core import binding
from fdbqueue.core.errors import ClientLibraryMissing, ClientLibraryTooOld
from fdbqueue.core.seam import TIMED_OUT

CODES = range(1000, 2301)
PREDICATES = ("is_retryable", "is_maybe_committed", "is_retryable_not_committed")
KEY, LARGE_KEY, LARGE_VALUE, SYSTEM_KEY = b"key", b"k" * 10_100, b"v" * 100_001, b"\xff\x01"
_UNKNOWN_OPCODE = 99
NO_LIBRARY = 77
"""The status of the program where there is no client library."""

Call = Callable[[Any], Any]


def _cancelled(tr: Any) -> None:
    tr.cancel()


def _refused(tr: Any) -> None:
    _code(tr.on_error(1000).wait)


def _committed(tr: Any) -> None:
    tr.commit().wait()


def _in_commit(tr: Any) -> None:
    tr.set(KEY, b"value")
    _KEPT.append(tr.commit())


def _in_commit_with_reuse(tr: Any) -> None:
    tr.options.set_used_during_commit_protection_disable()
    _in_commit(tr)


def _committed_and_cancelled(tr: Any) -> None:
    _committed(tr)
    tr.cancel()


def _timed_out(tr: Any) -> None:
    tr.options.set_timeout(1)
    while _code(tr.get(SYSTEM_KEY).wait) != TIMED_OUT:  # it is refused, so it asks for no read version
        pass


_KEPT: list[Any] = []
"""Futures of commits: a future without a reference is cancelled."""

STATES: dict[str, Call] = {
    "new": lambda _: None,
    "cancelled": _cancelled,
    "refused by on_error": _refused,
    "committed": _committed,
    "in its commit": _in_commit,
    "in its commit, with reuse": _in_commit_with_reuse,
    "committed and cancelled": _committed_and_cancelled,
    "timed out": _timed_out,
}

# Calls that return no future.
CALLS: dict[str, Call] = {
    "set": lambda tr: tr.set(KEY, b"value"),
    "set of a large key": lambda tr: tr.set(LARGE_KEY, b"value"),
    "set of a large value": lambda tr: tr.set(KEY, LARGE_VALUE),
    "set of a large key and value": lambda tr: tr.set(LARGE_KEY, LARGE_VALUE),
    "set of a system key": lambda tr: tr.set(SYSTEM_KEY, LARGE_VALUE),
    "add of a large parameter": lambda tr: tr.add(KEY, LARGE_VALUE),
    "add to a large key": lambda tr: tr.add(LARGE_KEY, LARGE_VALUE),
    "add to a system key": lambda tr: tr.add(SYSTEM_KEY, LARGE_VALUE),
    "unknown operation": lambda tr: tr._atomic_operation(_UNKNOWN_OPCODE, LARGE_KEY, b""),
    "unknown operation on a system key": lambda tr: tr._atomic_operation(_UNKNOWN_OPCODE, SYSTEM_KEY, b""),
    "stamped key without a place": lambda tr: tr.set_versionstamped_key(KEY, b"value"),
    "stamped key and a large value": lambda tr: tr.set_versionstamped_key(KEY, LARGE_VALUE),
    "stamped value without a place": lambda tr: tr.set_versionstamped_value(KEY, b"value"),
    "clear of a large key": lambda tr: tr.clear(LARGE_KEY),
    "clear of a system key": lambda tr: tr.clear(SYSTEM_KEY),
    "clear of a large system key": lambda tr: tr.clear(b"\xff" * 10_001),
    "clear of an inverted range": lambda tr: tr.clear_range(b"b", b"a"),
    "clear of an inverted system range": lambda tr: tr.clear_range(b"\xff\x02", SYSTEM_KEY),
    "clear of a system range": lambda tr: tr.clear_range(KEY, SYSTEM_KEY),
    "read conflict with system keys": lambda tr: tr.add_read_conflict_range(KEY, SYSTEM_KEY),
    "write conflict with system keys": lambda tr: tr.add_write_conflict_range(KEY, SYSTEM_KEY),
    "inverted conflict": lambda tr: tr.add_write_conflict_range(b"b", b"a"),
    "read version 0": lambda tr: tr.set_read_version(0),
    "read version twice": lambda tr: (tr.set_read_version(1), tr.set_read_version(1)),
    "size limit of 31": lambda tr: tr.options.set_size_limit(31),
    "late read_your_writes_disable": lambda tr: (tr.set(KEY, b""), tr.options.set_read_your_writes_disable()),
    "no read_your_writes": lambda tr: tr.options.set_read_your_writes_disable(),
}

# Calls that return a future.
FUTURES: dict[str, Call] = {
    "get": lambda tr: tr.get(KEY),
    "snapshot get": lambda tr: tr.snapshot.get(KEY),
    "get of a large key": lambda tr: tr.get(LARGE_KEY),
    "get of a system key": lambda tr: tr.get(SYSTEM_KEY),
    "get of a large system key": lambda tr: tr.get(b"\xff" * 10_001),
    "range": lambda tr: _first(tr.get_range(KEY, b"l", 1)),
    "range of system keys": lambda tr: _first(tr.get_range(KEY, SYSTEM_KEY, 1)),
    "watch": lambda tr: tr.watch(KEY),
    "watch of a large key": lambda tr: tr.watch(LARGE_KEY),
    "watch of a system key": lambda tr: tr.watch(SYSTEM_KEY),
    "watch of a large system key": lambda tr: tr.watch(b"\xff" * 10_001),
    "read version": lambda tr: tr.get_read_version(),
    "versionstamp": lambda tr: tr.get_versionstamp(),
    "approximate size": lambda tr: tr.get_approximate_size(),
    "size of a range": lambda tr: tr.get_estimated_range_size_bytes(KEY, b"l"),
    "size of an inverted range": lambda tr: tr.get_estimated_range_size_bytes(b"b", b"a"),
    "split points": lambda tr: tr.get_range_split_points(KEY, b"l", 1000),
    "split points of an inverted range": lambda tr: tr.get_range_split_points(b"b", b"a", 1000),
    "split points of system keys": lambda tr: tr.get_range_split_points(KEY, SYSTEM_KEY, 1000),
    "commit": lambda tr: tr.commit(),
    "on_error": lambda tr: tr.on_error(1020),
    "on_error that raises": lambda tr: tr.on_error(1000),
}
_ALWAYS_ANSWERED = ("on_error", "on_error that raises")


class Raised:
    """The future of a call that has raised at once."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def is_ready(self) -> bool:
        return True

    def wait(self) -> Any:
        raise self._error


def _first(found: Any) -> Any:
    """Return the future of the first batch of a range read."""
    if hasattr(found, "_future"):
        return found._future
    return found._first if isinstance(found._first, Exception) else None


def _code(action: Callable[[], Any]) -> int:
    try:
        action()
    except Exception as error:
        return int(error.code)  # type: ignore[attr-defined]
    return 0


class Asking:
    """Asks one engine."""

    def __init__(self, fdb: Any, db: Any) -> None:
        self._fdb = fdb
        self._db = db
        db.options.set_transaction_max_retry_delay(0)
        self._barrier = db.create_transaction()
        self._barrier.set(LARGE_KEY, b"")

    def answers(self) -> dict[str, Any]:
        return {
            "predicates": [self._predicates(code) for code in CODES],
            "on_error": [self._on_error(code) for code in CODES],
            "sentences": [self._sentence(code) for code in CODES],
            "after_one": dict(self._after_one()),
            "after_two": dict(self._after_two()),
        }

    def _on_error(self, code: int) -> int:
        tr = self._db.create_transaction()
        return _code(tr.on_error(code).wait)

    def _predicates(self, code: int) -> list[bool]:
        error = self._fdb.FDBError(code)
        return [bool(getattr(self._fdb.predicates, name)(error)) for name in PREDICATES]

    def _sentence(self, code: int) -> str:
        said = self._fdb.FDBError(code).description
        return said.decode() if isinstance(said, bytes) else said

    def _after_one(self) -> Iterator[tuple[str, list[int | None]]]:
        """Yield for each state, and each call in it, the answers of all calls that return a future."""
        for state in STATES:
            for call in ("", *CALLS):
                yield f"{state}; {call}", [self._answer(state, [call], name) for name in FUTURES]

    def _after_two(self) -> Iterator[tuple[str, list[int | None]]]:
        """Yield for some states, and each call in them, the answers of a commit behind all other calls."""
        for state in ("new", "cancelled", "in its commit"):
            for first in CALLS:
                yield (
                    f"{state}; {first}",
                    [self._answer(state, [first, second], "commit") for second in CALLS],
                )

    def _answer(self, state: str, calls: list[str], name: str) -> int | None:
        tr = self._db.create_transaction()
        STATES[state](tr)
        raised = [_code(lambda call=call: CALLS[call](tr)) for call in calls if call]
        if any(raised):
            return max(raised)
        try:
            future = FUTURES[name](tr)
        except self._fdb.FDBError as error:
            future = Raised(error)
        return self._code_of(future, name in _ALWAYS_ANSWERED)

    def _code_of(self, future: Any, is_answered: bool) -> int | None:
        if isinstance(future, Exception | None):
            return getattr(future, "code", 0)
        _code(self._barrier.get(KEY).wait)  # behind it, a call without a question to a server has its answer
        if not is_answered and not future.is_ready():
            return None
        return _code(future.wait)


def of_library(cluster_file: str) -> dict[str, Any]:
    fdb = binding.load()
    return {"release": binding.library_release(), **Asking(fdb, fdb.open(cluster_file)).answers()}


if __name__ == "__main__":
    try:
        print(json.dumps(of_library(sys.argv[1])))
    except (ClientLibraryMissing, ClientLibraryTooOld) as error:
        print(error, file=sys.stderr)
        sys.exit(NO_LIBRARY)
