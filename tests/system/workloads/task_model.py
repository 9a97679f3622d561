"""The notes of a workload, and a model of one task: its possible lives, by the calls in the notes.

The keys of the notes begin with the stamps of their commits. So the notes have exactly the transactions
that committed, in the order of their commits, whatever their clients know about them.

No call tells of a sweep. So a task whose time has come has several possible lives: before the sweep, and
after it. An answer is right if it fits one of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task

_STAMP_BYTES = 10
_VERSION_BYTES = 8


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A task as a call has returned it."""

    id: str
    state: str
    data: Any
    pri: int
    key: Any
    attempts: int
    failures: int
    orphaned: int
    until: float | None
    expires: float | None
    token: bytes | None
    cancelled: bool

    @classmethod
    def of(cls, task: Task) -> "Seen":
        return cls(
            task.id,
            str(task.state),
            task.data,
            task.pri,
            task.key,
            task.attempts,
            task.failures,
            task.orphaned,
            task.until,
            task.expires,
            task.token,
            task.cancel_asked is not None,
        )


class Op(msgspec.Struct, array_like=True):
    """One call in a transaction: its arguments, its answer or its error, and the time."""

    verb: str
    began: float
    """By the clock of the client."""
    id: str = ""
    token: bytes | None = None
    count: int = 0
    seconds: float = 0.0
    failed: bool = False
    """With a failure."""
    options: dict[str, Any] = {}
    answers: list[Seen] = []
    number: int = 0
    told: Any = None
    error: str = ""
    ended: float = 0.0
    """By the clock of the client."""
    latest: float = 0.0
    """After the call, by the fastest clock of all clients."""


class Entry(msgspec.Struct, array_like=True):
    """The calls of a transaction, in order."""

    read_version: int
    nonce: bytes
    """Of the attempt that committed."""
    ops: list[Op]
    version: int = 0


_to_bytes = msgspec.msgpack.Encoder().encode
_entry_of = msgspec.msgpack.Decoder(Entry).decode


class Notes:
    def __init__(self, space: Subspace) -> None:
        self._entries: bytes = space["entries"].key()
        self._steps = space["steps"]

    def committed(self, tr: Transaction, step: str) -> bytes | None:
        """The nonce of the attempt that has committed this step."""
        value = tr.get(self._steps[step].key()).value
        return None if value is None else bytes(value)

    def write(self, tr: Transaction, step: str, nonce: bytes, ops: Sequence[Op]) -> None:
        version = tr.get_read_version().wait()
        tr.set(self._steps[step].key(), nonce)
        at = self._entries + bytes(_STAMP_BYTES)
        place = len(self._entries).to_bytes(4, "little")
        tr.set_versionstamped_key(at + place, _to_bytes(Entry(version, nonce, list(ops))))

    def entries(self, database: Database) -> Iterator[Entry]:
        """The committed transactions, in the order of their commits."""
        begin = len(self._entries)
        for row in database.get_range_startswith(self._entries):
            entry = _entry_of(row.value)
            entry.version = int.from_bytes(row.key[begin : begin + _VERSION_BYTES], "big")
            yield entry


SLACK_S = 1e-5
"""Tasks have microseconds, clocks have more."""
_OF_HOLDER = ("ack", "release", "touch", "renew")
Turn = tuple[int, int]
"""The last round in which a task key was served, and the units of it that are used."""


@dataclass(frozen=True)
class Rules:
    """The kind of the queue, its options, and the difference of the clients' clocks."""

    kind: str
    timed: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    skew_s: float = 0.0
    rare: bool = False
    """With task keys and priorities near their limits."""

    @property
    def delays(self) -> bool:
        """True if a release without a failure may have a delay."""
        return self.timed and self.kind != "fair"

    @property
    def has_turns(self) -> bool:
        """True if the model knows the round of each task key. Sweeps would change them at unknown times."""
        return self.kind == "fair" and not self.timed

    @property
    def key_concurrency(self) -> int | None:
        return self.options.get("key_concurrency", 1) if "utube" in self.kind else None

    def place(self, life: "Life") -> tuple[int, str]:
        """The order among ready tasks, among those of one task key, or among buried ones.

        In a bag only buried tasks have an order.
        """
        return (0, "") if self.kind == "bag" and life.state != "!" else (life.pri, life.id)


class Life(NamedTuple):
    """A task between two calls. Times are seconds since the epoch, None for never."""

    id: str
    state: str
    data: Any
    pri: int
    key: Any
    ttr: float | None
    until: float | None
    expires: float | None
    attempts: int = 0
    failures: int = 0
    orphaned: int = 0
    token: bytes | None = None
    cancelled: bool = False
    cost: int = 1

    @property
    def timer(self) -> float | None:
        return self.until if self.state in "t~" else self.expires

    def freed(self, **changes: Any) -> "Life":
        return self._replace(**{"state": "r", "until": None, "token": None, "cancelled": False, **changes})

    def fits(self, seen: Seen) -> bool:
        """True if the answer shows this life; its times are compared elsewhere."""
        shown = (seen.id, seen.state, seen.data, seen.pri, seen.key, seen.attempts, seen.failures)
        rest = (seen.orphaned, seen.token, seen.cancelled)
        mine = (self.id, self.state, self.data, self.pri, self.key, self.attempts, self.failures)
        return (*mine, self.orphaned, self.token, self.cancelled) == (*shown, *rest)


