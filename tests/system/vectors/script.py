"""Scripts: the steps of one queue, each applied to keys in memory, at a given time, and recorded."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from fdbqueue.core import errors
from fdbqueue.core.database import Database, as_database
from fdbqueue.core.once import receipts_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime, Thread
from fdbqueue.core.sessions.session import Session
from fdbqueue.embedded.transaction import Transaction, open_private
from fdbqueue.operate.conformance import Conflicts, Keys, Step, escaped, heard, is_refusal, merged
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.queue import TaskQueue
from tests.system.vectors.verbs import ROOT, Given, changes, step_to_json, told, verb_of

_START_US = 1_700_000_000_000_000


class _NoThread:
    def join(self, timeout: float | None = None) -> None:
        """Does nothing: it has never run."""

    def is_alive(self) -> bool:
        return False


class VectorRuntime(RealRuntime):
    """A clock that stands still, and random bytes that a source gives."""

    def __init__(self) -> None:
        self.time_us = _START_US
        self.source: Callable[[int], bytes] = bytes
        """Returns this number of random bytes."""
        self.drawn: list[bytes] = []
        """The random bytes of the call, in the order in which it has asked for them."""

    def now(self) -> float:
        return self.time_us / 1_000_000

    def now_us(self) -> int:
        return self.time_us

    def monotonic(self) -> float:
        return self.now()

    def random_bytes(self, count: int) -> bytes:
        drawn = self.source(count)
        self.drawn.append(drawn)
        return drawn

    def host_name(self) -> str:
        return "host"

    def process_id(self) -> int:
        return 1

    def spawn(self, target: Callable[[], None], name: str) -> Thread:  # noqa: ARG002  # as the Runtime's
        return _NoThread()


def in_turn(numbers: "Callable[[], int]") -> Callable[[int], bytes]:
    """A source of bytes that are texts with the numbers that `numbers` gives, so that a reader finds them
    again.
    """

    def source(count: int) -> bytes:
        number = str(numbers())
        return (b"random-bytes-of-a-call"[: count - len(number)] + number.encode())[:count]

    return source


def repeated(drawn: list[bytes]) -> Callable[[int], bytes]:
    """A source of these bytes, each once. Raises: ValueError for another number of bytes."""
    left = iter(drawn)

    def source(count: int) -> bytes:
        found = next(left, b"")
        if len(found) != count:
            raise ValueError(f"the call asks for {count} random bytes, and the vector has {len(found)}")
        return found

    return source


_ALL = (b"", b"\xff")
_REFUSALS = (
    errors.DefinitionUnreadable,
    errors.GroupClosed,
    errors.GroupNotFound,
    errors.ImportUnfinished,
    errors.InvalidArgument,
    errors.QueueKindMismatch,
    errors.QueueNotFound,
    errors.UnknownKind,
    errors.UnknownSession,
    errors.UnsupportedOption,
)
"""Errors of calls that docs/layout.md tells each program to refuse. Others are answers of a call."""


@dataclass(frozen=True)
class Applied:
    """The effect of a call."""

    after: Keys
    returns: Any
    random: list[bytes]
    conflicts: Conflicts | None


class Applier:
    """One database in memory, which is emptied before each call."""

    def __init__(self) -> None:
        self._runtime = VectorRuntime()
        self._engine = open_private(self._runtime)

    def close(self) -> None:
        self._engine.close()

    def apply(
        self,
        before: Keys,
        kind: str,
        verb: str,
        call: Mapping[str, Any],
        now_us: int,
        source: Callable[[int], bytes],
    ) -> Applied:
        """Make the call on the keys `before`, with random bytes of `source`. Its services are new."""
        with closing(as_database(self._engine)) as database:
            self._runtime.time_us = now_us
            session = self._session(database, call)
            self._load(before)
            self._runtime.source, self._runtime.drawn = source, []
            given = Given(kind, call, session)
            if "receipt" in call:
                returns, conflicts = self._with_receipt(database, given, verb), None
            else:
                returns, conflicts = self._in_one(given, verb)
            return Applied(self._stored(), returns, [*self._runtime.drawn], conflicts)

    def prepare(self, before: Keys, now_us: int, body: Callable[[Database], object]) -> Keys:
        """The keys that `body`, given a database, leaves; without receipts."""
        with closing(as_database(self._engine)) as database:
            self._runtime.time_us = now_us
            self._load(before)
            body(database)
            receipts = ROOT.pack((3,))
            return {key: value for key, value in self._stored().items() if not key.startswith(receipts)}

    def _in_one(self, given: Given, verb: str) -> tuple[Any, Conflicts | None]:
        tr = self._engine.create_transaction()
        returns = self._told(tr, given, verb)
        # A program may find the reason for a refusal in another order.
        conflicts = None if is_refusal(returns) else _conflicts_of(tr)
        tr.commit().wait()
        return returns, conflicts

    def _with_receipt(self, database: Database, given: Given, verb: str) -> Any:
        """Make the call given a database. The process that keeps the receipt has the name in the call."""
        runtime = self._runtime
        source, runtime.source = runtime.source, heard(given["receipt"]["process"]).ljust
        receipts_of(database, RootKeys(ROOT))
        runtime.source, runtime.drawn = source, []
        return self._told(database, given, verb)

    def _told(self, target: Any, given: Given, verb: str) -> Any:
        """The result of the call; the name of its error if it raises one."""
        try:
            return verb_of(given.kind, verb)(target, given)
        except _REFUSALS as error:
            return {"refused": type(error).__name__}
        except errors.FdbQueueError as error:
            return {"error": type(error).__name__}

    def _session(self, database: Database, call: Mapping[str, Any]) -> Session | None:
        """A session of that id, which believes that it is open."""
        if "session" not in call:
            return None
        self._runtime.source = heard(call["session"]).ljust
        return Session(database, root=ROOT)

    def _load(self, keys: Keys) -> None:
        tr = self._engine.create_transaction()
        tr.clear_range(*_ALL)
        for key, value in keys.items():
            tr.set(key, value)
        tr.commit().wait()

    def _stored(self) -> Keys:
        rows = self._engine.create_transaction().get_range(*_ALL)
        return {bytes(row.key): bytes(row.value) for row in rows}


def _conflicts_of(tr: Transaction) -> Conflicts:
    """The ranges on which the transaction relies, and those that it declares as written but leaves alone."""
    reads, buffer = tr._reads, tr._buffer
    wrote = merged(
        [(key, key + b"\x00") for key in buffer.entries] + [(begin, end) for begin, end in buffer.cleared]
    )
    declared = [(key, key + b"\x00") for key in buffer.conflicts.points] + buffer.conflicts.ranges
    beside = [one for one in declared if not any(b <= one[0] and one[1] <= e for b, e in wrote)]
    relied = [(key, key + b"\x00") for key in reads.points] + reads.ranges
    return Conflicts(merged(relied), merged(beside))


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
            draw_next(db, SESSION)
            Session(db, ttr=60, root=ROOT)

        self.given(body)

    def given_group(self, name: str = "group-of-a-batch") -> str:
        """Begin with an open group. `name`: the 16 bytes of its id, which it returns in hexadecimal."""

        def body(db: Database) -> None:
            draw_next(db, name)
            Group.create(db, retain_s=60, root=ROOT)

        self.given(body)
        return name.encode().hex()

    @property
    def now_us(self) -> int:
        return self._now_us

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


def draw_next(db: Database, text: str) -> None:
    """Let the next random bytes be this text."""
    db.runtime.source = text.encode().ljust  # type: ignore[attr-defined]  # a VectorRuntime
