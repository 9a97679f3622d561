"""Puts in the model of the workload `exact`: new tasks, and tasks that have a unique key already."""

from dataclasses import replace
from typing import Any

from fdbqueue.core.errors import BatchOverCapacity, QueueFull, UniqueTaskBusy
from fdbqueue.core.task import Task, TaskState
from tests.system.workloads.exact_life import WAITS, Life
from tests.system.workloads.exact_model import Model
from tests.system.workloads.exact_tasks import Window
from tests.system.workloads.exact_times import added, micro

STATES = {"t": "taken", "!": "buried", "-": "done"}
Answer = Task | Exception


def put(model: Model, name: str, data: Any, options: dict[str, Any], made: Task | None) -> Answer:
    """The right answer of a put. `made`: the answer of the queue; a new task has its id."""
    unique = options.get("unique")
    if unique is not None and unique in model.windows:
        return _beside(model, model.windows[unique], data, options)
    full = full_with(model, name, 1)
    if full is not None:
        return full
    return _new(model, data, options, "" if made is None else made.id).shown()


def put_many(model: Model, name: str, data: list[Any], options: dict[str, Any], made: list[str]) -> Any:
    full = full_with(model, name, len(data))
    if full is not None:
        return full
    ids = made if len(made) == len(data) else [""] * len(data)
    return [_new(model, one, options, id_).shown() for one, id_ in zip(data, ids, strict=True)]


def full_with(model: Model, name: str, more: int) -> Exception | None:
    capacity = model.options.get("capacity")
    if capacity is None or len(model.lives) + more <= capacity:
        return None
    told = {"name": name, "current_size": len(model.lives), "capacity": capacity}
    return (BatchOverCapacity if more > capacity else QueueFull)(**told, wanted=more)


def _new(model: Model, data: Any, options: dict[str, Any], id_: str) -> Life:
    delay, ttl, now = micro(options.get("delay", 0)) or 0, model.ttl(options), model.now
    life = Life(id_, data, now, added(added(now, ttl), delay), model.ttr(options))
    life.pri, life.key = model.pri(options), options.get("key")
    life.headers, life.result_ttl = options.get("headers") or {}, micro(options.get("result_ttl"))
    if delay:
        life.state, life.until = "~", now + delay
    unique, scope = options.get("unique"), options.get("scope", "unfinished")
    if unique is not None:
        life.unique, life.scope = unique, scope
        until = None if isinstance(scope, str) else added(now, micro(scope))
        model.windows[unique] = Window(id_, until)
    assert id_ not in model.lives, f"the id {id_!r} is given twice"
    assert model.is_parted or id_ > max(model.lives, default=""), f"{id_!r} is not behind all others"
    model.lives[id_] = life
    model.calls["put"] += 1
    return life


def _beside(model: Model, window: Window, data: Any, options: dict[str, Any]) -> Answer:
    """The answer of a put with the unique key of another task."""
    life, unique = model.lives.get(window.id), options["unique"]
    if options.get("on_conflict", "skip") == "skip":
        if life is None:
            return Task(window.id, TaskState.DONE, None, unique=unique)
        return life.shown()
    if life is None or life.state not in WAITS:
        state = "-" if life is None else life.state
        return UniqueTaskBusy(id=window.id, state=STATES[state], unique=unique)
    _overwrite(model, life, data, options)
    return life.shown()


def _overwrite(model: Model, life: Life, data: Any, options: dict[str, Any]) -> None:
    now, due = model.now, life.until if life.state == "~" else model.now
    if options["on_conflict"] == "debounce":
        latest = life.created + (micro(options["debounce_max"]) or 0)
        due = min(now + (micro(options.get("delay", 0)) or 0), latest)
    due = max(now, due or 0)
    life.data, life.headers, life.ttr = data, options.get("headers") or {}, model.ttr(options)
    life.result_ttl = micro(options.get("result_ttl")) or life.result_ttl
    life.expires, life.steps = added(due, model.ttl(options)), {}
    if life.state == "~" and due <= now:
        model.calls["delay"] += 1
    life.state, life.until = ("~", due) if due > now else ("r", None)


def shown_alike(one: Any, other: Any) -> bool:
    """True for equal answers; the ids of errors' texts count, too."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(shown_alike, one, other))
    return bool(_without_trace(one) == _without_trace(other))


def _without_trace(answer: Any) -> Any:
    return replace(answer, trace=None) if isinstance(answer, Task) else answer
