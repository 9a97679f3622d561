"""The binding's functions at module level: `api_version` and `open`."""

from fdbqueue.binding import LATEST_API_VERSION as LATEST_API_VERSION
from fdbqueue.embedded.database import Database, open_directory

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
