"""--shared-directory: only for a directory that other users may write to."""

from pathlib import Path

import pytest

import fdbqueue
from tests.cli.shell import Shell


@pytest.fixture
def open_to_all(tmp_path: Path) -> Shell:
    """The program without --url; all users may write to its default directory."""
    path = tmp_path / "fdbqueue-data"
    path.mkdir()
    path.chmod(0o777)
    shell = Shell("embedded:./fdbqueue-data", [], tmp_path)
    shell.where = []
    return shell


def test_a_directory_that_others_may_write_to_needs_the_option(open_to_all: Shell) -> None:
    """In front of the command or behind it; the refusal names the option."""
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


def test_only_a_directory_can_be_shared(open_to_all: Shell) -> None:
    status, _, err = open_to_all.run("--url", "fdb:", "--shared-directory", "queues")
    assert status == 2
    assert "--shared-directory must be left out for fdb:" in err
    assert "Traceback" not in err


def test_a_planted_directory_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """The default directory, in a working directory that other users write to."""
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
