"""The commands that write a line of the audit, the parts of the line that their words tell, and `audit`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.audit import Deed, Trail, actor_of_process, told_values
from fdbqueue.operate.audit import lines as audits_of
from fdbqueue.operate.cli.frame import Here, cli, command, first_option, queue_names
from fdbqueue.operate.cli.show import Cell, Row, columns
from fdbqueue.tasks.detached import SEPARATOR

_BULK = frozenset(("change", "clear", "dead kick", "drop", "import file", "kick", "release-all", "truncate"))
"""Commands on many tasks: a line at the beginning, and one at the end."""
_OF_VERB: Mapping[str, Mapping[str, Any]] = {
    "pause": {"paused": True},
    "resume": {"paused": False},
    **{name: {"state": name} for name in ("cancel", "delete", "complete", "fail")},
    "bury": {"state": "buried"},
    "dead kick": {"state": "ready"},
}
"""What a command changes, if its options do not tell it."""
_TOLD = (
    *("capacity", "ttl", "ttr", "pri", "key_concurrency", "weights", "retain_s", "attempts", "backoff"),
    *("result_ttl", "without", "kind", "codec", "partitions", "number", "slots", "rate", "per", "burst"),
    *("per_key", "rate_per_s", "into", "limit", "error", "count", "everything", "every", "expression"),
    *("timezone", "missed", "paused"),
)
"""Options whose values stand in the line. Data, keys, headers and texts of failures are left out."""


class Audited:
    """The audit of one run of a command."""

    def __init__(self, path: str, arguments: Mapping[str, Any], root: Any) -> None:
        self._root = root
        self._database: Database | None = None
        self._trails: list[Trail] = []
        given = {name: value for name, value in arguments.items() if name in _TOLD}
        given = {name: value for name, value in given.items() if value not in (None, (), {}, False)}
        subject = arguments.get("id_") or arguments.get("name") or arguments.get("group") or ""
        self._deed = Deed(
            "",
            path,
            arguments.get("queue") or "",
            subject,
            told_values({**_OF_VERB.get(path, {}), **given}),
            bool(arguments.get("where")) or (path in _BULK and not arguments.get("ids")),
            1 if "id_" in arguments else None,
        )

    @contextmanager
    def over(self, database: Database) -> Iterator[Database]:
        """The database that writes the line of the command with its first effect."""
        self._database = database
        self._deed = self._deed._replace(actor=actor_of_process(database.runtime))
        try:
            yield self._trail(self._deed)
        except BaseException:
            self._end(stopped=True)
            raise
        self._end(stopped=False)

    def about(self, id_: str) -> Database:
        """The database that writes the line of one task among several: its id, or the token of its lease."""
        return self._trail(self._deed._replace(subject=id_.partition(SEPARATOR)[0], tasks=1))

    def counts(self, tasks: int) -> None:
        self._trails[-1].tasks = tasks

    def _end(self, *, stopped: bool) -> None:
        for trail in self._trails:
            trail.end(stopped=stopped)

    def _trail(self, deed: Deed) -> Database:
        assert self._database is not None  # `over` comes first
        self._trails.append(Trail(self._database, self._root, deed))
        return self._trails[-1].over()


@command(cli)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=queue_names)
@first_option
def audit(here: Here, queue: str | None, count: int) -> None:
    """List the last actions of operators: who did what, and when.

    The latest comes first; with QUEUE, its own, also after its drop. They have acted by the dashboard or the
    command line. An action on many tasks has a line at its beginning, and one at its end. Columns: time,
    actor, action, queue, id or name, phase, tasks, values before and after. $FDBQUEUE_ACTOR names who acts
    on the command line, in place of user@host.
    """
    with here.database() as database:
        found = run(database, partial(audits_of, keys=RootKeys(here.root), queue=queue))
    here.show(map(asdict, found[:count]), COLUMNS)


def _time(row: Row) -> str:
    return datetime.fromtimestamp(row["at"], UTC).isoformat(timespec="seconds")


def _values(name: str) -> Cell:
    return lambda row: ", ".join(f"{one}={value}" for one, value in row[name].items())


COLUMNS = columns(
    **columns(at=_time),
    **columns("actor", "action", "queue", "subject", "phase", "tasks"),
    before=_values("before"),
    after=_values("after"),
)
