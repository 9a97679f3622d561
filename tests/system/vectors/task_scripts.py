"""Scripts of task queues of each kind and option, and of queues without leases."""

from functools import partial
from typing import Any

import msgspec

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, run
from fdbqueue.core.limits import PAYLOAD_PIECE_BYTES_MAX, RECORD_PAYLOAD_BYTES_MAX
from fdbqueue.core.line.decision import Due, LineKeys, Notice, Ticket, notice_value, request_value
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.fleet.functions import Tasks
from fdbqueue.operate.conformance import Keys, escaped
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.elements.store import ElementKeys, name_at
from fdbqueue.queues.recipe.items import QueueKeys, suffix
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.key_counts import KeyCounts, slug_of
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, packed
from tests.system.vectors.script import SESSION, Script, Scripts
from tests.system.vectors.verbs import ELEMENTS, FAIR, RECIPE, ROOT, SCHEMA, SIMPLE, told

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


def send(to: str, subject: str = "hi") -> None:
    """The function of the calls below."""


@task_scripts.add("fifo", "fifo-functions", create={})
def functions(script: Script) -> None:
    """Calls of a Python function: the payload is JSON, in the codec of the queue."""
    called = Tasks("emails").task(send)
    for call in (called.call("ada@example.com"), called.call("ada@example.com", subject="yes")):
        script.call("put", payload=escaped(msgspec.json.encode(call.data)))


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


_LARGE = told(b"x" * PAYLOAD_PIECE_BYTES_MAX + b"rest")


item_scripts = Scripts()


@item_scripts.add(RECIPE, create={})
def recipe(script: Script) -> None:
    script.call("peek")
    script.call("enqueue", payload="first")
    script.call("enqueue", payload="second")
    script.call("enqueue_many", payloads=["third", "fourth", "fifth"])
    script.call("size")
    script.call("peek")
    script.call("dequeue", count=1)
    script.call("dequeue", count=2)
    script.call("give_back", payloads=["second", "third"])
    script.call("enqueue", payload=_LARGE)
    script.call("dequeue", count=9)
    script.call("dequeue", count=1)
    script.call("enqueue", payload="first again")
    script.call("clear")
    script.call("drop")


@item_scripts.add(RECIPE, "queue-over-a-subspace", subspace="%02bare%00")
def bare_recipe(script: Script) -> None:
    """A queue over a subspace has no definition."""
    script.call("enqueue", payload="first")
    script.call("enqueue", payload="second")
    script.call("dequeue", count=1)
    script.call("clear")


_FIRST = QueueKeys(Registry(ROOT).keys.contents(1))
"""The keys of the first queue of a root."""


def _begin_with(script: Script, keys: Keys) -> None:
    """Begin with a registered queue and these keys in it."""
    script.given(lambda db: Queue.named(db, script.name, codec="bytes", root=ROOT))
    script.given_keys(keys)


@item_scripts.add(RECIPE, "queue-with-a-request")
def waited_for(script: Script) -> None:
    """A request waits in the line: an enqueue raises the size, which its process watches."""
    line = LineKeys(_FIRST.line)
    ticket = Ticket(b"\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00", b"request-0001", 1)
    _begin_with(script, {line.request(ticket): request_value(1, 1_700_000_060_000_000, b"")})
    script.call("enqueue", payload="for the request")
    script.call("dequeue", count=1)


@item_scripts.add(RECIPE, "queue-with-an-overdue-result")
def delivered(script: Script) -> None:
    """An item lies ready for a request that is dead: a take that finds nothing returns it."""
    line = LineKeys(_FIRST.line)
    rid, until_us = b"request-0001", 1_700_000_000_500_000
    results = ((suffix(4, b"random-text1"), b"\x00returned"),)
    _begin_with(
        script,
        {
            line.notice(rid): notice_value(Notice(until_us, 1, results)),
            line.due_key(Due(until_us, rid)): b"",
            _FIRST.size: bytes(8),
            _FIRST.floor: (5).to_bytes(8, "little"),
        },
    )
    script.call("enqueue", payload="behind the floor")
    script.call("dequeue", count=1)
    script.call("dequeue", count=1)


