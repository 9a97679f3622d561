"""Scripts of puts with task keys: what a key must have been through is given as its keys."""

from collections.abc import Iterator

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Subspace
from fdbqueue.operate.conformance.vectors import Keys
from fdbqueue.tasks.disciplines.fair import Fair
from fdbqueue.tasks.disciplines.key_counts import KeyCounts, KeyState, slug_of, state_to_bytes
from fdbqueue.tasks.disciplines.micro import Micro
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.tasks.records.statistics import LIVE, packed
from tests.system.vectors.applying import Applier
from tests.system.vectors.script import SESSION, Script
from tests.system.vectors.verbs import FAIR, ROOT

_KEYS = TaskKeys(RootKeys(ROOT).contents(1))
"""The keys of the first queue of a root."""
_COUNTS = KeyCounts(_KEYS.beside)


def keyed_scripts(applier: Applier) -> Iterator[Script]:
    yield held(applier)
    yield two_at_a_time(applier)
    yield delayed(applier, "utubettl")
    yield delayed(applier, "fair")
    yield levels(applier)
    yield weights(applier)
    yield begun_anew(applier)
    yield fair_costs(applier)
    yield fair_floor(applier)


def held(applier: Applier) -> Script:
    """A held key gets no pointer, and a put does not rely on its state."""
    script = Script(applier, "utube", "utube-held-key")
    state_key = Micro(_KEYS, {"key_concurrency": 1}).state_key(key_bytes("ada"))
    script.given(lambda db: TaskQueue.create(db, script.name, "utube", codec="bytes", root=ROOT))
    script.given_keys({state_key: state_to_bytes(KeyState(held=True))})
    script.call("put", payload="a1", key="ada")
    script.call("put_many", payloads=["a2", "a3"], key="ada")
    script.call("put", payload="b1", key="bob")
    return script


def two_at_a_time(applier: Applier) -> Script:
    """A key is open as long as fewer tasks of it run."""
    script = Script(applier, "utube", "utube-two-at-a-time")
    script.given_session()
    script.call("create", codec="bytes", key_concurrency=2)
    script.call("put", payload="a1", key="ada")
    script.call("take", count=1, session=SESSION)
    script.call("put", payload="a2", key="ada")
    script.call("take", count=1, session=SESSION)
    script.call("put", payload="a3", key="ada")
    return script


def delayed(applier: Applier, kind: str) -> Script:
    """A delayed task is no task that its key may start."""
    script = Script(applier, kind, f"{kind}-delays")
    script.given_session()
    script.call("create", codec="bytes")
    script.call("put", payload="a1", key="ada", delay=5)
    script.call("put", payload="a2", key="ada")
    script.call("put", payload="b1", key="bob", delay=5, ttl=60)
    script.wait(5)
    script.call("take", count=3, session=SESSION)
    script.call("put", payload="a3", key="ada")
    return script


def levels(applier: Applier) -> Script:
    """A key that has a level already: its number has risen, has fallen, has fallen below all levels, or
    stays. A put reads the numbers only, so no tasks are given.
    """
    script = Script(applier, "utube", "utube-levels")
    script.given(lambda db: TaskQueue.create(db, script.name, "utube", codec="bytes", root=ROOT))
    for key, level, ready in (("up", 6, 127), ("down", 9, 40), ("out", 7, 3), ("stays", 7, 63)):
        script.given_keys(_level(key, level, ready))
    for key in ("up", "down", "out", "stays"):
        script.call("put", payload="one more", key=key)
    return script


def _level(key: str, level: int, ready: int) -> Keys:
    slug = slug_of(key_bytes(key))
    return {
        _COUNTS.counts_key(slug): packed(LIVE, {"ready": ready}),
        _COUNTS.level_key(slug): bytes((level,)),
        _COUNTS.busy_key(level, slug): b"",
    }


def weights(applier: Applier) -> Script:
    """A key uses its weight in each round, and a task that costs more takes several rounds."""
    script = Script(applier, "fair", "fair-weights")
    script.given_session()
    script.call("create", codec="bytes", weights={"ada": 2, "bob": 3})
    script.call("put", payload="a1", key="ada", cost=5)
    script.call("put", payload="b1", key="bob", cost=3)
    script.call("put", payload="c1", key="cat", cost=3)
    script.call("put_many", payloads=["a2", "a3", "a4"], key="ada")
    for _ in range(5):
        script.call("take", count=1, session=SESSION)
    script.call("put", payload="b2", key="bob", cost=4)
    script.call("put", payload="a5", key="ada")
    return script


def begun_anew(applier: Applier) -> Script:
    """A key without a ready task begins behind the current round, whatever it has used before."""
    script = Script(applier, "fair", "fair-begun-anew")
    discipline = Fair(_KEYS, {"weights": None})
    state_key = discipline.state_key(key_bytes("ada"))
    script.given(
        lambda db: TaskQueue.create(db, script.name, "fair", codec="bytes", weights={"ada": 4}, root=ROOT)
    )
    script.given_keys(
        {
            state_key: state_to_bytes(KeyState(round=5, used=3)),
            discipline.round_key: (7).to_bytes(8, "little"),
        }
    )
    script.call("put", payload="a1", key="ada", cost=2)
    script.call("put", payload="a2", key="ada")
    return script


def fair_costs(applier: Applier) -> Script:
    """A fair queue over a subspace: its programs know the weights."""
    script = Script(applier, FAIR, "fair-queue-weights", subspace="%02fair%00", weights={"ada": 2})
    script.call("put", key="ada", payload="a1", cost=5)
    script.call("put", key="bob", payload="b1", cost=2)
    script.call("put", key="ada", payload="a2")
    for _ in range(3):
        script.call("get", key="ada")
    script.call("put", key="ada", payload="a3", cost=3)
    return script


def fair_floor(applier: Applier) -> Script:
    """An item that was handed out, and may come back, is before all that are put later."""
    script = Script(applier, FAIR, "fair-queue-floor", subspace="%02fair%00")
    floor = TaskKeys(Subspace(("fair",))).beside + b"\x07"
    script.given_keys({floor: (7).to_bytes(8, "little")})
    script.call("put", key="ada", payload="behind the floor")
    script.call("put", key="ada", payload="behind that one")
    return script
