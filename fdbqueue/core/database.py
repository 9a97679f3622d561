"""A database of either engine, with what belongs to one connection: the runtime, the services, the handles.

`Database` wraps the engine's own database and adds nothing to its transactions: `create_transaction`
returns the engine's.

A *service* is an object that a process has once for each database, and for each queue that it uses there: the
combiner of a queue, receipt slots, a session. A database owns its services, so that two simulated machines
share none and a forked child starts without any. A process may use any number of queues. The service of a
queue lives as long as a call uses it: each call holds it on its stack, also while it waits, or while another
call fetches its answer. Those used last are kept besides, in two generations: when the younger one is full it
becomes the older one, and the older one is forgotten. So a use costs one look into a dict, and no list of
uses has to be kept.

`Handle` is the base of the objects of one process that stand for something in a database. A grant is a handle
with one half of the verbs of a queue, for programs that need no more. It is made of the same base classes as
its queue. So it lacks the other verbs for a type checker, and refuses them when it runs. It is a guard
against mistakes, not against programs (docs/grants.md).
"""

import os
import re
import sys
import weakref
from collections.abc import Callable, Hashable
from itertools import count
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, Self, SupportsIndex, TypeGuard, TypeVar
from weakref import WeakValueDictionary

from fdbqueue.core import limits, observing
from fdbqueue.core.binding import require_match
from fdbqueue.core.calls import Waiter, Waiters
from fdbqueue.core.errors import (
    ClusterForked,
    DatabaseClosed,
    DatabaseNotFound,
    NotADatabase,
    NotCopied,
    NotGranted,
    StorageFull,
    WrongFace,
)
from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.observing import Counters
from fdbqueue.core.runtime import RealRuntime, Runtime, Stop
from fdbqueue.core.seam import (
    AnyDatabase,
    Awaited,
    DatabaseOrTransaction,
    ReadTransaction,
    Transaction,
    engine_errors,
)
from fdbqueue.core.seam import FDBError as EmbeddedError
from fdbqueue.core.visible import shown

_KNOWN_QUERY = "(?:durability|tag|priority|timeout|retry_limit)"
_HIDDEN = "***"
_USER = re.compile(r"(?<=//)[^/@]*(?=@)")
_QUERY = re.compile(rf"(?<=[?&])(?!{_KNOWN_QUERY}=)([^=&]*)=[^&]*")


class Handle:
    """It tells its name, kind and URL, and is not copied: a copy would share locks, threads and leases."""

    __slots__ = ("__weakref__",)

    def _shown(self) -> dict[str, Any]:
        """Return what the repr tells, by name; None is left out."""
        return {}

    def __repr__(self) -> str:
        try:
            told = [f"{name}={shown(value)}" for name, value in self._shown().items() if value is not None]
        except AttributeError:  # a debugger may look before the end of `__init__`
            told = []
        return f"{type(self).__name__}({', '.join(told)})"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        # Of pickle, copy and deepcopy alike.
        raise NotCopied(kind=type(self).__name__)

    def _twin(self) -> Self:
        """A copy for this class itself, which may change it before others have it."""
        twin = object.__new__(type(self))
        copy_slots(self, twin)
        return twin


def copy_slots(one: object, other: object) -> None:
    """Give `other` the attributes of `one` that its class has, too."""
    for cls in type(other).__mro__:
        for name in vars(cls).get("__slots__", ()):
            if name != "__weakref__" and hasattr(one, name):
                setattr(other, name, getattr(one, name))


def public_url(url: str) -> str:
    """Return the URL without secrets: a user with a password, and each unknown part of a query."""
    return _QUERY.sub(rf"\1={_HIDDEN}", _USER.sub(_HIDDEN, url))


class Grant:
    """Base of the handles for one half."""

    __slots__ = ()

    @classmethod
    def _half_of(cls, queue: Any) -> Self:
        """The half of an open queue."""
        half = cls.__new__(cls)
        copy_slots(queue, half)
        return half

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=kind, verb=name)


