"""Scripts of task keys, of unique keys, of partitions, and of calls that each program must refuse."""

from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.registry import IMPORTING, LAYOUT_COLUMN, Definition
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.core.seam import Subspace
from fdbqueue.operate.conformance import Keys, heard
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.key_counts import KeyCounts, KeyState, slug_of, state_to_bytes
from fdbqueue.tasks.stored.keyed import Fair, Micro
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, new_id, packed
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.verbs import ELEMENTS, FAIR, RECIPE, ROOT, SCHEMA, SIMPLE

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


_SHARED = SharedKeys(RootKeys(ROOT).contents(1))
"""The shared keys of the first queue of a root."""


unique_scripts = Scripts()


@unique_scripts.add("fifo", "fifo-unique-windows", session=True, create={})
def windows(script: Script) -> None:
    """A scope in seconds goes on when its task has ended, and ends when its time is over."""
    put = partial(script.call, "put", unique="u")
    put(payload="one", scope=30)
    _ack(script)
    put(payload="in the window", scope=30)
    script.wait(30)
    put(payload="two", scope=10)
    script.wait(9)
    put(payload="at its end", scope="unfinished")
    put(payload="of the last one", scope="queued")


def _ack(script: Script) -> None:
    [taken] = script.call("take", count=1, session=SESSION)
    script.call("ack", task=taken, session=SESSION)


@unique_scripts.add("fifottl", "fifottl-unique-scopes", session=True, create={})
def scopes(script: Script) -> None:
    """The scope is that of the task which has the key, as it is now. One that has expired has no key."""
    script.call("put", payload="unfinished", unique="u1")
    script.call("put", payload="queued", unique="u2", scope="queued", delay=1)
    script.wait(1)
    script.call("put", payload="queued, and due", unique="u2", scope="queued")
    script.call("take", count=2, session=SESSION)
    script.call("put", payload="it runs", unique="u1")
    script.call("put", payload="it no longer waits", unique="u2", scope="queued")
    script.call("put", payload="short", unique="u3", ttl=5)
    script.wait(5)
    script.call("put", payload="it has expired", unique="u3")


@unique_scripts.add("fifo", "fifo-unique-entries", given={})
def left_behind(script: Script) -> None:
    """Entries that do not count: their tasks are gone, or have other keys."""
    first, gone = new_id(0, b"random-byte1"), new_id(9, b"random-byte9")
    script.given_keys({_SHARED.unique(key_bytes("u2")): gone, _SHARED.unique(key_bytes("u3")): first})
    for name in ("u1", "u2", "u3"):
        script.call("put", payload=name, unique=name)


@unique_scripts.add("fifottl", "fifottl-partitions-unique", session=True, given={"partitions": 3})
def partitioned_unique(script: Script) -> None:
    """An entry holds for all partitions; after a repartition, its task may have moved."""
    put = partial(script.call, "put")
    put(payload="one", unique="u1")
    put(payload="of another partition", unique="u1")
    put(payload="for a time", unique="u2", scope=20)
    put(payload="later", unique="u3", delay=60)
    script.call("repartition", partitions=2)
    put(payload="after the repartition", unique="u1")
    script.wait(20)
    put(payload="behind the window", unique="u2", scope=20)
    put(payload="still delayed", unique="u3")


@unique_scripts.add("fifo", "fifo-partitions-group", given={"partitions": 3})
def partitioned_members(script: Script) -> None:
    group = script.given_group()
    script.call("put", payload="member", group=group)
    script.call("put_many", payloads=["third", "fourth"], group=group)
    script.call("truncate")
    script.call("put", payload="of the next epoch", group=group)


@unique_scripts.add("fifo", "fifo-partitions-lanes")
def partitioned_lanes(script: Script) -> None:
    names = ["mails", "pages"]

    def body(db: Database) -> None:
        for name in names:
            Limit.set(db, name, slots=2, root=ROOT)
        options: dict[str, Any] = {"task_limits": names, "partitions": 3}
        TaskQueue.create(db, script.name, "fifo", codec="bytes", root=ROOT, **options)

    script.given(body)
    script.call("put", payload="free")
    script.call("put", payload="a page", limits=["pages"])
    script.call("put", payload="both", limits=["pages", "mails"])


@unique_scripts.add(
    "limfifottl", "limfifottl-partitions-capacity", session=True, given={"partitions": 3, "capacity": 4}
)
def partitioned_capacity(script: Script) -> None:
    """The bound is that of all partitions together."""
    for number in range(5):
        script.call("put", payload=f"task-{number}")
    _ack(script)
    script.call("put_many", payloads=["one fits", "two do not"])


@unique_scripts.add("utube", "utube-partitions-last", session=True, given={"partitions": 256})
def last_partition(script: Script) -> None:
    """The most partitions. The task key belongs to the last one, and its tasks have the last indexes."""
    for number in range(2):
        script.call("put", payload=f"task-{number}", key="key-486")


