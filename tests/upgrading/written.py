"""The data that the code of commit e93aa1e has written (write_old.py), in a database in memory."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database
from fdbqueue.database import run
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.runtime import RealRuntime

FILE = Path(__file__).with_name("e93aa1e.json")
LATER_S = 1_100_000_000
"""Behind the ends of the sessions in the file, and of their leases."""


class Later(RealRuntime):
    """A clock at which all processes of the earlier release are dead."""

    def now(self) -> float:
        return super().now() + LATER_S

    def now_us(self) -> int:
        return super().now_us() + LATER_S * 1_000_000


@contextmanager
def old_database(*, later: bool = True) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=Later() if later else None) as db:
        load(db, DEFAULT_ROOT)
        load_bare(db)
        yield db


def load(db: Database, root: Subspace) -> None:
    """Load the named queues, and all that belongs to them, below a root."""
    old = Subspace(("fdbqueue",)).key()
    rows = {root.key() + key.removeprefix(old): value for key, value in _rows() if key.startswith(old)}
    run(db, lambda tr: [tr.set(key, value) for key, value in rows.items()])


def load_bare(db: Database) -> None:
    """Load the queues over subspaces."""
    bare = Subspace(("bare",)).key()
    rows = {key: value for key, value in _rows() if key.startswith(bare)}
    run(db, lambda tr: [tr.set(key, value) for key, value in rows.items()])


def _rows() -> Iterator[tuple[bytes, bytes]]:
    for key, value in json.loads(FILE.read_text()).items():
        yield bytes.fromhex(key), bytes_of(value)


def bytes_of(value: str) -> bytes:
    large = value.startswith("z")
    return zlib.decompress(bytes.fromhex(value[1:])) if large else bytes.fromhex(value)


def everything(db: Database) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}
