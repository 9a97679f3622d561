"""Features: each is one file of hooks. The life cycle names none of them, and runs those of a task only."""

import ast
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, InvalidArgument, TaskQueue, verify
from fdbqueue.core.registry import Registry
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import FinishedFile
from fdbqueue.operate.exports.importing import Import
from fdbqueue.tasks.calls import Put
from fdbqueue.tasks.creating import asked_for, created
from fdbqueue.tasks.feature import (
    ASKED,
    OF_QUEUES,
    OF_TASKS,
    SOUGHT,
    STAGES,
    SWEPT,
    Answers,
    Feature,
    Filter,
    Go,
    Stage,
)
from fdbqueue.tasks.options import Draft, Settings
from fdbqueue.tasks.stored.records import Extra, S

PACKAGE = Path(fdbqueue.__file__).parent
VERBS = {"tasks/queue.py", "tasks/looks.py", "tasks/handle.py"}
"""The public verbs about results, steps and ended tasks."""
OF_LIMITS = {"tasks/source.py", "operate/verify/root.py"}
"""A gate decides which ranges are read; and the limits of a root, which belong to no queue."""
FACES = VERBS | OF_LIMITS
HOOKS = tuple(name for name, value in vars(Feature).items() if callable(value))
NAMES = {*OF_TASKS.values(), *(name for _, name in OF_QUEUES.values())}


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


def test_the_table_of_stages_names_fields_of_records() -> None:
    assert set(STAGES) <= set(Extra.__struct_fields__)
    assert all(resolve_name(name).put is not Stage.put for name in STAGES.values())


def test_the_table_of_filters_has_an_index_for_each() -> None:
    for name in SOUGHT.values():
        found = resolve_name(name)
        assert issubclass(found, Filter)
        assert (found.ids, found.matches) != (Filter.ids, Filter.matches)


def test_the_features_of_tasks_that_are_swept_are_named_so() -> None:
    sweeping = [field for field, name in OF_TASKS.items() if resolve_name(name).sweep is not Feature.sweep]
    assert sorted(SWEPT) == sorted(sweeping)


def used_in(path: Path) -> Iterator[str]:
    """The files that a file imports, at once or late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "late":
            yield f"fdbqueue.tasks.{node.attr}"


def test_only_faces_name_a_feature() -> None:
    """Neither the life cycle nor an operator's tool: they ask the tables."""
    # Headers have no file; the life cycle goes by attempts itself.
    asked = (name for option, name in ASKED.items() if option not in ("headers", "attempts", "backoff"))
    features = {name.partition(":")[0] for name in (*NAMES, *STAGES.values(), *asked)}
    own = {PACKAGE / "tasks/__init__.py"} | {
        PACKAGE.parent / f"{name.replace('.', '/')}.py" for name in features
    }
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path not in own and not features.isdisjoint(used_in(path))
    }
    assert naming == FACES


FEATURE = "tests.takes_by_header"


class Doubling(Stage):
    """Refuses tasks with the header "refused", and puts the others twice: a stage in one class."""

    goes_alone = True

    def put(self, put: Put, go: Go, drafts: Sequence[Draft]) -> Answers:  # noqa: ARG002
        if any(draft.extra is not None and "refused" in draft.extra.headers for draft in drafts):
            return [InvalidArgument(name="headers", wanted="other ones", got=None) for _ in drafts]
        first = go(drafts)()
        go(drafts)()
        return first


