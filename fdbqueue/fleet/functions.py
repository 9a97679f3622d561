"""Functions as tasks: the data of such a task is a call of a Python function, by name (docs/functions.md).

`Tasks` has the functions of one queue, and is the handler that runs their calls. It opens nothing: each put
opens the queue, once for each database of a process.

The data is {"function": NAME, "args": [...], "kwargs": {...}}, in the codec of the queue. A
program in another language puts the same (docs/layout.md), and may leave out empty "args" and "kwargs".
"""

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, cached_property, partial, update_wrapper
from types import FunctionType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_type_hints,
    overload,
)

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function, checked_text
from fdbqueue.core.database import Database, Handle, as_database, is_transaction
from fdbqueue.core.errors import FunctionNotFound, InvalidArgument, QueueNotFound, WrongType
from fdbqueue.core.registry import checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Awaited, DatabaseOrTransaction
from fdbqueue.core.task import Task
from fdbqueue.core.visible import shown
from fdbqueue.fleet.held import HeldTask
from fdbqueue.tasks.handle import Putting
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.queue import TaskQueue

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")
T = TypeVar("T")

_PARTS = frozenset({"function", "args", "kwargs"})
_current: ContextVar[HeldTask] = ContextVar("fdbqueue.task")


def current_task() -> HeldTask:
    """The task of the function that runs here: its attempts, `lost`, `cancelled`, `progress`, `step`.

    In a coroutine function it is a `fdbqueue.aio.HeldTask`, as that of `fdbqueue.aio.current_task`.
    Raises: InvalidArgument where no worker runs a function of a Tasks.
    """
    task = _current.get(None)
    if task is None:
        message = "No worker runs a function of a Tasks here: a plain call has no current task."
        raise InvalidArgument(message, name="current_task", wanted="called in a task", got=None)
    return task


class FunctionCall(NamedTuple):
    """A call as the data of a task, and the options of its put: for a schedule, a `then`, or a group."""

    data: dict[str, Any]
    options: dict[str, Any]


