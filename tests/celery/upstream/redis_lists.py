"""The commands of Redis with which Celery's tests count what has run, on the database of their broker."""

import os
import time
from typing import Any

from msgspec import msgpack

import fdbqueue
import fdbqueue.integrations.celery

LISTS = fdbqueue.Subspace(("lists",))
POLL_S = 0.02


@fdbqueue.transactional
def read(tr: Any, key: str) -> list[bytes]:
    found = tr[LISTS.pack((key,))]
    return msgpack.decode(bytes(found), type=list[bytes]) if found.present() else []


@fdbqueue.transactional
def write(tr: Any, key: str, values: list[bytes]) -> None:
    tr[LISTS.pack((key,))] = msgpack.encode(values)


@fdbqueue.transactional
def push(tr: Any, key: str, value: bytes) -> None:
    write(tr, key, [*read(tr, key), value])


@fdbqueue.transactional
def pop(tr: Any, key: str) -> bytes | None:
    values = read(tr, key)
    write(tr, key, values[1:])
    return values[0] if values else None


@fdbqueue.transactional
def add_one(tr: Any, key: str) -> None:
    write(tr, key, [b"%d" % (int((read(tr, key) or [b"0"])[0]) + 1)])


class RedisLists:
    def __init__(self, **_: Any) -> None:
        self._db = fdbqueue.integrations.celery.database(os.environ["TEST_BROKER"])

    def __enter__(self) -> "RedisLists":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rpush(self, key: str, value: Any) -> None:
        push(self._db, key, value if isinstance(value, bytes) else str(value).encode())

    def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        return read(self._db, key)[first : None if last == -1 else last + 1]

    def llen(self, key: str) -> int:
        return len(read(self._db, key))

    def exists(self, key: str) -> bool:
        return bool(read(self._db, key))

    def blpop(self, key: str, timeout: float) -> tuple[bytes, bytes] | None:
        until = time.monotonic() + timeout
        while (value := pop(self._db, key)) is None:
            if time.monotonic() > until:
                return None
            time.sleep(POLL_S)
        return key.encode(), value

    def incr(self, key: str) -> None:
        add_one(self._db, key)

    def get(self, key: str) -> bytes | None:
        return (read(self._db, key) or [None])[0]

    def delete(self, *keys: str) -> None:
        for key in keys:
            write(self._db, key, [])
