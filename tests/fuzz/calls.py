"""Every public call of the library, found by itself: good arguments, and hostile values by their labels."""

import datetime
import enum
import inspect
import math
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import fdbqueue
from fdbqueue import Subspace
from fdbqueue.core import errors, limits
from fdbqueue.core.registry import Registry
from fdbqueue.fleet.options import WorkerKeywords
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.tasks.detached import text_of
from fdbqueue.tasks.options import PutOptions
from tests.fuzz.world import KEYED, World

Make = Callable[[World], Any]

RETURNED = """
    Alteration ChangedTasks Check DeadLetter Diagnosis Durations EndedTask Event Explanation FailureClass
    Figures Finding FleetStatus FunctionCall GroupProgress GroupsFigures HeldKey HeldTask Holder
    HolderProcess KeyFigures KeyHolder KeyStatistics LimitFigures LimitHolder LimitKey LongRun Members Page
    Partition Presence QueueFigures ReachedLimit Reason Redrive RedriveStep Renewed Repartition
    ScheduleFigures ScheduleStatus SetAside Task TaskFigures TaskPlace Times Unreadable Verification
    WaitedFor WaitingCall
"""
LEFT_OUT = {
    "Codec": "an interface, for codecs of the user's own",
    "Runtime": "an interface, for simulations",
    "RealRuntime": "functions of Python's own modules",
    "Subspace": "the binding's",
    "Database": "its constructor is that of `open`, its other methods are the engine's",
    "Database.at": "for parts of the library",
    "Database.known": "for parts of the library",
    "Database.service": "for parts of the library",
    "Database.waiter": "for parts of the library",
    "Proxy.join": "it waits for the acks of others",
    "PersistentQueue.join": "it waits for the acks of others",
    "Worker.join": "it waits for the end of the worker",
    "Worker.run": "it works until it is stopped",
    "Worker.start": "it works until it is stopped",
    "Fleet.run": "it starts processes",
    "Hooks.tell": "for workers, which give it an Event",
    **dict.fromkeys(
        ("Tasks.function_of", "Tasks.is_plain", "Tasks.runs_within", "Tasks.require_on_loop"), "for workers"
    ),
    "Session.ask": "for parts of the library, which give it a transaction",
    **dict.fromkeys(
        RETURNED.split(),
        "a value that calls return",
    ),
    "LockToken": "a type of texts",
    "LogFields": "a filter, which logging calls",
    "PartitionState": "an enum",
    "RedriveState": "an enum",
    "Severity": "an enum",
    "TaskState": "an enum",
    "Flaw": "an enum",
    "Why": "an enum",
    "Failure": "a value: what is wrong with it shows where it is given to a call",
    **dict.fromkeys((*errors.__all__, "Unavailable"), "an error"),
    **dict.fromkeys(
        ("AnyDatabase", "AnyTransaction", "DatabaseOrTransaction", "Transaction"), "a type for type checkers"
    ),
}
"""Public names that are not called, and the reason."""


class GoodCodec:
    def encode(self, _: Any) -> bytes:
        return b""

    def decode(self, _: bytes) -> Any:
        return None


def send(to: str = "ada", key: str = "k") -> str:
    """A function as a task."""
    return to + key


def _task_queue(kind: str) -> Make:
    return lambda world: world.tasks[kind]


