"""A consumer of tasks without fdbqueue, written from docs/consumers.md: each call is one transaction.

Nothing of fdbqueue is imported: only the tuple layer of the binding, and a msgpack library. A transaction is
the binding's own, or a dictionary with its methods (examples/layout_program.py).
"""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fdb import tuple as layer
from msgspec import msgpack

NEVER, ID_BYTES, TOKEN_BYTES = 2**63 - 1, 20, 12
CALLS = ("ready", "taken", "buried", "delayed", "put", "take", "ack", "release", "bury")
CALLS += ("kick", "delete", "touch", "ttl", "ttr", "delay", "done", "other", "cancel")
LIVE = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
KINDS = ("fifo", "fifottl")
OPTIONS = {"codec", "ttl", "ttr", "pri", "capacity", "key_concurrency", "weights", "temporary"}
OPTIONS |= {"attempts", "backoff", "chronicle"}
NOTHING_HELD = ("queue", "elements", "simple-elements", "fair-items", "importing")
EXTRA = [0, None, 0, 0, [], b"", {}, [], {}]
"""The second to the tenth value of the extra parts of a plain task."""
OVER = ("LeaseLost", "its lease ended before its holder ended the task")
DIED = ("LeaseLost", "its holder's session died")
DUE, TAKEN_AT_ONCE, PAYLOADS_BYTES, HELD_S = 50, 200, 1_000_000, 30


class Refused(Exception):
    """The queue, or the session, is none for this consumer."""


class NotTaken(Exception):
    """The lease is lost."""


def read(value: Any) -> bytes | None:
    return bytes(value) if value.present() else None


def number(n: int) -> bytes:
    return struct.pack(">I", n)


def time(us: int) -> bytes:
    return struct.pack(">Q", us)


def plus(us: int, span: int) -> int:
    return min(us + span, NEVER)


def counters(fields: Sequence[str], changes: Counter[str]) -> bytes:
    total = sum(change << 64 * fields.index(name) for name, change in changes.items())
    return (total % (1 << 64 * len(fields))).to_bytes(8 * len(fields), "little")


ONE, LESS, NONE = (struct.pack("<q", n) for n in (1, -1, 0))
RUN = ("done", "failed", "buried", "lost", "snoozed", "cancelled")


def cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def cut_end(text: str, most: int) -> str:
    return text.encode()[-most:].decode(errors="ignore")


@dataclass(frozen=True)
class Record:
    """The 25 values, in their order."""

    id: bytes
    state: str
    priority: int
    created: int
    expires: int
    ttr: int
    size: int
    key: bytes
    attempts: int
    until: int
    session: bytes
    token: bytes
    cost: int
    failures: int
    forgiven: int
    orphaned: int
    excused: int
    payload: bytes
    taken: int
    trace: bytes
    cancelled: int
    error: str | None
    fraction: float | None
    told: int
    extra: list[Any] | None

    @property
    def packed(self) -> bytes:
        return msgpack.encode([*self.__dict__.values()])

    @property
    def timer(self) -> int:
        return self.until if self.state in "t~" else self.expires

    @property
    def counted(self) -> int:
        return self.failures - self.forgiven - self.excused

    def freed(self, **values: Any) -> "Record":
        none = {"session": b"", "token": b"", "taken": 0, "cancelled": 0, "fraction": None, "told": 0}
        return replace(self, **{"state": "r", "until": NEVER, **none, **values})


TYPES = (bytes, str, int, int, int, int, int, bytes, int, int, bytes, bytes, int, int, int, int, int)
TYPES += (bytes, int, bytes, int, str | None, float | int | None, int, list | None)


def plain(id_: bytes, value: bytes | None) -> Record | None:
    """The record of a plain task; None for another."""
    try:
        parts = msgpack.decode(value or b"")
    except ValueError:
        return None
    if not isinstance(parts, list) or len(parts) != len(TYPES):
        return None
    if not all(isinstance(*pair) for pair in zip(parts, TYPES, strict=True)) or parts[0] != id_:
        return None
    extra = parts[-1]
    if extra is not None and (len(extra) != 11 or extra[1:10] != EXTRA or len(extra[10]) > 1):
        return None
    return Record(*parts)


