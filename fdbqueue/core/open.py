"""`open(url)`: the engine and the place that a URL names.

A page of another site could give its own name the address of this machine, and read a server of it. Its
requests carry that name in the Host header.
"""

import builtins
import os
import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from fdbqueue.core import binding, limits
from fdbqueue.core.arguments import checked_span
from fdbqueue.core.database import Database, adopted, known_by_engine
from fdbqueue.core.errors import ClusterForked, DatabaseNotFound, InvalidArgument, UnknownUrl, WrongType
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.visible import shown
from fdbqueue.embedded.store import is_database
from fdbqueue.embedded.transaction import open_directory, open_private
from fdbqueue.embedded.writes import Flush


def host_name_in(header: str) -> str:
    """The name in a Host header, in lower case and without its port; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_local_name(header: str) -> bool:
    """True if the Host header names this machine: localhost, or a loopback address."""
    name = host_name_in(header)
    return name == "localhost" or is_loopback(name)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


PRIVATE_URL = "memory:"
_DEFAULT_URL = "embedded:./fdbqueue-data"
_SHARED_SCHEME = "embedded+shared"
_DURABILITY = "durability="
_QUERY = re.compile(r"\?(?=(?:durability|tag|priority|timeout|retry_limit)=)")
"""The begin of a query behind the path of a directory, which may have a question mark itself."""
_FLUSH_OF = {"commit": Flush.NOW, "soon": Flush.SOON, "process": Flush.NEVER}
DIRECTORY_SCHEMES = ("embedded", _SHARED_SCHEME)


class Engines(NamedTuple):
    """How the database of each kind of URL is opened, and the class of ours over it."""

    cluster: Callable[[str | None], Any]
    directory: Callable[..., Any]
    private: Callable[[Any], Any]
    over: type[Database] = Database


def open(
    url: str | AnyDatabase | None = None,
    *,
    create: bool = True,
    runtime: Runtime | None = None,
    session_ttr_s: float = limits.SESSION_TTR_S,
    shared_directory: bool = False,
    tags: Sequence[str] = (),
    priority: Literal["default", "batch"] | None = None,
    transaction_timeout_s: float | None = None,
    transaction_retry_limit: int | None = None,
) -> Database:
    """Open a database; a context manager, to be closed.

    `fdb:` is the cluster of the default cluster file, `fdb:PATH` that of a given one; `embedded:PATH` is
    the durable engine in a directory; `memory:` a private one that goes with its process. Without a URL:
    `$FDBQUEUE_URL`, else the cluster of `$FDB_CLUSTER_FILE`, else `embedded:./fdbqueue-data`. An empty
    variable counts as unset. A path `~/...` is in the home directory. Without `create`, a directory has to
    hold a database already.

    A directory is for any number of processes of one machine and one PID namespace, and lies on a local disk.
    A commit is on the disk when its call returns. As `embedded:PATH?durability=soon` it is
    there within 0.1 s, and with `process` whenever the system writes it: then a power cut may lose the last
    commits, and the death of the process none.

    `url` may also be an open `fdb.Database`. Until the result is closed, the options hold for calls given
    that database, too.

    `session_ttr_s`: for this time after its process died, a session without a ttr of its own keeps its tasks.
    This process's own session is one of these.

    A directory that group or others may write to, or that another user owns, is refused. With
    `shared_directory`, or as `embedded+shared:PATH`, it is opened: all users that may write there are
    trusted.

    The other options are those of each transaction that a call given this database makes, and of none that
    its caller makes. A cluster throttles by `tags`, at most limits.TAGS_MAX. With the `priority` "batch", all
    calls wait while the cluster is busy, also for ever; "default" gives background work the priority of
    calls. `transaction_timeout_s` ends a transaction with the error 1031, and its commit may be stored;
    `transaction_retry_limit` ends it with the error of the last attempt. Heartbeats and renewals have none of
    the four: a worker may be late with an ack, but its lease holds. Without a cluster, `tags` and `priority`
    have no effect. The URL of a cluster or a directory may have all four:
    `fdb:PATH?tag=NAME&priority=batch&timeout=S&retry_limit=N`.

    Raises UnknownUrl; ClientLibraryMissing, ClientLibraryTooOld or ClusterForked on the way to a cluster;
    StorageInUse, UnsafePath, StorageFormat or StorageFull for a directory; DatabaseNotFound for one without
    a database; InvalidArgument for `shared_directory` with another engine, and for a bad option. Then nothing
    was written.
    """
    wishes = wished(tags, priority, transaction_timeout_s, transaction_retry_limit)
    session_ttr_s = checked_span("session_ttr_s", session_ttr_s)
    if runtime is not None and not callable(getattr(runtime, "monotonic", None)):
        raise WrongType(name="runtime", wanted="a Runtime", got=runtime)
    if url is None or isinstance(url, str):
        named = with_query(checked_url(url, shared_directory), wishes)
        database = open_url(named, create, runtime or RealRuntime(), session_ttr_s, _ENGINES)
    else:
        database = adopted(url, session_ttr_s)
    return database if wishes is None else grant(database, wishes)


_PACE = "fdbqueue.core.pace"
"""Imported by name, for the first option: a database without any does without it."""


def wished(tags: Any, priority: Any, timeout_s: Any, retry_limit: Any) -> Any:
    """The checked options of transactions; None without any. Raises InvalidArgument."""
    if tags == () and priority is timeout_s is retry_limit is None:
        return None
    return resolve_name(f"{_PACE}:wishes_of")(tags, priority, timeout_s, retry_limit)


def with_query(url: str, wishes: Any) -> str:
    """The URL by which other processes open the database with these options. Raises InvalidArgument."""
    scheme, _, rest = url.partition(":")
    if wishes is None or scheme not in ("fdb", *DIRECTORY_SCHEMES):
        return url
    if "?" in rest if scheme == "fdb" else place_of(url)[2]:
        raise InvalidArgument(name="url", wanted="one without options, beside options", got=url)
    mark = "&" if _QUERY.search(rest) else "?"
    return f"{url}{mark}{resolve_name(f'{_PACE}:query_of')(wishes)}"


def grant(database: Database, wishes: Any) -> Database:
    resolve_name(f"{_PACE}:with_wishes")(database, wishes)
    return database


def checked_url(url: str | None, shared_directory: bool) -> str:
    """The URL to open. Raises UnknownUrl; InvalidArgument for `shared_directory` with another engine."""
    named = url_from_environment() if url is None else _possible(url)
    return shared_url(named) if shared_directory else named


def _possible(url: str) -> str:
    """Return `url`, and refuse one that cannot be the name of a file."""
    try:
        written = os.fsencode(url)
    except UnicodeEncodeError:
        raise UnknownUrl(url=url) from None
    if b"\x00" in written or len(written) > limits.URL_BYTES_MAX:
        raise UnknownUrl(url=url)
    return url


def shared_url(url: str) -> str:
    """The URL that opens the directory of `url` as a shared one. Raises InvalidArgument for another URL."""
    scheme, _, path = url.partition(":")
    if scheme not in DIRECTORY_SCHEMES:
        raise InvalidArgument(
            name="shared_directory", wanted=f"False for {url}, which is no directory", got=True
        )
    return f"{_SHARED_SCHEME}:{path}"


def open_url(url: str, create: bool, runtime: Runtime, session_ttr_s: float, engines: Engines) -> Database:
    """The database that `url` names, opened by `engines`. Raises as `open`."""
    require_known(url)
    scheme, _, rest = url.partition(":")
    if scheme == "fdb":
        path, _, query = rest.partition("?")
        wishes = _wishes_in(url, query)
        cluster = engines.cluster(in_home(path, url) if path else None)
        return _named(engines.over(cluster, runtime, session_ttr_s=session_ttr_s), url, wishes)
    wishes = None
    if scheme in DIRECTORY_SCHEMES:
        path, flush, wishes = place_of(url)
        if not create and not is_database(path):
            raise DatabaseNotFound(url=url)
        engine = engines.directory(path, runtime, shared=scheme == _SHARED_SCHEME, flush=flush)
    else:
        engine = engines.private(runtime)
    return _named(engines.over(engine, runtime, engine.close, session_ttr_s), url, wishes)


def _named(database: Database, url: str, wishes: Any) -> Database:
    database.url = url
    return known_by_engine(database if wishes is None else grant(database, wishes))


def _wishes_in(url: str, query: str) -> Any:
    return resolve_name(f"{_PACE}:wishes_in")(url, query) if query else None


def require_known(url: str) -> None:
    """Raises: UnknownUrl for a URL that names no engine and place."""
    scheme, colon, _ = url.partition(":")
    if scheme in DIRECTORY_SCHEMES:
        place_of(url)
    elif url != PRIVATE_URL and not (colon and scheme == "fdb"):
        raise UnknownUrl(url=url)


def place_of(url: str) -> tuple[str, Flush, Any]:
    """The path in the URL of a directory, when commits reach its disk, and the options of transactions.

    Raises UnknownUrl; InvalidArgument for a bad option.
    """
    path, *query = _QUERY.split(url.partition(":")[2], maxsplit=1)
    parts = "".join(query).split("&")
    flushes = [part.removeprefix(_DURABILITY) for part in parts if part.startswith(_DURABILITY)] or ["commit"]
    flush = _FLUSH_OF.get(flushes[0]) if len(flushes) == 1 else None
    if flush is None or not path:
        raise UnknownUrl(url=url)
    options = "&".join(part for part in parts if not part.startswith(_DURABILITY))
    return in_home(path, url), flush, _wishes_in(url, options)


def in_home(path: str, url: str) -> str:
    """The path of `url`, with `~` as the home directory: a shell leaves it alone behind a colon.

    Raises UnknownUrl if there is no home directory. A directory of the name ~ would be made otherwise, and
    who removes it with `rm -r ~` loses more.
    """
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise UnknownUrl(url=url)
    return found


def url_from_environment() -> str:
    url = os.environ.get("FDBQUEUE_URL")
    if url:
        return url
    cluster_file = os.environ.get("FDB_CLUSTER_FILE")
    return f"fdb:{cluster_file}" if cluster_file else _DEFAULT_URL


def open_cluster(cluster_file: str | None) -> Any:
    """The binding's database.

    Raises: ClientLibraryMissing, ClientLibraryTooOld, ClusterForked; DatabaseNotFound for a cluster file.
    """
    fdb = binding.load()
    _require_own_library(cluster_file)
    _require_file(cluster_file)
    binding.hand_to(fdb)
    return fdb.open(cluster_file)


_library_process: int | None = None
"""The process that started the threads of the client library."""


def _require_own_library(cluster_file: str | None) -> None:
    """Refuse a forked child, which has no threads of the library: its calls would hang."""
    global _library_process
    this = RealRuntime.process_id()
    if _library_process not in (None, this):
        raise ClusterForked(url=f"fdb:{cluster_file or ''}")
    _library_process = this


def _require_file(path: str | None) -> None:
    """Refuse a cluster file that is named and of no use: the client library would fail each call, and name
    the current directory in place of the file.
    """
    named = path or os.environ.get("FDB_CLUSTER_FILE")
    if not named:
        return
    try:
        with builtins.open(named, "rb") as file:
            reason = "" if b"@" in file.read() else "it has no line DESCRIPTION:ID@HOST:PORT"
    except OSError as error:
        reason = f"{error.strerror}"
    if reason:
        what = shown(named) if path else f"{shown(named)} of FDB_CLUSTER_FILE"
        text = f"The cluster file {what} cannot be used: {reason}. Name another one as fdb:PATH."
        raise DatabaseNotFound(text, url=f"fdb:{path or ''}")


_ENGINES = Engines(open_cluster, open_directory, open_private)
