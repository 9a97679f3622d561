"""Every public call of the library, found by itself, with arguments that it accepts."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fdbqueue
from fdbqueue import Subspace
from fdbqueue.core import errors
from fdbqueue.core.registry import Registry
from fdbqueue.fleet.options import WorkerKeywords
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.tasks.options import PutOptions
from tests.fuzz.world import KEYED, World

Make = Callable[[World], Any]

LEFT_OUT = {
    "Codec": "an interface, for codecs of the user's own",
    "Runtime": "an interface, for simulations",
    "RealRuntime": "functions of Python's own modules",
    "Subspace": "the binding's",
    "Database": "its constructor is that of `open`, its other methods are the engine's",
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
    "Session.ask": "for parts of the library, which give it a transaction",
    **dict.fromkeys(
        (
            "Check",
            "DeadLetter",
            "Diagnosis",
            "EndedTask",
            "Event",
            "Explanation",
            "Figures",
            "FailureClass",
            "Finding",
            "FleetStatus",
            "HeldTask",
            "Holder",
            "HolderProcess",
            "KeyFigures",
            "HeldKey",
            "KeyHolder",
            "KeyStatistics",
            "Page",
            "Partition",
            "Presence",
            "QueueFigures",
            "Reason",
            "Redrive",
            "RedriveStep",
            "Renewed",
            "Repartition",
            "GroupProgress",
            "GroupsFigures",
            "LimitFigures",
            "LimitHolder",
            "LimitKey",
            "Members",
            "ReachedLimit",
            "ScheduleFigures",
            "ScheduleStatus",
            "WaitedFor",
            "SetAside",
            "Task",
            "TaskFigures",
            "TaskPlace",
            "Unreadable",
            "Verification",
        ),
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
}
"""The objects on which methods are called, all of a class or one."""

GOOD: Mapping[str, Make] = {
    **dict.fromkeys(("db", "tr", "target"), lambda world: world.db),
    **dict.fromkeys(("n", "count", "limit", "value", "item", "increment", "failures", "cost"), lambda _: 1),
    **dict.fromkeys(("delay", "timeout", "timeout_s", "shown", "watch_s"), lambda _: 0),
    **dict.fromkeys(("runtime", "token", "callback"), lambda _: None),
    **dict.fromkeys(("queue", "queues"), lambda _: "fair"),
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
        # A call without a timeout may wait for ever.
        return parameter.default is parameter.empty or parameter.name in ("timeout", "function", "every")

    def _good(self, world: World, parameter: str) -> Any:
        specific = GOOD.get(f"{self.name}.{parameter}")
        if specific is not None:
            return specific(world)
        of, _, method = self.name.partition(".")
        if of in ("TaskQueue", "TaskConsumer") and parameter in ("task", "tasks"):
            task = world.held[self.kind]
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