class Queue:
    """A queue in one transaction, which relies on its definition."""

    def __init__(self, tr: Any, root: bytes, name: str, now: int) -> None:
        """Raises: Refused."""
        self.tr, self.root, self.now = tr, root, now
        stored = read(tr.get(layer.pack((0, name), prefix=root)))
        if stored is None:
            raise Refused(f"there is no queue {name}")
        id_, self.kind, self.options = definition_in(stored)
        if self.kind not in KINDS or set(self.options) - OPTIONS:
            raise Refused(f"{name} is of kind {self.kind}, with {', '.join(self.options)}")
        if self.options.get("capacity") is not None or self.options.get("temporary") is not None:
            raise Refused(f"{name} is bounded, or temporary")
        self.prefix = layer.pack((2, id_), prefix=root)
        self._changes = Counter[str]()
        self._runs: dict[bytes, Counter[str]] = {}

    def at(self, column: int, *rest: bytes) -> bytes:
        return layer.pack((column,), prefix=self.prefix) + b"".join(rest)

    def of_root(self, *parts: Any) -> bytes:
        packed: bytes = layer.pack(parts, prefix=self.root)
        return packed

    def place(self, record: Record) -> bytes:
        return record.id if self.kind == "fifo" else number(record.priority) + record.id

    def record(self, id_: bytes) -> Record | None:
        """Relies on the task."""
        return plain(id_, read(self.tr.get(self.at(1, id_))))

    # Changes of a task.

    def state_key(self, record: Record) -> bytes:
        if record.state == "t":
            return self.at(4, record.session, record.id)
        if record.state == "~":
            return self.at(5, record.id)
        return self.at(3 if record.state == "r" else 6, self.place(record))

    def _class_keys(self, record: Record) -> tuple[bytes, bytes]:
        error = (record.error or "").encode()
        sized = bytes((len(error),)) + error
        return self.at(17, sized, self.place(record)), self.at(18, sized)

    def _leave(self, record: Record) -> None:
        self.tr.clear(self.state_key(record))
        if record.state == "!":
            key, count = self._class_keys(record)
            self.tr.clear(key)
            self.tr.add(count, LESS)
            self.tr.compare_and_clear(count, NONE)
        if record.timer != NEVER:
            self.tr.clear(self.at(7, time(record.timer), record.id))
        self._changes[LIVE[record.state]] -= 1

    def move(self, old: Record, new: Record, *calls: str) -> Record:
        self._leave(old)
        self.tr.set(self.at(1, new.id), new.packed)
        self.tr.set(self.state_key(new), new.packed if new.state == "r" else b"")
        if new.state == "!":
            key, count = self._class_keys(new)
            self.tr.set(key, b"")
            self.tr.add(count, ONE)
        if new.timer != NEVER:
            self.tr.set(self.at(7, time(new.timer), new.id), b"")
        self._changes[LIVE[new.state]] += 1
        self._changes.update(calls)
        return new

    def end(self, record: Record, *calls: str) -> None:
        self._leave(record)
        self.tr.clear(self.at(1, record.id))
        if record.size > 256:
            self._clear_below(self.at(2, record.id))
        if record.failures:
            self._clear_below(self.at(16, record.id))
        self._changes.update(calls)

    def _clear_below(self, key: bytes) -> None:
        self.tr.clear_range(key, key + b"\xff")

    def finish(self) -> None:
        """Write the counters."""
        if any(self._changes.values()):
            self.tr.add(self.at(9), counters(CALLS, self._changes))
        for run, ends in self._runs.items():
            self.tr.add(self.of_root(9, run), counters(RUN, ends))

    def note(self, record: Record, outcome: str, error: str, message: str, **more: str) -> Record:
        """Store a failure. Returns the record that counts it."""
        run = record.token[TOKEN_BYTES:] if outcome == "lease_lost" else b""
        count = record.failures + 1
        told = {
            "error": cut(error, 1_000),
            "message": cut(message, 1_000),
            "detail": cut_end(more.get("detail", ""), 8_000),
            "worker": cut(more.get("worker", ""), 1_000),
            "outcome": outcome,
            "attempt": record.attempts,
            "when": self.now / 1_000_000,
            "began": record.taken / 1_000_000 if record.taken else None,
        }
        self.tr.set(self._slot(record.id, count), msgpack.encode([count, told, run]))
        return replace(record, failures=count, error=cut(error, 200))

    def _slot(self, id_: bytes, count: int) -> bytes:
        return self.at(16, id_, bytes(((count - 1) % 10,)))

    def count_run(self, run: bytes, how: str) -> None:
        self._runs.setdefault(run, Counter())[how] += 1

    def lease_over(self, record: Record, how: str) -> None:
        run = record.token[TOKEN_BYTES:]
        if not run:
            return
        asked = self.tr.get(self.of_root(10, record.session)), self.tr.get(self.of_root(4, run))
        if any(one.present() for one in asked):
            self.count_run(run, how)

    # The changes of the table.

    def cancelled(self, record: Record) -> bool:
        """End a taken task that was cancelled. False for another."""
        if record.cancelled:
            self.lease_over(record, "cancelled")
            self.end(record, "cancel", "done")
        return bool(record.cancelled)

    def lost(self, record: Record, why: tuple[str, str], call: str) -> Record | None:
        """Lease over, or forsaken. Returns the ready task; None for one that was cancelled."""
        if self.cancelled(record):
            return None
        self.lease_over(record, "lost")
        noted = self.note(record, "lease_lost", *why)
        return self.move(record, noted.freed(orphaned=record.orphaned + 1), call)

    def released(self, record: Record, new: Record, delay: int) -> None:
        if delay:
            later = {"until": plus(self.now, delay), "expires": plus(new.expires, delay)}
            new = replace(new, state="~", **later)
        self.move(record, new, "release")

    def bury(self, record: Record, noted: Record) -> None:
        self.move(record, noted.freed(state="!", error=noted.error or ""), "bury")

    def lease_end(self, record: Record) -> int:
        return min(plus(self.now, record.ttr), record.expires)

    def sweep(self) -> int:
        """Returns the number of timers that it has looked at."""
        begin, end = self.at(7), self.at(7, time(self.now + 1))
        timers = [bytes(row.key) for row in self.tr.snapshot.get_range(begin, end, limit=DUE)]
        ids = [key[-ID_BYTES:] for key in timers]
        values = [read(self.tr.get(self.at(1, id_))) for id_ in ids]
        for key, id_, value in zip(timers, ids, values, strict=True):
            record = plain(id_, value)
            if value is None or (record is not None and self.at(7, time(record.timer), id_) != key):
                self.tr.clear(key)
            elif record is not None:
                self.due(record)
        return len(timers)

    def due(self, record: Record) -> None:
        """The change of a task with a timer that is over."""
        ready: Record | None = record
        if record.state == "t":
            ready = self.lost(record, OVER, "ttr")
        elif record.state == "~":
            ready = self.move(record, record.freed(), "delay")
        if ready is not None and ready.expires <= self.now:
            self.end(ready, "delete", "ttl", "done")


