"""work: a Tasks as its handler, with calls that the command line has put."""

import json
import os
from pathlib import Path

from tests.cli.shell import HERE, Shell


def test_work_runs_the_functions_of_a_tasks(shell: Shell, tmp_path: Path) -> None:
    """A call may be put by any program; one of an unknown name is explained, buried and brought back."""
    folder = tmp_path / "files"
    folder.mkdir()
    shell.run("create", "q", "--kind", "fifottl")
    for call in ({"function": "keep", "args": ["a"]}, {"function": "lost", "kwargs": {"name": "b"}}):
        shell.run("put", "q", json.dumps(call))
    work = ("work", "q", "tests.cli.jobs:calls", "--until-empty", "--attempts", "2", "--backoff", "0.01")
    status, _, err = shell.run(*work, cwd=HERE, env=os.environ | {"JOBS_FOLDER": str(folder)})
    assert (status, [path.read_text() for path in folder.iterdir()]) == (1, ["kept"])
    assert "FunctionNotFound: No function named 'lost' here: Tasks('q') has keep." in err
    [buried] = shell.rows("tasks", "q", "--state", "buried")
    _, out, _ = shell.run("explain", "q", buried["id"])
    assert "FunctionNotFound: No function named 'lost' here: Tasks('q') has keep.\t" in out


def test_a_single_function_is_refused(shell: Shell) -> None:
    shell.run("create", "q", "--kind", "fifottl")
    status, _, err = shell.run("work", "q", "tests.cli.jobs:kept", "--until-empty", cwd=HERE)
    assert (status, "handler must be its Tasks" in err) == (2, True)
