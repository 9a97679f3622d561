"""Verbs: the methods of the blocking classes, awaited.

Both faces have one source. A class of fdbqueue.aio names the methods of its blocking class, and each call
runs the blocking method in a fiber. So the signature, for readers and for type checkers, is that of the
blocking method.

A *face* holds its blocking object. An argument of fdbqueue.aio is replaced by its blocking counterpart, and a
result that has verbs of its own gets a face. The faces of all handles have names and options, and the values
that were set aside. Objects that read the database when they are made are awaited, or entered.
"""

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from fdbqueue.aio.database import Database, Reads, Transaction
from fdbqueue.aio.hub import Hub, Unheard
from fdbqueue.aio.runtime import LoopEvent, LoopRuntime
from fdbqueue.core.arguments import checked_event
from fdbqueue.core.calls import DeafStops
from fdbqueue.core.database import Handle, is_database, is_transaction
from fdbqueue.core.errors import InvalidArgument, NotADatabase, WrongFace
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Subspace
from fdbqueue.core.sessions.session import Session as BlockingSession
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.tasks.handle import TaskHandle

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")
F = TypeVar("F", bound="Face[Any]")
N = TypeVar("N")

Undo = Callable[..., object]
"""Takes back a cancelled verb: (the blocking object, the blocking database, the result) and what follows the
database in the call.
"""


class Face(Handle, Generic[B]):
    """The awaited face of a blocking object."""

    __slots__ = ("_blocking", "_hub")

    _blocking: B
    _hub: Hub | None

    def __init_subclass__(cls) -> None:
        """Give the class verbs of its own: the warning of an await that is forgotten names their class."""
        super().__init_subclass__()
        for name in dir(cls):
            verb = inspect.getattr_static(cls, name)
            if isinstance(verb, Verb) and name not in vars(cls):
                own = verb.copied()
                setattr(cls, name, own)
                own.__set_name__(cls, name)

    @classmethod
    def over(cls, blocking: Any, hub: Hub | None) -> Self:
        """The face of an object that exists. `hub`: None if its calls are given a database."""
        face = cls.__new__(cls)
        face._blocking, face._hub = blocking, hub
        return face

    @property
    def blocking(self) -> B:
        """The blocking object, for blocking code: a function with `fdbqueue.transactional`, `db.run`."""
        return self._blocking

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name == "_blocking":  # Session, PersistentQueue
                wanted = f"an aio.{kind} that was awaited or entered"
                raise InvalidArgument(name=kind.lower(), wanted=wanted, got=kind)
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        try:
            return f"aio.{self._blocking!r}"
        except InvalidArgument:
            return f"aio.{type(self).__name__}()"