GRANTS = ("TaskProducer", "TaskConsumer", "QueueProducer", "QueueConsumer", "FairProducer", "FairConsumer")
TASK_KINDS = ("utubettl", "fair", "limfifottl", "bag")
RECEIVERS: Mapping[str, list[Make]] = {
    "TaskQueue": [_task_queue(kind) for kind in TASK_KINDS],
    "TaskProducer": [lambda world: _task_queue("fair")(world).producer()],
    "TaskConsumer": [lambda world: _task_queue("fair")(world).consumer()],
    "Queue": [lambda world: world.plain],
    "QueueProducer": [lambda world: world.plain.producer()],
    "QueueConsumer": [lambda world: world.plain.consumer()],
    "FairProducer": [lambda world: world.fair.producer()],
    "FairConsumer": [lambda world: world.fair.consumer()],
    "FairQueue": [lambda world: world.fair],
    "ElementQueue": [lambda world: world.pieces.copy()],
    "SimpleElementQueue": [lambda world: world.simple.copy()],
    "NullQueue": [lambda _: fdbqueue.NullQueue()],
    "QueueSet": [lambda world: fdbqueue.QueueSet(world.simple, world.pieces)],
    "PersistentQueue": [lambda world: world.persistent],
    "Proxy": [lambda world: world.proxy],
    "Group": [lambda world: world.group],
    "Group.wait": [lambda world: world.ended_group],  # with a hostile timeout, it may wait for ever
    "Limit": [],
    "Schedule": [lambda world: world.schedule],
    "Session": [lambda world: world.spare],
    "Database": [lambda world: world.closed_db],
    "DeadLetters": [lambda world: world.letters],
    "Worker": [lambda world: fdbqueue.Worker(world.db, "fifo", print)],
    "Fleet": [lambda world: fdbqueue.Fleet(world.url, "fair", "builtins:print")],
    "Backoff": [lambda _: fdbqueue.Backoff()],
    "Holder": [lambda world: world.plain.holder(world.db)],
    "Overview": [lambda _: fdbqueue.Overview()],
    "Tasks": [lambda _: fdbqueue.Tasks("fair")],
    "TaskFunction": [lambda _: fdbqueue.Tasks("fair").task(send)],
}
"""The objects on which methods are called, all of a class or one."""

GOOD: Mapping[str, Make] = {
    **dict.fromkeys(("db", "tr", "target"), lambda world: world.db),
    **dict.fromkeys(("n", "count", "limit", "value", "item", "increment", "failures", "cost"), lambda _: 1),
    **dict.fromkeys(("delay", "timeout", "timeout_s", "shown", "watch_s"), lambda _: 0),
    **dict.fromkeys(("runtime", "token", "callback"), lambda _: None),
    **dict.fromkeys(("queue", "queues"), lambda _: "fair"),
    "ttl": lambda _: 60,
    "reason": lambda _: "declined",
    "where": lambda _: {"state": "ready"},
    "do": lambda _: "bury",
    "Tasks.task.function": lambda _: send,
    "TaskFunction.result.task": lambda world: world.held["fair"],
    "data": lambda _: {"body": "x"},
    "every": lambda _: 86_400,
    "failures_max": lambda _: 3,
    "partitions": lambda _: 2,
    "ids": lambda _: [],
    "handler": lambda _: print,
    "key": lambda _: lambda item: item,
    "kind": lambda _: "fair",
    "maxsize": lambda _: 0,
    "name": lambda _: "new",
    "path": lambda world: world.file(),
    **dict.fromkeys(("random", "fraction", "seen"), lambda _: 0.5),
    "state": lambda _: "r",
    "subspace": lambda _: Subspace(("new",)),
    "url": lambda world: world.url,
    "values": lambda _: [1],
    "Fleet.handler": lambda _: "builtins:print",
    "DeadLetters.definition": lambda world: Registry().find(world.db, "fair"),
    "DeadLetters.edit.task": lambda world: world.buried,
    "DeadLetters.kick.task": lambda world: world.buried,
    "DeadLetters.open.name": lambda _: "fair",
    "DeadLetters.registry": lambda _: Registry(),
    "Schedule.open.name": lambda _: "nightly",
    "Schedule.registry": lambda _: Registry(),
    "PersistentQueue.ack.item": lambda world: world.persistent_item,
    "Proxy.ack.item": lambda world: world.fetched,
    "QueueSet.add.queues": lambda world: world.other_simple,
    "QueueSet.queues": lambda world: world.simple,
    "QueueSet.remove.queue": lambda world: world.simple,
    **dict.fromkeys(("Group.id", "Group.open.id"), lambda world: world.group.id),
    **dict.fromkeys(("Group.put.queue", "Group.put_many.queue"), lambda world: world.tasks["fifo"]),
    "Group.put_many.data": lambda _: [1, 2],
    "Limit.delete.name": lambda _: "spare limit",
    "Limit.open.name": lambda _: "api",
    **dict.fromkeys(("Limit.open_key.name", "Limit.keys.name"), lambda _: "tenants"),
    "Limit.open_key.key": lambda _: "k",
    **dict.fromkeys(("Limit.set.slots", "Limit.set.rate", "Limit.set.per"), lambda _: 5),
    "TaskQueue.ended_tasks_of.key": lambda _: "k",
    "TaskQueue.definition": lambda world: Registry().find(world.db, "fifo"),
    "TaskQueue.open.name": lambda _: "fifo",
    **dict.fromkeys(("TaskQueue.step.function", "TaskConsumer.step.function"), lambda _: lambda *_: None),
    **dict.fromkeys(("TaskQueue.put_many.data", "TaskProducer.put_many.data"), lambda _: [1, 2]),
    "TaskQueue.registry": lambda _: Registry(),
    "open.url": lambda _: "memory:",
    "register_codec.codec": lambda _: GoodCodec(),
    "register_kind.discipline": lambda _: lambda keys, options: None,  # noqa: ARG005
    "register_kind.options": lambda _: ["ttl"],
    "transactional.function": lambda _: lambda tr: None,  # noqa: ARG005
    **{f"SimpleElementQueue.{name}.data": lambda _: b"x" for name in ("add", "enqueue", "add_ref")},
}
"""Accepted arguments, by the name of the parameter, or of call and parameter."""

