"""Limits: missing ones that queues name, and full ones with holders of dead sessions, as checks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.diagnosis.check import Check, fine, warning
from fdbqueue.limiting.holders import ask_holders
from fdbqueue.limiting.keys import LimitKeys
from fdbqueue.overview.figures import Figures, LimitFigures
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.sessions.holder import ask_holder
from fdbqueue.verifying.cures import command

CHECK = "limits"


@dataclass(frozen=True)
class SeenHolders:
    """The first holders of a full limit, and those among them with dead sessions."""

    seen: int
    dead: int
    queue: str
    """That of the first dead one; empty without one."""


def see_holders(database: Database, keys: RootKeys, figures: Figures) -> dict[str, SeenHolders]:
    """The holders of the limits that have no free slot, at most limits.LIMIT_HOLDERS_SHOWN of each.

    Reads by snapshot. Round trips: 2 for each of these limits.
    """
    full = [limit.name for limit in figures.limits if limit.slots is not None and limit.free == 0]
    now = database.runtime.now()
    return {name: run(database, partial(_holders, keys=keys, name=name, now=now)) for name in full}


def _holders(tr: Transaction, keys: RootKeys, name: str, now: float) -> SeenHolders:
    found = ask_holders(tr.snapshot, LimitKeys(keys.prefix, name))()
    sessions = {
        holder.session: ask_holder(tr.snapshot, keys, bytes.fromhex(holder.session)) for holder in found
    }
    dies = {session: reply().dies for session, reply in sessions.items()}
    dead = [holder for holder in found if (dies[holder.session] or 0.0) < now - limits.OVERDUE_WARNING_S]
    return SeenHolders(len(found), len(dead), dead[0].queue if dead else "")


def check_limits(figures: Figures, holders: Mapping[str, SeenHolders]) -> list[Check]:
    """The results for all limits; one that counts them if all are fine, and none without any."""
    told = [result for one in figures.limits for result in _of_limit(one, holders.get(one.name))]
    count = f"{len(figures.limits):,} limit{'' if len(figures.limits) == 1 else 's'}"
    return told or ([fine(CHECK, count, limits=len(figures.limits))] if figures.limits else [])


def _of_limit(limit: LimitFigures, found: SeenHolders | None) -> Iterator[Check]:
    name = limit.name
    if limit.free is None:
        text = f"the limit {name} does not exist, so tasks of {_listed(limit.queues)} run without it"
        cure = command("limit", "set", name, "--slots", "N")
        yield warning(CHECK, text, cure, limit=name, queues=list(limit.queues))
    if found is not None and found.dead:
        text = (
            f"the limit {name} has no free slot, and {found.dead} of its first {found.seen} holders are tasks"
            f" of dead sessions, such as one of {found.queue}"
        )
        cure = "Start a worker, or any program that takes: it ends the sessions of dead processes."
        yield warning(CHECK, text, cure, limit=name, dead=found.dead, waiting=limit.waiting)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more queues" if len(names) > 1 else ""
    return f"{names[0]}{more}"
