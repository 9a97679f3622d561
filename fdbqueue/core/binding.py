"""The binding (the package `foundationdb`, 7.1 to 8.0) and the library `libfdb_c`: differences, and knobs.

A binding passes its own API version to the library as the *header version*. An older library refuses that,
and lacks functions that the binding looks up. `load` passes a header version that the library knows, and
stands in for those functions: fdbqueue calls none of them.

`import fdb` needs no client library. `fdb.impl` does, so only `load` imports it.

The programs of this package set knobs of the client library for their own process. A library must not set
them: they are of the whole process, and hold for every database that it opens. A program asks for them before
it opens anything; `open` hands them to the client library before its network starts. The variable
FDB_NETWORK_OPTION_KNOB, which the client library reads by itself, goes before them.
"""

import ctypes
import importlib
import json
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

import fdb

from fdbqueue.core import limits
from fdbqueue.core.errors import ClientLibraryMissing, ClientLibraryTooOld, ClusterMismatch
from fdbqueue.core.runtime import RealRuntime, Runtime

API_VERSION = 710
"""The API version that fdbqueue chooses: every supported library and cluster has it."""


def _latest_of(binding: Any) -> int:
    latest: int = getattr(binding, "LATEST_API_VERSION", 710)  # the binding 7.1 does not say
    return latest


LATEST_API_VERSION = _latest_of(fdb)
"""The newest API version that the binding knows."""

# Functions that some binding looks up and some library lacks.
_SPARE_FUNCTIONS = (
    "fdb_database_get_client_status",  # since 7.3
    "fdb_tenant_get_id",  # since 7.3
    "fdb_tenant_list_blobbified_ranges",  # in 7.3 and 7.4
    "fdb_transaction_get_range_split_points_with_limit",  # since 8.0
)

_INVALID_OPTION = 2007
_RELEASE_MIN = 7, 1  # the first with API version 710
_PROTOCOL = re.compile(r"fdb00b(\d\d)(\d)")  # fdb00b073000000 is the protocol of the release 7.3

_choosing = RealRuntime().lock()  # the library accepts one choice per process


