"""What `stats` tells of a queue with a chronicle, and the columns of `top` for it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.visible import span
from fdbqueue.operate.backlog import backlog_at
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import Cell, Row
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.points import ask_points
from fdbqueue.tasks.times import Times


def chronicled(place: Place, database: Database, name: str) -> Row:
    """The times of the last hour, and the backlog at the rates of the last minutes."""
    found = Overview(name, keys=0, queues_only=True, root=place.root).figures(database).by_name.get(name)
    if found is None or found.tasks is None:
        return {}
    keys = place.tasks_in(database, name)._shape.shared
    minutes, _ = run(database, lambda tr: ask_points(tr, keys, database.runtime.now_us())())
    backlog = backlog_at(minutes, found.tasks)
    return {"times": times_row(found.tasks.times), "backlog": None if backlog is None else asdict(backlog)}


def times_row(times: Times | None) -> Mapping[str, Any] | None:
    return None if times is None else asdict(times)


def p99(part: str) -> Cell:
    """A column of the waits, or of the runs; empty without a chronicle."""

    def cell(row: Row) -> str:
        found = None if row["times"] is None else row["times"][part]
        if found is None:
            return ""
        return f"{found['p99_s']:.3f}s" if found["p99_s"] < 10 else span(found["p99_s"])

    return cell


LASTED: Mapping[str, Cell] = {"p99 wait": p99("waiting"), "p99 run": p99("running")}
