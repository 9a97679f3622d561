"""Scripts of consumers (docs/consumers.md): sessions, leases, sweeps, and ends of sessions."""

from typing import Any

from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue.core.database import Database, run
from fdbqueue.core.limits import PAYLOAD_PIECE_BYTES_MAX, RECORD_PAYLOAD_BYTES_MAX
from fdbqueue.core.line.decision import LineKeys, Notice, notice_value
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import NUMBER, TaskKeys, id_bytes, record_of, record_to_bytes
from tests.system.vectors.script import SESSION, Script, Scripts, draw_next
from tests.system.vectors.verbs import ROOT, told

OTHER, NAMED = "session-of-dying", "session-of-named"
"""Sessions beside the one that takes; 16 bytes each."""
RUN = "run-of-a-fleet-1"
_US = 1_000_000
_ROOT = RootKeys(ROOT)
_FAILURE = {"error": "ValueError", "message": "no such address", "detail": "line 7", "worker": "host:1"}

consumer_scripts = Scripts()


class Consumer:
    """The calls of one session."""

    def __init__(self, script: Script, session: str = SESSION) -> None:
        self.script, self.session = script, session
        self.tokens: dict[str, str] = {}

    def take(self, count: int = 1) -> list[str]:
        found: list[str] = self.script.call("take", count=count, session=self.session)
        self.tokens |= dict.fromkeys(found, self.script.steps[-1].random[0].decode())
        return found

    def call(self, verb: str, task: str, **arguments: Any) -> Any:
        return self.script.call(verb, task=task, token=self.tokens[task], **arguments)


def _now(script: Script) -> int:
    """The read version of the next call: the clock of the vectors counts both."""
    return script.now_us + _US


@consumer_scripts.add("fifo", "fifo-sessions", create={})
def sessions(script: Script) -> None:
    """A session of a consumer, from its begin to its end."""
    opened = {"session": SESSION, "ttr": 30}
    script.call("open", **opened, version=_now(script))
    script.call("put_many", payloads=["first", "second"])
    consumer = Consumer(script)
    consumer.take()
    script.wait(10)
    script.call("beat", **opened, version=_now(script))
    script.call("release_taken", session=SESSION, died=False)
    script.call("end_own", session=SESSION)
    began = script.now_us
    script.call("release_taken", session=SESSION, died=False)
    script.call("forget", session=SESSION, time=began)
    script.call("beat", **opened, version=_now(script))
    script.call("take", count=1, session=SESSION)


@consumer_scripts.add("fifottl", "fifottl-leases", session=True, create={"ttr": 10, "pri": 5, "attempts": 3})
def leases(script: Script) -> None:
    """Leases that are renewed, lost and ended, until a task has used up its attempts."""
    consumer = Consumer(script)
    script.call("put", payload="usual", headers={"sender": "ada"})
    script.call("put", payload="urgent", pri=1, attempts=9)
    script.call("put", payload=told(b"x" * (RECORD_PAYLOAD_BYTES_MAX + 1)), pri=9)
    [urgent] = consumer.take()
    consumer.call("renew", urgent)
    script.wait(7)
    consumer.call("renew", urgent)
    consumer.call("release", urgent, delay=2, failure=_FAILURE)
    consumer.call("ack", urgent)
    script.call("sweep")
    script.wait(3)
    script.call("sweep")
    [urgent, usual, large] = consumer.take(3)
    consumer.call("bury", large, failure=_FAILURE)
    consumer.call("exhaust", usual, attempts=3)
    consumer.call("release", usual, delay=0, failure=_FAILURE)
    script.wait(20)
    script.call("sweep")
    for _ in range(2):
        consumer.take(2)
        script.wait(20)
    consumer.take(1)
    [usual] = consumer.take(1)
    consumer.call("exhaust", usual, attempts=3)
    consumer.call("renew", urgent)
    consumer.call("release", urgent, delay=1, failure=_FAILURE)
    script.call("kick", count=2)
    consumer.take(3)
    consumer.call("ack", large)


