"""Holders: the tasks that hold slots of a limit, as explanations and the command line show them."""

from collections.abc import Callable

from fdbqueue.core import limits
from fdbqueue.core.explanation import LimitHolder, ReachedLimit
from fdbqueue.core.seam import EXACT, ReadTransaction
from fdbqueue.tasks.limiting.key_state import KeyState
from fdbqueue.tasks.limiting.keys import Held, LimitKeys, held_of, shown_key
from fdbqueue.tasks.limiting.state import State
from fdbqueue.tasks.records.keys import id_text


def ask_holders(tr: ReadTransaction, keys: LimitKeys) -> Callable[[], tuple[LimitHolder, ...]]:
    """Ask for the first holders of a limit. A damaged one is left out."""
    under, most = keys.holders, limits.LIMIT_HOLDERS_SHOWN
    rows = tr.get_range(under.start, under.stop, limit=most, streaming_mode=EXACT)

    def reply() -> tuple[LimitHolder, ...]:
        found = [(keys.task_in(row.key)[1], held_of(row.value)) for row in rows]
        return tuple(_holder(id_, held) for id_, held in found if held is not None)

    return reply


def ask_key_holders(
    tr: ReadTransaction, keys: LimitKeys, key: bytes
) -> Callable[[], tuple[LimitHolder, ...]]:
    under, most = keys.key_holders(key), limits.LIMIT_HOLDERS_SHOWN
    rows = tr.get_range(under.start, under.stop, limit=most, streaming_mode=EXACT)

    def reply() -> tuple[LimitHolder, ...]:
        found = [(keys.parts_of(row.key)[-1], held_of(row.value)) for row in rows]
        return tuple(_holder(id_, held) for id_, held in found if held is not None)

    return reply


def _holder(id_: bytes, held: Held) -> LimitHolder:
    return LimitHolder(task=id_text(id_), queue=held.queue, session=held.session.hex())


def reached_of(state: State, now_us: int, holders: tuple[LimitHolder, ...]) -> ReachedLimit:
    """`state`: of a limit that lets no task start."""
    rule, next_us = state.rule, state.next_us(now_us)
    slots = rule.slots if rule is not None and rule.is_of_slots else None
    return ReachedLimit(
        name=state.keys.name,
        slots=slots,
        used=0 if slots is None else sum(state.numbers),
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
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


def reached_of_key(state: KeyState, now_us: int, holders: tuple[LimitHolder, ...]) -> ReachedLimit:
    """`state`: that of a key under which no task may start."""
    rule, next_us = state.rule, state.next_us(now_us)
    return ReachedLimit(
        name=state.keys.name,
        slots=rule.slots if rule is not None and rule.is_of_slots else None,
        used=state.used,
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
        key=shown_key(state.key),
        per_key=True,
    )
