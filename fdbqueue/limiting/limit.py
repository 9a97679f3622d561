"""Limit: its verbs. Queues name limits; a change holds for all of them from its commit on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fdbqueue import limits
from fdbqueue.arguments import checked_items, checked_text, writable
from fdbqueue.calls.once import run_once
from fdbqueue.database import as_database, is_transaction, run, runtime_of
from fdbqueue.errors import InvalidArgument, LimitInUse, LimitNotFound
from fdbqueue.limiting.bucket import Bucket
from fdbqueue.limiting.holders import ask_holders
from fdbqueue.limiting.keys import CELLS_MAX, LimitKeys, cells_bytes
from fdbqueue.limiting.rule import Rule, checked_rule, rule_to_bytes
from fdbqueue.limiting.state import State, ask, ask_by_snapshot, rely_on_all, ring
from fdbqueue.reached import LimitHolder
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import DatabaseOrTransaction, Transaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit, as one transaction has read it.

    It has `slots`, the number of tasks that may run at a time, or a `rate`: that number of tasks may start in
    `per` seconds, and `burst` more.
    """

    name: str
    slots: int | None = None
    rate: int | None = None
    per: float | None = None
    burst: int | None = None
    used: int = 0
    """Number of slots that tasks hold."""
    free: int
    """Number of tasks that may start now."""
    next: float | None = None
    """The time of the next token, if there is none; in seconds since the epoch."""
    holders: Sequence[LimitHolder] = ()
    """Tasks that hold slots, at most limits.LIMIT_HOLDERS_SHOWN; `Limit.open` reads them."""

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
        root: Any = DEFAULT_ROOT,
    ) -> "Limit":
        """Create a limit, or change its numbers.

        Give `slots`, at most limits.SLOTS_MAX, or a `rate` with its `per` in seconds. Without a `burst`, it
        is a tenth of the rate, and at least 1. Tasks that run go on. A limit with fewer slots than tasks that
        run lets no task start until fewer run than it has slots.
        Reads: the limit.
        Writes: the limit; its bell.
        Conflicts: takes under the limit.
        Raises: InvalidArgument; also for slots in place of a rate, and the reverse.
        """
        rule, keys = checked_rule(slots, rate, per, burst), keys_of(name, root)
        return _write(db, root, lambda tr: _set(tr, keys, rule))

    @classmethod
    def open(cls, db: DatabaseOrTransaction, name: str, *, root: Any = DEFAULT_ROOT) -> "Limit":
        """The limit of that name, with some of its holders.

        Reads: the limit and its first holders, by snapshot.
        Conflicts: none.
        Raises: LimitNotFound, InvalidArgument.
        """
        keys = keys_of(name, root)
        return run(db, lambda tr: _open(tr, keys))

    @classmethod
    def list(cls, db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> "list[Limit]":
        """All limits, in order of their names, without holders.

        Reads: the limits, by snapshot.
        Conflicts: none.
        Round trips: 1 for each limits.LIMITS_READ_TOGETHER limits.
        """
        keys, found = RootKeys(root), list[Limit]()
        while more := run(db, partial(_listed, keys=keys, after=found[-1].name if found else None)):
            found += more
        return found

    @classmethod
    def delete(cls, db: DatabaseOrTransaction, name: str, *, root: Any = DEFAULT_ROOT) -> None:
        """Remove a limit that no task holds a slot of. A queue that names it is then without that limit.

        Reads: the limit.
        Writes: clears the limit.
        Conflicts: takes and ends of tasks under the limit.
        Raises: LimitNotFound; LimitInUse while a task holds a slot.
        """
        keys = keys_of(name, root)
        _write(db, root, lambda tr: _delete(tr, keys))


def keys_of(name: Any, root: Any) -> LimitKeys:
    """Raises InvalidArgument."""
    return LimitKeys(RootKeys(root).prefix, checked_limit_name(name))


def checked_limit_name(name: Any) -> str:
    """Raises InvalidArgument."""
    return checked_text("limit", name, limits.QUEUE_NAME_BYTES_MAX)


def checked_limit_names(argument: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """The names of limits in order, each once. Raises InvalidArgument."""
    if isinstance(names, str):
        raise InvalidArgument(name=argument, wanted="the names of limits, such as a list", got=names)
    given = () if names is None else checked_items(argument, names)
    checked = tuple(sorted({checked_limit_name(name) for name in given}))
    if len(checked) > limits.LIMITS_PER_QUEUE_MAX:
        wanted = f"at most {limits.LIMITS_PER_QUEUE_MAX} names of limits"
        raise InvalidArgument(name=argument, wanted=wanted, got=given)
    return checked


def checked_limits(
    of_all: Iterable[str] | None, named: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits of all tasks of a queue, and those that its tasks may name. Raises InvalidArgument."""
    limits_of_all, task_limits = (
        checked_limit_names("limits", of_all),
        checked_limit_names("task_limits", named),
    )
    if not set(limits_of_all).isdisjoint(task_limits):
        wanted = "other names than those in `limits`, which hold for all tasks"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    if sum(len(name.encode()) for name in task_limits) > limits.TASK_LIMITS_BYTES_MAX:
        wanted = f"names of at most {limits.TASK_LIMITS_BYTES_MAX} bytes together"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    return limits_of_all, task_limits


def require_limits(target: DatabaseOrTransaction, root: Any, names: Sequence[str]) -> None:
    """Reads: the limits, serialisably. Raises: LimitNotFound for a name that has none."""
    if names:
        run(target, partial(_require, keys=[keys_of(name, root) for name in names]))


def _require(tr: Transaction, keys: Sequence[LimitKeys]) -> None:
    asked = [(one, tr.get(one.row)) for one in keys]
    for one, row in asked:
        if not row.present():
            raise LimitNotFound(name=one.name)


def _set(tr: Transaction, keys: LimitKeys, rule: Rule) -> Limit:
    now_us, state = runtime_of(tr).now_us(), ask(tr, keys)()
    was = state.rule
    if was is not None and was.is_of_slots != rule.is_of_slots:
        has, wanted = ("slots", "None") if was.is_of_slots else ("a rate", "a rate")
        told = f"{wanted}: the limit {keys.name!r} has {has}; delete it, or choose another name"
        raise InvalidArgument(name="rate", wanted=told, got=rule.rate or None)
    if not rule.is_of_slots:
        state = _poured(tr, state, rule, now_us)
    tr.set(keys.row, rule_to_bytes(rule))
    ring(tr, keys)
    return _limit_of(State(keys, rule, state.numbers), now_us)


def _poured(tr: Transaction, state: State, rule: Rule, now_us: int) -> State:
    """Pour the tokens of the old rule into the cells of the new one. A new limit has a full bucket."""
    tokens = rule.burst
    if state.rule is not None:
        # Takes read the rule: none of them commits between this read and the commit of the change.
        tokens = state.bucket(state.rule, now_us).all_tokens()
    full_ns = Bucket(rule, state.numbers, now_us * 1_000).poured(tokens)
    tr.add_read_conflict_key(state.keys.cells)
    tr.set(state.keys.cells, cells_bytes(dict(enumerate(full_ns))))
    return State(state.keys, rule, [*full_ns, *[0] * (CELLS_MAX - len(full_ns))])


def _open(tr: Transaction, keys: LimitKeys) -> Limit:
    snapshot = writable(tr).snapshot
    asked, holders = ask_by_snapshot(snapshot, keys), ask_holders(snapshot, keys)
    state = asked()
    if state.rule is None:
        raise LimitNotFound(name=keys.name)
    return _limit_of(state, runtime_of(tr).now_us(), holders())


def _listed(tr: Transaction, keys: RootKeys, after: str | None) -> "list[Limit]":
    start = keys.limits.start if after is None else LimitKeys(keys.prefix, after).row + b"\x00"
    few = limits.LIMITS_READ_TOGETHER
    rows = writable(tr).snapshot.get_range(start, keys.limits.stop, limit=few).to_list()
    names = [name for row in rows if (name := keys.limit_of(row.key)) is not None]
    asked = [ask_by_snapshot(tr.snapshot, LimitKeys(keys.prefix, name)) for name in names]
    now_us = runtime_of(tr).now_us()
    return [_limit_of(state, now_us) for reply in asked if (state := reply()).rule is not None]


def _delete(tr: Transaction, keys: LimitKeys) -> None:
    rely_on_all(tr, keys)
    row, state = tr.get(keys.row), ask(tr, keys)()
    if not row.present():
        raise LimitNotFound(name=keys.name)
    if state.rule is not None and state.rule.is_of_slots and any(state.numbers):
        raise LimitInUse(name=keys.name, used=sum(state.numbers))
    tr.clear(keys.row)
    tr.clear_range(keys.beside.start, keys.beside.stop)


def _limit_of(state: State, now_us: int, holders: Sequence[LimitHolder] = ()) -> Limit:
    rule, next_us = state.rule, state.next_us(now_us)
    assert rule is not None
    if rule.is_of_slots:
        used = sum(state.numbers)
        free = state.free(now_us) or 0
        return Limit(name=state.keys.name, slots=rule.slots, used=used, free=free, holders=holders)
    return Limit(
        name=state.keys.name,
        rate=rule.rate,
        per=rule.per_us / 1_000_000,
        burst=rule.burst,
        free=state.free(now_us) or 0,
        next=None if next_us is None else next_us / 1_000_000,
    )


def _write(db: DatabaseOrTransaction, root: Any, body: "Callable[[Transaction], T]") -> T:
    if is_transaction(db):
        return body(writable(db))
    return run_once(as_database(db), RootKeys(root), body)