@consumer_scripts.add("fifo", "fifo-attempts", session=True, create={"attempts": 2})
def attempts(script: Script) -> None:
    """The last attempt of a fifo buries; failures with long texts, of a task with a large payload."""
    consumer = Consumer(script)
    script.call("put", payload=told(b"x" * (PAYLOAD_PIECE_BYTES_MAX + 1)))
    [large] = consumer.take()
    consumer.call("release", large, delay=0, failure={"error": "E" * 300, "message": "\u00e9" * 600})
    consumer.take()
    consumer.call("release", large, delay=0, failure=_FAILURE)


@consumer_scripts.add("fifo", "fifo-ring-of-failures", session=True)
def ring(script: Script) -> None:
    """The eleventh failure takes the place of the first. Some do not count, by a kick or an outage."""

    def given(db: Database) -> None:
        queue = TaskQueue.create(db, script.name, "fifo", codec="bytes", attempts=3, root=ROOT)
        draw_next(db, "random-byte0")
        id_ = id_bytes(queue.put(db, b"patient").id)
        keys = TaskKeys(_ROOT.contents(1))

        def failed(tr: Transaction) -> None:
            record = record_of(tr.get(keys.task(id_)).value)
            stored = record_to_bytes(replace(record, failures=9, forgiven=7, excused=1, error="Before"))
            tr.set(keys.task(id_), stored)
            tr.set(keys.ready_at(id_), stored)

        run(db, failed)

    script.given(given)
    consumer = Consumer(script)
    [patient] = consumer.take()
    consumer.call("release", patient, delay=1.5, failure={"error": "Again", "message": "1"})
    script.wait(1)
    consumer.take()
    consumer.call("release", patient, delay=1.5, failure={"error": "Again", "message": "2"})
    script.call("kick", count=1)
    consumer.take()
    consumer.call("ack", patient)


@consumer_scripts.add("fifottl", "fifottl-cancelled", session=True, create={"ttr": 10})
def cancelled(script: Script) -> None:
    """A cancelled task is gone with its lease, whatever ends it; it may be acked and renewed."""
    consumer = Consumer(script)
    script.call("put_many", payloads=["acked", "failed", "buried", "used up", "lost"])
    ids = consumer.take(5)
    for task in ids:
        script.call("cancel", task=task)
    consumer.call("renew", ids[0])
    consumer.call("ack", ids[0])
    consumer.call("release", ids[1], delay=5, failure=_FAILURE)
    consumer.call("bury", ids[2], failure=_FAILURE)
    consumer.call("exhaust", ids[3], attempts=1)
    script.wait(20)
    script.call("sweep")


@consumer_scripts.add("fifottl", "fifottl-sweeps", session=True, create={"ttr": 60, "ttl": 40})
def sweeps(script: Script) -> None:
    """Tasks in each state that are due, and timers of no task."""
    consumer = Consumer(script)
    script.call("put_many", payloads=["taken", "buried", "released"])
    script.call("put", payload="delayed", delay=20, ttl=1)
    script.call("put", payload="short", ttl=3)
    script.call("put", payload="long", ttl=1_000)
    taken, buried, released = consumer.take(3)
    script.call("renew", task=taken, token=consumer.tokens[taken])
    consumer.call("bury", buried)
    consumer.call("release", released, delay=10)
    script.wait(10)
    consumer.take()
    script.wait(60)
    script.call("sweep")
    script.call("sweep")
    consumer.take()


@consumer_scripts.add("fifo", "fifo-stray-timers", given={})
def stray(script: Script) -> None:
    """A timer of no task, which each sweep would find."""
    timer = TaskKeys(_ROOT.contents(1)).timer
    script.given_keys({timer(script.now_us + seconds * _US, bytes(20)): b"" for seconds in (1, 9)})
    script.call("sweep")


def _opened(db: Database, session: str, ttr: float, name: str | None = None, run: str = "") -> Session:
    draw_next(db, session)
    return Session(db, name=name, ttr=ttr, run_id=run.encode(), root=ROOT)