@pytest.fixture
def db(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database in a process that has one feature more."""
    for name in ("columns", "_of_codes", "_sizes"):
        monkeypatch.setattr(S, name, copy(getattr(S, name)))
    monkeypatch.delitem(sys.modules, FEATURE, raising=False)
    monkeypatch.setitem(OF_QUEUES, "takes by header", (("count_takes_by",), f"{FEATURE}:TakesByHeader"))
    monkeypatch.setitem(ASKED, "counts_as", f"{FEATURE}:asked")
    with fdbqueue.open("memory:") as found:
        yield found
    sys.modules.pop(FEATURE, None)


def created_in(db: Database, name: str = "q", **options: Any) -> TaskQueue:
    # The signature of `TaskQueue.create` names the options that type checkers and pages know.
    created(db, Registry(), asked_for(name, None, options, temporary=False, if_not_exists=False))
    return TaskQueue.open(db, name)


def with_takes(db: Database, **options: Any) -> TaskQueue:
    """A queue with two takes of the tenant a, one of b, and one task more of a."""
    queue = created_in(db, count_takes_by="tenant", **options)
    for tenant in "aab":
        queue.put_many(db, [1], counts_as=tenant)
        assert queue.take(db, 0) is not None
    queue.put_many(db, [1], counts_as="a")
    return queue


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_new_feature_shows_in_create_put_take_and_statistics(db: Database, partitions: int) -> None:
    queue = with_takes(db, partitions=partitions)
    assert queue.options["count_takes_by"] == "tenant"
    [ready] = queue.tasks(db, "r", 9)
    assert ready.headers == {"tenant": "a"}
    assert queue.statistics(db)["takes"] == {"a": 2, "b": 1}


def test_the_options_of_a_new_feature_are_checked(db: Database) -> None:
    with pytest.raises(InvalidArgument, match="count_takes_by"):
        TaskQueue.open(db, created_in(db, count_takes_by=5).name)
    with pytest.raises(InvalidArgument, match="counts_as"):
        created_in(db, "r", count_takes_by="tenant").put_many(db, [1], counts_as=5)


def test_verify_checks_the_rows_of_a_new_feature(db: Database) -> None:
    queue = with_takes(db)
    assert verify(db, queue).sound
    db[resolve_name(f"{FEATURE}:TAKES").key(queue._shape.keys.prefix)("a")] = b"damaged"
    [finding] = verify(db, queue, mend=True).findings
    assert "The takes of 'a' cannot be read." in finding.text
    assert verify(db, queue).sound
    assert queue.statistics(db)["takes"] == {"b": 1}


def test_an_import_takes_the_rows_of_a_new_feature_back(db: Database, tmp_path: Path) -> None:
    queue = with_takes(db)
    queue.pause(db)
    for _ in Export(db, Registry(), ["q"]).run(tmp_path / "file"):
        pass
    with fdbqueue.open("memory:") as other:
        with FinishedFile(tmp_path / "file") as file:
            for _ in Import(other, Registry(), file).run():
                pass
        assert TaskQueue.open(other, "q").statistics(other)["takes"] == {"a": 2, "b": 1}
        assert verify(other, "q").sound


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_truncate_clears_the_rows_of_a_new_feature(db: Database, partitions: int) -> None:
    queue = with_takes(db, partitions=partitions)
    queue.truncate(db)
    assert "takes" not in queue.statistics(db) or not queue.statistics(db)["takes"]


def test_explain_tells_the_reason_of_a_new_feature(db: Database) -> None:
    queue = with_takes(db)
    [ready] = queue.tasks(db, "r", 9)
    assert "2 tasks of 'a' were taken." in [reason.text for reason in queue.explain(db, ready).reasons]


def test_a_queue_without_a_feature_runs_none_of_its_hooks(db: Database) -> None:
    queue = created_in(db)
    queue.put_many(db, [1])
    assert queue.take(db, 0) is not None
    assert FEATURE not in sys.modules


def test_a_new_stage_of_a_put_is_one_class(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "headers", f"{__name__}:Doubling")
    queue = created_in(db)
    queue.put(db, 1, headers={"tenant": "a"})
    with pytest.raises(InvalidArgument):
        queue.put(db, 2, headers={"refused": ""})
    queue.put(db, 3)
    assert [task.data for task in queue.take_many(db, 9)] == [1, 1, 3]
