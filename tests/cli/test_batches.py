"""work --batch: a function that gets lists, and a command that gets a line of JSON for each task."""

import json

import pytest

from tests.cli.shell import Shell, Within
from tests.cli.test_exec import buried, run
from tests.cli.test_work import filled, statistics

LISTS = "def handler(tasks):\n    print(sorted(task.data for task in tasks))\n"
BATCH = ("--batch", "3", "--batch-wait", "0")


def test_a_command_gets_a_line_for_each_task(shell: Shell) -> None:
    filled(shell, "q", *range(5))
    status, out, err = run(shell, *BATCH, "--", "sh", "-c", 'echo "${FDBQUEUE_TASK-none}"; cat')
    assert status == 0, err
    lines = [line for line in out.splitlines() if line != "none"]
    assert out.count("none") == 2  # no variable tells of one task
    assert sorted(json.loads(line)["data"] for line in lines) == [0, 1, 2, 3, 4]
    assert {"id", "attempts", "headers"} <= json.loads(lines[0]).keys()


def test_a_failing_command_fails_its_batch(shell: Shell, program: Within) -> None:
    filled(shell, "q", 1, 2)
    status, _, _ = run(shell, *BATCH, "--attempts", "1", "--", "sh", "-c", "echo oops; exit 3")
    assert status == 1
    assert [task["history"][-1]["message"] for task in buried(program)] == ["exit status 3"] * 2


def test_a_function_gets_lists(shell: Shell) -> None:
    (shell.folder / "mine.py").write_text(LISTS)
    filled(shell, "q", 1, 2, 3)
    words = ("work", "q", "mine:handler", "--until-empty", "--processes", "1", *BATCH)
    assert shell.run(*words)[:2] == (0, "[1, 2, 3]\n")
    assert statistics(shell)["ends"]["acked"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--batch", "0", "--", "cat"), "0 is not in the range"),
        (("--batch", "-1", "--", "cat"), "-1 is not in the range"),
        (("--batch", "201", "--", "cat"), "201 is not in the range"),
        (("--batch", "2", "--batch-wait", "-1", "--", "cat"), "batch-wait"),
        (("--batch", "2", "--batch-wait", "nan", "--", "cat"), "nan is not a number"),
        (("--batch-wait", "1", "--", "cat"), "--batch-wait must be left out without --batch"),
        (("--batch", "2", "--", "cat", "{}"), "{} is for single tasks"),
        (("--batch", "2", "--into", "x", "--", "cat"), "--into is for single tasks"),
    ],
)
def test_nonsense_is_a_mistake(shell: Shell, words: tuple[str, ...], told: str) -> None:
    filled(shell, "q", 1)
    status, _, err = run(shell, *words)
    assert status == 2
    assert told in err
    assert statistics(shell)["calls"]["take"] == 0