class _Absent:
    """A function that the library lacks. The binding may declare its types, and nothing can call it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object) -> NoReturn:
        raise ClientLibraryTooOld(reason=f"It has no function {self._name}.")


def load() -> Any:
    """Return the module `fdb` with its library and an API version: 710, unless the program has chosen one."""
    try:
        impl = importlib.import_module("fdb.impl")
    except Exception as error:  # the binding raises a bare one if it finds no library
        raise ClientLibraryMissing from error
    with _choosing:
        if not fdb.is_api_version_selected():
            _choose_api_version(impl._capi)
    return fdb


def _choose_api_version(library: Any) -> None:
    try:
        newest = library.fdb_get_max_api_version()
        if newest < API_VERSION:
            raise ClientLibraryTooOld(
                reason=f"It knows API versions up to {newest}, and fdbqueue needs {API_VERSION}."
            )
        for name in _SPARE_FUNCTIONS:
            if not hasattr(library, name):
                setattr(library, name, _Absent(name))
        fdb.LATEST_API_VERSION = min(LATEST_API_VERSION, newest)
        fdb.api_version(API_VERSION)
    except (RuntimeError, AttributeError) as error:
        # A function that is not among the spare ones is an AttributeError.
        raise ClientLibraryTooOld(reason=f"{str(error).rstrip('.')}.") from None
    finally:
        fdb.LATEST_API_VERSION = LATEST_API_VERSION


def may_be_lost(transaction: Any) -> None:
    """Let the commit of `transaction` reach the disk a moment later: a power cut may lose it.

    No effect on a cluster, where each commit is durable.
    """
    transaction.options.set_durability_risky()


def name_of_process(engine: Any) -> bytes:
    """The name by which `is_gone` knows this process; empty on a cluster, and for files without names."""
    named: Callable[[], bytes] | None = getattr(engine, "name_of_process", None)
    return b"" if named is None else named()


def is_gone(engine: Any, name: bytes) -> bool | None:
    """True if the process of `name` has ended; `name` may have more bytes behind it. None on a cluster, and
    for bytes that begin with no name.
    """
    ask: Callable[[bytes], bool | None] | None = getattr(engine, "is_gone", None)
    return None if ask is None else ask(name)


def knows_processes(engine: Any) -> bool:
    """True if `is_gone` tells of each process that uses the database; false on a cluster."""
    known: Callable[[], bool] | None = getattr(engine, "knows_processes", None)
    return known is not None and known()


def bypass_storage_quota(transaction: Any) -> None:
    """Let `transaction` commit on a full disk of the embedded engine, or above a tenant's quota.

    No effect with a binding or a client library of 7.1, which have no quotas.
    """
    try:
        transaction.options.set_bypass_storage_quota()
    except AttributeError:
        return  # the binding 7.1
    except Exception as error:
        # A library 7.1 below a newer binding. The class of the error is that of the engine.
        if getattr(error, "code", None) != _INVALID_OPTION:
            raise


def library_release() -> str:
    """Return the release of the loaded library, such as "7.3.79". Call `load` before."""
    function = importlib.import_module("fdb.impl")._capi.fdb_get_client_version
    function.restype = ctypes.c_char_p
    version: bytes = function()
    return version.decode().partition(",")[0]


def require_match(engine: Any, url: str, runtime: Runtime) -> None:
    """For a cluster that does not answer: raises ClusterMismatch if it has another release than the library.

    The library of release 7.3 and later knows. It connects anew each second: this looks for up to
    limits.CLIENT_STATUS_LOOKS * limits.CLIENT_STATUS_DELAY_S while the servers answer its connections.
    """
    for _ in range(limits.CLIENT_STATUS_LOOKS):
        status = _client_status(engine)
        cluster = _other_release(status)
        if cluster is not None:
            raise ClusterMismatch(url=url, cluster=cluster, library=library_release(), cure=_cure(cluster))
        if not any(connection.get("BytesReceived") for connection in _connections(status)):
            return
        runtime.sleep(limits.CLIENT_STATUS_DELAY_S)


def _cure(cluster: str) -> str:
    major, minor = map(int, cluster.split("."))
    if (major, minor) < _RELEASE_MIN:
        return "Upgrade the cluster to 7.1 or later, then install foundationdb-clients of its release."
    return f"Install foundationdb-clients {cluster}."


def _client_status(engine: Any) -> dict[str, Any]:
    """Return the status of the connections; empty from the embedded engine and from older libraries."""
    get_client_status = getattr(engine, "get_client_status", None)
    if get_client_status is None:
        return {}
    try:
        status: dict[str, Any] = json.loads(get_client_status().wait())
    except ClientLibraryTooOld:
        return {}
    return status


def _connections(status: dict[str, Any]) -> list[dict[str, Any]]:
    # With several libraries in the process, the status of the connections is a part of the answer.
    connections: list[dict[str, Any]] = status.get("DatabaseStatus", status).get("Connections", [])
    return connections


def _other_release(status: dict[str, Any]) -> str | None:
    """Return the release of the servers that refuse the library, None without such servers."""
    refused = [status] if status.get("InitializationState") == "incompatible" else []
    refused += [connection for connection in _connections(status) if connection.get("Compatible") is False]
    protocols = (_PROTOCOL.match(place.get("ProtocolVersion", "")) for place in refused)
    return next((f"{int(found[1])}.{found[2]}" for found in protocols if found), None)


# When a watch fires, the client library asks for a read version. If that is older than the change, it asks
# again after this delay, by default 10 ms: most of the time from a put to a waiting take.
_PROGRAM_KNOBS = {"future_version_retry_delay": "0.001"}
_VARIABLE = "FDB_NETWORK_OPTION_KNOB"
_NETWORK_ALREADY_SET_UP = 2009

_asked = False


def for_this_program() -> None:
    """Set the knobs of this process when it opens its first cluster. For programs, before they open any."""
    global _asked
    _asked = True


def given_knobs() -> list[str]:
    """The knobs of this process, as name=value: those of the environment, then those that it asked for."""
    given = os.environ.get(_VARIABLE, "")
    asked = _PROGRAM_KNOBS.items() if _asked else ()
    return [*given.split(), *(f"{name}={value}" for name, value in asked if name not in given)]


def hand_to(binding: Any) -> None:
    """Set the knobs that the program asked for, unless the environment names them or the network runs."""
    given = os.environ.get(_VARIABLE, "")
    for name, value in _PROGRAM_KNOBS.items() if _asked else ():
        try:
            if name not in given:
                binding.options.set_knob(f"{name}={value}")
        except binding.FDBError as error:
            if error.code != _NETWORK_ALREADY_SET_UP:
                raise