OPTIONS = {
    "TaskQueue.put_many": (
        *("ttl", "ttr", "pri", "delay", "key", "cost", "headers", "result_ttl", "unique", "limits"),
    ),
    **dict.fromkeys(
        ("Group.put", "Group.put_many"), ("ttl", "delay", "headers", "result_ttl", "unique", "after")
    ),
    **dict.fromkeys(("Worker", "Fleet"), tuple(WorkerKeywords.__annotations__)),
    **dict.fromkeys(("Schedule.create", "Schedule.change"), tuple(PutOptions.named())),
}
"""Accepted further keywords."""

MADE_BY_OTHERS = {
    "Proxy": "PersistentQueue.connect",
    "TaskFunction": "Tasks.task",
    "Limit": "Limit.set",
    **dict.fromkeys(GRANTS, "producer, consumer"),
}
"""Classes, and the methods that make their objects."""

OF_STARTS = {"rate", "per", "burst"}
"""Parameters of a limit that has no slots."""

FREE = ("dequeue", "get_element", "lock", "acquire")
"""Calls on an element that has no lock."""


@dataclass(frozen=True)
class Call:
    """One public call."""

    name: str
    signature: inspect.Signature
    bound: Callable[[World], Callable[..., Any]]
    kind: str = "fifo"
    """That of its task queue."""

    @property
    def parameters(self) -> list[str]:
        known = self.signature.parameters.values()
        named = [parameter.name for parameter in known if parameter.kind is not parameter.VAR_KEYWORD]
        return named + [option for option in OPTIONS.get(self.name, ()) if option not in named]

    def arguments(self, world: World, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """`given`, and arguments that are good for the parameters that need one."""
        positional: list[Any] = []
        named = {name: value for name, value in given.items() if name not in self.signature.parameters}
        for parameter in self.signature.parameters.values():
            if parameter.name not in given and not self._is_needed(parameter, given):
                continue
            if parameter.name == "every" and "expression" in given:  # of a schedule: one of both
                continue
            value = given.get(parameter.name, _UNGIVEN)
            value = self._good(world, parameter.name) if value is _UNGIVEN else value
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                positional.append(value)
            else:
                named[parameter.name] = value
        if self.name.startswith(("TaskQueue.put", "TaskProducer.put")) and self.kind in KEYED:
            named.setdefault("key", "k")
        return positional, named

    def _is_needed(self, parameter: inspect.Parameter, given: Mapping[str, Any]) -> bool:
        if self.name == "Limit.set" and parameter.name in ("slots", "rate", "per"):  # of a limit: one of both
            return (parameter.name == "slots") != bool(OF_STARTS & set(given))
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            return f"{self.name}.{parameter.name}" in GOOD
        if self.name == "TaskQueue.change" and parameter.name == "do":
            return "set" not in given
        # A call without a timeout may wait for ever.
        return parameter.default is parameter.empty or parameter.name in ("timeout", "function", "every")

    def _good(self, world: World, parameter: str) -> Any:
        specific = GOOD.get(f"{self.name}.{parameter}")
        if specific is not None:
            return specific(world)
        of, _, method = self.name.partition(".")
        if of == "TaskQueue" and method in ("complete", "fail") and parameter == "task":
            return world.handed[self.kind]
        if of in ("TaskQueue", "TaskConsumer") and parameter in ("task", "tasks", "token"):
            task = world.held[self.kind]
            if parameter == "token":
                return text_of(task.id, task.token)
            return [task] if parameter == "tasks" else task
        if of in ("ElementQueue", "SimpleElementQueue") and parameter == "name" and method != "named":
            names = world.piece_names if of == "ElementQueue" else world.names
            return names[1] if method in FREE else names[0]
        if of.startswith("register_") and parameter == "name":
            return "new kind or codec"
        return GOOD[parameter](world)


_UNGIVEN = object()


def public_names() -> list[str]:
    return [*fdbqueue.__all__, "open"]


def calls() -> list[Call]:
    """Every public call: functions, constructors, methods, and properties that can be set."""
    found = [call for name in public_names() for call in _calls_of(name, getattr(fdbqueue, name))]
    found += _methods_of("Holder", Holder)  # Queue.holder returns one
    return [call for call in found if call.name not in LEFT_OUT]


def _calls_of(name: str, thing: Any) -> Iterator[Call]:
    if inspect.isfunction(thing):
        yield Call(name, inspect.signature(thing), lambda _: thing)
    elif inspect.isclass(thing) and (name not in LEFT_OUT or name == "Database"):
        if name not in MADE_BY_OTHERS:
            yield Call(name, inspect.signature(thing), lambda _: thing)
        yield from _methods_of(name, thing)


def _methods_of(name: str, of: type) -> Iterator[Call]:
    for method in dir(of):
        thing = inspect.getattr_static(of, method)
        full = f"{name}.{method}"
        if method.startswith("_") or full in LEFT_OUT:
            continue
        if isinstance(thing, classmethod):
            yield Call(full, inspect.signature(getattr(of, method)), _getter(lambda _: of, method))
        elif inspect.isfunction(thing):
            for receiver in RECEIVERS.get(full, RECEIVERS.get(name, ())):
                kind = _kind_of(name, receiver)
                yield Call(full, _without_self(thing), _getter(receiver, method), kind)
        elif isinstance(thing, property) and thing.fset is not None:
            for receiver in RECEIVERS.get(name, ()):
                parameter = inspect.Parameter(method, inspect.Parameter.KEYWORD_ONLY)
                yield Call(full, inspect.Signature([parameter]), _setter(receiver, method))


def _kind_of(name: str, receiver: Make) -> str:
    if name in GRANTS:
        return "fair"
    return TASK_KINDS[RECEIVERS["TaskQueue"].index(receiver)] if name == "TaskQueue" else "fifo"


def _without_self(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _getter(receiver: Make, method: str) -> Callable[[World], Any]:
    return lambda world: getattr(receiver(world), method)


def _setter(receiver: Make, name: str) -> Callable[[World], Callable[..., Any]]:
    return lambda world: lambda **given: setattr(receiver(world), name, given[name])


DEPTH = 5_000


class CallersError(Exception):
    """Raised by an object of the caller; a call may pass it on."""


class ReadTooMuch(BaseException):
    """A call has read far more of an endless iterable than one transaction may carry."""


class ShowsNothing:
    """Its texts cannot be made: an error message has to do without."""

    def __repr__(self) -> str:
        raise ReferenceError("no repr")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        raise ReferenceError("no format")


class ShowsMuch:
    def __repr__(self) -> str:
        return "\x1b[31m" + "r" * 9_000_000


class EqualsNothing:
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise CallersError("no ==")


class HasNoHash:
    def __hash__(self) -> int:
        raise CallersError("no hash")


class IsNeither:
    def __bool__(self) -> bool:
        raise CallersError("no bool")

    def __len__(self) -> int:
        raise CallersError("no len")


class CannotBeRead:
    def __iter__(self) -> Iterator[Any]:
        raise CallersError("no iter")


class HasNoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise CallersError(f"no {name}")


class AText(str):
    def encode(self, *_: Any, **__: Any) -> bytes:
        raise CallersError("no encode")


class ANumber(int):
    def __lt__(self, other: object) -> bool:
        raise CallersError("no <")

    __le__ = __gt__ = __ge__ = __lt__


class Colour(enum.Enum):
    RED = "red"


class KeyIsNoBytes:
    def key(self) -> Any:
        return "a text"


class KeyFails:
    def key(self) -> bytes:
        raise CallersError("no key")


def endless() -> Iterator[int]:
    yield from range(20 * limits.BATCH_ITEMS_MAX)
    raise ReadTooMuch


def breaks() -> Iterator[int]:
    yield 1
    raise CallersError("the iterable broke")


async def asynchronous(*_: Any, **__: Any) -> None: ...


def generating(*_: Any, **__: Any) -> Iterator[None]:
    yield


def nested(wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(DEPTH):
        value = wrap(value)
    return value


def contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _event_set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


PLAIN: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "1": 1,
    "-1": -1,
    "7": 7,
    "-0.0": -0.0,
    "0.5": 0.5,
    "2**31": 2**31,
    "2**62": 2**62,
    "2**64": 2**64,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "10**5000": 10**5000,
    "1e15": 1e15,
    "1e308": 1e308,
    "-1e308": -1e308,
    "5e-324": 5e-324,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "complex": 1 + 1j,
    "Decimal": Decimal("1.5"),
    "Decimal nan": Decimal("NaN"),
    "Fraction": Fraction(1, 3),
    "empty text": "",
    "text": "a",
    "digits": "7",
    "NUL": "a\x00b",
    "surrogate": "\ud800",
    "escaped byte": "\udcff",
    "escape": "\x1b[31mred\x1b[0m\x07",
    "C1 and bidi": "\x9b31m\u202e\u200b\u2028",
    "newline": "a\nb\r\nc",
    "300 letters": "x" * 300,
    "20 kB of text": "é" * 10_000,
    "1 MB of text": "x" * 1_000_000,
    "path": "../../etc/passwd",
    "metacharacters": "$(touch x); `id` %s {0} {} {name!r}",
    "url": "embedded:" + "a/" * 3_000,
    "memory url": "memory:",
    "empty bytes": b"",
    "bytes": b"\xff\x00",
    "1 MB of bytes": b"x" * 1_000_000,
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "()": (),
    "tuple": (1, "a"),
    "set": {1},
    "range": range(3),
    "Ellipsis": ...,
    "a class": dict,
    "a database's class": fdbqueue.Database,
    "a session's class": fdbqueue.Session,
    "an event's class": threading.Event,
    "a module": math,
    "an error": ValueError("x" * 100_000),
    "an error's class": ValueError,
    "enum": Colour.RED,
    "a state": fdbqueue.TaskState.TAKEN,
    "datetime": datetime.datetime(2020, 1, 1),
    "uuid": uuid.UUID(int=1),
    "coroutine function": asynchronous,
    "generator function": generating,
    "a lambda": lambda *_, **__: None,
    "str subclass": AText("a"),
    "int subclass": ANumber(1),
}

MADE: dict[str, Callable[[], Any]] = {
    "object": object,
    "[]": list,
    "list": lambda: [1, "a"],
    "list of None": lambda: [None],
    "{}": dict,
    "dict": lambda: {"a": 1},
    "dict of odd keys": lambda: {None: 1, 1: "x", "\ud800": math.nan},
    "dict of an object": lambda: {"a": object()},
    "deep list": lambda: nested(lambda part: [part]),
    "deep tuple": lambda: nested(lambda part: (part,)),
    "deep dict": lambda: nested(lambda part: {"a": part}),
    "list in itself": contains_itself,
    "endless generator": endless,
    "broken generator": breaks,
    "shows nothing": ShowsNothing,
    "shows much": ShowsMuch,
    "equals nothing": EqualsNothing,
    "no hash": HasNoHash,
    "no bool": IsNeither,
    "no iter": CannotBeRead,
    "no attributes": HasNoAttributes,
    "event": _event_set,
    "key is no bytes": KeyIsNoBytes,
    "key fails": KeyFails,
    "failure of odd texts": lambda: fdbqueue.Failure(ValueError, 7, b"\xff", "\ud800"),  # type: ignore[arg-type]
    "odd task": lambda: fdbqueue.Task(id=7, state="t", data=None, token="x"),  # type: ignore[arg-type]
    "task of a lease": lambda: fdbqueue.Task("00" * 20, fdbqueue.TaskState.TAKEN, None, token=b"x"),
}

HOSTILE: dict[str, Callable[[], Any]] = {
    **{label: (lambda value=value: value) for label, value in PLAIN.items()},
    **MADE,
}
