"""Limits: unreadable and missing ones, and full ones with holders of dead sessions, as checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import ask_holder
from fdbqueue.core.task import LimitHolder
from fdbqueue.core.visible import counted
from fdbqueue.operate.diagnosis.check import Check, fine, warning
from fdbqueue.operate.overview.figures import Figures, LimitFigures
from fdbqueue.operate.verify.values import command
from fdbqueue.tasks.limits.rule import LimitKeys, shown_key
from fdbqueue.tasks.limits.state import KeyState, ask_by_snapshot, ask_holders, ask_key_holders

CHECK = "limits"


@dataclass(frozen=True)
class SeenHolders:
    """The first holders of a full limit, or of a full key, and those among them with dead sessions."""

    whose: str
    """The limit, or its key, in words."""
    seen: int
    dead: int
    queue: str
    """That of the first dead one; empty without one."""


def see_holders(database: Database, keys: RootKeys, figures: Figures) -> dict[str, list[SeenHolders]]:
    """The holders of the limits that have no free slot, at most limits.LIMIT_HOLDERS_SHOWN of each. Of a
    limit that counts each key apart, those of its keys without a free slot, and those of tasks without a key.
    Reads by snapshot. Round trips: 2 for each of these limits, 3 for one that counts keys apart.
    """
    now, seen = database.runtime.now(), dict[str, list[SeenHolders]]()
    for limit in figures.limits:
        see = _key_holders if limit.per_key else _holders
        if limit.slots is not None and (limit.used if limit.per_key else limit.free == 0):
            seen[limit.name] = run(database, partial(see, keys=keys, name=limit.name, now=now))
    return seen


def _holders(tr: Transaction, keys: RootKeys, name: str, now: float) -> list[SeenHolders]:
    found = ask_holders(tr.snapshot, LimitKeys(keys.prefix, name))()
    return [_seen(tr, keys, f"the limit {name}", found, now)]


def _key_holders(tr: Transaction, keys: RootKeys, name: str, now: float) -> list[SeenHolders]:
    """The holders of full keys, among the first limits.DIAGNOSED_LIMIT_KEYS_MAX ones that tasks use. Before
    them those of tasks without a key, if these use all slots that are theirs.
    """
    of_limit, most = LimitKeys(keys.prefix, name), limits.DIAGNOSED_LIMIT_KEYS_MAX
    of_no_key, keyless = ask_by_snapshot(tr.snapshot, of_limit), ask_holders(tr.snapshot, of_limit)
    rows = tr.snapshot.get_range(of_limit.counts.start, of_limit.counts.stop, limit=most).to_list()
    rule, now_us = of_no_key().rule, round(now * 1_000_000)
    states = [KeyState(of_limit, of_limit.parts_of(row.key)[1], rule, row.value) for row in rows]
    full = [state.key for state in states if state.free(now_us) == 0]
    asked = [
        (key, ask_key_holders(tr.snapshot, of_limit, key)) for key in full[: limits.DIAGNOSED_FULL_KEYS_MAX]
    ]
    told = f"the limit {name}, of tasks that name it without a key,"
    found = [_seen(tr, keys, told, keyless(), now)] if of_no_key().free(now_us) == 0 else []
    return found + [
        _seen(tr, keys, f"the key {shown_key(key)!r} of the limit {name}", reply(), now)
        for key, reply in asked
    ]


def _seen(
    tr: Transaction, keys: RootKeys, whose: str, found: Sequence[LimitHolder], now: float
) -> SeenHolders:
    sessions = {
        holder.session: ask_holder(tr.snapshot, keys, bytes.fromhex(holder.session)) for holder in found
    }
    dies = {session: reply().dies for session, reply in sessions.items()}
    dead = [holder for holder in found if (dies[holder.session] or 0.0) < now - limits.OVERDUE_WARNING_S]
    return SeenHolders(whose, len(found), len(dead), dead[0].queue if dead else "")


def check_limits(figures: Figures, holders: Mapping[str, Sequence[SeenHolders]]) -> list[Check]:
    """The results for all limits; one that counts them if all are fine, and none without any."""
    told = [result for one in figures.limits for result in _of_limit(one, holders.get(one.name, ()))]
    count = f"{len(figures.limits):,} limit{'' if len(figures.limits) == 1 else 's'}"
    return told or ([fine(CHECK, count, limits=len(figures.limits))] if figures.limits else [])


def _of_limit(limit: LimitFigures, holders: Sequence[SeenHolders]) -> Iterator[Check]:
    name = limit.name
    if limit.free is None:
        yield _without_rule(limit)
    for found in holders:
        if not found.dead:
            continue
        text = (
            f"{found.whose} has no free slot, and {found.dead} of its first {found.seen} holders are tasks"
            f" of dead sessions, such as one of {found.queue}"
        )
        cure = "Start a worker, or any program that takes: it ends the sessions of dead processes."
        yield warning(CHECK, text, cure, limit=name, dead=found.dead, waiting=limit.waiting)


def _without_rule(limit: LimitFigures) -> Check:
    text = f"the limit {limit.name} {'does not exist' if limit.error is None else 'cannot be read'}"
    text += (
        f", so tasks of {_listed(limit.queues)} run without it" if limit.queues else ", and no queue names it"
    )
    cure = command("limit", "set", limit.name, "--slots", "N")
    more = {} if limit.error is None else {"error": limit.error}
    return warning(CHECK, text, cure, limit=limit.name, queues=list(limit.queues), **more)


def _listed(names: Sequence[str]) -> str:
    more = f" and {counted(len(names) - 1, 'more queue')}" if len(names) > 1 else ""
    return f"{names[0]}{more}"
