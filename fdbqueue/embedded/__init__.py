"""FoundationDB's transaction API over LMDB: `import fdbqueue.embedded as fdb`.

It has the names of the official binding at 7.3, for a directory instead of a cluster, without the directory
layer, tenants and locality.
"""

import fdb as _binding
from fdb import tuple
from fdb.subspace_impl import Subspace

from fdbqueue.core.binding import LATEST_API_VERSION
from fdbqueue.core.seam import FDBError, predicates
from fdbqueue.embedded import impl
from fdbqueue.embedded.surface import Future, StreamingMode
from fdbqueue.embedded.surface import network_options as options
from fdbqueue.embedded.transaction import Database, Transaction, open_directory, transactional
from fdbqueue.embedded.view import KeySelector, KeyValue

# The tuple layer looks up `fdb.impl.Value` when it packs a versionstamp. The engine's module serves until the
# binding's own one, which needs the C library, is imported and replaces it.
if not hasattr(_binding, "impl"):
    _binding.impl = impl

__all__ = [
    "LATEST_API_VERSION",
    "Database",
    "FDBError",
    "Future",
    "KeySelector",
    "KeyValue",
    "StreamingMode",
    "Subspace",
    "Transaction",
    "api_version",
    "get_api_version",
    "impl",
    "is_api_version_selected",
    "open",
    "options",
    "predicates",
    "transactional",
    "tuple",
]

DEFAULT_PATH = "./fdbqueue-data"
# Earlier versions had other rules for atomic operations, versionstamps and the life of options.
_VERSION_MIN = 630

_selected: int | None = None


def api_version(version: int) -> None:
    """Choose the API version, once.

    Raises: RuntimeError for a second, different choice, or an unknown version.
    """
    global _selected
    if _selected is not None and _selected != version:
        raise RuntimeError(f"FDB API already loaded at version {_selected}")
    if version < _VERSION_MIN:
        raise RuntimeError(f"FDB API versions before {_VERSION_MIN} are not supported")
    if version > LATEST_API_VERSION:
        raise RuntimeError(f"Latest known FDB API version is {LATEST_API_VERSION}")
    _selected = version


def is_api_version_selected() -> bool:
    return _selected is not None


def get_api_version() -> int:
    """Return the chosen version.

    Raises: RuntimeError before the choice.
    """
    if _selected is None:
        raise RuntimeError("API version is not set")
    return _selected


_databases: dict[str, Database] = {}


def open(cluster_file: str | None = None, event_model: object = None) -> Database:  # noqa: ARG001
    """Return the database of a directory, one object per path; the path replaces the cluster file."""
    path = cluster_file or DEFAULT_PATH
    database = _databases.get(path)
    if database is None or database._closed:
        database = _databases[path] = open_directory(path)
    return database
