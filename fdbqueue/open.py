"""`open(url)`: which engine, and where."""

import importlib
import os
from typing import Any

from fdbqueue.database import Database
from fdbqueue.embedded.database import open_directory, open_private
from fdbqueue.errors import ClientLibraryMissing, ClientLibraryTooOld, UnknownUrl
from fdbqueue.runtime import RealRuntime, Runtime

_API_VERSION = 710
_DEFAULT_URL = "embedded:./fdbqueue-data"


def open(url: str | None = None, *, runtime: Runtime | None = None) -> Database:
    """Open a database; a context manager, to be closed.

    `fdb:` is the cluster of the default cluster file, `fdb:PATH` that of a given one; `embedded:PATH` is
    the durable engine in a directory; `memory:` a private one that goes when it is closed. Without a URL:
    `$FDBQUEUE_URL`, else the cluster of `$FDB_CLUSTER_FILE`, else `embedded:./fdbqueue-data`.

    Raises UnknownUrl; ClientLibraryMissing or ClientLibraryTooOld on the way to a cluster; StorageInUse
    or StorageFormat for a directory.
    """
    url = url_from_environment() if url is None else url
    scheme, colon, rest = url.partition(":")
    runtime = runtime or RealRuntime()
    if colon and scheme == "fdb":
        return Database(_open_cluster(rest or None), runtime)
    if scheme == "embedded" and rest:
        engine = open_directory(rest, runtime)
        return Database(engine, runtime, on_close=engine.close)
    if url == "memory:":
        engine = open_private(runtime)
        return Database(engine, runtime, on_close=engine.close)
    raise UnknownUrl(url=url)


def url_from_environment() -> str:
    url = os.environ.get("FDBQUEUE_URL")
    if url:
        return url
    cluster_file = os.environ.get("FDB_CLUSTER_FILE")
    return f"fdb:{cluster_file}" if cluster_file else _DEFAULT_URL


def _open_cluster(cluster_file: str | None) -> Any:
    _load_client_library()
    import fdb

    if not fdb.is_api_version_selected():
        try:
            fdb.api_version(_API_VERSION)
        except (RuntimeError, AttributeError) as error:
            # The binding compares its own version with the library's before anything else; a library
            # older than that check lacks the functions it looks up.
            raise ClientLibraryTooOld(reason=f"{str(error).rstrip('.')}.") from None
    return fdb.open(cluster_file)


def _load_client_library() -> None:
    # The binding raises a bare Exception when it finds no library; with one, this import cannot fail.
    try:
        importlib.import_module("fdb.impl")
    except Exception as error:
        raise ClientLibraryMissing from error