@unique_scripts.add("utube", "utube-partitions-held-key", session=True, given={"partitions": 4})
def held_in_partitions(script: Script) -> None:
    """A key that moves while it has a task in its old partition waits in the new one."""
    script.call("put", payload="b1", key="bob")
    script.call("repartition", partitions=8)
    script.call("put", payload="b2", key="bob")
    script.call("put", payload="b3", key="bob")
    script.call("put", payload="d1", key="dan")
    _ack(script)
    script.call("put", payload="b4", key="bob")


_NEWER = LAYOUT + 1
_PART = "a part of a newer release"
_OF_OTHERS = {RECIPE: "ttl", "fifo": "schema", ELEMENTS: "codec"}
"""An option that only queues of other kinds have."""
_GONE = "session-gone-now"
"""A session that has no key: 16 bytes."""


refusal_scripts = Scripts()


def definitions(script: Script, verb: str, options: dict[str, Any], **call: Any) -> None:
    """One call on a queue of each of these definitions."""
    kind = script.kind
    stored = {
        "of-a-newer-layout": layer.pack((1, 2, "neither a kind nor options", _NEWER, _PART)),
        "with-a-newer-option": _definition(2, kind, {**options, "a-newer-option": None}),
        "with-an-option-of-others": _definition(3, kind, {**options, _OF_OTHERS[kind]: None}),
        "of-a-newer-kind": _definition(4, "a-newer-kind", options),
        "importing": _definition(5, IMPORTING, options),
        "damaged": layer.pack((6, kind)),
        "of-layout-0": _definition(7, kind, options, ()),
        "with-a-newer-part": _definition(8, kind, options, (LAYOUT, _PART)),
    }
    script.given_keys({RootKeys(ROOT).definition(name): value for name, value in stored.items()})
    for name in ("missing", *stored):
        script.call(verb, queue=name, **call)


def _definition(id_: int, kind: str, options: dict[str, Any], version: tuple[Any, ...] = (LAYOUT,)) -> bytes:
    return Definition("", id_, kind, options, version).to_bytes()


def beside(script: Script, verb: str, **call: Any) -> None:
    """One call on a queue over a subspace with each of these layouts beside it."""
    layouts = {"%02newer%00": (_NEWER, _PART), "%02known%00": (LAYOUT, _PART)}
    column = layer.pack((LAYOUT_COLUMN,))
    script.given_keys({heard(prefix) + column: layer.pack(parts) for prefix, parts in layouts.items()})
    for prefix in layouts:
        script.call(verb, subspace=prefix, **call)


for _kind, _verb, _options, _call in (
    (RECIPE, "enqueue", {"codec": "bytes"}, {"payload": "first"}),
    ("fifo", "put", {"codec": "bytes"}, {"payload": "first"}),
    (ELEMENTS, "add", {"schema": SCHEMA}, {"pieces": {"body": "hello"}}),
):
    refusal_scripts.add(_kind, f"{_kind}-definitions")(
        partial(definitions, verb=_verb, options=_options, **_call)
    )
for _kind, _verb, _call in (
    (RECIPE, "enqueue", {"payload": "first"}),
    (FAIR, "put", {"key": "ada", "payload": "a1"}),
    (ELEMENTS, "add", {"pieces": {"body": "hello"}}),
    (SIMPLE, "add", {"payload": "hello"}),
):
    refusal_scripts.add(_kind, f"{_kind}-layouts", subspace="%02known%00")(
        partial(beside, verb=_verb, **_call)
    )


@refusal_scripts.add("fifo", "fifo-temporary", session=True)
def temporary(script: Script) -> None:
    """Temporary queues: the session of one is alive, that of the other has gone."""
    script.given_keys(
        {
            RootKeys(ROOT).definition(name): _definition(
                id_, "fifo", {"codec": "bytes", "temporary": session.encode().hex()}
            )
            for id_, (name, session) in enumerate({"of-the-taker": SESSION, "of-nobody": _GONE}.items(), 1)
        }
    )
    script.call("put", queue="of-nobody", payload="first")
    script.call("put", queue="of-the-taker", payload="first")


@refusal_scripts.add("fifo", "fifo-arguments", create={})
def arguments(script: Script) -> None:
    """Arguments that the kind does not take, and a limit that its tasks may not name."""
    for name, value in {"pri": 1, "ttl": 5, "ttr": 5, "delay": 5, "key": "ada", "cost": 2}.items():
        script.call("put", payload="first", **{name: value})
    script.call("put", payload="first", limits=["mails"])


@refusal_scripts.add("fifo", "fifo-closed-groups")
def groups(script: Script) -> None:
    """Groups that take no member, and a task that a group does not take."""
    closed, cancelled = script.given_group("the-closed-group"), script.given_group("group--cancelled")
    open_ = script.given_group()
    script.given(lambda db: Group(closed, root=ROOT).close(db))
    script.given(lambda db: Group(cancelled, root=ROOT).cancel(db))
    script.call("create", codec="bytes")
    for group in (closed, cancelled, b"no-group-is-this".hex()):
        script.call("put", payload="member", group=group)
    script.call("put", payload="member", group=open_, unique="u")
