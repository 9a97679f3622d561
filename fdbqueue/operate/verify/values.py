"""Verification: the public frozen values that tell which stored keys of a queue contradict each other.

Behind them stand the commands that end a contradiction, as they are typed.
"""

import shlex
from dataclasses import dataclass

from fdbqueue.core.rows import Flaw


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
    if queue is None:
        return _joined("fdbqueue", verb, *arguments)
    if queue.startswith("-"):
        options = arguments if arguments and arguments[0].startswith("-") else ()
        return _joined("fdbqueue", verb, *options, "--", queue, *arguments[len(options) :])
    return _joined("fdbqueue", verb, queue, *arguments)


def _joined(*words: str) -> str:
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """Quote a word with control characters for bash and zsh: a terminal would not show them."""
    return "$'" + "".join(map(_as_shown, word)) + "'"


def _as_shown(character: str) -> str:
    if character.isprintable() and character not in "'\\":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


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
