"""Owners: the storage servers of a cluster that have a key."""

import importlib
from collections.abc import Sequence
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.embedded.database import Database as EmbeddedDatabase


def is_cluster(database: Database) -> bool:
    """True if storage servers have the data; False for a directory."""
    return not isinstance(database.engine, EmbeddedDatabase)


def inside(prefix: bytes) -> bytes:
    """A key of a partition, or of a part of the receipts, behind all boundaries of `spread` in it."""
    return prefix + b"\x02"


def owners_of_partitions(database: Database, prefixes: Sequence[bytes]) -> list[list[str] | None]:
    """The addresses that have the keys of each partition, in order; None for each on a directory.

    Reads: the map of shards, by snapshot.
    Round trips: 3.
    """
    if not is_cluster(database):
        return [None for _ in prefixes]

    def body(tr: Any) -> list[list[str] | None]:
        asked = [locality().get_addresses_for_key(tr, inside(prefix)) for prefix in prefixes]
        return [sorted(address.decode() for address in found.wait()) for found in asked]

    return run(database, body)


def boundaries_in(database: Database, begin: bytes, end: bytes) -> list[bytes]:
    """The first key of each shard that begins in this range. Needs a cluster."""
    return [bytes(key) for key in locality().get_boundary_keys(database.engine, begin, end)]


def locality() -> Any:
    """The binding's module of that name, which needs the client library when it is imported."""
    return importlib.import_module("fdb.locality")
