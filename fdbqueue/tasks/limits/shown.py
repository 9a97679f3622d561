"""Shown: limits, keys and holders, as looks tell of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import Page, place_text
from fdbqueue.core.seam import EXACT, ReadTransaction, Transaction
from fdbqueue.core.task import LimitHolder, ReachedLimit
from fdbqueue.tasks.limits.rule import Held, LimitKeys, Rule, held_of, known_rule, shown_key
from fdbqueue.tasks.limits.state import KeyState, State, ask_key, number_of
from fdbqueue.tasks.stored.records import id_text


def ask_holders(
    tr: ReadTransaction, keys: LimitKeys, key: bytes | None = None
) -> Callable[[], tuple[LimitHolder, ...]]:
    """Ask for the first holders of a limit, or of one key of it. A damaged one is left out."""
    under = keys.holders if key is None else keys.key_holders(key)
    rows = tr.get_range(under.start, under.stop, limit=limits.LIMIT_HOLDERS_SHOWN, streaming_mode=EXACT)

    def reply() -> tuple[LimitHolder, ...]:
        found = [(keys.parts_of(row.key)[-1], held_of(row.value)) for row in rows]
        return tuple(_holder(id_, held) for id_, held in found if held is not None)

    return reply


def _holder(id_: bytes, held: Held) -> LimitHolder:
    return LimitHolder(task=id_text(id_), queue=held.queue, session=held.session.hex())


def reached_of(state: State | KeyState, now_us: int, holders: tuple[LimitHolder, ...]) -> ReachedLimit:
    """`state`: of a limit, or of a key, that lets no task start."""
    rule, next_us, of_key = state.rule, state.next_us(now_us), state if isinstance(state, KeyState) else None
    return ReachedLimit(
        name=state.keys.name,
        slots=rule.slots if rule is not None and state.is_full else None,
        used=state.used if isinstance(state, KeyState) else used_of(state, None),
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
        key=None if of_key is None else shown_key(of_key.key),
        per_key=of_key is not None,
        has_both=rule is not None and rule.has_both,
    )


def unreadable_of(state: State, key: bytes) -> ReachedLimit:
    """`state`: of a limit that cannot be read, and for which tasks of the key wait."""
    return ReachedLimit(
        name=state.keys.name,
        slots=None,
        used=0,
        next=None,
        holders=(),
        key=shown_key(key),
        per_key=True,
        error=str(state.error),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKey:
    """A key of a limit that counts each key apart, as one transaction has read it."""

    key: Any
    used: int
    """Number of slots that tasks of the key hold."""
    free: int
    """Number of tasks of the key that may start now."""
    next: float | None = None
    """The time of its next token, if there is none; in seconds since the epoch."""
    holders: Sequence[LimitHolder] = ()
    """Tasks that hold its slots, at most limits.LIMIT_HOLDERS_SHOWN; `Limit.open_key` reads them."""


def open_key(tr: Transaction, keys: LimitKeys, key: bytes) -> LimitKey:
    snapshot = writable(tr).snapshot
    rule, asked, holders = (
        snapshot.get(keys.row),
        ask_key(snapshot, keys, key),
        ask_holders(snapshot, keys, key),
    )
    return _key_of(asked(_counting(keys, rule.value)), runtime_of(tr).now_us(), holders())


def listed_keys(tr: Transaction, keys: LimitKeys, limit: int, after: bytes | None) -> Page[LimitKey]:
    snapshot = writable(tr).snapshot
    rule, now_us = _counting(keys, snapshot.get(keys.row).value), runtime_of(tr).now_us()
    found = key_states(snapshot, keys, rule, limit, after)
    following = place_text(found[-1].key) if len(found) == limit else None
    return Page((_key_of(state, now_us) for state in found), following)


def key_states(
    tr: ReadTransaction, keys: LimitKeys, rule: Rule | None, limit: int, after: bytes | None = None
) -> list[KeyState]:
    """The first keys behind `after` that have rows, in order."""
    columns = [(keys.count, keys.counts)]
    if rule is not None and rule.has_both:
        columns.append((keys.key_tokens, keys.keys_tokens))
    asked = [
        tr.get_range(under.start if after is None else key_at(after) + b"\x00", under.stop, limit=limit)
        for key_at, under in columns
    ]
    rows = [{keys.parts_of(row.key)[1]: row.value for row in found} for found in asked]
    each = sorted(set().union(*rows))[:limit]
    return [
        KeyState(keys, key, rule, rows[0].get(key), *(column.get(key, b"") for column in rows[1:]))
        for key in each
    ]


def _counting(keys: LimitKeys, stored: bytes | None) -> Rule:
    rule = known_rule(keys.name, stored)
    if not rule.per_key:
        raise InvalidArgument(name="name", wanted="a limit that was set with `per_key`", got=keys.name)
    return rule


def _key_of(state: KeyState, now_us: int, holders: Sequence[LimitHolder] = ()) -> LimitKey:
    next_us = state.next_us(now_us)
    return LimitKey(
        key=shown_key(state.key),
        used=state.used,
        free=state.free(now_us) or 0,
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
    )


def used_of(state: State, total: bytes | None) -> int:
    """Number of slots of a limit that tasks hold, of all keys. `total`: those of tasks with keys."""
    assert state.rule is not None
    return sum(state.numbers) + number_of(total) if state.rule.has_slots else 0
