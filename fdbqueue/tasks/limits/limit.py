"""Limit: its verbs. Queues name limits; a change holds for all of them from its commit on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import key_bytes, writable
from fdbqueue.core.database import Database, is_transaction, run, runtime_of
from fdbqueue.core.errors import InvalidArgument, LimitInUse, LimitNotFound
from fdbqueue.core.once import run_in
from fdbqueue.core.page import Page, checked_limit, place_bytes
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Range, Transaction
from fdbqueue.core.task import LimitHolder
from fdbqueue.tasks.limits.parking import begin_walks, walk_out
from fdbqueue.tasks.limits.rule import (
    CELLS_MAX,
    LimitKeys,
    Rule,
    cells_bytes,
    checked_rule,
    free_of_unused,
    keys_of,
    known_rule,
    rule_of,
    rule_to_bytes,
)
from fdbqueue.tasks.limits.shown import LimitKey, ask_holders, listed_keys, open_key, used_of
from fdbqueue.tasks.limits.state import Bucket, State, ask, ask_by_snapshot, number_of, rely_on_all, ring

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit, as one transaction has read it.

    It has `slots`, the number of tasks that may run at a time, or a `rate`: that number of tasks may start in
    `per` seconds, and `burst` more; or both. With `per_key`, that holds for each key that tasks name.
    """

    name: str
    slots: int | None = None
    rate: int | None = None
    per: float | None = None
    burst: int | None = None
    used: int = 0
    """Number of slots that tasks hold; with `per_key`, tasks of all keys together."""
    free: int
    """Number of tasks that may start now; with `per_key`, of a key that no task uses."""
    next: float | None = None
    """The time of the next token, if there is none; in seconds since the epoch."""
    holders: Sequence[LimitHolder] = ()
    """Tasks that hold slots, at most limits.LIMIT_HOLDERS_SHOWN; `Limit.open` reads them. With `per_key`,
    those of tasks that name the limit without a key.
    """
    per_key: bool = False
    """True if the limit counts each key apart."""
    error: str | None = None
    """Of a limit in a list, the reason why it cannot be read: it limits nothing, and its numbers are 0."""

    @classmethod
    def set(
        cls,
        db: DatabaseOrTransaction,
        name: str,
        *,
        slots: int | None = None,
        rate: int | None = None,
        per: float | None = None,
        burst: int | None = None,
        per_key: bool = False,
        root: Any = DEFAULT_ROOT,
    ) -> "Limit":
        """Create a limit, or change its numbers.

        Give `slots`, at most limits.SLOTS_MAX, or a `rate` with its `per` in seconds, or both: then a task
        starts if it gets a slot and a token. Without a `burst`, it is a tenth of the rate, and at least 1.
        With `per_key`, each key that tasks name has these numbers for itself. Tasks that run go on. A limit
        with fewer slots than tasks that run lets no task start until fewer run than it has slots. Sweeps tell
        the change to keys that are over it, some at a time.
        Reads: the limit; its first key.
        Writes: the limit; its bell.
        Conflicts: takes under the limit.
        Raises: InvalidArgument; also to add slots to a rate, or `per_key` to none, and to take them away.
        LimitInUse for a rate alone in place of an unreadable limit whose slots tasks hold.
        """
        rule, keys = checked_rule(slots, rate, per, burst, per_key), keys_of(name, root)
        return _write_unused(db, root, keys, lambda tr: _set(tr, keys, rule))

    @classmethod
    def open(cls, db: DatabaseOrTransaction, name: str, *, root: Any = DEFAULT_ROOT) -> "Limit":
        """The limit of that name, with some of its holders.

        Reads: the limit and its first holders, by snapshot.
        Conflicts: none.
        Raises: LimitNotFound, LimitUnreadable, InvalidArgument.
        """
        keys = keys_of(name, root)
        return run(db, lambda tr: _open(tr, keys))

    @classmethod
    def open_key(
        cls, db: DatabaseOrTransaction, name: str, key: Any, *, root: Any = DEFAULT_ROOT
    ) -> "LimitKey":
        """One key of a limit that counts each key apart, with some of its holders.

        Reads: the limit, the key and its first holders, by snapshot.
        Conflicts: none.
        Raises: LimitNotFound, LimitUnreadable; InvalidArgument, also for a limit that does not count keys
        apart.
        """
        keys, packed = keys_of(name, root), key_bytes(key)
        return run(db, lambda tr: open_key(tr, keys, packed))

    @classmethod
    def keys(
        cls,
        db: DatabaseOrTransaction,
        name: str,
        *,
        limit: int = limits.BATCH_ITEMS_MAX,
        after: str | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "Page[LimitKey]":
        """A page of the keys that hold slots, or have used tokens, without holders. `after`: the `next` of
        the page before.

        Reads: the limit; at most `limit` keys, by snapshot.
        Conflicts: none.
        Raises: as `open_key`.
        """
        keys, most, place = keys_of(name, root), checked_limit(limit), place_bytes(after)
        return run(db, lambda tr: listed_keys(tr, keys, most, place))

    @classmethod
    def list(cls, db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> "list[Limit]":
        """All limits, in order of their names, without holders. One that cannot be read has an `error`.

        Reads: the limits, by snapshot.
        Conflicts: none.
        Round trips: 1 for each limits.LIMITS_READ_TOGETHER limits.
        """
        keys, found, after = RootKeys(root), list[Limit](), None
        while True:
            more, after = run(db, partial(_listed, keys=keys, after=after))
            found += more
            if after is None:
                return found

    @classmethod
    def delete(cls, db: DatabaseOrTransaction, name: str, *, root: Any = DEFAULT_ROOT) -> None:
        """Remove a limit that no task holds a slot of. A queue that names it is then without that limit.

        A truncate and a drop in a transaction leave the slots of keys to a walk by sweeps of queues that name
        the limit. There may be no such queue: so, given a database, a delete that is refused walks and tries
        again.
        Reads: the limit; a holder. In a walk, the rows of its keys, and their tasks.
        Writes: clears the limit.
        Conflicts: takes and ends of tasks under the limit.
        Raises: LimitNotFound; LimitInUse while a task holds a slot.
        """
        keys = keys_of(name, root)
        _write_unused(db, root, keys, lambda tr: _delete(tr, keys))


def walk_all(db: Database, root: Any) -> None:
    """Look at the keys of all limits: a queue is gone, and its definition told no limits.

    Reads: the limits; the rows of their keys, and their tasks.
    Writes: as a sweep, in a transaction for each limits.KEY_ROWS_WALKED rows.
    """
    for found in Limit.list(db, root=root):
        keys = keys_of(found.name, root)
        run(db, partial(begin_walks, of=[keys]))
        for _ in walk_out(db, RootKeys(root).prefix, keys):
            pass


def _set(tr: Transaction, keys: LimitKeys, rule: Rule) -> Limit:
    now_us, asked, first = runtime_of(tr).now_us(), ask(tr, keys), _ask_first_key(tr, keys)
    state = asked()
    _require_alike(keys.name, state.rule, rule)
    if state.error is not None:
        state = _without_rule(tr, state, rule)
    rule = replace(rule, more=() if state.rule is None else state.rule.more)
    if state.rule is not None and state.rule.has_both and not rule.has_both:
        _clear_tokens(tr, keys)
    if rule.has_starts:
        state = _poured(tr, state, rule, now_us)
    if first():
        rule = replace(rule, has_keys=True)
        tr.set(keys.walk, b"")
    tr.set(keys.row, rule_to_bytes(rule))
    ring(tr, keys)
    found = State(keys, rule, state.numbers, tokens=state.tokens)
    return _limit_of(found, now_us, tr.get(keys.total).value)


def _clear_tokens(tr: Transaction, keys: LimitKeys) -> None:
    """Leave no tokens of a limit of slots and starts, as it becomes another one."""
    tr.clear(keys.tokens)
    for under in (keys.keys_tokens, keys.overs, keys.dues_of_tokens):
        tr.clear_range(under.start, under.stop)


def _without_rule(tr: Transaction, state: State, rule: Rule) -> State:
    """The state of a limit with an unreadable rule, for a new `rule`: its tokens are no slots.

    A rate alone is refused while tasks hold slots: their ends would take them off its tokens.
    """
    rely_on_all(tr, state.keys)
    tokens = tr.get_range(state.keys.tokens, state.keys.keys_tokens.stop, limit=1)
    if tokens.to_list():  # it was one of slots and starts
        _clear_tokens(tr, state.keys)
    total, held = tr.get(state.keys.total), _ask_holder(tr, state.keys)
    used = _used_without_rule(state, total.value, held)
    if used and not rule.has_slots:
        raise LimitInUse(name=state.keys.name, used=used)
    if used:
        return state
    tr.clear(state.keys.cells)
    return State(state.keys, None, [0] * CELLS_MAX)


def _ask_holder(tr: Transaction, keys: LimitKeys) -> Range:
    """Ask for a holder by snapshot: each start and end changes the cells, too."""
    return tr.snapshot.get_range(keys.holders.start, keys.holders.stop, limit=1)


def _ask_first_key(tr: Transaction, keys: LimitKeys) -> Callable[[], bool]:
    first = tr.get_range(keys.of_keys.start, keys.of_keys.stop, limit=1)
    return lambda: bool(first.to_list())


def _require_alike(name: str, was: Rule | None, rule: Rule) -> None:
    """Refuse a change that would leave tasks uncounted."""
    if was is not None and was.has_slots != rule.has_slots:
        told = "slots, and cannot be without `slots`" if was.has_slots else "a rate, and cannot get `slots`"
        told = f"The limit {name!r} has {told}: delete it, or choose another name."
        wanted = "a number" if was.has_slots else "None"
        raise InvalidArgument(told, name="slots", wanted=wanted, got=rule.slots or None)
    if was is not None and was.per_key != rule.per_key:
        told = "with" if was.per_key else "without"
        told = f"The limit {name!r} was set {told} `per_key`: delete it, or choose another name."
        raise InvalidArgument(told, name="per_key", wanted=str(was.per_key), got=rule.per_key)


def _poured(tr: Transaction, state: State, rule: Rule, now_us: int) -> State:
    """Pour the tokens of the old rule into the cells of the new one. A new limit has a full bucket."""
    tokens = rule.burst
    if state.rule is not None and state.rule.has_starts:
        # Takes read the rule: none of them commits between this read and the commit of the change.
        tokens = state.bucket(state.rule, now_us).all_tokens()
    full_ns = Bucket(rule, [0] * CELLS_MAX, now_us * 1_000).poured(tokens)
    key = state.keys.tokens if rule.has_both else state.keys.cells
    tr.add_read_conflict_key(key)
    tr.set(key, cells_bytes(dict(enumerate(full_ns))))
    full_ns += [0] * (CELLS_MAX - len(full_ns))
    if rule.has_both:
        return State(state.keys, rule, state.numbers, tokens=full_ns)
    return State(state.keys, rule, full_ns)


def _open(tr: Transaction, keys: LimitKeys) -> Limit:
    snapshot = writable(tr).snapshot
    asked, holders = ask_by_snapshot(snapshot, keys), ask_holders(snapshot, keys)
    total, state = snapshot.get(keys.total), asked()
    known_rule(keys.name, state.stored)
    return _limit_of(state, runtime_of(tr).now_us(), total.value, holders())


def _listed(tr: Transaction, keys: RootKeys, after: bytes | None) -> "tuple[list[Limit], bytes | None]":
    start, stop = keys.limits.start if after is None else after + b"\x00", keys.limits.stop
    rows = writable(tr).snapshot.get_range(start, stop, limit=limits.LIMITS_READ_TOGETHER).to_list()
    named = [(name, row) for row in rows if (name := keys.limit_of(row.key)) is not None]
    each = [LimitKeys(keys.prefix, name) for name, _ in named]
    for one, (_, row) in zip(each, named, strict=True):
        one.note(rule_of(row.value))
    asked = [(ask_by_snapshot(tr.snapshot, one), tr.snapshot.get(one.total)) for one in each]
    now_us = runtime_of(tr).now_us()
    found = [_shown(reply(), now_us, total.value) for reply, total in asked]
    return found, rows[-1].key if len(rows) == limits.LIMITS_READ_TOGETHER else None


def _shown(state: State, now_us: int, total: bytes | None) -> Limit:
    """The limit in a list: without its numbers if it cannot be read."""
    if state.error is not None:
        return Limit(name=state.keys.name, free=0, error=str(state.error))
    return _limit_of(state, now_us, total)


def _delete(tr: Transaction, keys: LimitKeys) -> None:
    rely_on_all(tr, keys)
    row, asked, first, total = tr.get(keys.row), ask(tr, keys), _ask_first_key(tr, keys), tr.get(keys.total)
    held, state = _ask_holder(tr, keys), asked()
    if not row.present():
        raise LimitNotFound(name=keys.name)
    used = used_of(state, total.value) if state.rule else _used_without_rule(state, total.value, held)
    if used:
        raise LimitInUse(name=keys.name, used=used)
    tr.clear(keys.row)
    if first():  # the lanes of its keys stay with their tasks: sweeps open them
        tr.clear_range(keys.beside.start, keys.of_keys.start)
        tr.clear_range(keys.of_keys.stop, keys.beside.stop)
        tr.set(keys.walk, b"")
    else:
        tr.clear_range(keys.beside.start, keys.beside.stop)


def _used_without_rule(state: State, total: bytes | None, held: Range) -> int:
    """Slots in use without a readable rule: cells have slots if there are holders, and else maybe tokens."""
    return number_of(total) + (sum(state.numbers) if held.to_list() else 0)


def _limit_of(state: State, now_us: int, total: bytes | None, holders: Sequence[LimitHolder] = ()) -> Limit:
    """`total`: the slots in use of all keys."""
    rule, next_us = state.rule, state.next_us(now_us)
    assert rule is not None
    if rule.per_key:
        free, next_us = free_of_unused(rule), None
    else:
        free = state.free(now_us) or 0
    return Limit(
        name=state.keys.name,
        slots=rule.slots if rule.has_slots else None,
        rate=rule.rate if rule.has_starts else None,
        per=rule.per_us / 1_000_000 if rule.has_starts else None,
        burst=rule.burst if rule.has_starts else None,
        used=used_of(state, total),
        free=free,
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders if rule.has_slots else (),
        per_key=rule.per_key,
    )


def _write(db: DatabaseOrTransaction, root: Any, body: "Callable[[Transaction], T]") -> T:
    return run_in(db, RootKeys(root), body)


def _write_unused(
    db: DatabaseOrTransaction, root: Any, keys: LimitKeys, body: "Callable[[Transaction], T]"
) -> T:
    """As `_write`. If tasks hold slots, a walk may give them back, and the body has another try; not in a
    transaction, where a refusal must leave nothing behind.
    """
    try:
        return _write(db, root, body)
    except LimitInUse:
        if is_transaction(db) or not [*walk_out(db, RootKeys(root).prefix, keys)]:
            raise
        return _write(db, root, body)