@item_scripts.add(RECIPE, "queue-with-partitions", create={"partitions": 3})
def partitioned_items(script: Script) -> None:
    for number in range(4):
        script.call("enqueue", payload=f"value-{number}")
    script.call("size")
    script.call("dequeue", count=1)
    script.call("dequeue", count=1)
    script.call("repartition", partitions=2)
    script.call("enqueue", payload="after the repartition")


@item_scripts.add(RECIPE, "queue-with-receipts", create={})
def receipts(script: Script) -> None:
    """Calls given a database: each writes a receipt, too."""
    receipt = {"process": "producer-001", "slot": 1, "number": 1}
    script.call("enqueue", payload="first", receipt=receipt)
    script.call("enqueue_many", payloads=["second", "third"], receipt=receipt)


@item_scripts.add(FAIR, subspace="%02fair%00")
def fair_items(script: Script) -> None:
    for key, payload in (("ada", "a1"), ("ada", "a2"), ("bob", "b1"), ("ada", "a3")):
        script.call("put", key=key, payload=payload)
    script.call("put", key="bob", payload="b2", cost=2)
    script.call("size", key="ada")
    for _ in range(3):
        script.call("get", key="ada")
    script.call("give_back", key="ada", payload="a2")
    for _ in range(4):
        script.call("get", key="ada")


@item_scripts.add(FAIR, "bounded-fair-queue", subspace="%02fair%00", capacity=4, weights={"ada": 2})
def bounded_fair(script: Script) -> None:
    for number in range(5):
        script.call("put", key="ada", payload=f"a{number}")
    script.call("get", key="ada")
    script.call("put", key="bob", payload="b")


@item_scripts.add(ELEMENTS)
def elements(script: Script) -> None:
    script.call("create")
    first = script.call("add", pieces={"body": "hello"})
    second = script.call("add", pieces={"body": "again"})
    script.call("count")
    script.call("lock", name=first)
    script.call("lock", name=first)
    script.call("touch", name=first)
    script.call("get", name=first)
    script.call("unlock", name=first)
    script.call("lock", name=first)
    script.call("remove", name=first)
    script.call("lock", name=second)
    script.wait(60)
    script.call("purge", maxlock=30)
    script.call("dequeue", name=second)
    script.call("drop")


@item_scripts.add(ELEMENTS, "elements-over-a-subspace", subspace="%02bare%00")
def bare_elements(script: Script) -> None:
    """Elements over a subspace have no definition."""
    name = script.call("add", pieces={"body": "hello"})
    script.call("lock", name=name)
    script.call("get", name=name)
    script.call("remove", name=name)


@item_scripts.add(SIMPLE)
def simple_elements(script: Script) -> None:
    script.call("create")
    name = script.call("add", payload=escaped(b"\x00 some bytes"))
    script.call("lock", name=name)
    script.call("get", name=name)
    script.call("remove", name=name)


@item_scripts.add(ELEMENTS, "elements-taken-names")
def taken_names(script: Script) -> None:
    """The microsecond of a taken name is counted up, into the next second too; its first part stays."""
    script.given(lambda db: ElementQueue.named(db, script.name, SCHEMA, root=ROOT))
    keys = ElementKeys(RootKeys(ROOT).contents(1))
    end_of_a_minute_us = 1_700_000_039_999_999
    names = [name_at(1_700_000_001_000_000, 1), name_at(1_700_000_001_000_001, 1)]
    names.append(name_at(end_of_a_minute_us, 2))
    script.given_keys({keys.element(name): b"" for name in names})
    script.call("add", pieces={"body": "two names are taken"})
    script.wait(37.999_999)
    script.call("add", pieces={"body": "in the next minute"})
