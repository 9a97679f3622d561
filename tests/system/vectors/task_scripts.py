"""Scripts of task queues: the life of tasks in each kind, and the options that tasks of any kind may have."""

from functools import partial
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, run
from fdbqueue.core.limits import RECORD_PAYLOAD_BYTES_MAX
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.key_counts import KeyCounts, slug_of
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, packed
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.telling import told
from tests.system.vectors.verbs import ROOT

_FAILURE = {"error": "ValueError", "message": "no such address"}


task_scripts = Scripts()


def _held(task: str) -> dict[str, str]:
    return {"task": task, "session": SESSION}


def _take(script: Script, count: int = 1) -> Any:
    taken = script.call("take", count=count, session=SESSION)
    return taken[0] if count == 1 and taken else taken


def life(script: Script, *, timed: bool = False, **puts: Any) -> None:
    """Every edge of the life cycle once."""
    put = partial(script.call, "put", **puts)
    ids = [*put(payload="first"), *put(payload="second")]
    ids += script.call("put_many", payloads=["third", "fourth"], **puts)
    script.call("statistics")
    acked = _take(script)
    other = next(id_ for id_ in ids if id_ != acked)
    script.call("ack", **_held(acked))
    script.call("release", **_held(_take(script)))
    taken = _take(script)
    if timed:
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


for _kind, _created, _puts in (
    ("fifo", {}, {}),
    ("fifottl", {}, {"timed": True}),
    ("limfifottl", {"capacity": 100}, {"timed": True}),
    ("utube", {}, {"key": "ada"}),
    ("utubettl", {}, {"timed": True, "key": "ada"}),
    ("fair", {}, {"timed": True, "key": "ada", "cost": 2}),
    ("bag", {}, {"timed": True}),
):
    task_scripts.add(_kind, session=True, create=_created)(partial(life, **_puts))


@task_scripts.add("fifottl", "fifottl-times", session=True, create={"ttr": 10, "pri": 5})
def timed(script: Script) -> None:
    """Priorities, delays, the end of a ttl and of a lease."""
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


def _token_of(script: Script) -> str:
    """The token of the last lease: the first random bytes of the last take."""
    takes = [step for step in script.steps if step.verb == "take"]
    return takes[-1].random[0].decode()


@task_scripts.add("limfifottl", "limfifottl-capacity", session=True, create={"capacity": 4})
def bounded(script: Script) -> None:
    """A capacity: puts far below it, at its edge, and beyond it."""
    for number in range(5):
        script.call("put", payload=f"task-{number}")
    script.call("ack", **_held(_take(script)))
    script.call("put", payload="fits again")


@task_scripts.add("utubettl", "utubettl-keys", session=True, create={})
def micro(script: Script) -> None:
    """At most one task of a task key runs, and priorities order the tasks of one key."""
    script.call("put", payload="a1", key="ada", pri=5)
    script.call("put", payload="b1", key="bob", pri=3)
    script.call("put", payload="a2", key="ada", pri=1)
    script.call("put", payload="n1", key=7)
    taken = _take(script, 5)
    script.call("put", payload="a3", key="ada")
    script.call("ack", **_held(taken[0]))
    _take(script)


@task_scripts.add("utube", "utube-busy-key")
def busy(script: Script) -> None:
    """The 64th ready task of a task key gives the key an entry among the busy ones.

    The counters tell of 63 tasks, which a put does not read.
    """
    counts = KeyCounts(TaskKeys(RootKeys(ROOT).contents(1)).beside).counts_key(slug_of(key_bytes("ada")))

    def count(tr: Transaction) -> None:
        tr.add(counts, packed(LIVE_NAMES, {"ready": 63}))

    def body(db: Database) -> None:
        TaskQueue.create(db, script.name, "utube", codec="bytes", root=ROOT)
        run(db, count)

    script.given(body)
    script.call("put", payload="the 64th", key="ada")


@task_scripts.add("fair", "fair-rounds", session=True, create={"weights": {"ada": 2}, "capacity": 50})
def fair(script: Script) -> None:
    for number in range(4):
        script.call("put", payload=f"a{number}", key="ada")
    script.call("put", payload="b0", key="bob")
    script.call("put", payload="b1", key="bob", cost=3)
    _take(script, 4)
    script.call("put", payload="c0", key="cat")
    _take(script, 4)


@task_scripts.add("bag", "bag-times", session=True, create={"ttl": 100})
def bag(script: Script) -> None:
    script.call("put", payload="first", delay=2)
    script.call("put", payload="second")
    script.wait(3)
    _take(script, 2)


@task_scripts.add("fifo", "fifo-options", session=True, create={})
def options(script: Script) -> None:
    """Options that tasks of every kind may have."""
    script.call("put", payload="with headers", headers={"sender": "ada"})
    script.call("put", payload="with a result", result_ttl=100)
    script.call("put", payload=told(b"x" * (RECORD_PAYLOAD_BYTES_MAX + 1)))
    taken = _take(script, 3)
    script.call("ack", **_held(taken[0]))
    script.call("ack", result="the result", **_held(taken[1]))
    script.call("ack", **_held(taken[2]))


@task_scripts.add("fifottl", "fifottl-unique", session=True, create={})
def unique(script: Script) -> None:
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


@task_scripts.add("fifo", "fifo-groups", session=True)
def groups(script: Script) -> None:
    group = script.given_group()
    script.call("create", codec="bytes")
    first = script.call("put", payload="member", group=group)
    script.call("put", payload="another", group=group)
    script.call("put", payload="next", after=first[0])
    taken = _take(script, 2)
    script.call("ack", **_held(taken[0]))
    script.call("bury", task=taken[1])
    script.call("truncate")


@task_scripts.add("fifo", "fifo-limits", session=True)
def limited(script: Script) -> None:

    def body(db: Database) -> None:
        Limit.set(db, "mails", slots=2, root=ROOT)
        Limit.set(db, "tenant", slots=1, per_key=True, root=ROOT)

    script.given(body)
    script.call("create", codec="bytes", task_limits=["mails", "tenant"])
    script.call("put", payload="free")
    script.call("put", payload="a mail", limits=["mails"])
    script.call("put", payload="of a tenant", limits={"tenant": "ada"})
    script.call("put", payload="of the same", limits={"tenant": "ada"})
    taken = _take(script, 4)
    script.call("ack", **_held(taken[0]))


@task_scripts.add("fifo", "fifo-with-partitions", session=True, create={"partitions": 2})
def partitioned(script: Script) -> None:
    for number in range(3):
        script.call("put", payload=f"task-{number}")
    script.call("ack", **_held(_take(script)))
    _take(script, 5)
    _take(script)


@task_scripts.add("utube", "utube-with-partitions", session=True, create={"partitions": 4})
def partitioned_by_key(script: Script) -> None:
    for key in ("ada", "bob", "cat", 7):
        script.call("put", payload=f"of {key}", key=key)
    script.call("repartition", partitions=8)
    script.call("put", payload="of ada, later", key="ada")
    script.call("put", payload="of dan", key="dan")


@task_scripts.add("utube", "utube-with-ended-tasks", session=True, create={"retain_s": 60})
def retained(script: Script) -> None:
    script.call("put", payload="acked", key="ada")
    second = script.call("put", payload="deleted", key="ada")
    script.call("ack", **_held(_take(script)))
    script.call("delete", task=second[0])