def definition_in(stored: bytes) -> tuple[int, str, dict[str, Any]]:
    """Raises: Refused."""
    try:
        id_, kind, options, *layout = layer.unpack(stored)
        if layout[:1] > [1]:
            raise Refused(f"the queue has the key layout {layout[0]}")
        return id_, kind, dict(json.loads(options))
    except (ValueError, TypeError, IndexError, struct.error) as reason:
        raise Refused(f"the definition cannot be read: {reason}") from reason


# Take.


def take(queue: Queue, session: bytes, token: bytes, count: int) -> list[tuple[Record, bytes]]:
    """The taken tasks with their payloads. Raises: Refused."""
    tr = queue.tr
    alive, paused = tr.get(queue.of_root(4, session)), tr.get(queue.at(15))
    if not alive.present():
        raise Refused("the session has ended")
    queue.sweep()
    found = [] if paused.present() else available(queue, count)
    if not found:
        tr.add_read_conflict_range(queue.at(3), queue.at(4))
    taken = []
    for record in found:
        tr.add_read_conflict_key(queue.at(1, record.id))
        lease = {"session": session, "token": token, "taken": queue.now, "until": queue.lease_end(record)}
        new = replace(record, state="t", attempts=record.attempts + 1, **lease)
        taken.append((queue.move(record, new, "take"), payload(queue, record)))
    queue.finish()
    return taken