class Service(Protocol):
    def close(self) -> None:
        """The database closes, and has ended the waits."""
        return

    def is_needed(self) -> bool:
        """True if the service must be kept without recent use."""
        return False


class Services:
    """Calls must come one at a time, except reads of `recent`."""

    def __init__(self) -> None:
        self.recent: dict[Hashable, Service] = {}
        """The younger generation, and those that are needed: always the same dict."""
        self._older: dict[Hashable, Service] = {}
        self._living: WeakValueDictionary[Hashable, Service] = WeakValueDictionary()
        self._room = limits.SERVICES_REMEMBERED

    def find(self, key: Hashable) -> Service | None:
        found = self.recent.get(key)
        if found is None:
            found = self._living.get(key)  # those of the older generation are among them
            if found is not None:
                self._remember(key, found)
        return found

    def add(self, key: Hashable, service: Service) -> None:
        self._living[key] = service
        self._remember(key, service)

    def all(self) -> list[Service]:
        return list(self._living.values())

    def _remember(self, key: Hashable, service: Service) -> None:
        if len(self.recent) >= self._room:
            self._age()
        self.recent[key] = service

    def _age(self) -> None:
        needed = {
            key: service
            for generation in (self._older, self.recent)
            for key, service in generation.items()
            if service.is_needed()
        }
        self._older = {key: service for key, service in self.recent.items() if key not in needed}
        self.recent.update(needed)
        for key in self._older:
            del self.recent[key]
        self._room = len(needed) + limits.SERVICES_REMEMBERED


T = TypeVar("T")
Body = Callable[[Transaction], T]
Pace = Literal["call", "liveness", "upkeep", "look", "background"]


class Attempts(Protocol):
    """The attempts of one call: `begin` comes before each, and sets its options."""

    def begin(self, tr: Transaction) -> None: ...


class Manner(Protocol):
    """How the transactions of a database are made, if they are no plain ones (core/pace.py)."""

    def followed_by(self, other: "Manner | None") -> "Manner | None": ...

    def attempts(
        self, database: "Database", retry_limit: int | None = None, timeout_s: float | None = None
    ) -> Attempts | None: ...

    def once(self, body: "Body[T]", wrote: Callable[[T], bool] | None) -> "Body[T]":
        """The body of a call whose effect happens once (core/once.py), as transactions run it."""


_log = logger("fdbqueue")

# Errors of a cluster that did not answer, answered too late, is in recovery, or takes no more at present.
# Errors of one transaction (too old, too large, misused) are not among them.
_AWAY = (
    {1004, 1006, 1009, 1020, 1021, 1031, 1037, 1038, 1039, 1042}
    | {1051, 1078, 1213, 1223}
    | {1235, 1242, 1251}  # since 7.4: hot shard, locked range; since 8.0: queue of read versions too long
)


_NOT_COMMITTED, _UNKNOWN_RESULT = 1020, 1021

_PACED = "fdbqueue.core.pace:paced"
"""A name, imported at its first use: calls without options on an engine that never starves do without."""

S = TypeVar("S", bound=Service)


