"""The count at the end of a soak: each subject is drained, its keys are read, and its rules judge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.testing.history import read
from fdbqueue.testing.trace import unsound
from tests.system.soak.client import NOTES, Client, Setup, Subject
from tests.system.soak.rules import LAST, Evidence, Stored, Strike
from tests.system.soak.subjects import opened

STUCK_AFTER_S = 60.0
"""Longer than each lease, each session and the deadline of a request."""
LAST_COUNT = 5
DRAIN_PAUSE_S = 0.1


@dataclass(frozen=True)
class Count:
    """The numbers of one subject, and the promises that were broken."""

    subject: str
    put: int
    ended: int
    again: int
    """Takes of a value that had been taken before."""
    unknown: int
    """Calls without an answer."""
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subject:12} {self.put:>9,} {self.ended:>9,} {self.again:>9,} {self.unknown:>9,}"


def counted(directory: Path, strikes: Sequence[Strike]) -> list[Count]:
    """Drain and judge every subject, with the processes gone."""
    setup = Setup.read(directory)
    with fdbqueue.open(setup.url, session_ttr_s=setup.session_ttr_s) as db:
        return counted_in(db, setup, directory, strikes)


def counted_in(db: Database, setup: Setup, directory: Path, strikes: Sequence[Strike] = ()) -> list[Count]:
    subjects = opened(db, setup)
    _drain_all(db, setup, directory, subjects)
    findings = unsound(db, setup.queues)
    return [_count_of(subject, subject.stored(db, findings), directory, strikes) for subject in subjects]


def _drain_all(db: Database, setup: Setup, directory: Path, subjects: Sequence[Subject]) -> None:
    if setup.wait_s:
        db.runtime.sleep(limits.REQUEST_DEADLINE_S)  # requests of the killed processes have shares until then
    client = Client(db, setup, directory, "drain", calm=True)
    for subject in subjects:
        subject.settle(client)
    for subject in subjects:
        _drain(subject, client)
    client.close()
    last = Client(db, replace(setup, batch_max=1), directory, LAST, calm=True)
    for subject in subjects:
        if subject.has_order:
            _put_and_take(subject, last)
    last.close()


def _drain(subject: Subject, client: Client) -> None:
    """Take until nothing is left, or STUCK_AFTER_S have passed without an end of a value."""
    runtime, left = client.db.runtime, _left(subject, client.db)
    until = runtime.monotonic() + STUCK_AFTER_S
    while left:
        found = client.paced(lambda: subject.take(client, client.most))
        is_late = runtime.monotonic() > until
        if found and not is_late:
            continue
        before, left = left, _left(subject, client.db)
        if left < before:
            until = runtime.monotonic() + STUCK_AFTER_S
        elif is_late:
            return
        runtime.sleep(DRAIN_PAUSE_S)


def _left(subject: Subject, db: Database) -> int:
    """Number of values that are left. A look lists one state behind the other, and misses a task that a sweep
    moves meanwhile; a second look finds it.
    """
    return len(subject.left(db)) or len(subject.left(db))


def _put_and_take(subject: Subject, client: Client) -> None:
    """Put alone and take alone, one value at a time: the order is strict then."""
    for _ in range(LAST_COUNT):
        subject.put(client, 1)
    subject.put(client, LAST_COUNT)
    _drain(subject, client)


def _count_of(subject: Subject, stored: Stored, directory: Path, strikes: Sequence[Strike]) -> Count:
    setup = subject.setup
    evidence = Evidence(
        read(directory / NOTES / subject.name),
        stored,
        strikes,
        round(setup.ttr_s * 1e6),
        round(setup.session_ttr_s * 1e6),
    )
    return judged(subject, evidence)


def judged(subject: Subject, evidence: Evidence) -> Count:
    ended = set(evidence.stored.effects) | {value for value, count in evidence.apart.items() if count}
    return Count(
        subject.name,
        len(evidence.told),
        len(ended),
        sum(len(takes) - 1 for takes in evidence.takes_of.values()),
        sum(not call.is_known for call in evidence.calls),
        tuple(sentence for rule in subject.rules for sentence in rule(evidence)),
    )
