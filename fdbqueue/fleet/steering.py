"""Steering: the workers of a root with their heartbeats, and the orders to them: drain, pause, resume.

An order is a key that its workers read (gate.py), so they obey within limits.ORDERS_EVERY_S, and answer in
their presences.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import age_of, ask_holder
from fdbqueue.core.sessions.workers import pause_value
from fdbqueue.fleet.gate import DRAINING, PAUSED, Order, ask_pause
from fdbqueue.fleet.status import Presence, named, presences


@dataclass(frozen=True)
class Member:
    """One worker of a root."""

    session: bytes
    presence: Presence
    seen: float | None = None
    """The time of its last heartbeat, by its clock; None if that cannot be read."""
    beat_age_s: float | None = None
    """The time since then, by the clock of the database; None if that does not tell."""

    def heartbeat_s(self, now: float) -> float | None:
        """The time since its last heartbeat, as far as possible by no clock of a process."""
        if self.seen is None:
            return None
        return max(0.0, now - self.seen if self.beat_age_s is None else self.beat_age_s)

    def age_s(self, now: float) -> float:
        """The time since its start, by its own clock if the age of its heartbeat is known."""
        if self.seen is not None and self.beat_age_s is not None:
            now = self.seen + self.beat_age_s
        return max(0.0, now - self.presence.since)

    @property
    def place(self) -> str:
        return f"{self.presence.host}:{self.presence.process_id}"

    @property
    def same(self) -> tuple[str, float]:
        """Equal for one worker with another session, and for no other."""
        return self.place, self.presence.since


def members(db: Database, keys: RootKeys) -> list[Member]:
    """The workers, by host and process. Reads: the presences, then each heartbeat, by snapshot."""
    found = [Member(session, presence) for session, presence in presences(db, keys).items()]
    beating = [one for some in _batches(found) for one in run(db, partial(_beating, keys, some))]
    return sorted(beating, key=lambda one: (one.presence.host, one.presence.process_id, one.presence.since))


def _batches(those: Sequence[Member]) -> Iterator[Sequence[Member]]:
    most = limits.CLOCKS_MAX
    return (those[start : start + most] for start in range(0, len(those), most))


def _beating(keys: RootKeys, some: Sequence[Member], tr: Transaction) -> list[Member]:
    get = tr.snapshot.get
    asked = [(ask_holder(tr.snapshot, keys, one.session), get(keys.heartbeat(one.session))) for one in some]
    return [
        Member(one.session, one.presence, holder().seen, age_of(tr, beat.value))
        for one, (holder, beat) in zip(some, asked, strict=True)
    ]


def chosen(found: Sequence[Member], target: str) -> list[Member]:
    """The workers of a HOST, a PID or a HOST:PID. Raises: InvalidArgument if there is none, or several hosts
    have that PID.
    """
    named = [one for one in found if target in (one.presence.host, one.place)]
    named = named or [one for one in found if target == str(one.presence.process_id)]
    if not named:
        raise InvalidArgument(name="target", wanted="HOST, PID or HOST:PID of a live worker", got=target)
    places = sorted({one.place for one in named})
    if len({one.presence.host for one in named}) > 1:
        raise InvalidArgument(name="target", wanted=f"one of {', '.join(places)}", got=target)
    return named


def drain(db: Database, keys: RootKeys, those: Sequence[Member]) -> None:
    """Tell workers to take no more, and to end after their last task.

    Reads: their sessions. Writes: a key for each that is alive. Conflicts: the ends of the sessions.
    """
    for some in _batches(those):
        run_once(db, keys, partial(_drain, keys, some))


def _drain(keys: RootKeys, some: Sequence[Member], tr: Transaction) -> None:
    asked = [(one.session, tr.get(keys.session(one.session))) for one in some]
    for session, found in asked:
        if found.present():
            tr.set(keys.drain(session), b"")


def pause(db: Database, keys: RootKeys, for_s: float = limits.FLEET_PAUSE_S) -> Order:
    """Let no worker of the root take a task for that time, or until `resume`; return the pause in force.

    Reads: the key, so that of two pauses the one that ends later holds. Writes: one key. Conflicts: another
    pause, `resume`.
    """
    until_us = db.runtime.now_us() + round(for_s * 1_000_000)

    def body(tr: Transaction) -> Order:
        found, asked = ask_pause(tr, keys)(), Order(PAUSED, until_us / 1_000_000)
        if found.state == PAUSED and (not found.pause or found.pause >= asked.pause):
            return found
        tr.set(keys.pause, pause_value(until_us))
        return asked

    return run_once(db, keys, body)


def resume(db: Database, keys: RootKeys) -> None:
    """Writes: a clear of one key."""
    run_once(db, keys, lambda tr: tr.clear(keys.pause))


def paused(db: Database, keys: RootKeys) -> Order | None:
    """The pause of the fleet; None without one. Reads: one key, by snapshot."""
    found = run(db, lambda tr: ask_pause(tr.snapshot, keys)())
    return found if found.state == PAUSED else None


def left(found: Iterable[Member], those: Iterable[Member]) -> list[Member]:
    """Those of `found` that are among `those`, perhaps with another session."""
    wanted = {one.same for one in those}
    return [one for one in found if one.same in wanted]


def told(found: Iterable[Member]) -> str:
    """The first workers with their releases: "a:1 of 0.2.0, b:7 of ? and 3 more"."""
    return named([f"{one.place} of {one.presence.version or '?'}" for one in found])


def at_work(found: Iterable[Member], pause: Order) -> list[Member]:
    """The workers that have not answered this pause yet, and have to."""
    return [one for one in undrained(found) if (one.presence.state, one.presence.pause) != pause]


def releases(found: Iterable[Member]) -> dict[str, int]:
    """The number of workers of each release, the most frequent first; "?" for one that does not tell it."""
    return dict(Counter(one.presence.version or "?" for one in found).most_common())


def undrained(found: Iterable[Member]) -> list[Member]:
    return [one for one in found if one.presence.state != DRAINING]
