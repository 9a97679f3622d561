"""Script: the steps of one queue, made one after the other and recorded."""

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from fdbqueue.core.database import Database
from fdbqueue.core.sessions.session import Session
from fdbqueue.operate.conformance import Keys, Step, escaped
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.queue import TaskQueue
from tests.system.vectors.applying import Applier
from tests.system.vectors.runtime import in_turn
from tests.system.vectors.telling import changes, step_to_json, told
from tests.system.vectors.verbs import ROOT

_START_S = 1_700_000_000
_US = 1_000_000
_USUAL: dict[str, Any] = {"codec": "bytes", "root": ROOT}
SESSION = "session-of-taker"
"""The session that takes tasks: 16 bytes."""


class Script:
    def __init__(self, applier: Applier, kind: str, name: str = "", **always: Any) -> None:
        """`always`: arguments of all its calls, by default the queue that has the name of the script."""
        self.kind = kind
        self.name = name or kind
        self._always = always or {"queue": self.name}
        self._applier = applier
        self._numbers = count(1)
        self._keys: Keys = {}
        self._given: Keys = {}
        self._now_us = _START_S * _US
        self.steps: list[Step] = []

    def given(self, body: Callable[[Database], object]) -> None:
        """Begin with the keys that `body` leaves, given a database."""
        self._given = self._keys = self._applier.prepare(self._keys, self._now_us, body)

    def given_keys(self, keys: Keys) -> None:
        """Begin with these keys, too."""
        self._given = self._keys = dict(sorted((self._keys | keys).items()))

    def given_session(self) -> None:
        """Begin with a session that takes tasks."""

        def body(db: Database) -> None:
            _draw(db, SESSION)
            Session(db, ttr=60, root=ROOT)

        self.given(body)

    def given_group(self, name: str = "group-of-a-batch") -> str:
        """Begin with an open group. `name`: the 16 bytes of its id, which it returns in hexadecimal."""

        def body(db: Database) -> None:
            _draw(db, name)
            Group.create(db, retain_s=60, root=ROOT)

        self.given(body)
        return name.encode().hex()

    def wait(self, seconds: float) -> None:
        self._now_us += round(seconds * _US)

    def call(self, verb: str, **arguments: Any) -> Any:
        """Make a call, a second after the last one, and record it. Returns its result."""
        self.wait(1)
        call = {**self._always, **arguments}
        source = in_turn(self._numbers.__next__)
        applied = self._applier.apply(self._keys, self.kind, verb, call, self._now_us, source)
        step = Step(verb, call, self._now_us, applied.random, *changes(self._keys, applied.after))
        step.returns, step.conflicts = applied.returns, applied.conflicts
        self.steps.append(step)
        self._keys = applied.after
        return applied.returns

    def to_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"kind": self.kind, "name": self.name}
        if self._given:
            stored["given"] = {escaped(key): told(value) for key, value in self._given.items()}
        return {**stored, "steps": [step_to_json(step) for step in self.steps]}


Body = TypeVar("Body", bound=Callable[[Script], object])


class Scripts:
    """The scripts of a file, in the order in which their bodies are declared."""

    def __init__(self) -> None:
        self._makers: list[Callable[[Applier], Script]] = []

    def add(
        self,
        kind: str,
        name: str = "",
        *,
        session: bool = False,
        given: dict[str, Any] | None = None,
        create: dict[str, Any] | None = None,
        **always: Any,
    ) -> Callable[[Body], Body]:
        """Decorate a body, which makes the calls. Two of the arguments are options of a queue of tasks.

        `session`: begin with a session that takes tasks. `given`: begin with this queue. `create`: the first
        call creates it.
        """

        def added(body: Body) -> Body:
            def made(applier: Applier) -> Script:
                script = Script(applier, kind, name, **always)
                if session:
                    script.given_session()
                if given is not None:
                    script.given(lambda db: TaskQueue.create(db, script.name, kind, **_USUAL, **given))
                if create is not None:
                    script.call("create", codec="bytes", **create)
                body(script)
                return script

            self._makers.append(made)
            return body

        return added

    def __call__(self, applier: Applier) -> list[Script]:
        return [make(applier) for make in self._makers]


def _draw(db: Database, text: str) -> None:
    """Let the next random bytes be this text."""
    db.runtime.source = text.encode().ljust  # type: ignore[attr-defined]  # a VectorRuntime
