"""An element queue in the workload `paired`: adds, locks, and every verb under a lock."""

from collections.abc import Sequence
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.elements.queue import ElementQueue
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_calls import Call
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import World, rolled_back, text_of

LOCK_S = 5.0
SCHEMA = {"body": "string"}


class Elements(World):
    verbs = ("add", *("acquire",) * 4, *("of_a_lock",) * 6, "touch", "dequeue", "get_element", "purge")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.space = self._q = ElementQueue(SPACE["paired"], SCHEMA, maxelts=100)
        self._names: list[str] = ["00000000/00000000000000"]
        self._tokens: dict[str, str] = {}
        self._focus: str | None = None
        self._bodies: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def __str__(self) -> str:
        return "an element queue"

    def opened(self, db: Database) -> ElementQueue:  # noqa: ARG002  # it belongs to no database
        return self._q

    def refresh(self) -> None:
        rolled_back(self.twins.own, self.seen)
        self._bodies, self._names = self.names(), [*self._seen] or self._names

    def learn(self, answer: Any) -> None:
        for one in answer if isinstance(answer, tuple | list) else (answer,):
            if isinstance(one, Locked):
                self._tokens[one.name] = one.token

    def next_time(self, now: int) -> int | None:
        return now + round(LOCK_S * 1_000_000)

    def forget_focus(self) -> None:
        self._focus = None

    def _name(self) -> str:
        if self._focus is None or self.random.random() < 0.2:
            self._focus = self.random.choice(self._names[:4])
        return self._focus

    # Calls.

    def _add(self) -> Call:
        (data,) = self.data(1)
        return self._call("add", f"add {data}", lambda q, tr: Added(q.add(tr, {"body": data})))

    def _acquire(self) -> Call:
        name = self._name()

        def verb(q: ElementQueue, tr: Any) -> Any:
            found = q.acquire(tr, name)
            return found and Locked(name, found)

        return self._call("acquire", f"acquire {name}", verb)

    def _of_a_lock(self) -> Call:
        name, verb = self._name(), self.random.choice(("get", "unlock", "unlock", "remove"))
        token = self._tokens.get(name) if self.random.random() < 0.7 else None
        text = f"{verb} {name} by {'a' if token else 'no'} token"
        return self._call(verb, text, lambda q, tr: getattr(q, verb)(tr, name=name, token=token))

    def _touch(self) -> Call:
        name = self._name()
        return self._call("touch", f"touch {name}", lambda q, tr: q.touch(tr, name))

    def _dequeue(self) -> Call:
        name = self._name()
        return self._call("dequeue", f"dequeue {name}", lambda q, tr: q.dequeue(tr, name))

    def _get_element(self) -> Call:
        name = self._name()
        return self._call("get_element", f"get_element {name}", lambda q, tr: q.get_element(tr, name))

    def _purge(self) -> Call:
        span_s = self.random.choice((LOCK_S, 0))
        return self._call("purge", f"purge {span_s}", lambda q, tr: q.purge(tr, maxlock=span_s))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        names = list(self._q.names(tr))
        free = [name for name in names if self._q.acquire(tr, name)]
        bodies = self._seen = {name: self._q.get(tr, name)["body"] for name in names}
        return {
            "count": [text_of(self._q.count, tr)],
            "elements": list(bodies.values()),
            "elements without a lock": [bodies[name] for name in free],
        }

    def names(self) -> dict[str, str]:
        return {**self._bodies, **self._seen}


class Locked(tuple[str, str]):
    """The name of an element, and the token of its lock. Equal if the element is: a token is random."""

    def __new__(cls, name: str, token: str) -> "Locked":
        return super().__new__(cls, (name, token))

    @property
    def name(self) -> str:
        return self[0]

    @property
    def token(self) -> str:
        return self[1]

    def __repr__(self) -> str:
        return f"the lock of {self.name}"


class Added(str):
    """The name of a new element, which is random."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "a name"