def constructor_of(
    blocking_class: Callable[P, Any],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """Make `__init__` of a face: it takes the arguments of a blocking class that reads no database."""

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        def construct(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._hub = None
            self._blocking = blocking_class(*map(plain, args), **plain_each(kwargs))

        return named_after(construct, blocking_class)

    return decorate


def named_after(new: N, old: Any) -> N:
    """`new`, with the name, the text and the signature of `old`: of its `__init__`, if it is a class."""
    made_by = inspect.getattr_static(old, "__init__") if isinstance(old, type) else old
    update_wrapper(new, made_by)  # type: ignore[arg-type]  # a `Verb` is not callable
    return new


class Verb(Generic[P, R]):
    def __init__(
        self,
        method: Callable[..., Any],
        wrap: type[Face[Any]] | None,
        undo: Undo | None,
        finishes: bool = False,
        name: str | None = None,
    ) -> None:
        """`name`: the method to call, if the verb has another name than it."""
        named_after(self, method)
        self._made_of = (method, wrap, undo, finishes, name)
        self.finishes = finishes
        self._given_name = name
        self.name = method.__name__
        self.wrap = wrap
        self.undo = undo
        self.may_wait = "stop" in inspect.signature(method).parameters

        async def call(face: Face[Any], *args: Any, **kwargs: Any) -> Any:
            return await call_verb(self, face, *args, **kwargs)

        self._call = call

    def copied(self) -> "Verb[P, R]":
        return Verb(*self._made_of)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self._given_name or name  # a subclass of the blocking class may have a method of its own
        self._call.__qualname__ = f"{owner.__name__}.{name}"  # Python warns of it if an await is forgotten

    @overload
    def __get__(self, face: None, owner: type) -> "Verb[P, R]": ...
    @overload
    def __get__(self, face: object, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, face: Any, owner: type) -> Any:
        return self if face is None else partial(self._call, face)


async def call_verb(verb: Verb[P, R], face: Face[Any], *args: Any, **kwargs: Any) -> Any:
    """Run a blocking method in a fiber. If it is cancelled, a call that may wait leaves the line, and a
    result that comes all the same is taken back. A call within a transaction is interrupted, as is a call
    without these two means.
    """
    target, hub = place_of(face, args, kwargs)
    plain_args, undo = plain_each(kwargs), None
    stop: Any = None
    if verb.finishes:
        stop = Unheard()
    elif not isinstance(target, Transaction) and (verb.may_wait or verb.undo is not None):
        stop = LoopEvent(hub)
        if verb.may_wait:
            plain_args["stop"] = _either(stop, kwargs.get("stop"), hub)
        if verb.undo is not None:
            undo = partial(_undone, verb.undo, face._blocking, target, args, kwargs)
    call = partial(getattr(face._blocking, verb.name), *map(plain, args), **plain_args)
    answer = await hub.call(call, stop, undo)
    return answer if verb.wrap is None else verb.wrap.over(answer, hub)


def _undone(undo: Undo, blocking: Any, target: Any, args: Any, kwargs: Any, answer: Any) -> None:
    others = {name: value for name, value in kwargs.items() if value is not target}
    undo(blocking, plain(target), answer, *(value for value in args if value is not target), **others)


def awaited(
    method: Callable[Concatenate[Any, P], R], *, undo: Undo | None = None, finishes: bool = False
) -> Verb[P, R]:
    """The verb of a method. `undo` takes back the result of a cancelled call; one that `finishes` goes on."""
    return Verb(method, None, undo, finishes)


def giving(face: type[F], method: Callable[Concatenate[Any, P], Any]) -> Verb[P, F]:
    """The verb of a method. Its result gets a face."""
    return Verb(method, face, None)


class Maker(Generic[P]):
    """A class method that makes an object, awaited: its result is of the class that it is called on."""

    def __init__(self, method: Callable[P, Any]) -> None:
        named_after(self, method)

        async def call(owner: type[Face[Any]], *args: Any, **kwargs: Any) -> Any:
            _, hub = place_of(None, args, kwargs)
            made = partial(method, *map(plain, args), **plain_each(kwargs))
            return owner.over(await hub.call(made), hub)

        self._call = call

    def __set_name__(self, owner: type, name: str) -> None:
        self._call.__qualname__ = f"{owner.__name__}.{name}"

    def __get__(self, face: object, owner: type[F]) -> Callable[P, Coroutine[Any, Any, F]]:
        return partial(self._call, owner)


class Iteration(Generic[P, R]):
    """A method that iterates over a database, awaited: `async for name in queue.names(db)`."""

    def __init__(self, method: Callable[Concatenate[Any, P], Iterator[R]]) -> None:
        named_after(self, method)
        self._name = method.__name__

    @overload
    def __get__(self, face: None, owner: type) -> "Iteration[P, R]": ...
    @overload
    def __get__(self, face: object, owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, face: Any, owner: type) -> Any:
        return self if face is None else partial(self._iterate, face)

    def _iterate(self, face: Face[Any], *args: Any, **kwargs: Any) -> AsyncIterator[R]:
        _, hub = place_of(face, args, kwargs)
        rows = partial(getattr(face._blocking, self._name), *map(plain, args), **plain_each(kwargs))
        return hub.iterate(rows)


def plain(value: Any) -> Any:
    """The blocking counterpart of an argument; of each member of a list."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if any(isinstance(part, Face) for part in value) else value
    return value.blocking if isinstance(value, Database | Transaction | Face) else value


def plain_each(kwargs: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in kwargs.items()}


def place_of(face: Face[Any] | None, args: Any, kwargs: Any) -> tuple[Database | Transaction | None, Hub]:
    """The database or transaction given to the call, and its hub. Raises: WrongFace, NotADatabase."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Database | Transaction):
            return value, value.hub
        if isinstance(value, Reads):
            raise NotADatabase(got="a snapshot")
        if is_transaction(value):
            raise WrongFace(_USE_BLOCKING.format("transaction"))
        if is_database(value):
            raise WrongFace(_USE_BLOCKING.format("database"))
    if face is None or face._hub is None:
        raise NotADatabase(_NEEDS_DATABASE)
    return None, face._hub


def target_of(tr: Any) -> Database | Transaction:
    target, _ = place_of(None, (tr,), {})
    assert target is not None, "without one, place_of raises"
    return target


def database_of(db: Any) -> Database:
    target = target_of(db)
    if isinstance(target, Transaction):
        raise InvalidArgument(name="db", wanted="an aio.Database", got=target)
    return target


_NEEDS_DATABASE = (
    "No argument is a database or a transaction of fdbqueue.aio: "
    "`async with aio.open(url) as db` opens a database."
)
_USE_BLOCKING = (
    "A blocking {} was given to a call of fdbqueue.aio: call the verb of `queue.blocking` there, or "
    "await this one with a database or a transaction of fdbqueue.aio."
)


class _Either:
    """The stop event of a cancel, and the one that the caller gave. An `Event` for calls that wait."""

    def __init__(self, own: LoopEvent, given: Stop, deaf: DeafStops) -> None:
        self._own = own
        self._given = given
        self._deaf = deaf
        self.set, self.clear, self.wait = own.set, own.clear, own.wait

    def is_set(self) -> bool:
        return self._own.is_set() or self._given.is_set()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        forget_own = self._own.listen(callback)
        given = self._given
        forget = given.listen(callback) if hasattr(given, "listen") else self._deaf.listen(given, callback)

        def forget_both() -> None:
            forget_own()
            forget()

        return forget_both


def _either(own: LoopEvent, given: Stop | None, hub: Hub) -> Stop:
    if given is None:
        return own
    checked_event("stop", given)
    return _Either(own, given, DeafStops(LoopRuntime(hub)))


H = TypeVar("H", bound=TaskHandle)


class HandleFace(Face[H]):
    __slots__ = ()

    @property
    def name(self) -> str:
        return self._blocking.name

    @property
    def kind(self) -> str:
        return self._blocking.kind

    @property
    def contents(self) -> Subspace:
        """The subspace that holds everything of the queue."""
        contents: Subspace = self._blocking.contents
        return contents

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the queue was created with."""
        return self._blocking.options

    def require_codec(self) -> None:
        """Raises: UnknownCodec if this process has not registered the codec of the queue."""
        self._blocking.require_codec()


class AsideFace(Face[B]):
    """The awaited face of a `KeepsAside`."""

    __slots__ = ()

    aside = awaited(KeepsAside.aside)
    remove_aside = awaited(KeepsAside.remove_aside)
    unreadable = awaited(KeepsAside.unreadable)


class Opened(Face[B]):
    """A face that has its blocking object once it was awaited or entered."""

    __slots__ = ("_open", "_opening")

    _open: Callable[[], Any] | None
    """Makes the blocking object; None once it is made."""
    _opening: asyncio.Lock

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def _opened(self) -> Self:
        async with self._opening:  # a second await at once waits for the first
            if self._open is not None:
                hub = self._hub
                assert hub is not None, "the database of a face that is opened has one"
                # A cancelled opening goes on to its end: only then it is known what there is to undo.
                self._blocking = await hub.call(self._open, Unheard(), self._undo)
                self._open = None
        return self

    async def __aenter__(self) -> Self:
        return await self._opened()

    @abstractmethod
    async def __aexit__(self, *exc: object) -> None: ...

    @staticmethod
    def _undo(blocking: Any) -> None:
        """End the object of a cancelled opening."""


def opened_as(
    blocking_class: Callable[P, Any],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """Make `__init__` of a face. The await of the face makes the blocking object."""

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        def construct(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            _, self._hub = place_of(None, args, kwargs)
            self._open = partial(blocking_class, *map(plain, args), **plain_each(kwargs))
            self._opening = asyncio.Lock()

        return named_after(construct, blocking_class)

    return decorate


class Session(Opened[BlockingSession]):
    """`fdbqueue.Session`, awaited: `async with aio.Session(db, "worker-1") as session`."""

    __slots__ = ()

    @opened_as(BlockingSession)
    def __init__(self) -> None: ...

    end = awaited(BlockingSession.end, finishes=True)
    end_within = awaited(BlockingSession.end_within, finishes=True)
    beat = awaited(BlockingSession.beat)
    beat_if_due = awaited(BlockingSession.beat_if_due)

    @property
    def name(self) -> str | None:
        return self._blocking.name

    @property
    def ttr(self) -> float:
        """Seconds after the last heartbeat for which its tasks stay taken."""
        return self._blocking.ttr

    @property
    def lost(self) -> bool:
        """True once the session has ended, or was taken away."""
        return self._blocking.lost

    @staticmethod
    def _undo(blocking: BlockingSession) -> None:
        blocking.end()

    async def __aexit__(self, *exc: object) -> None:
        await self.end()
