"""The databases of Celery's brokers and result backends: one for each URL and process, until its end.

Beside them: the URLs, the transaction of the program, the errors as kombu knows them, and the pools of
workers that can use a database.

And the keys of the Celery room: this is the only file that builds or parses them (root_keys.py knows their
shapes). Keys are below R["celery"], of the default root. The comment of a column has its parts and its value,
bytes, and behind the semicolon its readers. Results lie elsewhere (integrations/common.py).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from celery import signals
from kombu.exceptions import OperationalError
from kombu.utils.compat import detect_environment

from fdbqueue.core.arguments import writable
from fdbqueue.core.columns import Table
from fdbqueue.core.database import Database, is_away, require_answer
from fdbqueue.core.errors import (
    DatabaseNotFound,
    PoolRefused,
    StorageInUse,
    UnknownBrokerUrl,
    UnknownSession,
    heals,
)
from fdbqueue.core.root_keys import CELERY, DEFAULT_ROOT
from fdbqueue.core.seam import AnyTransaction, Transaction
from fdbqueue.integrations.common import Opening, Within

C = Table()
EXCHANGE = C.packed(0, str)
BINDING = C.packed(0, str, str, str)  # exchange, routing key, queue: owner; each publish to the exchange
OWNED = C.packed(
    1, str
)  # queue: owner, a session, or empty for a queue that stays; declarations of such queues
PARTS = C.packed(2, str)
PART = C.packed(2, str, int, str)  # chord, index, part: empty; the return of that part
COUNT = C.packed(3, str)  # chord: little-endian; each return of a part
SIZE = C.packed(4, str)  # chord: little-endian; each return of a part
ADDED = C.packed(4, str, str)  # chord, part: empty; the addition of that part
CHORD_END = C.packed(5, int, str)  # ends_us, chord: empty; the start of each chord

_PREFIX = DEFAULT_ROOT.pack((CELERY,))

binding, bindings, all_bindings = BINDING.key(_PREFIX), EXCHANGE.under(_PREFIX), BINDING.all(_PREFIX)
binding_of, bound_queue_of = BINDING.parse(_PREFIX), BINDING.last(_PREFIX)
owned, all_owned, owned_of = OWNED.key(_PREFIX), OWNED.all(_PREFIX), OWNED.first(_PREFIX)
part, parts, part_of = PART.key(_PREFIX), PARTS.under(_PREFIX), PART.last(_PREFIX)
count, size = COUNT.key(_PREFIX), SIZE.key(_PREFIX)
added, all_added = ADDED.key(_PREFIX), SIZE.under(_PREFIX)
chord_end, chord_end_of = CHORD_END.key(_PREFIX), CHORD_END.last(_PREFIX)
chord_ends_until = CHORD_END.until(_PREFIX)


SCHEME = "fdbqueue"
_DIRECTORIES = ("embedded", "embedded+shared")
SCHEMES = (SCHEME, *(f"{SCHEME}+{engine}" for engine in (*_DIRECTORIES, "fdb", "memory")))
"""The schemes of broker URLs. kombu cuts the first part off, but not from the URLs of a failover."""

_NO_HOST = ("", "localhost")


def url_of(address: str) -> str:
    """The URL for `fdbqueue.open` that `address` names. A directory or a cluster file is an absolute path, as
    in the URL of a file. Before it may stand `localhost`, with a port that is ignored: programs tell
    alternative brokers apart by them. Raises: UnknownBrokerUrl.
    """
    engine, separator, place = address.removeprefix(f"{SCHEME}+").partition("://")
    host, slash, path = place.partition("/")
    if not separator or not _is_here(host):
        raise UnknownBrokerUrl(url=address)
    if engine == "memory" and not path:
        return "memory:"
    if engine == "fdb":
        return f"fdb:/{path}" if path else "fdb:"
    if engine not in _DIRECTORIES or not slash or not path:
        raise UnknownBrokerUrl(url=address)
    return f"{engine}:/{path}"


def _is_here(host: str) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "") in _NO_HOST and (parts.port or 0) >= 0 and "@" not in host
    except ValueError:  # the port is no number
        return False


ANSWER_S = 5.0
"""Time that a cluster has to answer a new connection."""

_openings: dict[str, Opening] = {}


def at(url: str) -> Database:
    """The open database of `url`, which stays open. Raises: ClusterForked; as fdbqueue.open."""
    opening = _openings.get(url)
    if opening is None:  # a step of a dict is atomic: two threads get the same opening
        opening = _openings.setdefault(url, Opening(url))
    return opening.database()


def database(address: str) -> Database:
    """The open database of the broker or the result backend at `address`, for a program's own transactions.

    Each process has its own, also a child of a worker. To close it does nothing.
    Raises: UnknownBrokerUrl, ClusterForked; as fdbqueue.open.
    """
    return at(url_of(address)).lent()


def answering(url: str) -> Database:
    """The open database of `url`, which has answered. Raises: ClusterForked; DatabaseNotFound."""
    found = at(url)
    require_answer(found, url, ANSWER_S)
    return found


def close() -> None:
    """Close the databases that brokers and result backends of this process have opened.

    Close the connections first. A later connection opens its database again.
    """
    for opening in list(_openings.values()):
        opening.close()


_within = Within()


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Put the tasks that this block sends within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the broker, in the same thread. The block may run again, with the
    whole body of `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. A task must
    not be waited for inside: it is not there before the commit.
    """
    return _within.block(writable(tr))


def current() -> Transaction | None:
    """The transaction of the block around the caller; None outside."""
    found: Transaction | None = _within.current()
    return found


_LOST = (DatabaseNotFound, StorageInUse, UnknownSession, OSError)


class BrokerLost(OperationalError):
    """The database has not answered, or has ended the session of the connection."""


@contextmanager
def told_to_kombu() -> Iterator[None]:
    """Raises BrokerLost for the error of a database that is away, or cannot be opened now. An error that does
    not heal in this process passes as it is: a worker ends with it. In a transaction of the program, errors
    pass as they are: its retry loop needs them.
    """
    try:
        yield
    except Exception as error:
        is_lost = is_away(error) or (isinstance(error, _LOST) and heals(error))
        if current() is None and is_lost:
            raise BrokerLost(str(error)) from error
        raise


STARTED_WITHIN_S = 120.0
"""Time that a child has to start afresh: it imports the application, on a busy machine, too."""

_GREEN = ("gevent", "eventlet")
_URLS = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")


def require_threads() -> None:
    """Raises: PoolRefused in a process with greenlets for threads: leases are renewed in real ones."""
    environment = detect_environment()
    if environment in _GREEN:
        raise PoolRefused(pool=environment)


def watch_workers() -> None:
    """Prepare each Celery worker of this process before its pool starts."""
    signals.worker_init.connect(prepare, weak=False, dispatch_uid="fdbqueue.integrations.celery")


def prepare(sender: Any, **_: Any) -> None:
    """Refuse a pool of greenlets, and have children of a prefork pool started afresh for a cluster.
    FoundationDB's client library does not survive a fork; the embedded engine does. Raises: SystemExit, as a
    signal of Celery logs all other errors and goes on.
    """
    urls = [str(sender.app.conf.get(name) or "") for name in _URLS]
    if not any(SCHEME in url for url in urls):
        return
    pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))
    for name in _GREEN:
        if name in pool:
            raise SystemExit(str(PoolRefused(pool=name)))
    if any(f"{SCHEME}+fdb:" in url for url in urls):
        sender.pool_start_method = "spawn"
        conf = sender.app.conf
        conf.worker_proc_alive_timeout = max(STARTED_WITHIN_S, conf.worker_proc_alive_timeout)
