"""Element queues against a plain model: any verb at any time, and everything compared after every step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fdbqueue
from fdbqueue import ElementQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import ElementNotFound, ElementNotLocked, LockLost, QueueLockError
from tests.conftest import SLOW
from tests.elements.support import NOBODY, SCHEMA, elements_found
from tests.support import ManualClock

SPACE = Subspace(("model",))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
elements = st.fixed_dictionaries(
    {"body": st.one_of(texts, st.just("x" * 300))},
    optional={"blob": st.binary(max_size=8), "header": st.dictionaries(texts, texts, max_size=3)},
)
picks = st.sampled_from([0, 0, 1, 2, 3, 5, 8])
in_transaction = st.booleans()


@dataclass
class Element:
    """An element in the model: its data, and its lock, if it has one."""

    data: dict[str, Any]
    locked_at: float | None = None
    token: Any = None


class Elements(RuleBasedStateMachine):
    @initialize(piece=st.sampled_from([16, limits.PAYLOAD_PIECE_BYTES_MAX]))
    def create(self, piece: int) -> None:
        self._before, limits.PAYLOAD_PIECE_BYTES_MAX = limits.PAYLOAD_PIECE_BYTES_MAX, piece
        self.clock = ManualClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.queue = ElementQueue(SPACE["queue"], schema=SCHEMA, maxelts=3)
        self.model: dict[str, Element] = {}
        self.ever: list[str] = []
        self.tokens: list[tuple[str, Any]] = []

    def teardown(self) -> None:
        if hasattr(self, "db"):
            limits.PAYLOAD_PIECE_BYTES_MAX = self._before
            self.db.close()

    def _run(self, inside: bool, verb: Callable[[Any], Any]) -> Any:
        return transactional(verb, parameter="tr")(self.db) if inside else verb(self.db)

    def _pick(self, pick: int) -> str:
        """One of those that there have been, the latest first."""
        return self.ever[-1 - pick] if pick < len(self.ever) else NOBODY

    @rule(inside=in_transaction, data=elements)
    def add(self, inside: bool, data: dict[str, Any]) -> None:
        name = self._run(inside, lambda tr: self.queue.add(tr, data))
        assert name not in self.ever
        self.ever.append(name)
        self.model[name] = Element(data)

    @rule(inside=in_transaction, pick=picks)
    def acquire(self, inside: bool, pick: int) -> None:
        name = self._pick(pick)
        token = self._run(inside, lambda tr: self.queue.acquire(tr, name))
        element = self.model.get(name)
        assert (token is not None) == (element is not None and element.locked_at is None)
        if element is not None and token is not None:
            element.locked_at, element.token = self.clock.now(), token
            self.tokens.append((name, token))

    @rule(inside=in_transaction, pick=picks, verb=st.sampled_from(["get", "unlock", "remove"]))
    def without_a_token(self, inside: bool, pick: int, verb: str) -> None:
        self._use(inside, self._pick(pick), verb, None)

    @precondition(lambda self: self.tokens)
    @rule(inside=in_transaction, pick=picks, verb=st.sampled_from(["get", "unlock", "remove"]))
    def with_a_token(self, inside: bool, pick: int, verb: str) -> None:
        name, token = self.tokens[-1 - pick % len(self.tokens)]
        self._use(inside, name, verb, token)

    def _use(self, inside: bool, name: str, verb: str, token: Any) -> None:
        def call() -> Any:
            return self._run(inside, lambda tr: getattr(self.queue, verb)(tr, name, token=token))

        element = self.model.get(name)
        if element is None or element.locked_at is None:
            with pytest.raises(ElementNotLocked):
                call()
        elif token not in (None, element.token):
            with pytest.raises(LockLost):
                call()
        else:
            answer = call()
            assert answer == {"get": element.data, "unlock": True, "remove": None}[verb]
            if verb == "unlock":
                element.locked_at = None
            elif verb == "remove":
                del self.model[name]

    @rule(inside=in_transaction, pick=picks, verb=st.sampled_from(["dequeue", "get_element"]))
    def at_once(self, inside: bool, pick: int, verb: str) -> None:
        name = self._pick(pick)

        def call() -> Any:
            return self._run(inside, lambda tr: getattr(self.queue, verb)(tr, name))

        element = self.model.get(name)
        if element is None or element.locked_at is not None:
            with pytest.raises(QueueLockError):
                call()
        else:
            assert call() == element.data
            if verb == "dequeue":
                del self.model[name]

    @rule(inside=in_transaction, pick=picks)
    def touch(self, inside: bool, pick: int) -> None:
        name = self._pick(pick)
        element = self.model.get(name)
        if element is None:
            with pytest.raises(ElementNotFound):
                self._run(inside, lambda tr: self.queue.touch(tr, name))
            return
        self._run(inside, lambda tr: self.queue.touch(tr, name))
        if element.locked_at is not None:
            element.locked_at = self.clock.now()

    @rule(inside=in_transaction, maxlock=st.sampled_from([0, 0.5, 2, 600]))
    def purge(self, inside: bool, maxlock: float) -> None:
        self._run(inside, lambda tr: self.queue.purge(tr, maxlock=maxlock))
        for element in self.model.values():
            if maxlock and element.locked_at is not None and self.clock.now() - element.locked_at > maxlock:
                element.locked_at = None
        assert self.queue.next(self.db) == ""

    @rule(seconds=st.sampled_from([0.25, 1.0, 500.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not hasattr(self, "db"):
            return
        twin = self.queue.copy()
        assert list(twin.names(self.db)) == sorted(self.model)
        assert twin.count(self.db) == len(self.model) == elements_found(self.db, SPACE)


TestElements = Elements.TestCase
TestElements.settings = settings(
    max_examples=300 if SLOW else 25, stateful_step_count=60 if SLOW else 40, deadline=None
)