def available(queue: Queue, count: int) -> list[Record]:
    found: list[Record] = []
    begin, sizes = queue.at(3), 0
    while len(found) < count:
        rows = list(queue.tr.snapshot.get_range(begin, queue.at(4), limit=count))
        for row in rows:
            record = plain(bytes(row.key)[-ID_BYTES:], bytes(row.value))
            if record is None or record.expires <= queue.now or len(found) == count:
                continue
            sizes += record.size
            if found and sizes > PAYLOADS_BYTES:
                return found
            found.append(record)
        if len(rows) < count:
            return found
        begin = bytes(rows[-1].key) + b"\x00"
    return found


def payload(queue: Queue, record: Record) -> bytes:
    if record.size <= 256:
        return record.payload
    pieces = queue.at(2, record.id)
    return b"".join(bytes(row.value) for row in queue.tr.snapshot.get_range(pieces, pieces + b"\xff"))


# Calls of the holder.


@dataclass(frozen=True)
class Lease:
    id: bytes
    token: bytes | None = None
    session: bytes = b""


def held(queue: Queue, lease: Lease) -> Record:
    """Raises: NotTaken."""
    record = queue.record(lease.id)
    if record is None or record.state != "t" or record.until <= queue.now:
        raise NotTaken
    if (lease.token or lease.session) != (record.token if lease.token else record.session):
        raise NotTaken
    return record


def ack(queue: Queue, lease: Lease) -> None:
    queue.end(held(queue, lease), "ack", "done")
    queue.finish()


def renew(queue: Queue, leases: Sequence[Lease]) -> list[Record | None]:
    """The tasks that are still held, as they are now; None for each that is lost."""
    found: list[Record | None] = []
    for lease in leases:
        try:
            record = held(queue, lease)
        except NotTaken:
            found.append(None)
            continue
        found.append(record)
        if record.until != NEVER:
            found[-1] = queue.move(record, replace(record, until=queue.lease_end(record)))
    queue.finish()
    return found


def release(queue: Queue, lease: Lease, delay: int = 0) -> None:
    record = held(queue, lease)
    if not queue.cancelled(record):
        queue.released(record, record.freed(), delay)
    queue.finish()


@dataclass(frozen=True)
class Rule:
    """Attempts and backoff in force."""

    attempts: int | None
    first: float = 1
    growth: float = 2
    cap: float = 600

    def is_used_up(self, failures: int) -> bool:
        return self.attempts is not None and 1 <= self.attempts <= failures

    def delay(self, failures: int, u: float) -> int:
        whole = min(self.first * self.growth ** min(failures - 1, 64), self.cap)
        return round(whole * (0.5 + u / 2) * 1_000_000)


def in_force(queue: Queue, record: Record, usual: Rule) -> Rule:
    of_task = [*(record.extra or [[]])[-1], None][0] or []
    of_queue = queue.options.get("backoff")
    attempts = [*of_task[:1], queue.options.get("attempts"), usual.attempts]
    backoffs = [*of_task[1:2], of_queue and [of_queue[name] for name in ("first_s", "growth", "cap_s")]]
    backoff = next((one for one in backoffs if one), [usual.first, usual.growth, usual.cap])
    return Rule(next((one for one in attempts if one is not None), None), *backoff)


def fail(
    queue: Queue, lease: Lease, failure: dict[str, str], usual: Rule, u: float, delay: int | None = None
) -> str:
    """Returns what becomes of the task."""
    record, how = held(queue, lease), "cancelled"
    if not queue.cancelled(record):
        rule, failures = in_force(queue, record, usual), record.counted + 1
        how = "buried" if rule.is_used_up(failures) else "failed"
        said = {"message": "", **failure}
        if how == "buried":
            queue.bury(record, queue.note(record, "buried", **said))
        else:
            noted = queue.note(record, "retried", **said)
            pause = rule.delay(failures, u) if delay is None else delay
            queue.released(record, noted.freed(orphaned=0), pause)
    queue.finish()
    return how


