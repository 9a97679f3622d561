"""Clocks: the differences between the clocks of processes, from their heartbeats.

A heartbeat tells the time of its process. If it is renewed between two looks, it was written between them: a
time outside of these two is the difference of two clocks, at the least. If it is not renewed, only a time
that has not come yet is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.core.sessions.ending import ask_holder
from fdbqueue.core.visible import counted
from fdbqueue.operate.diagnosis.check import Check, failure, fine, warning

CHECK, SESSIONS = "clocks", "sessions"
CURE = "Synchronise the clocks of all machines (chrony, systemd-timesyncd): leases compare their times."


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a session. Times are seconds since the epoch, by the clock of its process."""

    at: float
    deadline: float
    place: str
    """Host and process ids, as far as they are stored."""
    process_ids: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Look:
    """The heartbeats at one look: it was done between `began` and `ended`, by the clock of this process."""

    began: float
    ended: float
    beats: Mapping[str, Beat]


def look_at_beats(database: Database, keys: RootKeys) -> Look:
    """Read the heartbeats of the first limits.CLOCKS_MAX sessions by deadline, in two round trips."""
    began = database.runtime.now()
    beats = run(database, lambda tr: _beats(tr, keys), timeout_s=limits.CLOSE_TIMEOUT_S)
    return Look(began, database.runtime.now(), beats)


def _beats(tr: Transaction, keys: RootKeys) -> dict[str, Beat]:
    under = keys.beats_due
    rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.CLOCKS_MAX, streaming_mode=EXACT)
    due = [keys.beat_of(bytes(row.key)) for row in rows.to_list()]
    asked = [ask_holder(tr.snapshot, keys, beat[1]) for beat in due if beat is not None]
    holders = [reply() for reply in asked]
    return {
        holder.session: Beat(
            holder.seen,
            holder.dies or 0.0,
            ", ".join(f"{one.host}, process {one.process_id}" for one in holder.processes) or holder.session,
            tuple((one.host, one.process_id) for one in holder.processes),
        )
        for holder in holders
        if holder.seen is not None
    }


def check_clocks(first: Look, second: Look) -> list[Check]:
    """A result for each clock that differs; without any, the number of clocks that were compared."""
    known = [(beat, _difference_s(first, second, id_, beat)) for id_, beat in second.beats.items()]
    found = [_skew(beat, least_s) for beat, least_s in known if abs(least_s) > limits.CLOCK_WARNING_S]
    renewed = sum(1 for id_, beat in second.beats.items() if _is_renewed(first, id_, beat))
    if found:
        return found
    text = f"{renewed} of {len(second.beats)} sessions beat between the two looks, and agree with this clock"
    return [fine(CHECK, text, compared=renewed, sessions=len(second.beats))]


def check_sessions(look: Look) -> list[Check]:
    """A warning if sessions are overdue: their tasks stay taken until a process ends them."""
    overdue = [beat for beat in look.beats.values() if beat.deadline < look.began - limits.OVERDUE_WARNING_S]
    if not overdue:
        return [_before_deadlines(look)]
    told = counted(len(overdue), "overdue session")
    text = f"{told}, such as that of {overdue[0].place}: its tasks stay taken"
    cure = "Start a worker, or any program that takes: it ends the sessions of dead processes."
    return [warning(SESSIONS, text, cure, overdue=len(overdue), live=len(look.beats) - len(overdue))]


def _before_deadlines(look: Look) -> Check:
    """The number of sessions. One without its last heartbeat may be that of a dead process."""
    count, silent = len(look.beats), [beat for beat in look.beats.values() if _has_missed(beat, look.began)]
    text = "1 session before its deadline" if count == 1 else f"{count:,} sessions before their deadlines"
    if silent:
        has = "1 has" if len(silent) == 1 else f"{len(silent):,} have"
        text += f"; {has} missed a heartbeat, such as that of {silent[0].place}"
    return fine(SESSIONS, text, live=count, silent=len(silent))


def _has_missed(beat: Beat, now: float) -> bool:
    return now - beat.at > 2 * (beat.deadline - beat.at) / limits.BEATS_PER_TTR


def _difference_s(first: Look, second: Look, id_: str, beat: Beat) -> float:
    """The seconds, at the least, by which the clock of a process is ahead of ours; below 0 if behind."""
    if beat.at > second.ended:
        return beat.at - second.ended
    if _is_renewed(first, id_, beat) and beat.at < first.began:
        return beat.at - first.began
    return 0.0


def _is_renewed(first: Look, id_: str, beat: Beat) -> bool:
    before = first.beats.get(id_)
    return before is not None and before.at != beat.at


def _skew(beat: Beat, least_s: float) -> Check:
    side = "ahead of" if least_s > 0 else "behind"
    text = f"the clock of {beat.place} is {side} this one by at least {abs(least_s):.1f} s"
    make = failure if abs(least_s) > limits.CLOCK_SKEW_S else warning
    return make(CHECK, text, CURE, place=beat.place, difference_s=least_s)
