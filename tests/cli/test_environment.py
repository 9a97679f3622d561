"""An environment that does not work, or that others may write to: its error is one line of words, and
nothing was made before it.
"""

import errno
import os
import shlex
import subprocess
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Limit, SimpleElementQueue, TaskQueue
from fdbqueue.core.registry import SIMPLE as ELEMENTS
from fdbqueue.core.registry import Registry
from fdbqueue.operate.cli.exits import told
from tests.cli.shell import PROGRAM, Shell, Within

CLOSED = "fdbqueue: standard output is closed\n"
REMOVED = "fdbqueue: the working directory was removed: change to one that exists\n"
ROOT = Path(fdbqueue.__file__).parent.parent
# Behind the tree, the path of `tests/guard.py`, which moves the default root of a run with a cluster.
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
IMPORTING = os.environ | {"PYTHONPATH": PATHS, "FDBQUEUE_URL": "", "FDB_CLUSTER_FILE": ""}
JOBS = "tests.cli.jobs"

UNUSABLE = {
    "export missing/out --in-use": "missing/out: there is no such file or directory",
    "export text/out --in-use": "text/out: a part of this path is a file, and no directory",
    "import file missing": "missing: there is no such file or directory",
    "aside q --export missing/out": "missing/out: there is no such file or directory",
    "aside q --export /dev/full": "/dev/full: Invalid argument",
    "elements export-dirq pieces text/out": "text/out: a part of this path is a file, and no directory",
}
REFUSED = (
    "create q --kind fifo --ttr 3",
    "create q --kind fair --weight a=0",
    "create q --limit missing",
    "limit set few --rate 3",
    "put q x --create --priority 3",
    "put q --lines text --create --ttl 3",
    "elements add q x --create --schema body=nothing",
    "elements add q x --create --schema body=string",
    "elements import-dirq q folder --create",
    "import file missing --create",
    "import file text --create",
    "import persist-queue folder q --create --serializer json",
    "import persist-queue text q --create --serializer json",
    "import fdb-layer 00 q --create",
)


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Within:
    """The program, in a directory with a text, an empty directory and a database with three queues."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("text\n")
    Path("folder").mkdir()
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        TaskQueue.create(db, "q", ttr=60)
        fdbqueue.Queue.named(db, "items").enqueue(db, 1)
        registry = Registry()
        SimpleElementQueue(registry.contents(registry.create(db, "pieces", ELEMENTS, {})))
    return Within(Shell(f"embedded:{tmp_path}/data", [], tmp_path), capfd)


@pytest.mark.parametrize("line", UNUSABLE)
def test_a_file_that_cannot_be_used_is_told_in_words(program: Within, line: str) -> None:
    assert program.run(*line.split()) == (2, "", f"fdbqueue: {UNUSABLE[line]}\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_an_error_of_the_system_has_no_number(number: int) -> None:
    said = told(OSError(number, os.strerror(number), "file"))
    assert said.startswith("file: ")
    assert "rrno" not in said
    assert told(OSError(number, os.strerror(number))) == said.removeprefix("file: ")


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_command_makes_no_database(program: Within, tmp_path: Path, line: str) -> None:
    before = sorted(tmp_path.iterdir())
    program.where = ["--url", f"embedded:{tmp_path}/new"]
    status, out, err = program.run(*line.split())
    assert (status, out, err.count("\n"), "rrno" in err) == (2, "", 1, False)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["put", "new", "x", "--create", "--priority", "3"], "--priority is for task queues"),
        (["put", "new", "x" * 8_000_001, "--create"], "8000000"),
        (["elements", "add", "new", "[", "--create", "--schema", "body=string"], "is not JSON"),
        (
            ["work", "q", "--exec", "--into", "new", "--create", "--processes", "9999", "--", "true"],
            "--processes",
        ),
    ],
)
def test_a_refused_command_makes_no_queue(program: Within, arguments: list[str], said: str) -> None:
    with fdbqueue.open(program.url) as db:
        before = fdbqueue.list_queues(db)
    status, _, err = program.run(*arguments)
    assert (status > 0, said in err) == (True, True), err
    with fdbqueue.open(program.url) as db:
        assert fdbqueue.list_queues(db) == before


def in_a_removed_directory(tmp_path: Path, *command: str) -> tuple[int, str]:
    folder = tmp_path / "removed"
    folder.mkdir()
    script = 'rmdir "$PWD"; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *PROGRAM, *command],
        cwd=folder,
        env=IMPORTING,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("line", ["work q jobs:handle", "export out --in-use"])
def test_a_removed_working_directory_is_told(program: Within, tmp_path: Path, line: str) -> None:
    assert in_a_removed_directory(tmp_path, *program.where, *line.split()) == (2, REMOVED)


@pytest.mark.parametrize("line", ["queues", "create q"])
def test_no_database_is_looked_for_in_a_removed_directory(tmp_path: Path, line: str) -> None:
    assert in_a_removed_directory(tmp_path, *line.split()) == (2, REMOVED)


def with_closed(program: Shell, closed: str, *command: str, cwd: Path = ROOT) -> tuple[int, str]:
    script = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *PROGRAM, *program.where, *command],
        cwd=cwd,
        env=IMPORTING,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_command_that_prints_nothing_needs_no_output(program: Within) -> None:
    assert with_closed(program, ">&-", "put", "q", "x") == (0, "")
    work = ("work", "q", f"{JOBS}:nothing", "--quiet", "--until-empty", "--processes", "1")
    assert with_closed(program, ">&-", *work) == (0, "")
    with fdbqueue.open(program.url) as db:
        assert TaskQueue.open(db, "q").statistics(db)["ends"]["acked"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "put q x --json",
        "get items",
        "group create",
        "elements add new x --create",
        "work q --exec --until-empty -- true",
        "completion bash",
        "limit set few --slots 3 --json",
        "",
    ],
)
def test_a_command_that_prints_does_nothing_without_output(program: Within, line: str) -> None:
    with fdbqueue.open(program.url) as db:
        TaskQueue.open(db, "q").put(db, 1)
    assert with_closed(program, ">&-", *shlex.split(line)) == (2, CLOSED)
    with fdbqueue.open(program.url) as db:
        counts = TaskQueue.open(db, "q").statistics(db)["calls"]
        assert (counts["put"], counts["take"]) == (1, 0)
        assert fdbqueue.Queue.named(db, "items").size(db) == 1
        assert fdbqueue.list_queues(db) == ["items", "pieces", "q"]
        assert (fdbqueue.list_groups(db), Limit.list(db)) == ([], [])


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_message_that_cannot_be_told_changes_no_status(program: Within, stderr: str) -> None:
    """The task was put, and the queue is there."""
    assert with_closed(program, stderr, "create", "new")[0] == 0
    assert with_closed(program, stderr, "create", "new")[0] == 1


SHOWN = """
import os
from pathlib import Path


def handle(task):
    Path("shown").write_text(" ".join(os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)))
"""


def test_a_worker_has_the_closed_descriptors_of_its_program(program: Within, tmp_path: Path) -> None:
    """Otherwise a file of its engine gets the number 1 or 2, and a library prints into that."""
    (tmp_path / "shown.py").write_text(SHOWN)
    program.run("put", "q", "x")
    work = ("work", "q", "shown:handle", "--quiet", "--until-empty", "--processes", "1")
    assert with_closed(program, ">&- 2>&-", *work, cwd=tmp_path)[0] == 0
    assert (tmp_path / "shown").read_text() == "/dev/null /dev/null"


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