def bury(queue: Queue, lease: Lease, failure: dict[str, str] | None) -> None:
    record = held(queue, lease)
    if not queue.cancelled(record):
        said = {"message": "", **(failure or {})}
        queue.bury(record, queue.note(record, "buried", **said) if failure else record)
    queue.finish()


def exhaust(queue: Queue, lease: Lease, rule: Rule) -> bool:
    """Bury a task that has used up its attempts. True if it was buried."""
    record, under = held(queue, lease), queue.at(16, lease.id)
    if record.cancelled or not rule.is_used_up(record.counted):
        return False
    rows = queue.tr.snapshot.get_range(under, under + b"\xff")
    entries = [(bytes(row.key), msgpack.decode(bytes(row.value))) for row in rows]
    lost = [
        (entry[0], key, entry)
        for key, entry in entries
        if entry[0] > record.forgiven and entry[1]["outcome"] == "lease_lost"
    ]
    if lost:
        _, key, (count, told, run) = max(lost)
        if run and queue.tr.get(queue.of_root(4, run)).present():
            queue.count_run(run, "buried")
        else:
            run = b""
        queue.tr.set(key, msgpack.encode([count, told | {"outcome": "exhausted"}, run]))
    queue.bury(record, record)
    queue.finish()
    return True


def sweep(queue: Queue) -> bool:
    """True if more may be due."""
    looked_at = queue.sweep()
    queue.finish()
    return looked_at == DUE


# Sessions.


@dataclass(frozen=True)
class Session:
    """The keys of a session."""

    root: bytes
    id: bytes

    def key(self, column: int, *between: Any) -> bytes:
        packed: bytes = layer.pack((column, *between, self.id), prefix=self.root)
        return packed

    def heartbeat(self, tr: Any) -> tuple[int, ...]:
        stored = read(tr.get(self.key(6)))
        return () if stored is None else tuple(layer.unpack(stored))


def open_session(
    tr: Any, session: Session, ttr: int, now: int, version: int, process: tuple[str, int]
) -> None:
    for column in (4, 6):
        tr.add_read_conflict_key(session.key(column))
    tr.set(session.key(4), layer.pack((session.id, None, ttr, *process, 1)))
    _beat(tr, session, ttr, now, version)


def _beat(tr: Any, session: Session, ttr: int, now: int, version: int) -> None:
    deadline = now + ttr
    tr.set(session.key(6), layer.pack((deadline, version, version + round(0.9 * ttr))))
    tr.set(session.key(7, deadline), b"")


def beat(tr: Any, session: Session, ttr: int, now: int, version: int) -> bool:
    """False if the session has ended."""
    old, alive = session.heartbeat(tr), tr.get(session.key(4)).present()
    if alive:
        if old:
            tr.clear(session.key(7, old[0]))
        _beat(tr, session, ttr, now, version)
    return alive


def _holds(heartbeat: tuple[int, ...], version: int) -> bool:
    return len(heartbeat) == 3 and heartbeat[1] <= version < heartbeat[2]


@dataclass(frozen=True)
class Dead:
    session: Session
    deadline: int
    begun: bool


def find_dead(tr: Any, root: bytes, now: int, version: int) -> list[Dead]:
    begin, end = (layer.pack(parts, prefix=root) for parts in ((7,), (7, now + 1)))
    found = []
    for row in tr.snapshot.get_range(begin, end, limit=100):
        deadline, id_ = layer.unpack(bytes(row.key), prefix_len=len(begin))
        session = Session(root, id_)
        heartbeat = session.heartbeat(tr.snapshot)
        if heartbeat[:1] != (deadline,) or not _holds(heartbeat, version):
            found.append(Dead(session, deadline, not tr.snapshot.get(session.key(4)).present()))
    return found