class Database(Handle):
    """An open database; a context manager that closes it.

    Usable wherever the binding's `Database` is: `db[key]`, `db.get_range(...)`, `@fdb.transactional`.
    """

    # All state is in `__dict__`, which a lent database shares; a slot is of one object.
    __slots__ = ("__dict__", "_is_lent", "manner")

    def __init__(
        self,
        engine: AnyDatabase,
        runtime: Runtime | None = None,
        on_close: Callable[[], None] | None = None,
        session_ttr_s: float = limits.SESSION_TTR_S,
    ) -> None:
        """Use fdbqueue.open()."""
        self._is_lent = False
        self.manner: Manner | None = None
        """How calls given this object make their transactions; None for plain ones."""
        self.wishes: Any = None
        """The options of transactions that its user has given."""
        self.engine = engine
        self.session_ttr_s = session_ttr_s
        """The ttr of sessions that are opened without a ttr, such as this process's own session."""
        self.runtime: Runtime = runtime or RealRuntime()
        self.counters = Counters()
        self.troubles = Troubles(self.runtime, is_away)
        self._on_close = on_close
        self._closed = False
        self._closings = count()
        self._closer: int | None = None  # the thread that closes it, or has closed it
        self.waiters = Waiters(self.runtime)
        self._lock = self.runtime.lock()
        self._services = Services()
        self._recent = self._services.recent
        self._process_id = self.runtime.process_id()
        self._raw: Any = None
        self.url: str | None = None
        """The URL it was opened by; None for one over a database of the binding."""

    def _shown(self) -> dict[str, Any]:
        return {"url": None if self.url is None else public_url(self.url)}

    def create_transaction(self) -> Transaction:
        """A fresh transaction of the engine. Raises DatabaseClosed."""
        if self._closed:
            raise DatabaseClosed
        transaction: Transaction = self.engine.create_transaction()
        return transaction

    def service(self, key: Hashable, make: Callable[["Database"], S]) -> S:
        """The one service of this process under `key`, made at first use, closed with the database. A
        service without recent use may be forgotten, and made anew. Raises as `known`.
        """
        found = self.known(key)
        if found is None:
            with self._lock:
                found = self._services.find(key)
                if found is None:
                    found = make(self if self.manner is self.wishes is None else self.at("call"))
                    self._services.add(key, found)
        return found  # type: ignore[no-any-return]  # the key determines the type

    def known(self, key: Hashable) -> Any:
        """The service under `key`, if it was used lately; else None, and `service` finds or makes it.

        Raises DatabaseClosed as soon as closing has begun: every call given a database asks for a service.
        """
        if self._closer is not None and (self._closed or self._closer != self.runtime.thread_id()):
            raise DatabaseClosed
        if self._process_id != self.runtime.process_id():
            self._start_afresh_after_fork()
        return self._recent.get(key)

    def _start_afresh_after_fork(self) -> None:
        # A forked child has none of the parent's threads, which may have held locks.
        self._lock = self.runtime.lock()
        self._services = Services()
        self._recent = self._services.recent
        self.waiters = Waiters(self.runtime)
        self.troubles = Troubles(self.runtime, is_away)
        self._process_id = self.runtime.process_id()

    def waiter(self, *stops: Stop | None) -> Waiter:
        """A context manager for a call that may wait.

        The wait ends when one of `stops` is set, or at closing.
        """
        return Waiter(self.waiters, stops)

    def lent(self) -> Self:
        """This database, for code that did not open it: to close it does nothing there."""
        lent = object.__new__(type(self))
        lent._is_lent = True
        lent.manner = self.manner
        lent.__dict__ = self.__dict__
        return lent

    def at(self, pace: "Pace") -> Self:
        """This database, for work of one kind, which has a priority of its own (core/pace.py)."""
        if self.wishes is None and not getattr(self.engine, "starves", True):
            return self
        paced: Self = resolve_name(_PACED)(self, pace)
        return paced

    @property
    def is_lent(self) -> bool:
        """True if other code has opened it, and closes it."""
        return self._is_lent

    @property
    def closed(self) -> bool:
        """True as soon as closing has begun."""
        return self._closer is not None

    def close(self) -> None:
        """Refuse new calls, end those that wait, then the services and the engine; twice is once. A lent
        database stays open.

        Calls that wait in other threads leave the line and raise DatabaseClosed before this returns, unless
        the database has not answered them for limits.CLOSE_TIMEOUT_S.
        """
        # Takes no lock: a signal handler may call this, or a child that was forked while a thread held the
        # lock.
        if self._is_lent or next(self._closings):
            return
        self._closer = self.runtime.thread_id()
        if self._process_id == self.runtime.process_id():
            self.waiters.close(limits.CLOSE_TIMEOUT_S)
            for service in self._services.all():
                self._end(service)
        self._closed = True
        self._raw = None
        if self._on_close is not None:
            self._on_close()

    def _end(self, service: Service) -> None:
        """If one service fails to close, the others and the engine are closed all the same."""
        try:
            service.close()
        except Exception as error:
            self.troubles.met(_log, f"closing, a {type(service).__name__} has failed", error)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        # The engine has the other methods of the binding's Database (get_range, set, options, ...).
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.engine, name)

    def __getitem__(self, key: Any) -> Any:
        return self.engine[key]  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.engine[key] = value  # type: ignore[index]

    def __delitem__(self, key: Any) -> None:
        del self.engine[key]  # type: ignore[attr-defined]


