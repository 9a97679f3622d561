"""Process numbers repeat among PID namespaces, and LMDB tells processes apart by them.

So the processes that have a directory open share one namespace. A process of another one is refused.
"""

import subprocess
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.errors import StorageInUse
from fdbqueue.embedded import processes
from fdbqueue.embedded.directory import Directory, LockFile
from tests.engine.running import Program, running

CONTAINER = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The program after it is process 1 of a namespace of its own, as in a container."""


@pytest.fixture
def container() -> tuple[str, ...]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system makes no PID namespaces for tests")
    return CONTAINER


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as db:
        db[b"a"] = b"1"
    return tmp_path / "data"


def refused(program: Program) -> None:
    """Expect the error that tells cause and cure."""
    told = program.line()
    assert told.startswith("StorageInUse ")
    assert "another PID namespace have it open" in told
    assert "--pid=host" in told


@pytest.mark.parametrize("holder", ["here", "in a container"])
def test_a_process_of_another_namespace_is_refused(path, container, holder) -> None:
    """Its number may be that of a living one: each container has a process 1."""
    with running("hold_snapshot", path, within=() if holder == "here" else container) as first:
        first.expect("reading")
        with running("try_to_open", path, within=container) as second:
            refused(second)
        first.go()
        first.process.wait()
    with running("try_to_open", path, within=container) as second:
        second.expect("opened b'1'")


def test_processes_of_one_container_share_a_directory(path, container) -> None:
    """Process 1 of the container starts the other one."""
    within = (*container, "sh", "-c", '"$@" & "$@"; wait', "sh")
    with running("try_to_open", path, within=within) as both:
        both.expect("opened b'1'")
        both.expect("opened b'1'")


def test_the_death_of_its_last_process_frees_a_directory(path, container) -> None:
    """The kernel keeps the note of the namespace, in a lock."""
    with running("hold_snapshot", path, within=container) as first:
        first.expect("reading")
        first.kill()
    with running("try_to_open", path) as second:
        second.expect("opened b'1'")


def test_a_refused_process_lets_others_open(path) -> None:
    """It leaves no lock behind."""
    other = LockFile(Directory.open(str(path)), processes.IN_USE_FILE)
    other.share(processes.NAMESPACES)
    for _ in range(2):
        with pytest.raises(StorageInUse, match="another PID namespace"):
            fdbqueue.open(f"embedded:{path}")
    other.close()
    with fdbqueue.open(f"embedded:{path}") as db:
        assert db[b"a"] == b"1"