Passage = tuple[Life | None, tuple[str, ...]]
"""A life after sweeps, None if the task has gone, and the calls that the sweeps have counted."""


def swept(life: Life | None, calls: tuple[str, ...] = ()) -> Passage:
    """The life after a sweep at the time of its timer."""
    assert life is not None
    if life.state == "t" and life.cancelled:
        return None, (*calls, "cancel")
    if life.state == "t":
        freed = life.freed(failures=life.failures + 1, orphaned=life.orphaned + 1)
        return _expired(freed, life.until, (*calls, "ttr"))
    if life.state == "~":
        return _expired(life.freed(), life.until, (*calls, "delay"))
    return None, (*calls, "ttl", "delete")


def _expired(life: Life, now: float | None, calls: tuple[str, ...]) -> Passage:
    if life.expires is not None and now is not None and life.expires <= now:
        return None, (*calls, "ttl", "delete")
    return life, calls


def passages(life: Life, began: float, latest: float) -> Iterator[Passage]:
    """The lives that a call may meet between `began`, by its own clock, and `latest`."""
    passage: Passage = life, ()
    while passage[0] is not None and (timer := passage[0].timer) is not None and timer <= latest + SLACK_S:
        if timer >= began - SLACK_S:
            yield passage
        passage = swept(*passage)
    yield passage


def passages_in(life: Life, op: Op) -> list[Passage]:
    """The lives that this call may meet."""
    return list(passages(life, op.began, op.latest))


def settled(life: Life, op: Op) -> bool:
    """True if no sweep can have changed the task before the end of this call."""
    return life.timer is None or life.timer > op.latest + SLACK_S


class Effect(NamedTuple):
    shown: Life
    """The task as the call returns it."""
    stored: Life | None
    """The task as it is stored, None if it has gone."""
    calls: tuple[str, ...] = ()
    """The calls that are counted."""


def may(op: Op, life: Life) -> bool:
    """True if the call is right for a task with this life."""
    if op.verb == "take":
        return life.state == "r"
    if op.verb in _OF_HOLDER or op.token is not None:
        return life.state == "t" and life.token == op.token
    return True


def effect(op: Op, life: Life, seen: Seen) -> Effect:
    """The effect of a call that is right, and has returned `seen`."""
    if op.verb == "take":
        taken = life._replace(state="t", attempts=life.attempts + 1, until=seen.until, token=seen.token)
        return Effect(taken, taken, ("take",))
    if op.verb in ("ack", "delete"):
        return _gone(life, op.verb)
    if op.verb == "cancel":
        marked = life._replace(cancelled=True)
        return Effect(marked, marked) if life.state == "t" else _gone(life, "cancel")
    if op.verb in ("release", "bury"):
        return _gone(life, "cancel") if life.cancelled else _given_up(op, life, seen)
    longer = op.seconds if op.verb == "touch" else 0
    ttr = None if life.ttr is None else life.ttr + longer
    kept = life._replace(until=seen.until, expires=seen.expires, ttr=ttr)
    return Effect(kept, kept, ("touch",) if longer else ())


def _gone(life: Life, call: str) -> Effect:
    return Effect(life.freed(state="-"), None, (call,))


def _given_up(op: Op, life: Life, seen: Seen) -> Effect:
    if op.verb == "bury" and life.state == "!":
        return Effect(life, life)
    failures, orphaned = life.failures + op.failed, life.orphaned
    if op.verb == "bury":
        put_off = life.freed(state="!", failures=failures)
    else:
        orphaned = 0 if op.failed else orphaned
        put_off = life.freed(failures=failures, orphaned=orphaned, expires=seen.expires)
        if op.seconds:
            put_off = put_off._replace(state="~", until=seen.until)
    return Effect(put_off, put_off, (op.verb,))


def wrong_times(rules: Rules, op: Op, life: Life, seen: Seen) -> Iterator[str]:
    """Yield a sentence for each time in the answer that is wrong."""
    longer = op.seconds if op.verb in ("touch", "release") and seen.state != "-" else 0.0
    expires = None if life.expires is None else life.expires + longer
    if not near(seen.expires, expires):
        yield f"it expires at {seen.expires}, not at {expires}"
    if op.verb in ("take", "renew") and not (op.verb == "renew" and life.until is None):
        yield from wrong_time(op, seen.until, life.ttr, None if rules.kind == "utubettl" else expires)
    elif op.verb == "release" and seen.state == "~":
        yield from wrong_time(op, seen.until, op.seconds)
    elif op.verb == "touch" and life.until is not None and not near(seen.until, life.until + longer):
        yield f"its lease ends at {seen.until}, not at {life.until} + {longer}"


def near(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) < SLACK_S)


