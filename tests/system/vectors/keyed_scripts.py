"""Scripts of puts with task keys: what a key must have been through is given as its keys."""

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Subspace
from fdbqueue.operate.conformance import Keys
from fdbqueue.tasks.stored.key_counts import KeyCounts, KeyState, slug_of, state_to_bytes
from fdbqueue.tasks.stored.keyed import Fair, Micro
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, packed
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.verbs import FAIR, ROOT

_KEYS = TaskKeys(RootKeys(ROOT).contents(1))
"""The keys of the first queue of a root."""
_COUNTS = KeyCounts(_KEYS.beside)


keyed_scripts = Scripts()


@keyed_scripts.add("utube", "utube-held-key", given={})
def held(script: Script) -> None:
    """A held key gets no pointer, and a put does not rely on its state."""
    state_key = Micro(_KEYS, {"key_concurrency": 1}).state_key(key_bytes("ada"))
    script.given_keys({state_key: state_to_bytes(KeyState(held=True))})
    script.call("put", payload="a1", key="ada")
    script.call("put_many", payloads=["a2", "a3"], key="ada")
    script.call("put", payload="b1", key="bob")


@keyed_scripts.add("utube", "utube-two-at-a-time", session=True, create={"key_concurrency": 2})
def two_at_a_time(script: Script) -> None:
    """A key is open as long as fewer tasks of it run."""
    script.call("put", payload="a1", key="ada")
    script.call("take", count=1, session=SESSION)
    script.call("put", payload="a2", key="ada")
    script.call("take", count=1, session=SESSION)
    script.call("put", payload="a3", key="ada")


@keyed_scripts.add("fair", "fair-delays", session=True, create={})
@keyed_scripts.add("utubettl", "utubettl-delays", session=True, create={})
def delayed(script: Script) -> None:
    """A delayed task is no task that its key may start."""
    script.call("put", payload="a1", key="ada", delay=5)
    script.call("put", payload="a2", key="ada")
    script.call("put", payload="b1", key="bob", delay=5, ttl=60)
    script.wait(5)
    script.call("take", count=3, session=SESSION)
    script.call("put", payload="a3", key="ada")


@keyed_scripts.add("utube", "utube-levels", given={})
def levels(script: Script) -> None:
    """A key that has a level already: its number has risen, has fallen, has fallen below all levels, or
    stays. A put reads the numbers only, so no tasks are given.
    """
    for key, level, ready in (("up", 6, 127), ("down", 9, 40), ("out", 7, 3), ("stays", 7, 63)):
        script.given_keys(_level(key, level, ready))
    for key in ("up", "down", "out", "stays"):
        script.call("put", payload="one more", key=key)


def _level(key: str, level: int, ready: int) -> Keys:
    slug = slug_of(key_bytes(key))
    return {
        _COUNTS.counts_key(slug): packed(LIVE_NAMES, {"ready": ready}),
        _COUNTS.level_key(slug): bytes((level,)),
        _COUNTS.busy_key(level, slug): b"",
    }


@keyed_scripts.add("fair", "fair-weights", session=True, create={"weights": {"ada": 2, "bob": 3}})
def weights(script: Script) -> None:
    """A key uses its weight in each round, and a task that costs more takes several rounds."""
    script.call("put", payload="a1", key="ada", cost=5)
    script.call("put", payload="b1", key="bob", cost=3)
    script.call("put", payload="c1", key="cat", cost=3)
    script.call("put_many", payloads=["a2", "a3", "a4"], key="ada")
    for _ in range(5):
        script.call("take", count=1, session=SESSION)
    script.call("put", payload="b2", key="bob", cost=4)
    script.call("put", payload="a5", key="ada")


@keyed_scripts.add("fair", "fair-begun-anew", given={"weights": {"ada": 4}})
def begun_anew(script: Script) -> None:
    """A key without a ready task begins behind the current round, whatever it has used before."""
    discipline = Fair(_KEYS, {"weights": None})
    state_key = discipline.state_key(key_bytes("ada"))
    script.given_keys(
        {
            state_key: state_to_bytes(KeyState(round=5, used=3)),
            discipline.round_key: (7).to_bytes(8, "little"),
        }
    )
    script.call("put", payload="a1", key="ada", cost=2)
    script.call("put", payload="a2", key="ada")


@keyed_scripts.add(FAIR, "fair-queue-weights", subspace="%02fair%00", weights={"ada": 2})
def fair_costs(script: Script) -> None:
    """A fair queue over a subspace: its programs know the weights."""
    script.call("put", key="ada", payload="a1", cost=5)
    script.call("put", key="bob", payload="b1", cost=2)
    script.call("put", key="ada", payload="a2")
    for _ in range(3):
        script.call("get", key="ada")
    script.call("put", key="ada", payload="a3", cost=3)


@keyed_scripts.add(FAIR, "fair-queue-floor", subspace="%02fair%00")
def fair_floor(script: Script) -> None:
    """An item that was handed out, and may come back, is before all that are put later."""
    floor = TaskKeys(Subspace(("fair",))).beside + b"\x07"
    script.given_keys({floor: (7).to_bytes(8, "little")})
    script.call("put", key="ada", payload="behind the floor")
    script.call("put", key="ada", payload="behind that one")
