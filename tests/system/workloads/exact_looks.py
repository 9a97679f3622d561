"""The looks of the workload `exact`: each answer equals that of the model, also before a sweep."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NoResult, ResultTimeout, TaskFailed, TaskNotFound
from fdbqueue.core.task import Failure
from tests.system.workloads.exact_calls import require_equal, right
from tests.system.workloads.exact_counts import STATES, Counts
from tests.system.workloads.exact_explained import KEYED, as_seen, require_explained
from tests.system.workloads.exact_life import Life

ALONE, PAGES_MAX = 0.3, 4


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
