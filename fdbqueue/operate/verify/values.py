"""Verification: the public frozen values that tell which stored keys of a queue contradict each other.

Behind them stand the commands that end a contradiction, as they are typed.
"""

from dataclasses import dataclass

from fdbqueue.core.rows import Flaw
from fdbqueue.tasks import rows


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


def command(verb: str, queue: str | None, *arguments: str) -> str:
    """The command on a queue, with its options or other arguments; on the root without a queue."""
    return (
        rows.typed("fdbqueue", verb, *arguments) if queue is None else rows.command(queue, verb, *arguments)
    )


@dataclass(frozen=True)
class Cures:
    """The cures of one queue, or of the root. A queue that is not registered has no command."""

    queue: str | None
    registered: bool = True

    @property
    def mending(self) -> str:
        return command("verify", self.queue, "--mend") if self.registered else "verify(db, queue, mend=True)"

    def deleting(self, task: str) -> str:
        if self.registered:
            return command("delete", self.queue, task)
        return "The take that meets it sets it aside."

    def removing(self, aside: str) -> str:
        """Remove a value that was set aside."""
        if self.registered:
            return command("aside", self.queue, "--remove", aside)
        return f"queue.remove_aside(db, [{aside!r}])"
