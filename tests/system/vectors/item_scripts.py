"""Scripts of queues without leases: the recipe, fair queues over a subspace, elements."""

from fdbqueue.core.limits import PAYLOAD_PIECE_BYTES_MAX
from fdbqueue.core.line.decision import Due, LineKeys, Notice, Ticket, notice_value, request_value
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.conformance import Keys, escaped
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.elements.store import ElementKeys, name_at
from fdbqueue.queues.recipe.items import QueueKeys, suffix
from fdbqueue.queues.recipe.queue import Queue
from tests.system.vectors.script import Script, Scripts
from tests.system.vectors.telling import told
from tests.system.vectors.verbs import ELEMENTS, FAIR, RECIPE, ROOT, SCHEMA, SIMPLE

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
def partitioned(script: Script) -> None:
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
def fair(script: Script) -> None:
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
