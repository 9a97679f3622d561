"""The calls of the workload `exact`, each with the same call of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import Caller, require_equal, right
from tests.system.workloads.exact_leases import LEASES, of_holder
from tests.system.workloads.exact_life import WAITS, Life
from tests.system.workloads.exact_model import Model
from tests.system.workloads.exact_puts import put, put_many

SPANS = (None, None, 0.25, 0.5, 1, 3, 10)
NAMES = ("a", "b", "c")
KEYED = ("utube", "utubettl", "fair")
FAILURES = (None, Failure("Odd", "it failed"), Failure("Rare"))
BYTES_OF_FOUR = 10_000
"""The records and payloads of four tasks have fewer bytes."""


class Verbs:
    """Calls of one queue, and the tasks that its sessions have held."""

    def __init__(self, caller: Caller, q: TaskQueue, model: Model, sessions: dict[str, Session]) -> None:
        self.caller, self.q, self.model, self.sessions = caller, q, model, sessions
        self.random = caller.random
        self.ids: list[str] = []
        self.leases: list[Task] = []
        self._number = 0

    def _call(self, what: str, verb: Callable[[Any], Any], answer: Callable[[], Any]) -> Any:
        found = self.caller.answer(verb)
        require_equal(what, found, right(answer))
        return found

    # Puts.

    def put(self) -> None:
        data, options = self._data(), self._options()
        if self.random.random() < 0.4:
            options |= self._unique(options)
        found = self.caller.answer(lambda tr: self.q.put(tr, data, **options))
        made = found if isinstance(found, Task) else None
        wanted = right(lambda: put(self.model, self.q.name, data, options, made))
        require_equal(f"put {options}", found, wanted)
        if made is not None and made.id not in self.ids:
            assert not made.existed, f"put {options}: it tells of a task that was there"
            self.ids.append(made.id)

    def put_many(self) -> None:
        data, options = [self._data() for _ in range(self.random.choice((2, 3)))], self._options()
        found = self.caller.answer(lambda tr: self.q.put_many(tr, data, **options))
        made = [task.id for task in found] if isinstance(found, list) else []
        require_equal("put_many", found, put_many(self.model, self.q.name, data, options, made))
        self.ids += made

    def _data(self) -> str:
        self._number += 1
        return f"{self._number}" * self.random.choice((1, 1, 9))

    def _options(self) -> dict[str, Any]:
        choice, kind = self.random.choice, self.q.kind
        options: dict[str, Any] = {}
        if kind not in ("fifo", "utube"):
            options = {"ttl": choice(SPANS), "ttr": choice(SPANS), "delay": choice((0, 0, 0, 0.5, 2))}
        if "ttl" in kind:
            options["pri"] = choice((0, 0, 1, 2))
        if kind in KEYED:
            options["key"] = choice(NAMES)
        if choice((True, False)):
            options["headers"] = {"number": str(self._number)}
        if choice((True, False)):
            options["result_ttl"] = choice((0.5, 5, 50))
        return options

    def _unique(self, options: dict[str, Any]) -> dict[str, Any]:
        choice = self.random.choice
        how = choice(("skip", "skip", "replace", "debounce" if "delay" in options else "replace"))
        scope = choice(("unfinished", "queued", "queued", 1, 5))
        most = {"debounce_max": choice((2, 4))} if how == "debounce" else {}
        worked_at = [
            life.unique for life in self.model.lives.values() if life.attempts and life.state in WAITS
        ]
        name = choice([one for one in worked_at if one is not None] or NAMES)
        return {"unique": name, "scope": scope, "on_conflict": how, **most}

    # Takes and leases.

    def take(self) -> None:
        count, name = self.random.choice((1, 1, 2, 4)), self.random.choice([*self.sessions])
        session = self.sessions[name]
        found = self.caller.answer(lambda tr: self.q.take_many(tr, count, session=session))
        self._require_taken(found, count, session)

    def _require_taken(self, found: list[Task], count: int, session: Session) -> None:
        ready = self.model.takeable()
        most = min(count, len(ready))
        least = min(most, self._least())
        assert least <= len(found) <= most, f"taken: {found}, of {ready}"
        for number, task in enumerate(found):
            self._require_next(task, ready, number)
            assert task.token not in [None, *(old.token for old in self.leases)], f"old token: {task}"
            life = self.model.lives[task.id]
            self.model.lease(life, task, session.id.hex())
            require_equal("take", task, life.shown())
        self.leases = [*self.leases, *found][-12:]

    def is_under_way(self) -> bool:
        """True if a repartition is: then a task key may have tasks in two partitions."""
        return False

    def _least(self) -> int:
        """The number of tasks that a take gives at least, if as many are ready: the line gives fewer, and so
        does a small bound of bytes.
        """
        bytes_max = min(limits.SERVE_BYTES_MAX, limits.BATCH_BYTES_MAX, limits.BATCH_RECORDS_BYTES_MAX)
        return 1 if self.model.is_parted or bytes_max < BYTES_OF_FOUR else limits.SERVE_MAX

    def _require_next(self, task: Task, ready: list[Life], number: int) -> None:
        """Fair queues and partitions have an order for each key, and bags have none."""
        kind, is_parted = self.q.kind, self.model.is_parted
        ids = [life.id for life in ready]
        if kind == "fair" or (is_parted and kind in KEYED):
            of_key = [life for life in ready if life.key == task.key]
            ids = [life.id for life in of_key if life.state == "r"][:1]
        elif kind != "bag" and not is_parted:
            ids = ids[number : number + 1]
        assert task.id in ids, f"taken: {task}, and next is {ids} of {[life.id for life in ready]}"

    def use_a_lease(self) -> None:
        """Call a verb of a holder; some leases are over by now."""
        if self.leases:
            task, (name, make) = self.random.choice(self.leases), self.random.choice([*LEASES.items()])
            verb, answer = make(self, task)
            self._call(f"{name} of {task.id}", verb, of_holder(self.model, task, answer))

    # Calls of any process.

    def by_id(self) -> None:
        if not self.ids:
            return
        name, id_ = self.random.choice(("bury", "delete", "cancel")), self.random.choice(self.ids[-8:])
        self._call(
            f"{name} {id_}", lambda tr: getattr(self.q, name)(tr, id_), partial(self._by_id, name, id_)
        )

    def _by_id(self, name: str, id_: str) -> Task:
        life = self.model.lives.get(id_)
        if life is None:
            raise TaskNotFound(id=id_, name=self.q.name)
        if name == "bury":
            return self.model.bury(life)
        if name == "cancel" and life.state == "t":
            life.cancelled = life.cancelled or self.model.now
            return life.shown()
        outcomes = {"cancel": "cancelled", "delete": "deleted"}
        return self.model.end(life, name, outcomes[name])
