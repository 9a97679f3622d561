"""The calls and the looks of the workload `exact`, each with the answer of the model."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NoResult, NotTaken, ResultTimeout, TaskFailed, TaskNotFound
from fdbqueue.core.page import every_row
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Explanation, Failure, Task, TaskPlace, Why
from fdbqueue.tasks.looking import Waiting
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import ends_of
from tests.system.workloads.exact_model import (
    WAITS,
    Caller,
    Life,
    Model,
    added,
    caught,
    holder_died,
    micro,
    put,
    put_many,
    require_equal,
    right,
    seconds,
)

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
            self.model.lose(life, holder_died(name, self.caller.client.runtime), "release")
        if name is not None:
            Session(db, name).end()
        self.caller.tick()

    def _held_by(self, session: Session) -> list[Life]:
        mine = [life for life in self.model.in_state("t") if life.session == session.id.hex()]
        return self.winners_first(mine)


ALONE, PAGES_MAX = 0.3, 4
STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
LISTED = ("put", "take", "ack", "release", "bury", "kick", "delete", "touch", "ttl", "ttr", "delay", "cancel")


class Counts:
    def __init__(self, user: Verbs) -> None:
        self.user, self.q, self.model = user, user.q, user.model
        self.caller: Caller = user.caller
        self.random = user.random
        self._target: Any = None

    def _at(self, target: Any, look: Callable[[], None]) -> None:
        self._target = target
        look()

    def _see(self, look: Any) -> Any:
        return caught(look, self._target)

    def _pages(self, look: Any) -> list[Any]:
        return list(every_row(lambda *, after: self._see(partial(look, after=after))))

    def _statistics(self) -> None:
        found, calls = self._see(self.q.statistics), self.model.calls
        states = Counter(STATES[life.state] for life in self.model.lives.values())
        wanted = {
            "tasks": {
                **{name: states[name] for name in STATES.values()},
                "done": calls["done"],
                "total": len(self.model.lives),
                "unreadable": 0,
                "due": 0,
                "cancelled": 0,
            },
            "calls": {name: calls[name] for name in LISTED},
            "ends": ends_of(calls),
        }
        require_equal("statistics", found, wanted)

    def _ended(self, size: int) -> None:
        wanted = self.model.retained()
        require_equal("ended tasks", self._pages(partial(self.q.ended_tasks, limit=size)), wanted)
        for one in wanted[:2]:
            require_equal("an ended task", self._see(lambda tr, id_=one.id: self.q.ended_task(tr, id_)), one)
        if self.q.kind in KEYED:
            of_key = partial(self.q.ended_tasks_of, key="a", limit=size)
            require_equal(
                "ended tasks of a key", self._pages(of_key), [one for one in wanted if one.key == "a"]
            )

    def _keys(self) -> None:
        found = {one.key: one for one in self._see(lambda tr: self.q.key_statistics(tr, 10))}
        ready = self.model.in_state("r")
        require_equal("keys", sorted(found), sorted({life.key for life in ready}))
        for key, one in found.items():
            of_key = [life for life in self.model.lives.values() if life.key == key]
            counts = Counter(STATES[life.state] for life in of_key)
            first = next(life for life in ready if life.key == key)
            wanted = replace(one, **{name: counts[name] for name in STATES.values()})
            require_equal("a key", one, wanted)
            age_s = (self.model.now - first.created) / 1_000_000
            require_equal(f"the first of {key}", one.oldest, Waiting(first.id, age_s))


class Looks(Counts):
    def look(self, swept: bool) -> None:
        """Look at some tasks. Before a sweep, not all answers are those of the model.

        Given a database, a look may sweep. So looks before a sweep are in transactions, few in each: every
        read may meet a fault.
        """
        random, few = self.random, 1 + len(self.model.lives) // PAGES_MAX
        size = random.choice((few, few + 1, few + 4))
        ended = [id_ for id_ in self.user.ids if id_ not in self.model.lives][-3:]
        ids = [random.choice(known) for known in ([*self.model.lives], ended) if known]
        looks: list[Callable[[], None]] = [partial(self._one, id_, swept) for id_ in ids]
        looks += [partial(self._explain, id_, swept) for id_ in ids]
        looks += [partial(self._listing, state, size, swept) for state in STATES]
        if swept:
            looks.append(self._statistics)
            looks += [partial(self._ended, size)] if "retain_s" in self.model.options else []
            looks += [self._keys] if self.q.kind in KEYED and not self.user.is_under_way() else []
        for look in looks:
            if swept and random.random() < ALONE:
                self._at(self.caller.client.db, look)
            else:
                run(self.caller.client.db, partial(self._at, look=look))

    def _one(self, id_: str, swept: bool) -> None:
        for name in ("peek", "holder", "result", *(("failures", "steps") if swept else ())):
            wanted = right(partial(getattr(self, f"_{name}"), id_))
            verb, at_once = getattr(self.q, name), (0,) if name == "result" else ()
            found = self._see(lambda tr, verb=verb, at_once=at_once: verb(tr, id_, *at_once))
            if name == "holder" and not isinstance(found, Exception):
                found = found and found.session
            if isinstance(wanted, NoResult):
                assert isinstance(found, NoResult), f"result {id_}: {found!r}, and right is {wanted!r}"
            else:
                require_equal(f"{name} {id_}", as_seen(found, swept), as_seen(wanted, swept))

    def _explain(self, id_: str, swept: bool) -> None:
        explained = self._see(lambda tr: self.q.explain(tr, id_))
        life = self.model.lives.get(id_)
        if life is None:
            require_equal(f"explain {id_}", explained, self._missing(id_))
        else:
            require_explained(self.model, life, explained, swept)

    def _missing(self, id_: str) -> TaskNotFound:
        return TaskNotFound(id=id_, name=self.q.name)

    def _life(self, id_: str) -> Life:
        if id_ not in self.model.lives:
            raise self._missing(id_)
        return self.model.lives[id_]

    def _peek(self, id_: str) -> Any:
        return self._life(id_).shown()

    def _holder(self, id_: str) -> Any:
        return self._life(id_).session

    def _failures(self, id_: str) -> list[Failure]:
        return [failure for _, failure in self._life(id_).failed]

    def _steps(self, id_: str) -> list[str]:
        return sorted(self._life(id_).steps)

    def _result(self, id_: str) -> Any:
        life, stored = self.model.lives.get(id_), self.model.results.get(id_)
        if stored is not None and stored.outcome == "acked":
            return stored.value
        if life is None or life.result_ttl is None:
            raise NoResult(id=id_, name=self.q.name, reason="")
        if life.state == "!":
            failure = life.failed[-1][1] if life.failed else None
            told = "no failure is stored" if failure is None else f"{failure.error}: {failure.message}"
            raise TaskFailed(id=id_, name=self.q.name, failure=failure, reason=told)
        raise ResultTimeout(id=id_, name=self.q.name, state=STATES[life.state])

    def _listing(self, state: str, size: int, swept: bool) -> None:
        pages = self._pages(partial(self.q.tasks, state=state, limit=size))
        found = [as_seen(task, swept) for task in pages]
        wanted = [as_seen(life.shown(), swept) for life in self.model.in_state(state)]
        in_order = state in "~!" or (state == "r" and swept and self.q.kind.endswith(("fifo", "fifottl")))
        in_order = in_order and not self.model.is_parted
        if not in_order:
            found, wanted = sorted(found, key=attrgetter("id")), sorted(wanted, key=attrgetter("id"))
        require_equal(f"tasks {state!r}", found, wanted)


def as_seen(answer: Any, swept: bool) -> Any:
    """A task as a look shows it. Before a sweep, a lease that is over counts as no failure, and a task has a
    unique key that another one has taken.
    """
    if swept or not isinstance(answer, Task):
        return answer
    return replace(answer, failures=0, orphaned=0, unique=None)


def require_explained(model: Model, life: Life, found: Explanation, swept: bool) -> None:
    """Raises: AssertionError."""
    what = f"explain {life.id}"
    require_equal(f"{what}, the task", as_seen(found.task, swept), as_seen(life.shown(), swept))
    if found.swept:  # else it also names the holder of a lease that is over
        require_equal(f"{what}, its holder", found.holder and found.holder.session, life.session)
    told = (found.paused, found.now, found.waiting, found.workers, found.capacity)
    require_equal(what, told, (model.paused, model.now / 1_000_000, 0, 0, model.options.get("capacity")))
    if swept:
        last = life.failed[-1][1] if life.failed else None
        require_equal(f"{what}, the last failure", found.last_failure, last)
        require_equal(f"{what}, the number of tasks", found.tasks, len(model.lives))
        require_equal(
            f"{what}, reasons", tuple(one.why for one in found.reasons), (*reasons(model, life, found),)
        )
        if not model.is_parted:
            _require_place(model, life, found, what)


def _require_place(model: Model, life: Life, found: Explanation, what: str) -> None:
    assert found.swept, f"{what}: not swept, after a sweep"
    assert (found.place is None) == (life.state in "t~"), f"{what}: its place is {found.place}"
    if found.place is not None:
        require_equal(f"{what}, its place", found.place, _place(model, life, found.place))
    busy = [other.id for other in model.in_state("t") if other.key == life.key] if life.state == "r" else []
    if "utube" in model.kind:
        require_equal(
            f"{what}, holders of its key", sorted(one.task for one in found.key_holders), sorted(busy)
        )


def _place(model: Model, life: Life, told: TaskPlace) -> TaskPlace:
    before = [other for other in model.in_state(life.state) if other.place < life.place]
    if life.state == "!":
        return TaskPlace(ahead=len(before))
    if model.kind == "bag":
        return TaskPlace(ahead=len(model.in_state("r")) - 1, in_any_order=True)
    if model.kind not in KEYED:
        return TaskPlace(ahead=len(before))
    in_key = sum(other.key == life.key for other in before)
    taken = sum(other.key == life.key for other in model.in_state("t"))
    is_open = model.kind == "fair" or taken < model.options.get("key_concurrency", 1)
    rounds = (told.round, told.current_round)
    return TaskPlace(told.ahead, in_key, True, is_open, *rounds)


def reasons(model: Model, life: Life, found: Explanation) -> Iterator[Why]:
    if model.paused:
        yield Why.PAUSED
    if life.state == "r":
        place = found.place or TaskPlace()
        yield from (Why.KEY_HELD,) if found.held is not None else ()
        yield from (Why.KEY_BUSY,) if not place.key_is_open else ()
        yield from (Why.KEY_BEHIND,) if place.ahead_in_key else ()
        far = (place.round or 0) > (place.current_round or 0) + 1
        yield from (Why.BEHIND,) if place.ahead or far else ()
        yield Why.NO_WORKER
    else:
        held = Why.HOLDER_ENDED if life.session in model.overdue else Why.TAKEN
        taken = held if life.cancelled is None else Why.CANCELLED
        waits = Why.DELAYED if life.waits is None else Why.WAITING
        yield {"!": Why.BURIED, "~": waits, "t": taken}[life.state]
