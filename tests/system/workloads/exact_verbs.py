"""The calls of the workload `exact`, each with the same call of the model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, TaskNotFound
from fdbqueue.core.page import every_row
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import Caller, added, micro, require_equal, right, seconds
from tests.system.workloads.exact_model import HOLDER_DIED, WAITS, Life, Model, put, put_many

SPANS = (None, None, 0.25, 0.5, 1, 3, 10)
NAMES = ("a", "b", "c")
KEYED = ("utube", "utubettl", "fair")
FAILURES = (None, Failure("Odd", "it failed"), Failure("Rare"))
BYTES_OF_FOUR = 10_000
"""The records and payloads of four tasks have fewer bytes."""
Answer = Callable[[Model, Life], Any]
Made = tuple[Callable[[Any], Any], Answer]
"""The call of the queue, and that of the model about a task that is held."""
DIES_AFTER_S = 3.0


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


def of_holder(model: Model, task: Task, answer: Answer) -> Callable[[], Any]:
    return lambda: answer(model, model.held(task))


def _ack(user: Verbs, task: Task) -> Made:
    result = user.random.choice((None, 7, "done" * 9))
    return lambda tr: user.q.ack(tr, task, result=result), lambda m, life: m.end(life, "ack", "acked", result)


def _delete(user: Verbs, task: Task) -> Made:
    return lambda tr: user.q.delete(tr, task), lambda m, life: m.end(life, "delete", "deleted")


def _release(user: Verbs, task: Task) -> Made:
    failure = user.random.choice(FAILURES)
    delays = failure is not None or user.q.kind not in ("fifo", "utube")
    delay = user.random.choice((0, 0.5, 2)) if delays else 0
    return (
        lambda tr: user.q.release(tr, task, delay=delay, failure=failure),
        lambda m, life: m.release(life, micro(delay) or 0, failure),
    )


def _defer(user: Verbs, task: Task) -> Made:
    delay = user.random.choice((0, 0.25, 3))
    return lambda tr: user.q.defer(tr, task, delay), lambda m, life: m.release(life, micro(delay) or 0)


def _give_back(user: Verbs, task: Task) -> Made:
    return lambda tr: user.q.give_back(tr, task), lambda m, life: m.release(life)


def _bury(user: Verbs, task: Task) -> Made:
    failure = user.random.choice(FAILURES)
    return lambda tr: user.q.bury(tr, task, failure=failure), lambda m, life: m.bury(life, failure)


def _touch(user: Verbs, task: Task) -> Made:
    if user.q.kind in ("fifo", "utube"):
        return _progress(user, task)
    span = user.random.choice((0.25, 2))
    return lambda tr: user.q.touch(tr, task, span), lambda m, life: _touched(m, life, micro(span))


def _touched(model: Model, life: Life, span: int | None) -> Task:
    for name in ("until", "expires", "ttr"):
        setattr(life, name, added(getattr(life, name), span))
    model.calls["touch"] += 1
    return life.shown()


def _progress(user: Verbs, task: Task) -> Made:
    fraction = user.random.choice((0.0, 0.5, 1.0))
    return lambda tr: user.q.progress(tr, task, fraction), lambda m, life: _told(m, life, fraction)


def _told(model: Model, life: Life, fraction: float) -> Task:
    life.fraction, life.told = fraction, model.now
    return life.shown()


def _renew(user: Verbs, task: Task) -> Made:
    def renew(tr: Any) -> Any:
        found = user.q.renew(tr, [task])
        if task.id not in found:
            return NotTaken(id=task.id)
        cancelled = task.id in found.cancelled
        return replace(task, until=found[task.id], cancel_asked=float(cancelled))

    return renew, lambda m, life: _renewed(m, life, task)


def _renewed(model: Model, life: Life, task: Task) -> Task:
    if life.until is not None:
        life.until = model.lease_end(life)
    return replace(task, until=seconds(life.until), cancel_asked=float(life.cancelled is not None))


def _step(user: Verbs, task: Task) -> Made:
    name, result = user.random.choice("xyz"), user.random.choice((None, "r", user.model.now))
    return (
        lambda tr: user.q.step(tr, task, name, (lambda *_: result)),
        lambda _, life: life.steps.setdefault(name, result),
    )


def _exhaust(user: Verbs, task: Task) -> Made:
    most = user.random.choice((1, 2, 3))
    return lambda tr: user.q.exhaust(tr, task, most), lambda m, life: _exhausted(m, life, most)


def _exhausted(model: Model, life: Life, most: int) -> bool:
    if life.failures - life.forgiven < most or life.cancelled is not None:
        return False
    lost = [n for n, failure in life.failed if n > life.forgiven and failure.outcome == "lease_lost"]
    life.failed = [
        (n, replace(failure, outcome="exhausted") if n in lost[-1:] else failure)
        for n, failure in life.failed
    ]
    model.put_aside(life)
    return True


LEASES: dict[str, Callable[[Verbs, Task], Made]] = {
    "ack": _ack,
    "delete": _delete,
    "release": _release,
    "defer": _defer,
    "give_back": _give_back,
    "bury": _bury,
    "touch": _touch,
    "progress": _progress,
    "renew": _renew,
    "step": _step,
    "exhaust": _exhaust,
}


class Many(Verbs):
    def kick(self) -> None:
        count = self.random.choice((1, 2, 3, 5, 9))
        buried = self._buried()
        many = count > limits.VERB_BATCH
        found = self.caller.answer(lambda tr: self.q.kick(tr, count), always_alone=many)
        require_equal(f"kick {count}", found, len(buried[:count]))
        self.model.kick(self.winners_first(buried[:count]))

    def _buried(self) -> list[Life]:
        """The buried tasks in the order of kicks: with partitions, one partition after the other."""
        if not self.model.is_parted:
            return self.model.in_state("!")
        listed = run(self.caller.client.db, lambda tr: list(every_row(partial(self.q.tasks, tr, "!", 50))))
        return [self.model.lives[task.id] for task in listed]

    def winners_first(self, lives: list[Life]) -> list[Life]:
        """Tasks that have come back together; those first that have their unique keys now."""
        return lives

    def release_all(self) -> None:
        self.caller.answer(self.q.release_all, always_alone=True)
        taken = sorted(self.model.in_state("t"), key=lambda life: (life.session or "", life.id))
        for life in self.winners_first(taken):
            self.model.release(life)

    def truncate(self) -> None:
        self.caller.answer(self.q.truncate)
        self.model.truncate()

    def pause(self) -> None:
        """Pause the queue, or resume it."""
        verb = self.q.resume if self.model.paused else self.q.pause
        self.caller.answer(verb)
        self.model.paused = not self.model.paused
        require_equal("paused", self.caller.answer(self.q.paused), self.model.paused)

    def forget_result(self) -> None:
        if self.ids:
            id_ = self.random.choice([*self.model.results, *self.ids[-3:]])
            found = self.caller.answer(lambda tr: self.q.forget_result(tr, id_))
            require_equal("forget_result", found, self.model.results.pop(id_, None) is not None)

    # Sessions.

    def end_session(self) -> None:
        name = self.random.choice([*self.sessions])
        old = self.sessions[name]
        old.end()
        for life in self._held_by(old):
            self.model.release(life)
        self.sessions[name] = Session(self.caller.client.db, ttr=inf)

    def let_a_session_die(self) -> None:
        """Take a task for a session that has no heartbeat any more, until the session is dead.

        A sweep ends it; or the next opener of its name, before its own session begins. Its tasks come back
        before or after those with a lapsed lease, so no two of them may want the same unique key.
        """
        if any(life.scope == "queued" for life in self.model.lives.values()):
            return
        db, name = self.caller.client.db, self.random.choice((None, "named"))
        session = Session(db, name, DIES_AFTER_S)
        self.sessions["dying"] = session
        session._keeper.forget(session)
        self.take()
        del self.sessions["dying"]
        self.caller.tick()
        self.model.now += round(DIES_AFTER_S * 1_000_000)
        self.caller.clock.move_to(self.model.now)
        self.model.sweep()
        for life in self._held_by(session):
            self.model.lose(life, HOLDER_DIED, "release")
        if name is not None:
            Session(db, name).end()
        self.caller.tick()

    def _held_by(self, session: Session) -> list[Life]:
        mine = [life for life in self.model.in_state("t") if life.session == session.id.hex()]
        return self.winners_first(mine)