@consumer_scripts.add("fifo", "fifo-dead-sessions", session=True, given={})
def dead(script: Script) -> None:
    """Sessions that die: that of a worker in a fleet, and one with a name. The one that beats lives on."""

    def openings(db: Database) -> None:
        _opened(db, RUN, 900)
        _opened(db, OTHER, 30, run=RUN)
        _opened(db, NAMED, 20, name="named")

    script.given(openings)
    script.call("put_many", payloads=["lost", "cancelled", "ours"])
    dying, consumer = Consumer(script, OTHER), Consumer(script)
    _, gone = dying.take(2)
    script.call("cancel", task=gone)
    script.wait(20)
    script.call("end", version=_now(script))
    script.call("beat", session=SESSION, ttr=60, version=_now(script))
    consumer.take()
    script.wait(20)
    script.call("end", version=_now(script))
    began = script.now_us
    script.call("end", version=_now(script))
    script.call("take", count=1, session=OTHER)
    script.call("release_taken", session=OTHER, died=True)
    script.call("release_taken", session=OTHER, died=True)
    script.call("forget", session=OTHER, time=began)
    consumer.take()


@consumer_scripts.add("fifo", "fifo-run-that-ended")
def ended(script: Script) -> None:
    """The last session of a run that has ended clears its row, and nothing counts for it."""

    def given(db: Database) -> None:
        queue = TaskQueue.create(db, script.name, "fifo", codec="bytes", root=ROOT)
        draw_next(db, "random-byte0")
        queue.put(db, b"lost")
        session = _opened(db, OTHER, 30, run=RUN)
        draw_next(db, "random-byte1")
        queue.take(db, session=session)

    script.given(given)
    script.given_keys({_ROOT.run(RUN.encode()): bytes(48)})
    script.wait(60)
    script.call("end", version=_now(script))
    began = script.now_us
    script.call("release_taken", session=OTHER, died=True)
    script.call("forget", session=OTHER, time=began)


@consumer_scripts.add("fifo", "fifo-uncollected")
def uncollected(script: Script) -> None:
    """A dead session has a task that the line has delivered to it, and that nobody has received."""

    def given(db: Database) -> None:
        queue = TaskQueue.create(db, script.name, "fifo", codec="bytes", root=ROOT)
        draw_next(db, "random-byte0")
        queue.put_many(db, [b"delivered", b"received"])
        session = _opened(db, OTHER, 30)
        draw_next(db, "random-byte1")
        [delivered, _] = queue.take_many(db, 2, session=session)
        value = OTHER.encode() + b"random-byte1" + NUMBER.pack(1)
        notice = notice_value(Notice(0, 1, [(id_bytes(delivered.id), value)]))
        line = LineKeys(TaskKeys(_ROOT.contents(1)).line)
        run(db, lambda tr: tr.set(line.notice(b"name-of-call"), notice))

    script.given(given)
    script.wait(60)
    script.call("end", version=_now(script))
    script.call("release_taken", session=OTHER, died=True)


@consumer_scripts.add("fifo", "fifo-held-sessions", session=True, given={})
def held(script: Script) -> None:
    """A session with a deadline that is over, by a wrong clock, and a hold; and an old entry of it."""
    session, fast_us = SESSION.encode(), script.now_us + 3 * _US
    heartbeat = layer.pack((fast_us, script.now_us, script.now_us + 90 * _US))
    script.given_keys({_ROOT.heartbeat(session): heartbeat, _ROOT.beat_due(fast_us, session): b""})
    script.wait(5)
    script.call("end", version=_now(script))
    script.wait(70)
    script.call("end", version=_now(script))
    script.wait(20)
    script.call("end", version=_now(script))


@consumer_scripts.add("fifottl", "fifottl-lost-runs", create={"ttr": 5})
def runs_of_leases(script: Script) -> None:
    """The lost leases of a fleet count for its run, also the one that used up a task."""

    def openings(db: Database) -> None:
        _opened(db, RUN, 900)
        _opened(db, OTHER, 900, run=RUN)
        _opened(db, SESSION, 900)

    script.given(openings)
    script.call("put_many", payloads=["lost", "cancelled"])
    dying, consumer = Consumer(script, OTHER), Consumer(script)
    _, gone = dying.take(2)
    script.call("cancel", task=gone)
    script.wait(10)
    script.call("sweep")
    [lost] = consumer.take(1)
    consumer.call("exhaust", lost, attempts=1)
