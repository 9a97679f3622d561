"""The count at the end of a soak: the notes of its processes are compared with the database."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Database, TaskQueue, verify
from fdbqueue.testing.soak_writer import EFFECTS, ENDS, NAME, NOTES, items, url_in
from fdbqueue.testing.soundness import told

SHOWN = 5
PAGE = 500


@dataclass(frozen=True)
class Notes:
    """The lines of all notes: changes that were tried, and answers."""

    tried: frozenset[str]
    put: frozenset[str]
    done: frozenset[str]


@dataclass(frozen=True)
class Stored:
    """The contents of the database."""

    effects: dict[str, int]
    ends: dict[str, int]
    tasks: list[str]
    items: list[str]
    size: int
    """The counter of the items."""
    statistics: dict[str, dict[str, int]]
    findings: tuple[str, ...] = ()
    """The contradictions between stored keys."""


@dataclass(frozen=True)
class Count:
    acknowledged: int
    done: int
    left: int
    errors: tuple[str, ...]

    def __str__(self) -> str:
        told = f"{self.acknowledged} acknowledged puts, {self.done} effects, {self.left} left"
        return "\n".join(
            [told, *(self.errors or ["nothing lost, nothing twice, all counters exact, all keys sound"])]
        )


def counted(directory: Path) -> Count:
    with fdbqueue.open(url_in(directory)) as db:
        return judged(notes_in(directory), stored_in(db))


def notes_in(directory: Path) -> Notes:
    lines = [line for path in (directory / NOTES).iterdir() for line in path.read_text().splitlines()]
    words = [line.split(" ") for line in lines]
    return Notes(*(frozenset(v for word, v in words if word == wanted) for wanted in ("try", "put", "done")))


def stored_in(db: Database) -> Stored:
    queue: Any = TaskQueue.open(db, NAME)
    queue.release_all(db)  # the killed processes hold tasks
    return Stored(
        _counters(db, EFFECTS),
        _counters(db, ENDS),
        [task.data for task in _pages(lambda after: queue.tasks(db, "r", PAGE, after=after))],
        _pages(lambda after: items().items(db, PAGE, after=after)),
        items().size(db),
        queue.statistics(db),
        tuple(told(verify(db), verify(db, items()))),
    )


def _counters(db: Database, under: Any) -> dict[str, int]:
    rows = db.get_range_startswith(under.key())
    return {under.unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in rows}


def _pages(page_after: Any) -> list[Any]:
    page = page_after(None)
    found = list(page)
    while page.next is not None:
        page = page_after(page.next)
        found += page
    return found


def judged(notes: Notes, stored: Stored) -> Count:
    left = [*stored.tasks, *stored.items]
    errors = [*_compared(notes, stored, left), *_counted_wrong(stored), *stored.findings]
    return Count(len(notes.put), len(stored.effects), len(left), tuple(errors))


def _compared(notes: Notes, stored: Stored, left: list[str]) -> Iterable[str]:
    there = set(left) | set(stored.effects)
    twice = {value for value, count in Counter(left).items() if count > 1}
    twice |= {value for value, count in stored.effects.items() if count != 1}
    yield from _told("lost", notes.put - there)
    yield from _told("twice", twice | (set(left) & set(stored.effects)))
    yield from _told("from nowhere", there - notes.tried)
    yield from _told("told as done, without its effect", notes.done - set(stored.effects))


def _told(what: str, values: Iterable[str]) -> Iterable[str]:
    found = sorted(values)
    if found:
        yield f"{what}: {len(found)}, the first of them {', '.join(found[:SHOWN])}"


def _counted_wrong(stored: Stored) -> Iterable[str]:
    tasks, calls = stored.statistics["tasks"], stored.statistics["calls"]
    done = sum(value.startswith("t.") for value in stored.effects)
    back = calls["release"] + calls["ttr"]
    exact = {
        "size of the items": (stored.size, len(stored.items)),
        "ready tasks": (tasks["ready"], len(stored.tasks)),
        "tasks": (tasks["total"], len(stored.tasks)),
        "acks": (calls["ack"], done),
        "tasks done": (tasks["done"], done),
        "puts": (calls["put"], done + len(stored.tasks)),
        "effects by process": (sum(stored.ends.values()), len(stored.effects)),
    }
    for name, (counter, real) in exact.items():
        if counter != real:
            yield f"the counter of the {name} says {counter}, there are {real}"
    # A lease may end before its caller has received the task: its end is counted, and its take is not.
    if not done <= calls["take"] <= done + back:
        yield f"the counter of the takes says {calls['take']}, of which {done} are done, and {back} came back"
