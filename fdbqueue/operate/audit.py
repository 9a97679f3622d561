"""The audit of a root: a line for each action of an operator, by the dashboard or the command line.

    R[19]                   the number of the lines
    R[19, place, random]    one line. Its place is its time in microseconds, or behind the last line, if that
                            is later: a clock that is wrong does not change the order

An action hands its verb a database that writes the line: into the first transaction of the verb that has an
effect. So the line is there if, and only if, the effect is. Looks before it write none. An action on many
tasks takes many transactions: its first line tells that it has begun, a second one its end and the number of
tasks. Puts, takes and acks by programs write no line and read nothing here.

A line belongs to the place where the action happened: exports and imports of queues leave it there. A copy of
the whole root, such as a backup, has it.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import Attempts, Body, Database, Manner
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.once import run_once
from fdbqueue.core.redaction import HIDDEN, Redaction
from fdbqueue.core.registry import Registry, told_option
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import readable
from fdbqueue.core.seam import ReadTransaction, Transaction, engine_errors
from fdbqueue.core.visible import key_of, shortened
from fdbqueue.tasks.options import as_given, is_kind
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")
DONE, BEGUN, ENDED, STOPPED = "done", "begun", "ended", "stopped"
Values = Mapping[str, str]
AFTER: Mapping[str, Mapping[str, Any]] = {
    "pause": {"paused": True},
    "resume": {"paused": False},
    **{name: {"state": name} for name in ("cancel", "delete", "complete", "fail")},
    "bury": {"state": "buried"},
    "dead kick": {"state": "ready"},
    "fleet pause": {"paused": True},
    "fleet resume": {"paused": False},
}
"""The values after an action, if its options do not tell them."""


class AuditLine(msgspec.Struct, frozen=True, array_like=True):
    """An action of an operator, as it is stored."""

    at: float
    actor: str
    action: str
    queue: str
    subject: str
    """The id of the task, or the name of a limit, a schedule or a group."""
    phase: str
    """"done"; of an action on many tasks "begun", "ended" or "stopped"."""
    tasks: int | None
    """The number of tasks that it has changed; None if it concerns no tasks, or has only begun."""
    before: dict[str, str]
    after: dict[str, str]


_line_of = msgspec.msgpack.Decoder(AuditLine).decode


class Deed(NamedTuple):
    """An action before it happens."""

    actor: str
    action: str
    queue: str = ""
    subject: str = ""
    """The id of the task, or the name of a limit, a schedule or a group."""
    after: Values = {}
    is_bulk: bool = False
    """True if it may change many tasks."""
    tasks: int | None = None
    """Their number, if it is known before."""


def told_values(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: shortened(_told(name, value), limits.AUDIT_TEXT_LENGTH) for name, value in values.items()}


def _told(name: str, value: Any) -> str:
    """Weights are JSON, of texts KEY=N: a look can hide their keys."""
    if name != "weights" or not value:
        return told_option(value)
    stored = isinstance(value, Mapping)  # the command line gives the texts
    return json.dumps([f"{_spelled(key)}={n}" for key, n in value.items()] if stored else value)


def _spelled(key: Any) -> str:
    return key if isinstance(key, str) else msgspec.json.encode(key).decode()


def seen_line(line: AuditLine, redaction: Redaction | None) -> AuditLine:
    """The line without hidden task keys."""
    before, after = _seen(line.before, redaction), _seen(line.after, redaction)
    return msgspec.structs.replace(line, before=before, after=after)


def _seen(values: dict[str, str], redaction: Redaction | None) -> dict[str, str]:
    if redaction is None or values.get("weights", "none") == "none":
        return values
    try:
        pairs = [one.rpartition("=") for one in json.loads(values["weights"])]
        weights = json.dumps(
            [f"{_spelled(redaction.key('key', key_of(key)))}={int(n)}" for key, _, n in pairs]
        )
    except ValueError:  # it was cut, perhaps within a key
        weights = HIDDEN
    return {**values, "weights": weights}


def write(tr: Transaction, keys: RootKeys, line: AuditLine, random: bytes) -> bytes:
    """Add a line, and clear the oldest ones if there are too many. Return the key of the line.

    Reads: the last line and the number of the lines by snapshot; now and then the oldest ones, serialisably.
    Writes: the line, the number; clears the oldest ones.
    Conflicts: another action that clears lines.
    """
    last = tr.snapshot.get_range(keys.audit.start, keys.audit.stop, limit=1, reverse=True)
    stored = tr.snapshot.get(keys.audit_count).value or bytes(8)
    count = int.from_bytes(stored, "little") if len(stored) == 8 else 0
    if len(stored) != 8:  # it is damaged
        tr.set(keys.audit_count, bytes(8))
    if count >= limits.AUDIT_LINES + limits.AUDIT_CLEARED:
        oldest = tr.get_range(keys.audit.start, keys.audit.stop, limit=limits.AUDIT_CLEARED).to_list()
        for row in oldest:
            tr.clear(row.key)
        tr.add(keys.audit_count, (-len(oldest)).to_bytes(8, "little", signed=True))
    tr.add(keys.audit_count, (1).to_bytes(8, "little"))
    behind = [found[0] + 1 for row in last if (found := keys.audit_in(bytes(row.key)))]
    place = max(round(line.at * 1_000_000), *behind, 0)
    key: bytes = keys.audit_line(place, random)
    tr.set(key, msgspec.msgpack.encode(line))
    return key


def lines(tr: ReadTransaction, keys: RootKeys, queue: str | None = None) -> list[AuditLine]:
    """The lines, the latest first; with `queue`, its own. Lines that cannot be read are left out.

    Reads: the audit, at most some limits.AUDIT_LINES rows.
    """
    rows = tr.get_range(keys.audit.start, keys.audit.stop, reverse=True).to_list()
    found = (readable(_line_of, bytes(row.value)) for row in rows)
    return [one for one in found if one is not None and queue in (None, one.queue)]


class Trail:
    """The lines of one action, and the number of tasks that it has told so far."""

    def __init__(self, database: Database, root: Any, deed: Deed) -> None:
        self._database = database
        self._root = root
        self._keys = RootKeys(root)
        self._deed = deed
        self._random = self._new_random()
        self._key: bytes | None = None
        """That of the line in the last attempt to write it."""
        self._is_there = False
        """True once a transaction has seen the line."""
        self.tasks: int | None = deed.tasks

    def over(self) -> Database:
        """The database that writes the line with the first effect."""
        lent = self._database.lent()
        lent.manner = _Noting(self._database.manner, self)
        return lent

    def __enter__(self) -> Database:
        return self.over()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end(stopped=error is not None)

    def noting(self, body: Body[T], wrote: Callable[[T], bool] | None) -> Body[T]:
        """The body, and behind it the first line of the action, if the body has an effect.

        An earlier attempt of a transaction may have committed the line.
        """

        def noted(tr: Transaction) -> T:
            has_begun = self._has_begun(tr)
            before = {} if has_begun else told_values(self._before(tr))
            answer = body(tr)
            if not has_begun and (wrote is None or wrote(answer)):
                line = self._line(BEGUN if self._deed.is_bulk else DONE, before)
                self._key = write(tr, self._keys, line, self._random)
            return answer

        return noted

    def _has_begun(self, tr: Transaction) -> bool:
        self._is_there = self._is_there or (self._key is not None and tr.get(self._key).present())
        return self._is_there

    def end(self, *, stopped: bool = False) -> None:
        """Write the last line of an action on many tasks, if it has had an effect.

        The error that has stopped it is the one to tell, so another one is not raised then.
        """
        quiet: tuple[type[BaseException], ...] = (FdbQueueError, *engine_errors()) if stopped else ()
        with suppress(*quiet):
            self._end(STOPPED if stopped else ENDED)

    def _end(self, phase: str) -> None:
        line, random = self._line(phase, {}), self._new_random()

        def body(tr: Transaction) -> None:
            if self._has_begun(tr):
                write(tr, self._keys, line, random)

        if self._deed.is_bulk and self._key is not None:
            run_once(self._database, self._keys, body)

    def _new_random(self) -> bytes:
        return self._database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)

    def _line(self, phase: str, before: Values) -> AuditLine:
        deed, tasks = self._deed, None if phase == BEGUN else self.tasks
        actor = shortened(deed.actor, limits.AUDIT_TEXT_LENGTH)
        now = self._database.runtime.now()
        named = (deed.action, deed.queue, deed.subject)
        return AuditLine(now, actor, *named, phase, tasks, {**before}, {**deed.after})

    def _before(self, tr: Transaction) -> Mapping[str, Any]:
        """The values that the action changes; none for a queue or a task that cannot be read."""
        deed, registry = self._deed, Registry(self._root)
        with suppress(FdbQueueError):
            found = registry.look(tr, deed.queue) if deed.queue else None
            if found is None or not is_kind(found.kind):
                return {}
            queue = TaskQueue(self._database, registry, found)
            if deed.subject:
                return {"state": queue.peek(tr, deed.subject).state.name.lower()}
            known = {**as_given(found.options), "paused": queue.paused(tr)}
            return {name: known[name] for name in deed.after if name in known}
        return {}


class _Noting(NamedTuple):
    """The manner of a database that writes a line with its first effect."""

    manner: Manner | None
    trail: Trail

    def followed_by(self, other: Manner | None) -> "_Noting":
        return self._replace(manner=other)

    def attempts(self, database: Database, *bounds: Any) -> Attempts | None:
        return None if self.manner is None else self.manner.attempts(database, *bounds)

    def once(self, body: Body[T], wrote: Callable[[T], bool] | None) -> Body[T]:
        return self.trail.noting(body if self.manner is None else self.manner.once(body, wrote), wrote)
