"""The lines that a command writes into the audit: its words tell the parts of them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from getpass import getuser
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.runtime import Runtime
from fdbqueue.operate.audit import AFTER, Deed, Trail, told_values
from fdbqueue.tasks.detached import SEPARATOR

_BULK = (
    *("change", "clear", "dead kick", "drop", "elements export-dirq", "elements import-dirq"),
    *("import fdb-layer", "import file", "import persist-queue", "kick", "redrive run", "release-all"),
    *("schedule fire", "spread", "trash empty", "trash restore", "truncate"),
)
"""Commands on many tasks: a line at the beginning, and one at the end."""
_TOLD = (
    *("capacity", "ttl", "ttr", "pri", "key_concurrency", "retain_s", "attempts", "backoff"),
    *("result_ttl", "without", "kind", "codec", "partitions", "number", "slots", "rate", "per", "burst"),
    *("per_key", "rate_per_s", "into", "limit", "error", "count", "everything", "every", "expression"),
    *("timezone", "missed", "paused", "targets", "mend", "maxlock", "receipts", "remove", "dropped"),
    *("for_s", "weights"),
)
"""Options with values that stand in the line. Data, headers and texts of failures are left out, and keys but
those of weights, which looks hide.
"""
ACTOR_VARIABLE = "FDBQUEUE_ACTOR"


def actor_of(runtime: Runtime) -> str:
    """The actor on the command line: $FDBQUEUE_ACTOR, or else user@host."""
    if given := os.environ.get(ACTOR_VARIABLE, "").strip():
        return given
    try:
        user = getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        user = str(os.getuid())
    return f"{user}@{runtime.host_name()}"


class Audited:
    """The audit of one run of a command."""

    def __init__(self, path: str, arguments: Mapping[str, Any], root: Any) -> None:
        self._root = root
        self._database: Database | None = None
        self._trails = ExitStack()
        self._trail: Trail | None = None
        given = {name: value for name, value in arguments.items() if name in _TOLD}
        given = {name: value for name, value in given.items() if value not in (None, (), {}, False)}
        subject = arguments.get("id_") or arguments.get("name") or arguments.get("group") or ""
        self._deed = Deed(
            "",
            path,
            arguments.get("queue") or "",
            subject,
            told_values({**AFTER.get(path, {}), **given}),
            bool(arguments.get("where")) or (path in _BULK and not arguments.get("ids")),
            1 if "id_" in arguments else None,
        )

    @contextmanager
    def over(self, database: Database) -> Iterator[Database]:
        """The database that writes the line of the command with its first effect."""
        self._database = database
        self._deed = self._deed._replace(actor=actor_of(database.runtime))
        with self._trails:
            yield self._begun(self._deed)

    def about(self, id_: str) -> Database:
        """The database that writes the line of one task among several: its id, or the token of its lease."""
        return self._begun(self._deed._replace(subject=id_.partition(SEPARATOR)[0], tasks=1))

    def counts(self, tasks: int) -> None:
        if self._trail is not None:  # else it is a dry run
            self._trail.tasks = tasks

    def _begun(self, deed: Deed) -> Database:
        assert self._database is not None  # `over` comes first
        self._trail = Trail(self._database, self._root, deed)
        return self._trails.enter_context(self._trail)
