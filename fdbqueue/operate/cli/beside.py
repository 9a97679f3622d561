"""Limits, schedules and groups as rows of `fdbqueue top`."""

from dataclasses import asdict
from typing import Any

from fdbqueue.operate.cli.show import Columns, Row, field, span
from fdbqueue.operate.overview.figures import Figures, GroupsFigures


def rows_of_queue(figures: Figures, name: str) -> dict[str, Any]:
    """The limits that a queue names, and the schedules that put into it."""
    return {
        "limits": [asdict(one) for one in figures.limits if name in one.queues],
        "schedules": [asdict(one) for one in figures.schedules if one.queue == name],
    }


def groups_row(found: GroupsFigures) -> Row:
    held = [group.id for group in found.first_held]
    return {"unfinished": found.unfinished, "held": found.held, "first_held": held, "whole": found.is_whole}


def schedule_rows(figures: Figures) -> list[Row]:
    rows = [{**asdict(one), "now": figures.now} for one in figures.schedules]
    return sorted(rows, key=lambda row: (-row["late_s"], row["due"] or float("inf")))


def _allows(row: Row) -> str:
    if row["free"] is None:
        return "missing" if row["error"] is None else "unreadable"
    of_key = " for each key" if row["per_key"] else ""
    if row["slots"] is not None:
        return f"{row['slots']} at a time{of_key}"
    return f"{row['rate']} in {row['per_s']:g} s, burst {row['burst']}{of_key}"


def _used(row: Row) -> str:
    return "" if row["slots"] is None else f"{row['used']}"


def _due(row: Row) -> str:
    if row["paused"]:
        return "paused"
    return "" if row["due"] is None or row["late_s"] else span(row["due"] - row["now"])


LIMIT_COLUMNS: Columns = {
    "limit": field("name"),
    "allows": _allows,
    "used": _used,
    "free": field("free"),
    "waiting": field("waiting"),
    "queues": lambda row: " ".join(row["queues"]),
}
SCHEDULE_COLUMNS: Columns = {
    "schedule": field("name"),
    "queue": field("queue"),
    "due in": _due,
    "late": lambda row: span(row["late_s"]) if row["late_s"] else "",
    "tasks": field("fired"),
    "error": field("error"),
}
GROUP_COLUMNS: Columns = {
    "groups": lambda row: f"{'' if row['whole'] else '>= '}{row['unfinished']}",
    "held by burials": field("held"),
    "first held": lambda row: " ".join(row["first_held"]),
}