def begin_end(tr: Any, session: Session, began: int, dead: Dead | None = None, version: int = 0) -> bool:
    """`dead`: None for a session of one's own. True if the next step follows."""
    record, again = read(tr.get(session.key(4))), tr.get(session.key(7, began))
    heartbeat = session.heartbeat(tr)
    if record is None:
        return bool(again.present())
    deadline = heartbeat[0] if heartbeat else 0
    if dead is not None:
        if heartbeat and deadline != dead.deadline:
            tr.clear(session.key(7, dead.deadline))
        if deadline > began or _holds(heartbeat, version):
            return False
    _, name, _, *process = layer.unpack(record)
    if isinstance(name, str):
        tr.clear(layer.pack((5, name), prefix=session.root))
        tr.clear_range(session.key(6) + b"\x00", session.key(6) + b"\xff")
    tr.clear(session.key(4))
    tr.clear(session.key(6))
    tr.clear_range(session.key(8), session.key(8) + b"\xff")
    tr.clear(session.key(9))
    if heartbeat:
        tr.clear(session.key(7, deadline))
    tr.set(session.key(7, began), "{}:{}".format(*process).encode() if process else b"")
    return True


@dataclass
class Released:
    keys: int = 0
    left: list[bytes] = field(default_factory=list)
    """The ids of tasks that this consumer leaves alone."""


def release_taken(queue: Queue, session: bytes, died: bool) -> Released:
    """One step: up to 200 tasks."""
    tr, under = queue.tr, queue.at(4, session)
    keys = [bytes(row.key) for row in tr.snapshot.get_range(under, under + b"\xff", limit=TAKEN_AT_ONCE)]
    delivered = set(delivered_in(queue))
    found, answer = [(key, queue.record(key[-ID_BYTES:])) for key in keys], Released(len(keys))
    for key, record in found:
        if record is None:
            answer.left.append(key[-ID_BYTES:])
        elif queue.state_key(record) != key:
            tr.clear(key)
        elif record.timer <= queue.now:
            queue.due(record)
        else:
            lease = record.session + record.token + number(record.attempts)
            if died and (record.id, lease) not in delivered:
                queue.lost(record, DIED, "release")
            elif not queue.cancelled(record):
                queue.released(record, record.freed(), 0)
    queue.finish()
    return answer


def delivered_in(queue: Queue) -> Iterable[tuple[bytes, bytes]]:
    """The results that are laid ready in the line, in its notices and beside them."""
    notices, results = (queue.at(11) + layer.pack((column,), prefix=b"") for column in (2, 3))
    for row in queue.tr.snapshot.get_range(notices, notices + b"\xff", limit=TAKEN_AT_ONCE):
        yield from results_in(bytes(row.value))
    for row in queue.tr.snapshot.get_range(results, results + b"\xff", limit=TAKEN_AT_ONCE):
        yield bytes(row.key)[-ID_BYTES:], bytes(row.value)


def results_in(notice: bytes) -> Iterable[tuple[bytes, bytes]]:
    at = 12
    while at + 6 <= len(notice):
        id_bytes, value_bytes = struct.unpack_from(">HI", notice, at)
        middle = at + 6 + id_bytes
        yield notice[at + 6 : middle], notice[middle : middle + value_bytes]
        at = middle + value_bytes


def forget(tr: Any, session: Session, began: int, left: bool, now: int) -> None:
    """The last step. `left`: a queue holds something for the session."""
    if left:
        entry = tr.get(session.key(7, began))
        if entry.present():
            tr.clear(session.key(7, began))
            tr.set(session.key(7, now + HELD_S * 1_000_000), bytes(entry.value))
        return
    run = read(tr.get(session.key(10)))
    if run is not None:
        tr.clear(session.key(10))
        of_run = Session(session.root, run)
        if not tr.get(of_run.key(4)).present():
            tr.clear(of_run.key(9))
    tr.clear(session.key(7, began))


def held_elsewhere(tr: Any, root: bytes, stored: bytes, session: bytes) -> bool:
    """True if a queue that this consumer refuses holds something for a session, or may."""
    try:
        id_, kind, options = definition_in(stored)
    except Refused:
        return True
    if kind in NOTHING_HELD:
        return False
    if options.get("temporary") == session.hex():
        return True
    prefix = layer.pack((2, id_), prefix=root)
    high = (options.get("partitions") or [0, 0, 0, 1])[3]
    parts = [layer.pack((28,), prefix=prefix) + bytes((p,)) if p else prefix for p in range(high)]
    taken = [layer.pack((4,), prefix=part) + session for part in parts]
    asked = [tr.snapshot.get_range(key, key + b"\xff", limit=1) for key in taken]
    return any(list(rows) for rows in asked)
