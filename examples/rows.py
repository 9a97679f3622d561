"""Rows for SQLite, a hundred in each transaction: a commit of SQLite costs the same for one row as for many.

    python examples/rows.py put 10000                      # some measurements
    fdbqueue work rows examples.rows:write --batch 100     # writers, as many as you like
    python examples/rows.py                                # the number of rows

A writer that dies between its commit and the acks writes the same rows again: their key is the id of the
task, so each is there once. The queue is in the database of $FDBQUEUE_URL, or else ./fdbqueue-data.
"""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing

import fdbqueue
from fdbqueue import HeldTask, Retry, TaskQueue

FILE = "rows.sqlite"
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (task TEXT PRIMARY KEY, sensor TEXT NOT NULL, value REAL NOT NULL)"


def write(tasks: list[HeldTask]) -> None:
    """Insert the rows of a batch. One that SQLite refuses is buried, and the others are written."""
    with closing(sqlite3.connect(FILE, timeout=30)) as table, table:  # the second commits
        table.execute(SCHEMA)
        for task in tasks:
            row = (task.id, task.data.get("sensor"), task.data.get("value"))
            try:
                table.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                task.bury(str(error))


async def write_beside(tasks: list[HeldTask]) -> None:
    """As `write`, in a program with an event loop, which goes on meanwhile."""
    try:
        await asyncio.to_thread(write, tasks)
    except sqlite3.OperationalError as error:  # locked for longer than its timeout
        raise Retry(1.0, str(error)) from error


def count() -> int:
    with closing(sqlite3.connect(FILE)) as table:
        table.execute(SCHEMA)
        return int(table.execute("SELECT count(*) FROM rows").fetchone()[0])


def main(words: list[str]) -> None:
    if words[:1] == ["put"]:
        with fdbqueue.open() as db:
            rows = TaskQueue.create(db, "rows", "fifottl", ttr=60, if_not_exists=True)
            for start in range(0, int(words[1]), 500):
                numbers = range(start, min(start + 500, int(words[1])))
                rows.put_many(db, [{"sensor": f"s{n % 7}", "value": n / 10} for n in numbers])
    print(json.dumps({"rows": count()}))


if __name__ == "__main__":
    main(sys.argv[1:])
