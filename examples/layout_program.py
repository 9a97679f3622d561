"""Proves layout_client.py and layout_tasks.py: `fdbqueue conformance python -m examples.layout_program`.

It reads a line of JSON for each call, makes the call on the keys of the line, in a transaction that is a
dictionary, and answers with the keys and the conflict ranges that the call leaves.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from fdb import tuple as layer

from examples import layout_client as client
from examples import layout_tasks as tasks

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'%"\\+')


def text_of(data: bytes) -> str:
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02x}" for byte in data)


class Row(NamedTuple):
    key: bytes
    value: bytes


class Value:
    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def present(self) -> bool:
        return self._value is not None

    def __bytes__(self) -> bytes:
        return self._value or b""


class Snapshot:
    def __init__(self, keys: dict[bytes, bytes]) -> None:
        self.keys = keys

    def get(self, key: bytes) -> Value:
        return Value(self.keys.get(key))

    def get_range(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> Iterator[Row]:
        found = sorted((key for key in self.keys if begin <= key < end), reverse=reverse)
        return (Row(key, self.keys[key]) for key in found[: limit or None])


class Transaction(Snapshot):
    """The part of the binding's transaction that the client uses, over a dictionary."""

    def __init__(self, keys: dict[bytes, bytes]) -> None:
        super().__init__(dict(keys))
        self.snapshot = Snapshot(self.keys)
        self.reads: list[tuple[bytes, bytes]] = []
        self.writes: list[tuple[bytes, bytes]] = []
        self.changed: set[bytes] = set()

    def get(self, key: bytes) -> Value:
        self.add_read_conflict_key(key)
        return super().get(key)

    def get_range(self, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False) -> Iterator[Row]:
        self.add_read_conflict_range(begin, end)
        return super().get_range(begin, end, limit, reverse)

    def set(self, key: bytes, value: bytes) -> None:
        self.changed.add(key)
        self.keys[key] = value

    def clear(self, key: bytes) -> None:
        self.changed.add(key)
        self.keys.pop(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        for key in [key for key in self.keys if begin <= key < end]:
            self.clear(key)

    def add(self, key: bytes, operand: bytes) -> None:
        width = len(operand)
        total = int.from_bytes(self.keys.get(key, b"")[:width], "little") + int.from_bytes(operand, "little")
        self.set(key, (total % (1 << 8 * width)).to_bytes(width, "little"))

    def add_read_conflict_key(self, key: bytes) -> None:
        self.add_read_conflict_range(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        # As FoundationDB: keys that the transaction has written before are left out.
        for key in sorted(key for key in self.changed if begin <= key < end):
            self.reads.append((begin, key))
            begin = key + b"\x00"
        self.reads.append((begin, end))

    def add_write_conflict_key(self, key: bytes) -> None:
        self.writes.append((key, key + b"\x00"))


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    keys = {unquote_to_bytes(key): unquote_to_bytes(value) for key, value in asked["keys"].items()}
    tr = Transaction(keys)
    returns: dict[str, Any] = {}
    try:
        found = call(tr, asked)
        if found is not None:
            returns = {"returns": found if isinstance(found, str) else [*map(text_of, found)]}
    except client.Full:
        returns = {"returns": {"error": "Full"}}
    except client.Refused:
        return {"id": asked["id"], "unsupported": True}
    told: dict[str, Any] = {"id": asked["id"], **returns}
    told["keys"] = {text_of(key): text_of(value) for key, value in tr.keys.items()}
    if "receipt" not in asked["call"]:
        told["reads"] = [[text_of(begin), text_of(end)] for begin, end in tr.reads]
        told["writes"] = [[text_of(begin), text_of(end)] for begin, end in tr.writes]
    return told


def call(tr: Transaction, asked: dict[str, Any]) -> list[bytes] | str | None:
    """Make the call. Returns payloads, ids or a name. Raises: Refused, Full."""
    options, root = dict(asked["call"]), unquote_to_bytes(asked["root"])
    random = [unquote_to_bytes(one) for one in asked["random"]]
    texts = options.pop("payloads", None) or [options.pop("payload", "")]
    payloads, verb, now_us = [unquote_to_bytes(text) for text in texts], asked["verb"], asked["now_us"]
    if asked["kind"] == "queue" and verb in ("enqueue", "enqueue_many", "dequeue", "give_back"):
        queue = queue_of(tr, root, options, ["queue"])
        if verb == "dequeue":
            return client.dequeue(tr, queue, options["count"], now_us)
        if "receipt" in options:
            receipt(tr, root, options["receipt"], now_us)
        add = client.give_back if verb == "give_back" else client.enqueue
        add(tr, queue, payloads, random[-1])
        return None
    if asked["kind"] in tasks.KINDS and verb in ("put", "put_many") and options.get("on_conflict") is None:
        named = queue_of(tr, root, options, tasks.KINDS)
        turn = int.from_bytes(random[0], "big") if random else 0
        del options["queue"]
        ids = tasks.put(tr, named, payloads, random[-1] if random else b"", now_us, turn, **options)
        return ids or None
    if asked["kind"] == "fair-queue" and verb == "put":
        fair = fair_queue(tr, options)
        tasks.put(tr, fair, payloads, random[-1], now_us, **options)
        return None
    if asked["kind"] in ("elements", "simple-elements") and verb == "add":
        elements = queue_of(tr, root, options, [asked["kind"]])
        named = {name: text.encode() for name, text in options.get("pieces", {}).items()}
        pieces = named or {"": payloads[0]}
        return client.add_element(tr, elements, pieces, random[0][0] % 16, now_us)
    raise client.Refused(f"this client has no {asked['kind']}/{verb}")


def queue_of(tr: Transaction, root: bytes, options: dict[str, Any], kinds: Any) -> Any:
    if "subspace" in options:
        return unquote_to_bytes(options["subspace"])
    return client.Queue(tr, root, options["queue"], kinds)


def fair_queue(tr: Transaction, options: dict[str, Any]) -> tasks.FairQueue:
    """The queue of a call; takes its parts out of the options."""
    named = options.pop("weights", {})
    weights = {layer.pack((key,)).hex(): weight for key, weight in named.items()}
    return tasks.FairQueue(
        tr, unquote_to_bytes(options.pop("subspace")), options.pop("capacity", None), weights
    )


def receipt(tr: Transaction, root: bytes, told: dict[str, Any], now_us: int) -> None:
    slot = layer.pack((3, unquote_to_bytes(told["process"]), told["slot"]), prefix=root)
    tr.set(slot, client.time(now_us) + told["number"].to_bytes(8, "big"))


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
