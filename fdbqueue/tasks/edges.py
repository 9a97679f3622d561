"""The edges of the life cycle: one function each, for several tasks at once.

    -        put                      ->  READY, DELAYED
    DELAYED  due                      ->  READY
    READY    take                     ->  TAKEN
    TAKEN    ack                      ->  gone
    TAKEN    release                  ->  READY, DELAYED
    TAKEN    lease_over, give_back    ->  READY
    TAKEN    touch                    ->  TAKEN, for longer
    any      bury                     ->  BURIED
    BURIED   kick                     ->  READY
    any      delete, expire           ->  gone

An edge is told the tasks as they are, in a state that it starts from, read serialisably in this transaction;
who may do it is decided before (verbs.py). Writes what `Change.move` writes; reads what the discipline reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fdbqueue.task import TaskState
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.keys import NEVER_US, Record, new_id
from fdbqueue.tasks.kinds import Draft, later


@dataclass(frozen=True)
class Lease:
    """In whose name a task is taken, and the token that tells this lease from any other."""

    session: bytes
    token: bytes


def put(change: Change, drafts: Sequence[Draft], index: int, random: bytes) -> list[Record]:
    records = [_new(change, draft, new_id(n, random)) for n, draft in enumerate(drafts, index)]
    change.create(records, [draft.payload for draft in drafts])
    return _counted(change, records, "put")


def take(change: Change, records: Sequence[Record], lease: Lease) -> list[Record]:
    taken = [_taken(change, record, lease) for record in records]
    change.move(records, taken)
    return _counted(change, taken, "take")


def ack(change: Change, records: Sequence[Record]) -> list[Record]:
    return _gone(change, records, "ack")


def delete(change: Change, records: Sequence[Record]) -> list[Record]:
    return _gone(change, records, "delete")


def expire(change: Change, records: Sequence[Record]) -> list[Record]:
    change.count("ttl", len(records))
    return _gone(change, records, "delete", told=("delete", "ttl"))


def release(change: Change, records: Sequence[Record], delay_us: int = 0) -> list[Record]:
    if not delay_us:
        return _become_ready(change, records, "release")
    delayed = [
        replace(
            freed(record),
            state=TaskState.DELAYED,
            until_us=later(change.now_us, delay_us),
            expires_us=later(record.expires_us, delay_us),
        )
        for record in records
    ]
    change.move(records, delayed)
    return _counted(change, delayed, "release")


def lease_over(change: Change, records: Sequence[Record]) -> list[Record]:
    return _become_ready(change, records, "ttr")


def due(change: Change, records: Sequence[Record]) -> list[Record]:
    return _become_ready(change, records, "delay")


def kick(change: Change, records: Sequence[Record]) -> list[Record]:
    return _become_ready(change, records, "kick")


def give_back(change: Change, records: Sequence[Record]) -> list[Record]:
    """A take that nobody was there to receive: it has not happened."""
    ready = [replace(freed(record), attempts=record.attempts - 1) for record in records]
    change.move(records, ready)
    change.count("take", -len(records))
    change.count("other")
    return ready


def bury(change: Change, records: Sequence[Record]) -> list[Record]:
    buried = [replace(freed(record), state=TaskState.BURIED) for record in records]
    change.move(records, buried)
    return _counted(change, buried, "bury")


def touch(change: Change, records: Sequence[Record], span_us: int) -> list[Record]:
    touched = [
        replace(
            record,
            until_us=later(record.until_us, span_us),
            expires_us=later(record.expires_us, span_us),
            ttr_us=later(record.ttr_us, span_us),
        )
        for record in records
    ]
    change.move(records, touched)
    return _counted(change, touched, "touch")


def _new(change: Change, draft: Draft, id_: bytes) -> Record:
    now_us = change.now_us
    return Record(
        id=id_,
        state=TaskState.DELAYED if draft.delay_us else TaskState.READY,
        pri=draft.pri,
        created_us=now_us,
        expires_us=later(later(now_us, draft.ttl_us), draft.delay_us),
        ttr_us=draft.ttr_us,
        size_bytes=len(draft.payload),
        key=draft.key,
        until_us=later(now_us, draft.delay_us) if draft.delay_us else NEVER_US,
    )


def _taken(change: Change, record: Record, lease: Lease) -> Record:
    until_us = later(change.now_us, record.ttr_us)
    if change.shape.kind.ttl_ends_lease:
        until_us = min(until_us, record.expires_us)
    return replace(
        record,
        state=TaskState.TAKEN,
        attempts=record.attempts + 1,
        until_us=until_us,
        session=lease.session,
        token=lease.token,
    )


def freed(record: Record) -> Record:
    """Ready, in nobody's hands."""
    return replace(record, state=TaskState.READY, until_us=NEVER_US, session=b"", token=b"")


def _become_ready(change: Change, records: Sequence[Record], call: str) -> list[Record]:
    ready = [freed(record) for record in records]
    change.move(records, ready)
    return _counted(change, ready, call)


def _gone(
    change: Change, records: Sequence[Record], call: str, told: Sequence[str] = ("delete",)
) -> list[Record]:
    gone = [replace(freed(record), state=TaskState.DONE) for record in records]
    for record in gone:
        for event in told:
            change.tell(record, event)  # while the payload is still there
    change.remove(records)
    change.count(call, len(gone))
    return gone


def _counted(change: Change, records: list[Record], call: str) -> list[Record]:
    change.count(call, len(records))
    for record in records:
        change.tell(record, call)
    return records
