"""Looks at the keys of a limit that counts each key apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core.arguments import writable
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.explanation import LimitHolder
from fdbqueue.core.page import Page, place_text
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limiting.key_state import KeyState, ask_key_holders, number_of
from fdbqueue.tasks.limiting.keys import LimitKeys, shown_key
from fdbqueue.tasks.limiting.rule import Rule, known_rule
from fdbqueue.tasks.limiting.state import State


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
    rule, row, holders = (
        snapshot.get(keys.row),
        snapshot.get(keys.count(key)),
        ask_key_holders(snapshot, keys, key),
    )
    state = KeyState(keys, key, _counting(keys, rule.value), row.value)
    return _key_of(state, runtime_of(tr).now_us(), holders())


def listed_keys(tr: Transaction, keys: LimitKeys, limit: int, after: bytes | None) -> Page[LimitKey]:
    start = keys.counts.start if after is None else keys.count(after) + b"\x00"
    snapshot = writable(tr).snapshot
    asked, rows = snapshot.get(keys.row), snapshot.get_range(start, keys.counts.stop, limit=limit).to_list()
    rule, now_us = _counting(keys, asked.value), runtime_of(tr).now_us()
    found = [KeyState(keys, keys.parts_of(row.key)[1], rule, row.value) for row in rows]
    following = place_text(found[-1].key) if len(rows) == limit else None
    return Page((_key_of(state, now_us) for state in found), following)


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
    return sum(state.numbers) + number_of(total) if state.rule.is_of_slots else 0
