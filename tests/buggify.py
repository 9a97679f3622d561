"""Faults that FoundationDB's own client library injects, and their number.

    FDBQUEUE_TEST_BUGGIFY=5 pytest ...                   the tests that use a cluster, and no others
    python -m tests.buggify --percent 5 COMMAND ...      any program

Each place in libfdb_c that can inject a fault does so in that share of its passes: the errors 1007 and 1009
of reads, and 1007, 1020, 1021, 1042 and 1078 of commits. Error 1021 comes before the commit is sent, or
after it. A transaction with a timeout may get 1031 at once, which no cluster does: so a program that asks
whether its cluster answers asks again. The library reads the environment, so each process of a program
has the faults.

An error is counted where it ends an attempt, in `Transaction.on_error` of the binding. So real conflicts
count too, and an error that ends a call, or a transaction that a test commits by hand, does not.
"""

import argparse
import importlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIABLE = "FDBQUEUE_TEST_BUGGIFY"
_COUNTS = "FDBQUEUE_TEST_ERRORS"
_OPTION = "FDB_NETWORK_OPTION_CLIENT_BUGGIFY_"
_TREE = Path(__file__).parents[1]
_NUMBER = struct.Struct("=Q")
_CODES = 4096


def percent() -> int | None:
    """The share that FDBQUEUE_TEST_BUGGIFY asks for. Raises: ValueError."""
    given = os.environ.get(VARIABLE)
    return checked(given) if given else None


def checked(given: str) -> int:
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 100:
        raise ValueError(f"{VARIABLE} is {given!r}: it must be a whole number of per cent, from 1 to 100")
    return int(given)


def begin(share: int) -> None:
    """Let this process, and those that it starts, meet faults, and count errors.

    The client library reads the environment when its network starts, so call it before.
    """
    os.environ |= {
        VARIABLE: str(share),
        _OPTION + "ENABLE": "",
        _OPTION + "SECTION_ACTIVATED_PROBABILITY": "100",
        _OPTION + "SECTION_FIRED_PROBABILITY": str(share),
    }
    if _COUNTS not in os.environ:
        os.environ[_COUNTS] = tempfile.mkdtemp(prefix="fdbqueue-errors-")
    count_errors()


def count_errors() -> None:
    """Count the errors of this process, if one of its parents has called `begin`."""
    directory = os.environ.get(_COUNTS)
    if directory is None:
        return
    try:
        binding = importlib.import_module("fdb.impl")
    except Exception:  # bare, without the client library: then this process cannot reach a cluster
        return
    _count_in(Path(directory), binding.Transaction)
    _ask_until_answered()


def _ask_until_answered() -> None:
    """Have `require_answer` ask again until its time is over: an injected 1031 would end the program."""
    module = importlib.import_module("fdbqueue.core.database")
    ask = module.require_answer

    def require_answer(database: Any, url: str, timeout_s: float) -> None:
        until = database.runtime.monotonic() + timeout_s
        while True:
            try:
                return ask(database, url, timeout_s)
            except module.DatabaseNotFound as error:
                is_other_cluster = type(error) is not module.DatabaseNotFound
                if is_other_cluster or database.runtime.monotonic() >= until:
                    raise

    for user in [module, *sys.modules.values()]:  # some have imported it already
        if getattr(user, "__dict__", {}).get("require_answer") is ask:
            vars(user)["require_answer"] = require_answer


def _count_in(directory: Path, transaction: Any) -> None:
    on_error, row = transaction.on_error, [b"", None]

    def counted(self: Any, error: Any) -> Any:
        if row[0] != os.getpid():  # a file for each process, made at its first error
            row[:] = os.getpid(), _opened(directory)
        counts, place = row[1], getattr(error, "code", error) * _NUMBER.size
        _NUMBER.pack_into(counts, place, _NUMBER.unpack_from(counts, place)[0] + 1)
        return on_error(self, error)

    transaction.on_error = counted


def _opened(directory: Path) -> mmap.mmap:
    """A new file of counts. It is mapped, so a process that is killed has counted all of its errors."""
    number, path = tempfile.mkstemp(dir=directory)
    try:
        os.truncate(path, _CODES * _NUMBER.size)
        return mmap.mmap(number, _CODES * _NUMBER.size)
    finally:
        os.close(number)


def counted() -> Counter[int]:
    """The number of each error in all processes."""
    total: Counter[int] = Counter()
    for path in Path(os.environ[_COUNTS]).iterdir():
        numbers = _NUMBER.iter_unpack(path.read_bytes())
        total.update({code: number for code, (number,) in enumerate(numbers) if number})
    return total


def end() -> None:
    """Remove the files of the counts."""
    shutil.rmtree(os.environ.pop(_COUNTS))


def told(share: int, errors: Counter[int]) -> str:
    listed = ", ".join(f"{errors[code]:,} of {code}" for code in sorted(errors)) or "none"
    return f"client buggify, {share} %: attempts that ended in an error: {listed}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.buggify", description=__doc__.partition("\n")[0])
    parser.add_argument("--percent", type=checked, default=5)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    begin(options.percent)
    # The counts of a program need tests/guarded/sitecustomize.py, which Python imports when it starts.
    path = [str(_TREE / "tests" / "guarded"), str(_TREE), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    status = subprocess.run(options.command, env=environment, check=False).returncode
    print(told(options.percent, counted()))
    end()
    return status


if __name__ == "__main__":
    sys.exit(main())