# A raw `fdb.Database` of the user's gets one companion for as long as it lives.
_companions: "weakref.WeakKeyDictionary[Any, Database]" = weakref.WeakKeyDictionary()
# The database that was opened last over an engine. A weak reference: a value that held its key would stay.
_opened: "weakref.WeakKeyDictionary[Any, weakref.ref[Database]]" = weakref.WeakKeyDictionary()


class _OfTheParent:
    """Stands for the engine of a cluster in a forked child, where a call of it would wait for ever."""

    def __init__(self, engine: AnyDatabase) -> None:
        self._engine = engine  # kept, as its destructor calls the library

    def _refuse(self, *_: object) -> NoReturn:
        raise ClusterForked(url="a database of the parent")

    __getattr__ = __getitem__ = __setitem__ = __delitem__ = _refuse


def _after_fork_in_child() -> None:
    for database in (*_companions.values(), *(opened() for opened in _opened.values())):
        if database is not None and _is_cluster(database.engine):
            database.engine = _OfTheParent(database.engine)  # type: ignore[assignment]  # has no method


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_transaction(target: object) -> TypeGuard[Transaction]:
    """True if `target` is a transaction (or a snapshot) of either engine. Raises WrongFace."""
    if isinstance(target, Database) or not hasattr(target, "get_read_version"):
        return False
    _require_blocking(target)
    return True


def _require_blocking(target: object) -> None:
    if isinstance(target, Awaited):
        raise WrongFace(got=type(target).__name__)


def at_pace(target: DatabaseOrTransaction, pace: Pace) -> DatabaseOrTransaction:
    """The database for work of one kind; a transaction stays as its caller has made it."""
    return target if is_transaction(target) else as_database(target).at(pace)


def is_database(target: object) -> bool:
    return hasattr(target, "create_transaction")


def as_database(target: Any) -> Database:
    """Our Database for a database of either engine, wrapped or raw. Raises NotADatabase, WrongFace."""
    if isinstance(target, Database):
        return target
    _require_blocking(target)
    if not is_database(target) or isinstance(target, type):
        raise NotADatabase(got=repr(type(target).__name__))
    opened = _opened[target]() if target in _opened else None
    if opened is not None and not opened.closed:
        return opened
    companion = _companions.get(target)
    if companion is None or companion.closed:
        runtime = getattr(target, "_runtime", None)
        companion = _companions[target] = Database(weakref.proxy(target), runtime)
    return companion


def known_by_engine(database: Database) -> Database:
    """Let a transaction of its engine, which names only the engine, find the database and its session."""
    _opened[database.engine] = weakref.ref(database)
    return database


def adopted(raw: Any, session_ttr_s: float) -> Database:
    """The companion of `raw`, which calls given `raw` use; it keeps `raw` alive until it is closed."""
    database = as_database(raw)
    database.session_ttr_s = session_ttr_s
    if not isinstance(raw, Database):
        database._raw = raw
    return database


_REAL_RUNTIME = RealRuntime()


def require_open(database: Database) -> None:
    """Raises: DatabaseClosed if the database is closed or closing, or the engine below it is gone."""
    try:
        database.create_transaction()
    except ReferenceError as error:  # a raw database that the program has dropped
        raise DatabaseClosed from error
    if database.closed:
        raise DatabaseClosed


