"""Scripts of unique keys, and of all that a put may ask of a queue with partitions."""

from functools import partial
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import new_id
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.verbs import ROOT

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