class TaskFunction(Generic[C, P, R]):
    """A function of a `Tasks`. To call it is a plain call; `put` makes a task of the call.

    A value: `options` returns another one.
    """

    def __init__(
        self,
        tasks: "Tasks",
        name: str,
        function: Callable[C, R],
        transactional: bool,
        options: Mapping[str, Any],
    ) -> None:
        """Use `Tasks.task`. Raises: InvalidArgument."""
        update_wrapper(self, function)
        self._tasks = tasks
        self.name = name
        """The name by which stored tasks know it."""
        self.function = function
        self.transactional = transactional
        self.awaits = inspect.iscoroutinefunction(function)
        """True for a coroutine function."""
        parameters = [*inspect.signature(function).parameters.values()]
        if transactional and (not parameters or parameters[0].kind not in _BY_PLACE):
            raise InvalidArgument(
                name=name, wanted="a function with `tr` as its first parameter", got=function
            )
        self._signature = inspect.Signature(parameters[int(transactional) :])
        self._options = self._checked({name: value for name, value in options.items() if value is not None})

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"TaskFunction({self._tasks.queue}: {self.name})"

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]  # pickled by name, as a function is

    def options(self, **options: Any) -> "TaskFunction[C, P, R]":
        """The function with other options of its put; None takes one back.

        Raises: WrongType for an unknown name, InvalidArgument.
        """
        changed = {**self._options, **options}
        return TaskFunction(self._tasks, self.name, self.function, self.transactional, changed)

    @overload
    def put(self, tr: Awaited, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Task]: ...
    @overload
    def put(self, tr: DatabaseOrTransaction, /, *args: P.args, **kwargs: P.kwargs) -> Task: ...
    def put(self, tr: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Put a task that calls the function. Given a database or a transaction of `fdbqueue.aio`: await it.

        Reads: as `TaskQueue.put`. The first put of a process, and its first one in a transaction, also read
        the definition of the queue.
        Writes: as `TaskQueue.put`.
        Conflicts: as `TaskQueue.put`.
        Raises: WrongType, a TypeError, for arguments that the function does not take, or against its type
        hints; QueueNotFound; as `TaskQueue.put`.
        Round trips: as `TaskQueue.put`, and 1 for the definition.
        """
        if not isinstance(tr, Awaited):
            _database_of(tr)  # first: without it, the next argument would look like the one that is missing
        call = self.call(*args, **kwargs)
        return self._tasks._with_queue(tr, lambda queue, target: queue.put(target, call.data, **call.options))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> FunctionCall:
        """The data and the options of a put, for a schedule, a `then`, or a group.

        Raises: WrongType, as `put`.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            message = f"{self.name}() cannot be called so: {error}."
            raise WrongType(message, name=self.name, wanted="called as it is written", got=args) from None
        for place, hint, value in self._hinted(bound):
            if not fits(value, hint):
                wanted = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
                raise WrongType(name=f"{place} of {self.name}()", wanted=f"of type {wanted}", got=value)
        data = {"function": self.name, "args": list(args), "kwargs": dict(kwargs)}
        return FunctionCall(data, {name: _made(one, bound) for name, one in self._options.items()})

    @overload
    def result(
        self, tr: Awaited, task: Task | str, timeout: float | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def result(self, tr: DatabaseOrTransaction, task: Task | str, timeout: float | None = None) -> Any: ...
    def result(self, tr: Any, task: Task | str, timeout: float | None = None) -> Any:
        """The value that the call returned, if it was put with a `result_ttl`: `TaskQueue.result`.

        Reads: as `TaskQueue.result`.
        Conflicts: as `TaskQueue.result`.
        Raises: as `TaskQueue.result`.
        """
        return self._tasks._with_queue(tr, lambda queue, target: queue.result(target, task, timeout))

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """Raises: WrongType for an unknown name, InvalidArgument for a value that no queue takes."""
        plain = dict[str, Any]()
        for name, value in options.items():
            if name not in options_of_put():
                message = f"There is no option {name!r} of a put: {', '.join(sorted(options_of_put()))}."
                raise WrongType(message, name=name, wanted="an option of a put", got=value)
            if callable(value):
                self._require_takes_all(name, value)
                value = "made at the put"
                if name != "unique":
                    continue
            if name in PutOptions.named():
                plain[name] = value
        PutOptions.of(plain)
        return options

    def _require_takes_all(self, option: str, function: Callable[..., Any]) -> None:
        checked_function(option, function)
        try:
            inspect.signature(function).bind(**dict.fromkeys(_named(self._signature)))
        except (TypeError, ValueError) as error:  # a class of the interpreter may have no signature
            wanted = f"a function of all arguments of {self.name}() by name ({error})"
            raise InvalidArgument(name=option, wanted=wanted, got=function) from None

    def _hinted(self, bound: inspect.BoundArguments) -> Iterator[tuple[str, Any, Any]]:
        for name, value in bound.arguments.items():
            hint, kind = self._hints.get(name, Any), self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                yield from ((f"{name}[{n}]", hint, one) for n, one in enumerate(value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                yield from ((key, hint, one) for key, one in value.items())
            else:
                yield name, hint, value

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function)
        except Exception:  # one names something that is there for type checkers only: none is checked
            return {}


_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def options_of_put() -> frozenset[str]:
    parameters = inspect.signature(Putting.put).parameters.values()
    return frozenset(one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY)


def fits(value: Any, hint: Any) -> bool:
    """False if `value` is not of the type `hint`. A type that msgspec does not know fits all."""
    try:
        if isinstance(hint, type) and isinstance(value, hint):
            return True  # also a bool for an int, which msgspec refuses
        # Equal, too: msgspec reads a date from a text, and a dataclass from a dict, which the function gets.
        return bool(msgspec.convert(value, hint, strict=True) == value)
    except msgspec.ValidationError:
        return False
    except Exception:  # msgspec says so by a TypeError; a type of the user may raise any other
        return True


def _named(signature: inspect.Signature) -> list[str]:
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in signature.parameters.values() if one.kind not in starred]


def _made(option: Any, bound: inspect.BoundArguments) -> Any:
    """The value of an option for this call: that of a function of its arguments."""
    if not callable(option):
        return getattr(option, "blocking", option)  # of a group of fdbqueue.aio
    whole = inspect.BoundArguments(bound.signature, dict(bound.arguments))
    whole.apply_defaults()
    more = {}
    for name, one in bound.signature.parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            more = whole.arguments[name]
    return option(**{name: whole.arguments[name] for name in _named(bound.signature)}, **more)


class Tasks(Handle):
    """The functions of one queue. It opens nothing, so a module may have one.

    A worker takes it as its handler: `Worker(db, "emails", emails)`, `fdbqueue work emails shop.mail:emails`.
    A task of an unknown name fails its attempt with FunctionNotFound. It is tried again, perhaps by a process
    that has the function, and buried after the attempts.
    """

    __slots__ = ("__qualname__", "_service", "functions", "queue", "root")

    def __init__(self, queue: str, *, root: Any = DEFAULT_ROOT) -> None:
        """Raises: InvalidArgument."""
        self.queue = checked_name(queue)
        self.root = root
        self.functions: dict[str, TaskFunction[..., ..., Any]] = {}
        """By the names that stored tasks have."""
        self._service = ("functions", RootKeys(root).prefix, self.queue)
        self.__qualname__ = f"Tasks({self.queue})"  # listings of workers show it

    def _shown(self) -> dict[str, Any]:
        return {"queue": self.queue, "functions": [*self.functions]}

    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, transactional: Literal[False] = False, **options: Any
    ) -> Callable[[Callable[P, R]], TaskFunction[P, P, R]]: ...
    @overload
    def task(
        self, *, name: str | None = None, transactional: Literal[True], **options: Any
    ) -> Callable[[Callable[Concatenate[Any, P], R]], TaskFunction[Concatenate[Any, P], P, R]]: ...
    def task(  # type: ignore[misc]  # mypy thinks of a `function` among the options
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        transactional: bool = False,
        **options: Any,
    ) -> Any:
        """Make a function of a module a function of this queue.

        `name`: its name in stored tasks, by default its own name without the module, so that it may move to
        another module. Give the old name to a function that is renamed. `transactional`: it is called as
        `function(tr, ...)` in the transaction of the ack, so its writes there happen exactly once. `options`:
        of each put, as of `TaskQueue.put`. One may be a function of the arguments, by name, that returns its
        value: `unique=lambda to, **_: to`.
        Raises: InvalidArgument for a name that is there, a lambda, a method, and a function within another
        one without a `name`; WrongType for another object, and an unknown option; DeferredBody for a
        generator function.
        """

        def decorate(function: Callable[..., Any]) -> TaskFunction[..., ..., Any]:
            own = checked_text("name", _name_of(function, name), limits.STEP_NAME_BYTES_MAX)
            if own in self.functions:
                wanted = f"another one: {self!r} has {self.functions[own].function!r}"
                raise InvalidArgument(name="name", wanted=wanted, got=own)
            made: TaskFunction[..., ..., Any] = TaskFunction(
                self, own, function, bool(transactional), options
            )
            self.functions[own] = made
            return made

        return decorate if function is None else decorate(function)

    @property
    def awaits(self) -> bool:
        """True if one of them is a coroutine function: then a worker has an event loop."""
        return any(one.awaits for one in self.functions.values())

    def runs_within(self, task: Task) -> bool:
        """True if the call of a task runs in the transaction of its ack."""
        found = self.function_of(task)
        return found is not None and found.transactional

    def is_plain(self, task: Task) -> bool:
        """True if the call of a task awaits nothing: on an event loop, a thread runs it."""
        found = self.function_of(task)
        return found is None or not found.awaits

    def require_on_loop(self) -> None:
        """Raises: InvalidArgument for a plain function in a transaction, which a loop cannot wait for."""
        for one in self.functions.values():
            if one.transactional and not one.awaits:
                wanted = "a coroutine function, as it is transactional and its worker has an event loop"
                raise InvalidArgument(name=one.name, wanted=wanted, got=one.function)

    def function_of(self, task: Task) -> "TaskFunction[..., ..., Any] | None":
        """The function that a task calls; None if it is not here."""
        name = task.data.get("function") if isinstance(task.data, dict) else None
        return self.functions.get(name) if isinstance(name, str) else None

    def __call__(self, *arguments: Any) -> Any:
        """Run the call of a task, as a handler does. Raises: FunctionNotFound; errors of the function."""
        *within, task = arguments
        found = self._found(task)
        args, kwargs = task.data.get("args", ()), task.data.get("kwargs", {})
        given = (*within, *args) if found.transactional else args
        if found.awaits:
            return _awaited(task, found.function, given, kwargs)
        token = _current.set(task)
        try:
            return found.function(*given, **kwargs)
        finally:
            _current.reset(token)

    def _found(self, task: Task) -> TaskFunction[..., ..., Any]:
        """Raises: FunctionNotFound."""
        data, found = task.data, self.function_of(task)
        if not is_call(data):
            raise FunctionNotFound(f"The data is no call of a function, but {shown(data)}.", name=None)
        if found is None:
            names = ", ".join(self.functions) or "none"
            raise FunctionNotFound(name=data["function"], queue=self.queue, names=names)
        return found

    def _with_queue(self, target: Any, verb: Callable[[TaskQueue, Any], T]) -> Any:
        """The result of `verb(queue, target)`. A queue that was dropped and made again is opened again."""
        if isinstance(target, Awaited):
            return target.run_blocking(partial(self._with_queue, verb=verb))
        within = is_transaction(target)
        opened: _Opened = _database_of(target).service(self._service, _Opened)
        queue = opened.queues.get(within)
        if queue is not None:
            try:
                return verb(queue, target)
            except QueueNotFound:
                opened.queues.clear()
        opened.queues[within] = queue = TaskQueue.open(target, self.queue, root=self.root)
        return verb(queue, target)


def _database_of(target: Any) -> Database:
    """Raises: NotADatabase."""
    return as_database(target.db if is_transaction(target) else target)


class _Opened:
    """The handles of a queue in one database, by whether they were opened in a transaction."""

    def __init__(self, database: Database) -> None:  # noqa: ARG002  # as of all services
        self.queues: dict[bool, TaskQueue] = {}

    def close(self) -> None:
        self.queues.clear()

    def is_needed(self) -> bool:
        return False


async def _awaited(task: HeldTask, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _current.set(task)  # in the context of this coroutine alone
    return await function(*args, **kwargs)


def is_call(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and _PARTS.issuperset(data)
        and isinstance(data.get("function"), str)
        and isinstance(data.get("args", []), list)
        and isinstance(data.get("kwargs", {}), dict)
    )


def _name_of(function: Any, name: str | None) -> str:
    """The name of a function, or the one given. Raises: as `Tasks.task`."""
    if not isinstance(function, FunctionType):
        raise WrongType(name="function", wanted="a function of a module", got=function)
    if not inspect.iscoroutinefunction(function):
        checked_function("function", function)
    within, _, path = function.__qualname__.rpartition("<locals>.")
    if function.__name__ == "<lambda>":
        raise InvalidArgument(name="function", wanted="written with def: a lambda has no name", got=function)
    if "." in path:
        raise InvalidArgument(
            name="function", wanted="a function of a module: a task has no `self`", got=function
        )
    if within and name is None:
        wanted = "a function of a module, or one with a name=: it stands within another function"
        raise InvalidArgument(name="function", wanted=wanted, got=function)
    return function.__name__ if name is None else name


def tasks_in(handler: Any, batch: int | None) -> Tasks | None:
    """The Tasks that is the handler of a worker. Raises: InvalidArgument for one of its functions, and a
    batch.
    """
    if isinstance(handler, TaskFunction):
        wanted = "its Tasks, as a worker takes every task of its queue"
        raise InvalidArgument(name="handler", wanted=wanted, got=handler)
    inner = getattr(handler, "__wrapped__", handler)  # on an event loop
    if not isinstance(inner, Tasks):
        return None
    if batch is not None:
        raise InvalidArgument(name="batch", wanted="None for a Tasks, which runs each call alone", got=batch)
    return inner
