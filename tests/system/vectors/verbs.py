"""The verbs of vectors, as calls of this package.

A verb gets a transaction, or a database for a call with a receipt, and the call of its vector. It returns
the stored result of the vector: bytes as escaped texts, a task as its id.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Subspace
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.operate.conformance import Keys, Ranges, Step, Told, escaped, heard
from fdbqueue.queues.elements.queue import ElementQueue, SimpleElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks import verbs
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import holder_died
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import id_bytes, id_text

LAYOUT = Path(__file__).parents[3] / "fdbqueue" / "operate" / "layout"
_RUN_MIN = 16


def told(data: bytes) -> Told:
    """The text of `data`; in parts, if it has long runs of one byte."""
    parts: list[str | Sequence[str | int]] = []
    for byte, run in groupby(data):
        count = sum(1 for _ in run)
        if count >= _RUN_MIN:
            parts.append([escaped(bytes((byte,))), count])
        elif parts and isinstance(parts[-1], str):
            parts[-1] += escaped(bytes((byte,)) * count)
        else:
            parts.append(escaped(bytes((byte,)) * count))
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return parts


def step_to_json(step: Step) -> dict[str, Any]:
    stored: dict[str, Any] = {"verb": step.verb, "call": step.call, "now_us": step.now_us}
    if step.random:
        stored["random"] = [*map(escaped, step.random)]
    if step.set:
        stored["set"] = {escaped(key): told(value) for key, value in sorted(step.set.items())}
    if step.clear:
        stored["clear"] = [*map(escaped, step.clear)]
    if step.returns is not None:
        stored["returns"] = step.returns
    if step.conflicts is not None:
        stored["reads"] = _told(step.conflicts.reads)
        if step.conflicts.writes:
            stored["writes"] = _told(step.conflicts.writes)
    return stored


def stored_schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LAYOUT / "vectors.schema.json").read_text())
    return found


def changes(before: Keys, after: Keys) -> tuple[Keys, list[bytes]]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return changed, sorted(before.keys() - after.keys())


def _told(ranges: Ranges) -> list[Any]:
    """A range of one key is told as that key."""
    return [
        escaped(begin) if end == begin + b"\x00" else [escaped(begin), escaped(end)] for begin, end in ranges
    ]


ROOT = Subspace(("q",))
"""The root of all vectors. It is short, and another root than that of any real queue."""
SCHEMA = {"body": "string"}
RECIPE, FAIR, ELEMENTS, SIMPLE = "queue", "fair-queue", "elements", "simple-elements"


@dataclass(frozen=True)
class Given:
    """The call of a vector, with the session that it names."""

    kind: str
    call: Mapping[str, Any]
    session: Session | None = None

    def __getitem__(self, name: str) -> Any:
        return self.call[name]

    def data(self, name: str) -> bytes:
        return heard(self.call[name])

    def payloads(self) -> list[bytes]:
        return [*map(heard, self.call["payloads"])]

    def task(self) -> str:
        return id_text(self.data("task"))

    def held(self) -> dict[str, Any]:
        """The lease of the token; without one, that of the session."""
        if "token" in self.call:
            return {"task": self.leased()}
        return {"task": self.task(), "session": self.session}

    def leased(self) -> Task:
        """The task, under the lease of the token."""
        return Task(self.task(), TaskState.TAKEN, None, token=self.data("token"))

    def options(self, *names: str) -> dict[str, Any]:
        """The arguments of these names that the call has."""
        return {name: self.call[name] for name in names if name in self.call}

    @property
    def name(self) -> str:
        found: str = self.call["queue"]
        return found

    @property
    def subspace(self) -> Subspace:
        return Subspace((), self.data("subspace"))


Verb = Callable[[Any, Given], Any]


def verb_of(kind: str, verb: str) -> Verb:
    families = {RECIPE: _RECIPE, FAIR: _FAIR, ELEMENTS: _ELEMENTS, SIMPLE: _SIMPLE}
    return {**_OF_EVERY_KIND, **families.get(kind, _TASKS)}[verb]


def _texts(values: list[bytes]) -> list[Told]:
    return [*map(told, values)]


def _ids(tasks: list[Task]) -> list[str]:
    return [escaped(id_bytes(task.id)) for task in tasks]


def _nothing(_: Any) -> None:
    """No result: the answer of the verb is no part of the layout."""


# The registry.


def _drop(tr: Any, given: Given) -> None:
    Registry(ROOT).drop(tr, given.name)


_OF_EVERY_KIND: dict[str, Verb] = {"drop": _drop}


# The recipe.


def _recipe(tr: Any, given: Given) -> Queue:
    if "subspace" in given.call:
        return Queue(given.subspace, codec="bytes", root=ROOT)
    return Queue.named(tr, given.name, create=False, root=ROOT)


def _create_recipe(tr: Any, given: Given) -> None:
    Queue.named(tr, given.name, codec=given["codec"], root=ROOT, **given.options("partitions"))


def _dequeue(tr: Any, given: Given) -> list[Told]:
    return _texts(_recipe(tr, given).dequeue_many(tr, given["count"]))


def _peek_recipe(tr: Any, given: Given) -> list[Told]:
    found = _recipe(tr, given).peek(tr)
    return [] if found is None else [told(found)]


_RECIPE: dict[str, Verb] = {
    "create": _create_recipe,
    "enqueue": lambda tr, given: _recipe(tr, given).enqueue(tr, given.data("payload")),
    "enqueue_many": lambda tr, given: _recipe(tr, given).enqueue_many(tr, given.payloads()),
    "dequeue": _dequeue,
    "give_back": lambda tr, given: _recipe(tr, given).give_back(tr, given.payloads()),
    "peek": _peek_recipe,
    "size": lambda tr, given: _recipe(tr, given).size(tr),
    "clear": lambda tr, given: _recipe(tr, given).clear(tr),
    "repartition": lambda tr, given: _nothing(_recipe(tr, given).repartition(tr, given["partitions"])),
}


# Tasks.

_CREATED = (
    "ttl",
    "ttr",
    "pri",
    "capacity",
    "key_concurrency",
    "weights",
    "retain_s",
    "partitions",
    "limits",
    "attempts",
)
_PUT = ("ttl", "ttr", "pri", "delay", "key", "cost", "headers", "result_ttl", "group", "limits", "attempts")
_UNIQUE = ("unique", "scope", "on_conflict", "debounce_max")


def _tasks(tr: Any, given: Given) -> TaskQueue:
    return TaskQueue.open(tr, given.name, root=ROOT)


def _create_tasks(tr: Any, given: Given) -> None:
    options = given.options(*_CREATED, "task_limits", "codec")
    TaskQueue.create(tr, given.name, given.kind, root=ROOT, **options)


def _put(tr: Any, given: Given) -> list[str]:
    options = given.options(*_PUT, *_UNIQUE)
    if "after" in given.call:
        options["after"] = id_text(given.data("after"))
    return _ids([_tasks(tr, given).put(tr, given.data("payload"), **options)])


def _put_many(tr: Any, given: Given) -> list[str]:
    return _ids(_tasks(tr, given).put_many(tr, given.payloads(), **given.options(*_PUT)))


def _take(tr: Any, given: Given) -> list[str]:
    return _ids(_tasks(tr, given).take_many(tr, given["count"], session=given.session))


def _failure(given: Given) -> Failure | None:
    return Failure(**given["failure"]) if "failure" in given.call else None


def _release(tr: Any, given: Given) -> None:
    options = {**given.options("delay"), "failure": _failure(given)}
    _nothing(_tasks(tr, given).release(tr, **given.held(), **options))


def _ack(tr: Any, given: Given) -> None:
    result: dict[str, Any] = {"result": given.data("result")} if "result" in given.call else {}
    _nothing(_tasks(tr, given).ack(tr, **given.held(), **result))


def _bury(tr: Any, given: Given) -> None:
    task = given.leased() if "token" in given.call else given.task()
    _nothing(_tasks(tr, given).bury(tr, task, failure=_failure(given)))


def _statistics(tr: Any, given: Given) -> Any:
    return _tasks(tr, given).statistics(tr)


_TASKS: dict[str, Verb] = {
    "create": _create_tasks,
    "put": _put,
    "put_many": _put_many,
    "take": _take,
    "ack": _ack,
    "release": _release,
    "touch": lambda tr, given: _nothing(
        _tasks(tr, given).touch(tr, increment=given["increment"], **given.held())
    ),
    "renew": lambda tr, given: _nothing(_tasks(tr, given).renew(tr, [given.leased()])),
    "progress": lambda tr, given: _nothing(_tasks(tr, given).progress(tr, given.leased(), given["fraction"])),
    "bury": _bury,
    "kick": lambda tr, given: _tasks(tr, given).kick(tr, given["count"]),
    "delete": lambda tr, given: _nothing(_tasks(tr, given).delete(tr, given.task())),
    "cancel": lambda tr, given: _nothing(_tasks(tr, given).cancel(tr, given.task())),
    "peek": lambda tr, given: _tasks(tr, given).peek(tr, given.task()).state,
    "statistics": _statistics,
    "pause": lambda tr, given: _tasks(tr, given).pause(tr),
    "resume": lambda tr, given: _tasks(tr, given).resume(tr),
    "truncate": lambda tr, given: _tasks(tr, given).truncate(tr),
    "release_all": lambda tr, given: _tasks(tr, given).release_all(tr),
    "repartition": lambda tr, given: _nothing(_tasks(tr, given).repartition(tr, given["partitions"])),
}


# Consumers.

_ROOT = RootKeys(ROOT)


def _open(tr: Any, given: Given) -> None:
    assert given.session is not None
    given.session.ttr = given["ttr"]
    _nothing(given.session._register(tr, given.data("session")))


def _beat(tr: Any, given: Given) -> bool:
    assert given.session is not None
    return given.session._beat(tr) is not None


def _sweep(tr: Any, given: Given) -> None:
    _nothing(_tasks(tr, given)._calls(tr).parts.tidy(tr))


def _end(tr: Any, _: Given) -> int:
    now_us = runtime_of(tr).now_us()
    dead = [one for one in ending.ask_overdue(tr, _ROOT, now_us)().dead if not one.begun]
    return len(ending._begin_ends(tr, _ROOT, dead, now_us))


def _end_own(tr: Any, given: Given) -> None:
    ending._ask_end(tr, _ROOT, given.data("session"), runtime_of(tr).now_us())(lambda *_: True)


def _release_taken(tr: Any, given: Given) -> None:
    def release(change: Change) -> int:
        under = change.shape.keys.all_taken_by(given.data("session"))
        died = holder_died("") if given["died"] else None
        return verbs.release_taken(change, under, limits.VERB_BATCH, died)

    _tasks(tr, given)._calls(tr).parts.part(0).within(tr, release)


def _forget(tr: Any, given: Given) -> None:
    ending._forget(tr, _ROOT, {given.data("session"): given["time"]})


def _exhaust(tr: Any, given: Given) -> bool:
    return _tasks(tr, given).exhaust(tr, given.leased(), given["attempts"])


_TASKS |= {
    "open": _open,
    "beat": _beat,
    "sweep": _sweep,
    "end": _end,
    "end_own": _end_own,
    "release_taken": _release_taken,
    "forget": _forget,
    "exhaust": _exhaust,
}


# Fair queues over a subspace.


def _fair(given: Given) -> FairQueue:
    options = given.options("capacity", "weights")
    return FairQueue(
        given.subspace, key=lambda _: given["key"], codec="bytes", root=ROOT, **{"capacity": None, **options}
    )


def _get_fair(tr: Any, given: Given) -> list[str]:
    found, item = _fair(given).take_item(tr)
    return [escaped(item)] if found else []


_FAIR: dict[str, Verb] = {
    "put": lambda tr, given: _fair(given).put(tr, given.data("payload"), **given.options("cost")),
    "get": _get_fair,
    "give_back": lambda tr, given: _fair(given).give_back(tr, given.data("payload"), **given.options("cost")),
    "size": lambda tr, given: _fair(given).size(tr),
}


# Elements.


def _elements(tr: Any, given: Given) -> ElementQueue:
    if "subspace" in given.call:
        return ElementQueue(given.subspace, SCHEMA, root=ROOT)
    return ElementQueue.named(tr, given.name, create=False, root=ROOT)


def _simple(tr: Any, given: Given) -> SimpleElementQueue:
    if "subspace" in given.call:
        return SimpleElementQueue(given.subspace, root=ROOT)
    return SimpleElementQueue.named(tr, given.name, create=False, root=ROOT)


def _lock(open_: Callable[[Any, Given], Any], tr: Any, given: Given) -> bool:
    return open_(tr, given).acquire(tr, given["name"]) is not None


def _verbs_of_elements(open_: Callable[[Any, Given], Any]) -> dict[str, Verb]:
    return {
        "lock": partial(_lock, open_),
        "unlock": lambda tr, given: open_(tr, given).unlock(tr, given["name"]),
        "touch": lambda tr, given: open_(tr, given).touch(tr, given["name"]),
        "remove": lambda tr, given: open_(tr, given).remove(tr, given["name"]),
        "count": lambda tr, given: open_(tr, given).count(tr),
        "purge": lambda tr, given: open_(tr, given).purge(tr, 0, given["maxlock"]),
    }


_ELEMENTS: dict[str, Verb] = {
    **_verbs_of_elements(_elements),
    "create": lambda tr, given: _nothing(ElementQueue.named(tr, given.name, SCHEMA, root=ROOT)),
    "add": lambda tr, given: _elements(tr, given).add(tr, given["pieces"]),
    "get": lambda tr, given: _elements(tr, given).get(tr, given["name"]),
    "dequeue": lambda tr, given: _elements(tr, given).dequeue(tr, given["name"]),
}
_SIMPLE: dict[str, Verb] = {
    **_verbs_of_elements(_simple),
    "create": lambda tr, given: _nothing(SimpleElementQueue.named(tr, given.name, root=ROOT)),
    "add": lambda tr, given: _simple(tr, given).add(tr, given.data("payload")),
    "get": lambda tr, given: escaped(_simple(tr, given).get(tr, given["name"])),
}
