"""The consumer beside the vectors: `fdbqueue conformance python -m tests.layout.consumer_answers`."""

import json
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from examples.layout_program import Transaction, text_of
from tests.layout import consumer
from tests.layout.consumer import Lease, Queue, Refused, Rule, Session

_US = 1_000_000


class Keys(Transaction):
    """As the binding: `compare_and_clear` removes a key with that value."""

    def compare_and_clear(self, key: bytes, value: bytes) -> None:
        if self.keys.get(key) == value:
            self.clear(key)


class Asked:
    def __init__(self, line: dict[str, Any]) -> None:
        self.line, self.call = line, line["call"]
        self.tr = Keys(
            {unquote_to_bytes(key): unquote_to_bytes(value) for key, value in line["keys"].items()}
        )
        self.now, self.root = line["now_us"], unquote_to_bytes(line["root"])

    def data(self, name: str) -> bytes:
        return unquote_to_bytes(self.call.get(name, ""))

    @property
    def queue(self) -> Queue:
        """A queue of plain tasks. A consumer passes over others, and a vector does not. Raises: Refused."""
        queue = Queue(self.tr, self.root, self.call["queue"], self.now)
        begin, end = queue.at(1), queue.at(2)
        records = [(key[len(begin) :], value) for key, value in self.tr.keys.items() if begin <= key < end]
        if any(consumer.plain(*record) is None for record in records):
            raise Refused("a task is not plain")
        return queue

    @property
    def session(self) -> Session:
        return Session(self.root, self.data("session"))

    @property
    def lease(self) -> Lease:
        if "token" not in self.call and "session" not in self.call:
            raise Refused("a verb about a task of nobody")
        return Lease(self.data("task"), self.data("token") or None, self.data("session"))

    def span(self, name: str) -> int:
        return round(self.call.get(name, 0) * _US)


def take(asked: Asked) -> list[str]:
    queue = asked.queue
    token = unquote_to_bytes((asked.line["random"] or [""])[0])
    found = consumer.take(queue, asked.data("session"), token, asked.call["count"])
    return [text_of(record.id) for record, _ in found]


def release(asked: Asked) -> None:
    queue = asked.queue
    if "failure" in asked.call:
        consumer.fail(queue, asked.lease, asked.call["failure"], Rule(None), 0, asked.span("delay"))
    else:
        consumer.release(queue, asked.lease, asked.span("delay"))


def end(asked: Asked) -> int:
    version = asked.call["version"]
    dead = consumer.find_dead(asked.tr, asked.root, asked.now, version)
    return sum(
        consumer.begin_end(asked.tr, one.session, asked.now, one, version) for one in dead if not one.begun
    )


def ack(asked: Asked) -> None:
    if "result" in asked.call:
        raise Refused("a result")
    consumer.ack(asked.queue, asked.lease)


def beats(asked: Asked) -> tuple[Any, ...]:
    return asked.tr, asked.session, asked.span("ttr"), asked.now, asked.call["version"]


def nothing(_: object) -> None:
    """No result of the vector."""


VERBS: dict[str, Callable[[Asked], Any]] = {
    "open": lambda asked: consumer.open_session(*beats(asked), ("host", 1)),
    "beat": lambda asked: consumer.beat(*beats(asked)),
    "take": take,
    "ack": ack,
    "renew": lambda asked: nothing(consumer.renew(asked.queue, [asked.lease])),
    "release": release,
    "bury": lambda asked: consumer.bury(asked.queue, asked.lease, asked.call.get("failure")),
    "exhaust": lambda asked: consumer.exhaust(asked.queue, asked.lease, Rule(asked.call["attempts"])),
    "sweep": lambda asked: nothing(consumer.sweep(asked.queue)),
    "end": end,
    "end_own": lambda asked: nothing(consumer.begin_end(asked.tr, asked.session, asked.now)),
    "release_taken": lambda asked: nothing(
        consumer.release_taken(asked.queue, asked.data("session"), asked.call["died"])
    ),
    "forget": lambda asked: consumer.forget(asked.tr, asked.session, asked.call["time"], False, asked.now),
}


def answer(line: dict[str, Any]) -> dict[str, Any]:
    asked, told = Asked(line), {"id": line["id"]}
    if line["verb"] not in VERBS:
        return {**told, "unsupported": True}
    try:
        returns: Any = VERBS[line["verb"]](asked)
    except Refused:
        return {**told, "unsupported": True}
    except consumer.NotTaken:
        returns = {"error": "NotTaken"}
    tr = asked.tr
    keys = {text_of(key): text_of(value) for key, value in tr.keys.items()}
    ranges = {"reads": tr.reads, "writes": tr.writes}
    shown = {name: [[text_of(begin), text_of(end)] for begin, end in some] for name, some in ranges.items()}
    return {**told, "returns": returns, "keys": keys, **shown}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
