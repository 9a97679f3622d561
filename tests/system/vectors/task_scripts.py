"""Scripts of task queues: the life of tasks in each kind, and the options that tasks of any kind may have."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, run
from fdbqueue.core.limits import RECORD_PAYLOAD_BYTES_MAX
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.disciplines.key_counts import KeyCounts, slug_of
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.tasks.records.statistics import LIVE, packed
from tests.system.vectors.applying import Applier
from tests.system.vectors.script import SESSION, Script
from tests.system.vectors.telling import told
from tests.system.vectors.verbs import ROOT

_FAILURE = {"error": "ValueError", "message": "no such address"}


def task_scripts(applier: Applier) -> Iterator[Script]:
    yield life(applier, "fifo")
    yield life(applier, "fifottl", timed=True)
    yield life(applier, "limfifottl", timed=True, capacity=100)
    yield life(applier, "utube", key="ada")
    yield life(applier, "utubettl", timed=True, key="ada")
    yield life(applier, "fair", key="ada", cost=2)
    yield life(applier, "bag")
    yield timed(applier)
    yield bounded(applier)
    yield micro(applier)
    yield busy(applier)
    yield fair(applier)
    yield bag(applier)
    yield options(applier)
    yield unique(applier)
    yield groups(applier)
    yield limited(applier)
    yield partitioned(applier)
    yield partitioned_by_key(applier)
    yield retained(applier)


def _held(task: str) -> dict[str, str]:
    return {"task": task, "session": SESSION}


def _take(script: Script, count: int = 1) -> Any:
    taken = script.call("take", count=count, session=SESSION)
    return taken[0] if count == 1 and taken else taken


def life(applier: Applier, kind: str, *, timed: bool = False, capacity: int = 0, **puts: Any) -> Script:
    """Every edge of the life cycle once."""
    script = Script(applier, kind)
    script.given_session()
    script.call("create", codec="bytes", **({"capacity": capacity} if capacity else {}))
    put = partial(script.call, "put", **puts)
    ids = [*put(payload="first"), *put(payload="second")]
    ids += script.call("put_many", payloads=["third", "fourth"], **puts)
    script.call("statistics")
    acked = _take(script)
    other = next(id_ for id_ in ids if id_ != acked)
    script.call("ack", **_held(acked))
    script.call("release", **_held(_take(script)))
    taken = _take(script)
    if timed or kind in ("fair", "bag"):
        script.call("touch", increment=30, **_held(taken))
        script.call("release", delay=2, **_held(taken))
        script.wait(5)
        taken = _take(script)
    script.call("release", failure=_FAILURE, **_held(taken))
    script.call("bury", task=other, failure=_FAILURE)
    script.call("kick", count=1)
    script.call("pause")
    script.call("resume")
    script.call("delete", task=other)
    taken = _take(script)
    script.call("cancel", task=taken)
    script.call("release", **_held(taken))
    script.call("ack", **_held(acked))
    script.call("truncate")
    _take(script)
    script.call("drop")
    return script


def timed(applier: Applier) -> Script:
    """Priorities, delays, the end of a ttl and of a lease."""
    script = Script(applier, "fifottl", "fifottl-times")
    script.given_session()
    script.call("create", codec="bytes", ttr=10, pri=5)
    script.call("put", payload="usual")
    script.call("put", payload="urgent", pri=1)
    script.call("put", payload="later", delay=3, ttl=60)
    script.call("put", payload="short", ttl=2)
    script.wait(5)
    taken = _take(script)
    script.call("renew", task=taken, token=_token_of(script))
    script.call("progress", task=taken, token=_token_of(script), fraction=0.5)
    script.wait(20)
    script.call("ack", **_held(taken))
    _take(script, 3)
    return script


def _token_of(script: Script) -> str:
    """The token of the last lease: the first random bytes of the last take."""
    takes = [step for step in script.steps if step.verb == "take"]
    return takes[-1].random[0].decode()


def bounded(applier: Applier) -> Script:
    """A capacity: puts far below it, at its edge, and beyond it."""
    script = Script(applier, "limfifottl", "limfifottl-capacity")
    script.given_session()
    script.call("create", codec="bytes", capacity=4)
    for number in range(5):
        script.call("put", payload=f"task-{number}")
    script.call("ack", **_held(_take(script)))
    script.call("put", payload="fits again")
    return script


def micro(applier: Applier) -> Script:
    """At most one task of a task key runs, and priorities order the tasks of one key."""
    script = Script(applier, "utubettl", "utubettl-keys")
    script.given_session()
    script.call("create", codec="bytes")
    script.call("put", payload="a1", key="ada", pri=5)
    script.call("put", payload="b1", key="bob", pri=3)
    script.call("put", payload="a2", key="ada", pri=1)
    script.call("put", payload="n1", key=7)
    taken = _take(script, 5)
    script.call("put", payload="a3", key="ada")
    script.call("ack", **_held(taken[0]))
    _take(script)
    return script


def busy(applier: Applier) -> Script:
    """The 64th ready task of a task key gives the key an entry among the busy ones.

    The counters tell of 63 tasks, which a put does not read.
    """
    script = Script(applier, "utube", "utube-busy-key")
    counts = KeyCounts(TaskKeys(RootKeys(ROOT).contents(1)).beside).counts_key(slug_of(key_bytes("ada")))

    def count(tr: Transaction) -> None:
        tr.add(counts, packed(LIVE, {"ready": 63}))

    def body(db: Database) -> None:
        TaskQueue.create(db, script.name, "utube", codec="bytes", root=ROOT)
        run(db, count)

    script.given(body)
    script.call("put", payload="the 64th", key="ada")
    return script


def fair(applier: Applier) -> Script:
    script = Script(applier, "fair", "fair-rounds")
    script.given_session()
    script.call("create", codec="bytes", weights={"ada": 2}, capacity=50)
    for number in range(4):
        script.call("put", payload=f"a{number}", key="ada")
    script.call("put", payload="b0", key="bob")
    script.call("put", payload="b1", key="bob", cost=3)
    _take(script, 4)
    script.call("put", payload="c0", key="cat")
    _take(script, 4)
    return script


def bag(applier: Applier) -> Script:
    script = Script(applier, "bag", "bag-times")
    script.given_session()
    script.call("create", codec="bytes", ttl=100)
    script.call("put", payload="first", delay=2)
    script.call("put", payload="second")
    script.wait(3)
    _take(script, 2)
    return script


def options(applier: Applier) -> Script:
    """Options that tasks of every kind may have."""
    script = Script(applier, "fifo", "fifo-options")
    script.given_session()
    script.call("create", codec="bytes")
    script.call("put", payload="with headers", headers={"sender": "ada"})
    script.call("put", payload="with a result", result_ttl=100)
    script.call("put", payload=told(b"x" * (RECORD_PAYLOAD_BYTES_MAX + 1)))
    taken = _take(script, 3)
    script.call("ack", **_held(taken[0]))
    script.call("ack", result="the result", **_held(taken[1]))
    script.call("ack", **_held(taken[2]))
    return script


def unique(applier: Applier) -> Script:
    script = Script(applier, "fifottl", "fifottl-unique")
    script.given_session()
    script.call("create", codec="bytes")
    script.call("put", payload="one", unique="u1")
    script.call("put", payload="two", unique="u1")
    script.call("put", payload="three", unique="u1", on_conflict="replace")
    script.call("put", payload="four", unique="u1", on_conflict="debounce", debounce_max=60, delay=5)
    script.call("put", payload="queued", unique="u2", scope="queued")
    script.call("put", payload="for a time", unique="u3", scope=30)
    taken = _take(script, 2)
    script.call("put", payload="queued again", unique="u2", scope="queued")
    script.call("ack", **_held(taken[1]))
    script.call("put", payload="in the window", unique="u3", scope=30)
    return script


def groups(applier: Applier) -> Script:
    script = Script(applier, "fifo", "fifo-groups")
    script.given_session()
    group = script.given_group()
    script.call("create", codec="bytes")
    first = script.call("put", payload="member", group=group)
    script.call("put", payload="another", group=group)
    script.call("put", payload="next", after=first[0])
    taken = _take(script, 2)
    script.call("ack", **_held(taken[0]))
    script.call("bury", task=taken[1])
    script.call("truncate")
    return script


def limited(applier: Applier) -> Script:
    script = Script(applier, "fifo", "fifo-limits")

    def body(db: Database) -> None:
        Limit.set(db, "mails", slots=2, root=ROOT)
        Limit.set(db, "tenant", slots=1, per_key=True, root=ROOT)

    script.given_session()
    script.given(body)
    script.call("create", codec="bytes", task_limits=["mails", "tenant"])
    script.call("put", payload="free")
    script.call("put", payload="a mail", limits=["mails"])
    script.call("put", payload="of a tenant", limits={"tenant": "ada"})
    script.call("put", payload="of the same", limits={"tenant": "ada"})
    taken = _take(script, 4)
    script.call("ack", **_held(taken[0]))
    return script


def partitioned(applier: Applier) -> Script:
    script = Script(applier, "fifo", "fifo-with-partitions")
    script.given_session()
    script.call("create", codec="bytes", partitions=2)
    for number in range(3):
        script.call("put", payload=f"task-{number}")
    script.call("ack", **_held(_take(script)))
    _take(script, 5)
    _take(script)
    return script


def partitioned_by_key(applier: Applier) -> Script:
    script = Script(applier, "utube", "utube-with-partitions")
    script.given_session()
    script.call("create", codec="bytes", partitions=4)
    for key in ("ada", "bob", "cat", 7):
        script.call("put", payload=f"of {key}", key=key)
    script.call("repartition", partitions=8)
    script.call("put", payload="of ada, later", key="ada")
    script.call("put", payload="of dan", key="dan")
    return script


def retained(applier: Applier) -> Script:
    script = Script(applier, "utube", "utube-with-ended-tasks")
    script.given_session()
    script.call("create", codec="bytes", retain_s=60)
    script.call("put", payload="acked", key="ada")
    second = script.call("put", payload="deleted", key="ada")
    script.call("ack", **_held(_take(script)))
    script.call("delete", task=second[0])
    return script
