"""The data that the code of commit e93aa1e has written (write_old.py), in a database in memory."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fdbqueue
from fdbqueue import Database
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
        load(db)
        yield db


def load(db: Database) -> None:
    for key, value in json.loads(FILE.read_text()).items():
        db[bytes.fromhex(key)] = bytes_of(value)


def bytes_of(value: str) -> bytes:
    large = value.startswith("z")
    return zlib.decompress(bytes.fromhex(value[1:])) if large else bytes.fromhex(value)


def everything(db: Database) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in db.get_range(b"", b"\xff")}
