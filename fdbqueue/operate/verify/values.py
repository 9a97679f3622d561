"""Verification: the public frozen values that tell which stored keys of a queue contradict each other."""

from dataclasses import dataclass
from enum import StrEnum


class Flaw(StrEnum):
    """A kind of contradiction between stored keys."""

    RECORD = "unreadable record"
    STATE = "no key of its state"
    COPY = "different copies"
    STRAY = "key without owner"
    TIMER = "timer"
    PAYLOAD = "payload"
    KEY_STATE = "state of a task key"
    KEY_COUNTER = "counter of a task key"
    COUNTER = "counter"
    LINE = "waiting line"
    SET_ASIDE = "value set aside"
    SESSION = "session"
    DEFINITION = "definition"
    ORPHAN = "dropped queue"
    VALUE = "damaged value"
    UNKNOWN = "unknown key"


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction that one read version of the database shows."""

    flaw: Flaw
    queue: str | None
    """The name of the queue; None for keys of the root that belong to no queue."""
    key: bytes
    """The key, without the prefix of the queue or of the root."""
    text: str
    """A sentence that tells it."""
    cure: str
    """The command, or the event, that ends it."""
    mended: bool = False
    """True if this verification has mended it."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    findings: tuple[Finding, ...]
    """At most limits.FINDINGS_MAX."""
    uncompared: tuple[str, ...]
    """Sentences that tell which parts were not verified: counters of queues that changed too fast for one
    transaction, and queues of kinds that are unknown here.
    """
    queues: int
    """The number of queues that were verified."""
    keys: int
    """The number of keys that were verified."""
    whole: bool
    """False if the verification stopped because it had too many findings."""

    @property
    def sound(self) -> bool:
        """True if there is no finding that is left as it is."""
        return all(finding.mended for finding in self.findings)
