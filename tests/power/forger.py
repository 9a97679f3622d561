"""A user that stores bytes which look like a record: `python -m tests.power.forger PATH LOG STEP SHAPE`.

The first process, STEP `die`, dies with a long record in the journal, of which LMDB knows nothing. The next
one, STEP `go-on`, writes a short record over it, so that the forged one lies right behind.
"""

import os
import sys
from typing import Any, NoReturn

import fdbqueue
from fdbqueue.embedded import journal
from fdbqueue.embedded.durability import Durable
from tests.power import disk, promises
from tests.power.promises import SHAPES

KEY, SHORT = b"key", b"short"
LONG_BYTES = 5_000
NO_SALT = bytes(16)
UNSALTED = "unsalted"
_seal = journal._seal


def unsalted(_salt: bytes, *of: Any) -> bytes:
    """The planted bug: a seal that is the same in each generation."""
    return _seal(NO_SALT, *of)


def main(path: str, log: str, step: str, shape: str, seal: str) -> None:
    if seal == UNSALTED:
        journal._seal = unsalted
    tell = disk.teller(log)
    with SHAPES[shape].used(), fdbqueue.open(f"embedded:{path}") as db:
        if step == "die":
            db[b"first"] = b"value"
            Durable.write = die_after(Durable.write)  # type: ignore[method-assign]
            db[KEY] = forged(db.create_transaction().get_read_version().wait() + 1)
        db[KEY] = SHORT
        tell("done", "short", "written")


def die_after(write: Any) -> Any:
    def dying(*given: Any) -> NoReturn:
        write(*given)
        os._exit(0)

    return dying


def forged(version: int) -> bytes:
    """A value with a record that follows the commit of `version`, if that is the short one."""
    body = journal._encode([journal.Writes([], {promises.ENTRY + b"forged": b"value"})])
    numbers = (len(body), version + 1, version)
    record = journal._RECORD.pack(*numbers, _seal(NO_SALT, *numbers, body)) + body
    short = journal._encode([journal.Writes([], {KEY: SHORT})])
    long = journal._encode([journal.Writes([], {KEY: bytes(LONG_BYTES)})])
    return (bytes(len(short) - (len(long) - LONG_BYTES)) + record).ljust(LONG_BYTES, b"\0")


if __name__ == "__main__":
    main(*sys.argv[1:])