def wrong_time(op: Op, at: float | None, after_s: float | None, most: float | None = None) -> Iterator[str]:
    """Compare a time with the one `after_s` after the call, and at most `most`."""
    first, last = (None, None) if after_s is None else (op.began + after_s, op.ended + after_s)
    first, last = min(first or inf, most or inf), min(last or inf, most or inf)
    if not first - SLACK_S <= (at or inf) <= last + SLACK_S:
        yield f"the time is {at}, not {first} to {last}"


class Waiting(Protocol):
    """A task, or an item, with its task key and its cost in units."""

    @property
    def id(self) -> str: ...

    @property
    def key(self) -> Any: ...

    @property
    def cost(self) -> int: ...


class Turns:
    """The turns of the task keys that have ready tasks, and the current round."""

    def __init__(self, weights: Mapping[Any, int]) -> None:
        self.now = 0
        self._weights = weights
        self._turns: dict[Any, Turn] = {}
        self._took: dict[Any, Turn] = {}

    def copy(self) -> "Turns":
        turns = Turns(self._weights)
        turns.now, turns._turns = self.now, dict(self._turns)
        return turns

    def with_changes(self, base: "Turns", seen: "Turns") -> "Turns":
        turns = self.copy()
        for key in base._turns.keys() | seen._turns.keys():
            if (turn := seen._turns.get(key)) != base._turns.get(key):
                turns._turns.pop(key, None)
                turns._turns |= {} if turn is None else {key: turn}
        if seen.now != base.now:  # otherwise it is that of before, and a truncate may have begun anew
            turns.now = max(self.now, seen.now)
        return turns

    def place(self, head: Waiting) -> tuple[int, str]:
        """The place of a task key, with its first task, among all."""
        return self._after(head)[0], head.id

    def _after(self, head: Waiting) -> Turn:
        round_, used = self._turns[head.key]
        weight, units = self._weights.get(head.key, 1), used + head.cost
        rounds = (units - 1) // weight
        return round_ + rounds, units - rounds * weight

    def take_next(self, life: Waiting) -> None:
        """Note a task of a take. Within the take the current round stays."""
        round_, used = self._after(life)
        self._turns[life.key] = (round_, used) if round_ >= self.now else (self.now + 1, 0)
        self._took[life.key] = self._turns[life.key]

    def meet(self, ready: Iterable[Waiting]) -> None:
        """After a call: let task keys join the next round with their first ready task, and leave with their
        last.
        """
        self.now = max([self.now, *(round_ for round_, used in self._took.values() if used)])
        self._took = {}
        keys = {life.key for life in ready}
        self._turns = {key: self._turns.get(key, (self.now + 1, 0)) for key in keys}


class Order:
    """The tasks of a queue, and the turns of their task keys."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lives: dict[str, Life] = {}
        self.turns = Turns(rules.options.get("weights", {}))

    def takeable(self, op: Op, stored: bool = False) -> list[Life]:
        """The tasks that a take must find, whichever sweeps there were: ready, of a task key that is open.

        `stored`: it need not sweep, since tasks that are ready already are enough for it.
        """
        lives = [life for life in self.lives.values() if not stored or life.state == "r"]
        ready = [life for life in lives if all(a and a.state == "r" for a, _ in passages_in(life, op))]
        return [life for life in ready if self._taken_at_most(life.key, op, stored) < self._open]

    @property
    def _open(self) -> float:
        return self.rules.key_concurrency or float("inf")

    def _taken_at_most(self, key: Any, op: Op, stored: bool) -> int:
        of_key = [life for life in self.lives.values() if life.key == key]
        return sum(
            (stored and life.state == "t") or any(a and a.state == "t" for a, _ in passages_in(life, op))
            for life in of_key
        )

    def crowded(self, op: Op) -> Iterator[str]:
        """Yield each task key with too many tasks that are taken for sure."""
        taken = Counter(x.key for x in self.lives.values() if x.state == "t" and settled(x, op))
        yield from (f"{n} tasks of the key {key!r} are taken" for key, n in taken.items() if n > self._open)

    def overtaken(self, op: Op, life: Life) -> Iterator[str]:
        place: Callable[[Life], tuple[int, str]] = self.rules.place
        others = [other for other in self.takeable(op, stored=True) if self._is_comparable(other, life)]
        if self.rules.has_turns and life in others:
            heads = [min((x for x in others if x.key == key), key=place) for key in {x.key for x in others}]
            place, others = self.turns.place, heads if life in heads else [life]
        yield from (f"{life.id} overtook {other.id}" for other in others if place(other) < place(life))

    def _is_comparable(self, one: Life, other: Life) -> bool:
        """True if the order of two tasks is known. Sweeps decide the rounds of a fair queue; and a first task
        of its key that has expired hides the others from takes, until a sweep removes it.
        """
        if self.rules.kind == "fair" and not self.rules.has_turns and one.key != other.key:
            return False
        place = self.rules.place
        same = (x for x in self.lives.values() if x.key == one.key and x.key is not None and x.state == "r")
        return self.rules.has_turns or all(place(one) <= place(x) or x.expires is None for x in same)
