"""--shared-directory: for a directory that others may write to, and nothing else."""

from pathlib import Path

import pytest

import fdbqueue
from tests.cli.shell import Shell


@pytest.fixture
def open_to_all(tmp_path: Path) -> Shell:
    """The program, without options of a place; its usual directory is writable by everybody."""
    path = tmp_path / "fdbqueue-data"
    path.mkdir()
    path.chmod(0o777)
    shell = Shell("embedded:./fdbqueue-data", [], tmp_path)
    shell.where = []
    return shell


def test_a_directory_that_others_may_write_to_needs_the_option(open_to_all: Shell) -> None:
    """Before the command or behind it; what refuses names it."""
    status, _, err = open_to_all.run("create", "q")
    assert status == 2
    assert "--shared-directory" in err
    assert "Traceback" not in err
    assert list((open_to_all.folder / "fdbqueue-data").iterdir()) == []
    assert open_to_all.run("create", "q", "--shared-directory")[0] == 0
    assert open_to_all.run("--shared-directory", "put", "q", "x")[0] == 0
    status, out, err = open_to_all.run(
        "work", "q", "--shared-directory", "--exec", "--until-empty", "--processes", "1", "--", "echo", "{}"
    )
    assert (status, out) == (0, "x\n"), err


def test_what_is_no_directory_cannot_be_shared(open_to_all: Shell) -> None:
    status, _, err = open_to_all.run("--url", "fdb:", "--shared-directory", "queues")
    assert status == 2
    assert "shared_directory must be False for fdb:" in err
    assert "Traceback" not in err


def test_a_planted_directory_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """The usual directory, in a working directory that others use."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / "fdbqueue-data"
    fdbqueue.open(f"embedded:{planted}").close()
    (planted / "commits.1").unlink()
    (planted / "commits.1").symlink_to(victim)
    shell = Shell("", [], tmp_path)
    shell.where = []
    status, out, err = shell.run("queues")
    assert (status, out) == (2, "")
    assert "commits.1 is no regular file" in err
    assert len(err.splitlines()) == 1
    assert victim.read_bytes() == b"precious"
