"""Hostile values and options: an error of ours, a short message, one line of refusal, and nothing stored."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.commit import first_seed
from tests.fuzz.calls import LEFT_OUT, calls, public_names
from tests.fuzz.commands import Program, lines
from tests.fuzz.search import Trial, in_turn, run, search
from tests.fuzz.world import World

LABELS_EACH = 8
ALWAYS_REFUSED = {
    "Database.create_transaction": "it is closed",
    "DeadLetters.begin_redrive": "another one is under way",
    "Session.end_within": "a busy machine takes longer than the timeout",
    "SimpleElementQueue.get_path": "there is no file",
    "TaskFunction.result": "the task was put without result_ttl",
    "TaskQueue.alter": "it gives no option",
    "TaskQueue.drop": "tasks are taken",
    "TaskQueue.ended_task": "the task has not ended",
    "TaskQueue.ended_tasks_of": "one of the queues has no keys",
    "TaskQueue.result": "the task was put without result_ttl",
    "TaskQueue.key_statistics": "one of the queues has no keys",
    "current_task": "no worker runs a function here",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    working = tmp_path / "working directory"
    working.mkdir()
    monkeypatch.chdir(working)
    made = World(tmp_path)
    yield made
    made.close()


def test_every_public_name_is_called_or_left_out_for_a_reason() -> None:
    called = {call.name.partition(".")[0] for call in calls()}
    assert {name for name in public_names() if not name.startswith("_")} <= called | set(LEFT_OUT)


def test_good_arguments_are_accepted(world: World) -> None:
    """Otherwise a call would be refused before it checks its hostile argument."""
    refused = {call.name for call in calls() if run(world, Trial(call, {})).refused}
    assert {name for name in refused if not name.startswith("NullQueue.")} <= set(ALWAYS_REFUSED)


@pytest.mark.in_turn(4)
def test_hostile_arguments_are_refused(
    world: World, rounds: Callable[[int | None, int | None], int | None]
) -> None:
    seed = first_seed()
    found = search(partial(run, world), in_turn(random.Random(seed), rounds(LABELS_EACH, None)))
    assert not found.violations, f"seed {seed}: {found}"
    assert found.refused > 0.7 * found.trials


LABELS_EACH_OPTION = 4


@pytest.mark.in_turn(4)
def test_hostile_options_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int | None, int | None], int | None]
) -> None:
    working = tmp_path / "working" / "directory" / "of"
    working.mkdir(parents=True)
    monkeypatch.chdir(working)
    seed = first_seed()
    found = search(Program(tmp_path).run, lines(random.Random(seed), rounds(LABELS_EACH_OPTION, None)))
    assert not found.violations, f"seed {seed}: {found}"
