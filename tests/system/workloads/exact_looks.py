"""The looks of the workload `exact`: each answer equals that of the model, also before a sweep."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NoResult, ResultTimeout, TaskFailed, TaskNotFound
from fdbqueue.core.page import every_row
from fdbqueue.core.task import Explanation, Failure, Task, TaskPlace, Why
from fdbqueue.tasks.looking import Waiting
from fdbqueue.tasks.stored.records import ends_of
from tests.system.workloads.exact_calls import Caller, caught, require_equal, right
from tests.system.workloads.exact_model import Life, Model
from tests.system.workloads.exact_verbs import Verbs

ALONE, PAGES_MAX = 0.3, 4
STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
LISTED = ("put", "take", "ack", "release", "bury", "kick", "delete", "touch", "ttl", "ttr", "delay", "cancel")
KEYED = ("utube", "utubettl", "fair")


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
