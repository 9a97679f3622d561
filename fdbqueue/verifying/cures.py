"""The commands that end a contradiction, as they are typed."""

import shlex


def command(verb: str, queue: str | None, *arguments: str) -> str:
    """The command on a queue; on the root without a queue."""
    if queue is None:
        return shlex.join(["fdbqueue", verb, *arguments])
    if queue.startswith("-"):
        return shlex.join(["fdbqueue", verb, *arguments, "--", queue])
    return shlex.join(["fdbqueue", verb, queue, *arguments])


def mending(queue: str | None, registered: bool = True) -> str:
    """The command that mends; a queue that is not registered has no command."""
    return command("verify", queue, "--mend") if registered else "verify(db, queue, mend=True)"


FOREIGN = "Another program has written it, or a newer release: look there. Nothing here changes it."
