"""Features: each is one file of hooks. The life cycle names none of them, and runs those of a task only."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name

import pytest

import fdbqueue
from fdbqueue import Task, TaskQueue
from fdbqueue.tasks.feature import OF_QUEUES, OF_TASKS, SWEPT, End, Feature, Site, feature_of_tasks
from fdbqueue.tasks.kinds import Settings
from fdbqueue.tasks.records.keys import Extra, Record

TASKS = Path(fdbqueue.__file__).parent / "tasks"
LIFE_CYCLE = ("change", "edges", "verbs", "sweep", "swept", "in_all", "parted", "source")
HOOKS = tuple(name for name, value in vars(Feature).items() if callable(value))
NAMES = {*OF_TASKS.values(), *(name for _, name in OF_QUEUES.values())}


def file_of(name: str) -> str:
    return name.partition(":")[0].rpartition(".")[2]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_feature_has_hooks_of_its_own(name: str) -> None:
    found = resolve_name(name)
    assert issubclass(found, Feature)
    assert any(getattr(found, hook) is not getattr(Feature, hook) for hook in HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_serves_a_feature(hook: str) -> None:
    assert any(getattr(resolve_name(name), hook) is not getattr(Feature, hook) for name in NAMES)


def test_the_tables_name_fields_of_records_and_options_of_queues() -> None:
    assert set(OF_TASKS) <= set(Extra.__struct_fields__)
    assert {option for options, _ in OF_QUEUES.values() for option in options} <= {
        field.name for field in fields(Settings)
    }


def test_the_features_of_tasks_that_are_swept_are_named_so() -> None:
    sweeping = [field for field, name in OF_TASKS.items() if resolve_name(name).sweep is not Feature.sweep]
    assert sorted(SWEPT) == sorted(sweeping)


def used_in(path: Path) -> Iterator[str]:
    """The files of tasks/ that a file imports, at once or late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fdbqueue.tasks":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).rpartition(".")[2]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "late":
            yield node.attr


@pytest.mark.parametrize("file", LIFE_CYCLE)
def test_the_life_cycle_names_no_feature(file: str) -> None:
    assert {file_of(name) for name in NAMES}.isdisjoint(used_in(TASKS / f"{file}.py"))


TAKES, ENDS = b"takes of tenants", b"ends of tenants"


class Counting(Feature):
    """Counts the takes of tasks with headers: a feature in one class."""

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        for old, new in zip(olds, news, strict=True):
            if new.attempts > old.attempts:
                site.tr.add(TAKES, bytes([1]))
        return news

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:
        site.tr.set(ENDS, f"{len(records)} {end.outcome}".encode())

    def cleared(self, site: Site) -> None:
        site.tr.clear(TAKES)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskQueue]:
    monkeypatch.setitem(OF_TASKS, "headers", f"{__name__}:Counting")
    feature_of_tasks.cache_clear()
    with fdbqueue.open("memory:") as db:
        yield TaskQueue.create(db, "q")
    feature_of_tasks.cache_clear()


def test_a_new_feature_is_one_class_and_one_row(queue: TaskQueue) -> None:
    db = queue._database
    queue.put(db, 1, headers={"tenant": "a"})
    for _ in range(2):
        queue.release(db, taken(queue))
    assert db[TAKES] == bytes([2])
    queue.ack(db, taken(queue))
    assert (db[TAKES], db[ENDS]) == (bytes([3]), b"1 acked")
    queue.truncate(db)
    assert db[TAKES] is None


def test_a_task_without_a_feature_runs_none_of_its_hooks(queue: TaskQueue) -> None:
    db = queue._database
    queue.put(db, 1)
    queue.ack(db, taken(queue))
    assert db[TAKES] is None
    assert db[ENDS] is None


def taken(queue: TaskQueue) -> Task:
    task = queue.take(queue._database, 0)
    assert task is not None
    return task
