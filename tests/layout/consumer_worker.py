"""The consumer as a worker: `fdbqueue conformance --consumer URL python -m tests.layout.consumer_worker`.

It keeps to docs/consumers.md and docs/conformance.md. Of fdbqueue it uses the open database alone: its
transactions are those of the engine. In a directory, `ticks_of` stands for the read version of a cluster. A
name of BROKEN behind it lets it break one promise.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from fdb import tuple as layer

import fdbqueue
from fdbqueue.core.database import ticks_of
from fdbqueue.core.seam import engine_errors
from tests.layout import consumer
from tests.layout.consumer import Lease, NotTaken, Queue, Record, Refused, Rule, Session

T = TypeVar("T")
UNKNOWN = (1021, 1039)
TICK_S, LOOK_S = 0.02, 2.0
BROKEN = (
    "acks twice",
    "never ends the dead",
    "never renews",
    "keeps its tasks",
    "counts no failure",
    "refuses none",
)
USUAL = Rule(5)


def now_us() -> int:
    return round(time.time() * 1_000_000)


class Worker:
    def __init__(self, database: Any, told: dict[str, Any], broken: str) -> None:
        self.db, self.broken = database, broken
        self.root, self.effects = unquote_to_bytes(told["root"]), unquote_to_bytes(told["effects"])
        self.name, self.ttr = told["queue"], round(told["session_s"] * 1_000_000)
        self.stopping = threading.Event()
        self.session = Session(self.root, b"\x01" + os.urandom(15))
        self.lost = False
        self.held: Record | None = None
        self.receipt, self.attempts = layer.pack((3, os.urandom(12), 1), prefix=self.root), 0

    # Transactions.

    def run(self, body: Callable[[Any], T], unknown: Callable[[Any], T | None] | None = None) -> T:
        """`unknown`: after an unknown result, the answer if that attempt has committed, else None."""
        tr, doubt = self.db.create_transaction(), False
        while True:
            try:
                found = unknown(tr) if doubt and unknown is not None else None
                if found is not None:
                    return found
                answer = body(tr)
                tr.commit().wait()
                return answer
            except engine_errors() as error:
                doubt = doubt or error.code in UNKNOWN
                tr.on_error(error).wait()

    def once(self, body: Callable[[Any], T]) -> T:
        """As `run`, with a receipt: the effect happens once."""
        tried: dict[bytes, T] = {}

        def attempt(tr: Any) -> T:
            self.attempts += 1
            value = consumer.time(now_us()) + consumer.time(self.attempts)
            tried[value] = answer = body(tr)
            tr.set(self.receipt, value)
            return answer

        return self.run(attempt, lambda tr: tried.get(bytes(tr.get(self.receipt).value or b"")))

    def queue(self, tr: Any) -> Queue:
        return Queue(tr, self.root, self.name, now_us())

    # In the background: the session, its lease, sweeps.

    def beat(self) -> None:
        def body(tr: Any) -> bool:
            version = ticks_of(tr)
            return consumer.beat(tr, self.session, self.ttr, now_us(), version)

        if not self.run(body):
            self.lost = True
        record = self.held
        if record is not None and self.broken != "never renews":
            lease = Lease(record.id, record.token)
            self.run(lambda tr: consumer.renew(self.queue(tr), [lease]))

    def upkeep(self) -> None:
        beat_at = sweep_at = 0.0
        while not self.stopping.wait(TICK_S):
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self.ttr / 4_000_000
                self.beat()
            if time.monotonic() >= sweep_at:
                sweep_at = time.monotonic() + 0.5
                while self.run(lambda tr: consumer.sweep(self.queue(tr))):
                    pass
                if self.broken != "never ends the dead":
                    self.end_the_dead()

    def end_the_dead(self) -> None:
        def find(tr: Any) -> list[consumer.Dead]:
            return consumer.find_dead(tr, self.root, now_us(), ticks_of(tr))

        for dead in self.run(find):
            began = dead.deadline if dead.begun else now_us()

            def begin(tr: Any, dead: consumer.Dead = dead, began: int = began) -> bool:
                version = ticks_of(tr)
                return consumer.begin_end(tr, dead.session, began, dead, version)

            if dead.begun or self.run(begin):
                self.finish(dead.session, began, died=True)

    def finish(self, session: Session, began: int, died: bool) -> None:
        begin, end = (layer.pack((n,), prefix=self.root) for n in (0, 1))
        left = False
        for row in self.run(lambda tr: list(tr.snapshot.get_range(begin, end))):
            name = layer.unpack(bytes(row.key), prefix_len=len(begin))[0]
            left = self.released(name, bytes(row.value), session, died) or left
        self.run(lambda tr: consumer.forget(tr, session, began, left, now_us()))

    def released(self, name: str, stored: bytes, session: Session, died: bool) -> bool:
        """True if the queue still holds something for the session."""

        def step(tr: Any) -> consumer.Released:
            return consumer.release_taken(Queue(tr, self.root, name, now_us()), session.id, died)

        try:
            while (found := self.run(step)).keys:
                if found.left:
                    return True
        except Refused:
            return self.run(lambda tr: consumer.held_elsewhere(tr, self.root, stored, session.id))
        return False

    # Work.

    def take(self) -> tuple[Record, bytes] | None:
        token, ids = os.urandom(12), list[bytes]()

        def body(tr: Any) -> list[tuple[Record, bytes]]:
            ids[:] = []
            found = consumer.take(self.queue(tr), self.session.id, token, 1)
            ids[:] = [record.id for record, _ in found]
            if not found:
                self.watch = tr.watch(self.queue(tr).at(9))
            return found

        def unknown(tr: Any) -> list[tuple[Record, bytes]] | None:
            queue = self.queue(tr)
            found = [record for record in map(queue.record, ids) if record and record.token == token]
            return [(record, consumer.payload(queue, record)) for record in found] or None

        taken = self.run(body, unknown)
        return taken[0] if taken else None

    def loop(self) -> None:
        while not self.stopping.is_set():
            if self.lost:
                self.lost, self.session = False, Session(self.root, b"\x01" + os.urandom(15))
                self.open()
            try:
                taken = self.take()
            except Refused:
                self.lost = True
                continue
            if taken is not None:
                self.work(*taken)
            else:
                until = time.monotonic() + LOOK_S
                while time.monotonic() < until and not (self.watch.is_ready() or self.stopping.is_set()):
                    time.sleep(TICK_S)

    def open(self) -> None:
        def body(tr: Any) -> None:
            version, process = ticks_of(tr), ("host", os.getpid())
            consumer.open_session(tr, self.session, self.ttr, now_us(), version, process)

        self.run(body)

    def work(self, record: Record, payload: bytes) -> None:
        asked, lease = json.loads(payload), Lease(record.id, record.token)
        about = {"n": asked["n"], "attempt": record.attempts}
        say(event="took", **about, at=now_us())
        self.held = record
        until_s = time.monotonic() + (asked["s"] if record.attempts == 1 else 0)
        while time.monotonic() < until_s and not (self.lost or self.stopping.is_set()):
            time.sleep(TICK_S)
        at = now_us()
        try:
            how = "lost" if self.lost else self.settle(record, lease, asked)
        except NotTaken:
            how = "lost"
        self.held = None
        say(event="ended", **about, at=at, how=how)

    def settle(self, record: Record, lease: Lease, asked: dict[str, Any]) -> str:
        do, planned = asked["do"], {"error": "Planned", "message": str(asked["n"])}
        if self.stopping.is_set():
            self.once(lambda tr: consumer.release(self.queue(tr), lease))
            return "released"
        if record.counted and self.once(lambda tr: self.exhaust(tr, lease)):
            return "used up"
        if do == "fail" and self.broken != "counts no failure":
            u = random.random()
            return self.once(lambda tr: consumer.fail(self.queue(tr), lease, planned, USUAL, u))
        if do == "bury":
            self.once(lambda tr: consumer.bury(self.queue(tr), lease, planned))
            return "buried"
        if do == "fail" or (do == "release" and record.attempts == 1):
            self.once(lambda tr: consumer.release(self.queue(tr), lease))
            return "released"
        self.once(lambda tr: self.ack(tr, lease, asked["n"]))
        return "acked"

    def exhaust(self, tr: Any, lease: Lease) -> bool:
        queue = self.queue(tr)
        return consumer.exhaust(queue, lease, consumer.in_force(queue, consumer.held(queue, lease), USUAL))

    def ack(self, tr: Any, lease: Lease, n: int) -> bool:
        effect = self.effects + consumer.number(n)
        if self.broken == "acks twice":
            self.run(lambda tr: tr.add(effect, consumer.ONE))
        consumer.ack(self.queue(tr), lease)
        tr.add(effect, consumer.ONE)
        return True

    def main(self) -> None:
        try:
            self.run(self.queue)
        except Refused:
            if self.broken != "refuses none":
                say(event="refused")
                return
        self.open()
        say(event="ready")
        upkeep = threading.Thread(target=self.upkeep, daemon=True)
        upkeep.start()
        threading.Thread(target=self.until_told, daemon=True).start()
        self.loop()
        upkeep.join()
        if self.broken != "keeps its tasks":
            began = now_us()
            if self.run(lambda tr: consumer.begin_end(tr, self.session, began)):
                self.finish(self.session, began, died=False)
        self.run(lambda tr: tr.clear(self.receipt))

    def until_told(self) -> None:
        sys.stdin.read()
        self.stopping.set()


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    told = json.loads(sys.stdin.readline())
    with fdbqueue.open(told["url"]) as database:
        Worker(database, told, " ".join(sys.argv[1:])).main()


if __name__ == "__main__":
    main()