def runtime_of(transaction: Any) -> Runtime:
    """The runtime of the engine that made `transaction`; the binding's transactions have the real one."""
    runtime: Runtime = getattr(getattr(transaction, "db", None), "_runtime", _REAL_RUNTIME)
    return runtime


def runtime_in(target: DatabaseOrTransaction) -> Runtime:
    """The runtime of a database, or of a transaction."""
    return runtime_of(target) if is_transaction(target) else as_database(target).runtime


def unknown_result(database: Database) -> Exception:
    if _is_cluster(database.engine):
        error: Exception = sys.modules["fdb.impl"].FDBError(_UNKNOWN_RESULT)
        return error
    return EmbeddedError(_UNKNOWN_RESULT)


def _is_cluster(engine: AnyDatabase) -> bool:
    binding = sys.modules.get("fdb.impl")
    return binding is not None and isinstance(engine, binding.Database)


def ticks_of(tr: ReadTransaction) -> int:
    """Microseconds by a clock that all processes of the database share: the read version of a cluster, which
    gives 1,000,000 a second, or else the monotonic clock of the machine.
    """
    if _is_of_binding(tr):
        version: int = tr.get_read_version().wait()
        return version
    return round(runtime_of(tr).monotonic() * 1_000_000)


def _is_of_binding(tr: ReadTransaction) -> bool:
    binding = sys.modules.get("fdb.impl")
    return binding is not None and isinstance(tr, binding.TransactionRead)


def conflict_in(tr: Transaction) -> Exception:
    """The error 1020 of the engine of `tr`: raised by a body, it makes a retry loop try again."""
    if _is_of_binding(tr):
        error: Exception = sys.modules["fdb.impl"].FDBError(_NOT_COMMITTED)
        return error
    return EmbeddedError(_NOT_COMMITTED)


def is_away(error: BaseException) -> bool:
    """True for the error of a database that cannot be reached, or has no room."""
    if isinstance(error, engine_errors()):
        return error.code in _AWAY
    return isinstance(error, DatabaseClosed | StorageFull)


def run(
    target: DatabaseOrTransaction,
    body: Callable[[Transaction], T],
    *,
    retry_limit: int | None = None,
    timeout_s: float | None = None,
) -> T:
    """Run `body` in a transaction of `target` until it commits; in a transaction, just run it.

    The body may run several times, also after a commit that succeeded with an unknown result (1021).
    Raises the engine's FDBError when it is not retryable, or a limit is reached (1031 for the timeout;
    the commit of the last attempt may be stored then).
    """
    if is_transaction(target):
        return body(target)
    database = as_database(target)
    transaction, manner = database.create_transaction(), database.manner
    attempts = None if manner is None else manner.attempts(database, retry_limit, timeout_s)
    if attempts is None:
        limit_attempts(transaction.options, retry_limit, timeout_s)
    while True:
        try:
            if attempts is not None:
                attempts.begin(transaction)
            result = body(transaction)
            transaction.commit().wait()
            database.counters.commits += 1
            if observing.observers:
                observing.tell_committed()
            return result
        except engine_errors() as error:
            database.counters.note_error(error.code)
            transaction.on_error(error).wait()


def limit_attempts(options: Any, retry_limit: int | None, timeout_s: float | None) -> None:
    """Set the options of a transaction that bound its attempts; None is no limit."""
    if retry_limit is not None:
        options.set_retry_limit(min(retry_limit, limits.OPTION_MAX))
    if timeout_s is not None and timeout_s * 1000 < limits.OPTION_MAX:  # a longer one is for ever
        options.set_timeout(max(1, round(timeout_s * 1000)))


def require_answer(database: Database, url: str, timeout_s: float) -> None:
    """The binding itself waits for ever for a cluster that does not answer."""
    try:
        run(database, lambda tr: tr.get_read_version().wait(), timeout_s=timeout_s)
    except engine_errors() as error:
        require_match(database.engine, url, database.runtime)
        raise DatabaseNotFound(url=url) from error
