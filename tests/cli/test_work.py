"""work: a fleet from the command line; its output, its end, and the arguments that it refuses."""

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core.registry import SIMPLE as ELEMENTS
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import FDBError
from fdbqueue.core.signals import Signals
from fdbqueue.fleet.status import Running, Tally
from fdbqueue.fleet.supervisor import FleetStatus, ProcessStatus
from fdbqueue.operate.cli.exits import LineWriter, ReaderGone
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.work import Pace, Progress
from tests.cli.jobs import GO
from tests.cli.shell import HERE, Shell, Within, read_all, rest_of
from tests.queue_support import faulty
from tests.support import PATIENCE_S, wait_until

DATABASE_LOCKED, TRIES_MAX = 1038, 200
JOBS = "tests.cli.jobs"


def filled(shell: Shell, name: str, *data: Any, kind: str = "fifottl", **options: Any) -> None:
    with fdbqueue.open(shell.url) as db:
        queue = TaskQueue.create(db, name, kind, root=shell.space, **options)
        queue.put_many(db, data)


def statistics(shell: Shell, name: str = "q") -> dict[str, dict[str, int]]:
    with fdbqueue.open(shell.url) as db:
        return TaskQueue.open(db, name, root=shell.space).statistics(db)


def begun(shell: Shell, folder: Path, *arguments: str, tasks: int = 1) -> tuple[Any, str]:
    """Start a fleet of one process, which has so many tasks; return it with the id of one of them."""
    folder.mkdir()
    environment = os.environ | {"JOBS_FOLDER": str(folder)}
    working = shell.start("work", "q", *arguments, "--processes", "1", cwd=HERE, env=environment)
    wait_until(lambda: len(list(folder.iterdir())) == tasks)
    return working, next(folder.iterdir()).name


def test_the_workers_have_the_options_of_the_url(shell: Shell) -> None:
    filled(shell, "q", 1)
    asked = "tag=reports&tag=night&timeout=30.0&retry_limit=70"
    shell.where[1] = f"{shell.url}?{asked}"
    status, out, _ = shell.run("work", "q", f"{JOBS}:tells_options", "--until-empty", "--quiet", cwd=HERE)
    assert (status, out) == (0, f"{asked}\n")


def read_until(process: Any, words: str) -> None:
    """Read standard error up to a line with these words."""
    assert any(words in line for line in process.stderr)


def without_progress(said: str) -> str:
    """A slow run tells its progress now and then, ahead of its summary."""
    return "".join(line for line in said.splitlines(keepends=True) if " done; " not in line)


@pytest.mark.commits_by_hand  # a sweep that ends by its timeout is told on standard error
def test_a_function_is_called_with_each_task(shell: Shell) -> None:
    filled(shell, "q", *range(50))
    filled(shell, "r", *range(50, 60))
    arguments = ("q", "r", f"{JOBS}:counted", "--transactional", "--until-empty", "--weight", "q=2")
    name = f"jobs-{os.urandom(8).hex()}"
    status, out, err = shell.run("work", *arguments, cwd=HERE, env=os.environ | {"JOBS_SPACE": name})
    assert (status, out) == (0, "")
    assert without_progress(err).startswith("fdbqueue: 60 done in ")
    with fdbqueue.open(shell.url) as db:
        space = Subspace(("fdbqueue-test", name))
        counted = [bytes(row.value)[0] for row in db.get_range_startswith(space.key())]
        assert counted == [1] * 60
        db.clear_range_startswith(space.key())
    assert statistics(shell)["tasks"] | {"done": 0} == dict.fromkeys(statistics(shell)["tasks"], 0)


@pytest.mark.parametrize(
    "how", [(f"{JOBS}:nothing",), ("--exec", "--", "echo", "task")], ids=["function", "exec"]
)
def test_setup_and_teardown_are_called_in_each_process(shell: Shell, how: Sequence[str]) -> None:
    filled(shell, "q", *range(9))
    around = ("--setup", f"{JOBS}:begin", "--teardown", f"{JOBS}:end")
    status, out, _ = shell.run("work", "q", "--until-empty", *around, *how, cwd=HERE)
    said = out.split()
    assert (status, said.count("begins"), said.count("ends")) == (0, 2, 2)
    assert (said[0], said[-1]) == ("begins", "ends")


def test_a_task_that_fails_is_buried_and_reported(shell: Shell) -> None:
    filled(shell, "q", *range(6))
    arguments = ("q", f"{JOBS}:odd", "--until-empty", "--attempts", "1", "--processes", "1", "--json")
    status, out, err = shell.run("work", *arguments, cwd=HERE)
    last = json.loads(out.splitlines()[-1])
    assert (status, last["done"], last["buried"]) == (1, 3, 3)
    assert "ValueError: 1 is odd" in err
    buried = shell.rows("tasks", "q", "--state", "buried")
    assert [task["data"] for task in buried] == [1, 3, 5]
    assert all("Traceback" in task["history"][-1]["detail"] for task in buried)


def test_a_burial_counts_though_its_process_died(shell: Shell) -> None:
    """The process ends before its first report."""
    filled(shell, "q", "bury", "die", ttr=4)
    arguments = ("q", f"{JOBS}:bury_or_die", "--until-empty", "--processes", "1", "--threads", "1", "--json")
    status, out, _ = shell.run("work", *arguments, cwd=HERE)
    last = json.loads(out.splitlines()[-1])
    assert (status, last["done"], last["buried"], last["lost"]) == (1, 1, 1, 1)


def test_with_json_functions_print_on_standard_error(shell: Shell) -> None:
    filled(shell, "q", 1)
    status, out, err = shell.run("work", "q", f"{JOBS}:chatty", "--until-empty", "--json", cwd=HERE)
    assert (status, json.loads(out.splitlines()[-1])["done"]) == (0, 1)
    assert "printed 1\n" in err


def test_a_quiet_fleet_logs_errors_only(shell: Shell) -> None:
    filled(shell, "q", 1, 2)
    arguments = ("--until-empty", "--attempts", "2", "--backoff", "0.01,0.02", "--processes", "1")
    status, out, err = shell.run("work", "q", f"{JOBS}:odd", "--quiet", *arguments, cwd=HERE)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "ERROR" in err
    assert "buried" in err


def test_sigterm_and_the_tasks_given_back_are_logged(shell: Shell, tmp_path: Path) -> None:
    filled(shell, "q", 1_000)
    working, id_ = begun(shell, tmp_path / "begun", f"{JOBS}:slow", "--grace", "0.3")
    working.send_signal(signal.SIGTERM)
    _, err = rest_of(working)
    stopping, given_back, summary = without_progress(err).splitlines()
    assert "SIGTERM: taking no more" in stopping
    assert f"task {id_} of q: given back, not done in 0.3 s" in given_back
    assert summary.startswith("fdbqueue: 0 done in ")


def test_lines_of_processes_never_hit_the_progress_bar(shell: Shell) -> None:
    """On a terminal, which all processes write to."""
    filled(shell, "q", *range(12))
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "60"}
    arguments = ("q", f"{JOBS}:chatty", "--until-empty", "--processes", "2", "--threads", "1")
    process = shell.start("work", *arguments, stdout=theirs, stderr=theirs, cwd=HERE, env=environment)
    os.close(theirs)
    lines = shown(read_all(ours))
    assert process.wait(PATIENCE_S) == 0
    assert sorted(line for line in lines if "printed" in line) == sorted(f"printed {n}" for n in range(12))
    logged = [line for line in lines if "logged" in line]
    assert len(logged) == 12
    told = re.compile(r"[-\d]+ [:,\d]+ INFO \[\d+\] logged \d+ \(task \w+ of q, attempt 1\)")
    assert [line for line in logged if not told.fullmatch(line)] == []


def shown(written: str) -> list[str]:
    """Return the lines of a terminal after `written`, with erased lines left out."""
    lines, row, column = [""], 0, 0
    for control, text in re.findall(r"(\r|\n|\x1b\[[?\d;]*[A-Za-z])|([^\r\n\x1b]+)", written):
        line = lines[row]
        if text:
            lines[row], column = line[:column] + text + line[column + len(text) :], column + len(text)
        elif control == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif control == "\r":
            column = 0
        elif control == "\x1b[1A":
            row -= 1
        elif control.endswith("K"):
            lines[row] = "" if control == "\x1b[2K" else line[:column]
    return lines


def test_an_idle_fleet_does_not_repeat_itself(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fdbqueue.operate.cli.work.PLAIN_EVERY_S", 0.0)
    with fdbqueue.open("memory:") as db, progress_of(db) as progress:
        for done in (0, 0, 0, 1, 1):
            progress.tick(FleetStatus((), Tally(done=done), 0, 0))
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines].count("0") == 1


def test_the_progress_does_not_wait_for_a_locked_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again for as long as the lock lasts, and the supervisor has to obey its signals."""
    monkeypatch.setattr("fdbqueue.operate.cli.work.LEFT_TIMEOUT_S", 0.1)
    with fdbqueue.open("memory:") as db:
        TaskQueue.create(db, "q")
        locked, engine = faulty(db, FDBError)
        engine.fate = lambda commits: (DATABASE_LOCKED, False) if commits < TRIES_MAX else (0, True)
        with progress_of(locked, "q") as progress:
            progress._see_queues(stalled=True)
    assert engine.commits < TRIES_MAX


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell.run("--version") == (0, f"fdbqueue {fdbqueue.__version__}\n", "")


def test_sigterm_lets_running_tasks_finish_and_takes_no_more(shell: Shell, tmp_path: Path) -> None:
    filled(shell, "q", *range(4))
    options = ("--threads", "2", "--grace", "600")
    working, _ = begun(shell, tmp_path / "begun", f"{JOBS}:held", *options, tasks=2)
    working.send_signal(signal.SIGTERM)
    read_until(working, "taking no more")
    (tmp_path / "begun" / GO).touch()
    _, err = rest_of(working)
    assert (working.returncode, err.splitlines()[-1].startswith("fdbqueue: 2 done in ")) == (0, True)
    found = statistics(shell)["tasks"]
    assert (found["done"], found["ready"], found["taken"]) == (2, 2, 0)


def test_the_second_signal_ends_running_tasks_at_once(shell: Shell, tmp_path: Path) -> None:
    filled(shell, "q", 1_000)
    working, _ = begun(shell, tmp_path / "begun", f"{JOBS}:slow")
    working.send_signal(signal.SIGINT)
    read_until(working, "a second signal ends them at once")  # two pending signals may arrive as one
    working.send_signal(signal.SIGINT)
    rest_of(working)
    assert working.returncode == 0
    assert statistics(shell)["tasks"]["ready"] == 1


@pytest.mark.commits_by_hand  # faults leave the fleet no time to show a rate
def test_a_terminal_shows_a_live_line(shell: Shell) -> None:
    filled(shell, "q", *([0.05] * 60))
    arguments = ("q", f"{JOBS}:slow", "--until-empty", "--processes", "1", "--threads", "2")
    seen = shell.screen("work", *arguments, stream="stderr", COLUMNS="100", JOBS_FOLDER=str(shell.folder))
    for words in ("done; ", "/s, ", " left", "eta", "60 done in"):
        assert words in seen


def test_a_stalled_reader_does_not_block_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor goes on and hears signals; a reader that closes the pipe ends the fleet."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * select.PIPE_BUF)
    os.set_blocking(writing, True)
    monkeypatch.setattr("fdbqueue.operate.cli.work.PLAIN_EVERY_S", 0.0)
    monkeypatch.setattr("fdbqueue.operate.cli.work.stdout_of", lambda _: LineWriter(writing, lambda: None))
    with fdbqueue.open("memory:") as db, progress_of(db, as_json=True) as progress:
        assert progress.tick(IDLE)
        os.close(reading)
        assert not progress.tick(IDLE)
        with pytest.raises(ReaderGone):
            progress.end(IDLE)
    os.close(writing)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    pace = Pace(window_s=10)
    pace.see(0, 0, 100)
    assert (pace.done_per_s, pace.eta_s) == (0, None)
    pace.see(5, 50, 90)
    assert (pace.done_per_s, pace.eta_s) == (10, 45)
    pace.see(30, 50, 90)
    pace.see(40, 60, 95)
    assert (pace.done_per_s, pace.eta_s) == (1, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["q"], "MODULE:FUNCTION"),
        (["q", "function"], "MODULE:FUNCTION"),
        (["m:f"], "at least one QUEUE"),
        (["q", "nosuchmodule:f"], "importing nosuchmodule fails"),
        (["q", "tests.cli.jobs:nosuch"], "no nosuch"),
        (["q", f"{JOBS}:yields"], f"{JOBS}:yields is a generator function: a handler returns, and"),
        (["q", f"{JOBS}:yields_later"], f"{JOBS}:yields_later is an asynchronous generator function"),
        (["nope", "tests.cli.jobs:nothing"], "no queue named 'nope'"),
        (["q", "nope", "tests.cli.jobs:nothing"], "no queue named 'nope'"),
        (["plain", "tests.cli.jobs:nothing"], "plain queue"),
        (["q", "tests.cli.jobs:nothing", "--weight", "r=3"], "--weight"),
        (["q", "tests.cli.jobs:nothing", "--weight", "q=0"], "--weight"),
        (["q", "tests.cli.jobs:nothing", "--processes", "0"], "--processes"),
        (["q", "tests.cli.jobs:nothing", "--timeout", "0"], "--timeout"),
        (["q", "tests.cli.jobs:nothing", "--backoff", "soon"], "--backoff"),
        (["q", "tests.cli.jobs:nothing", "--backoff", "1,-1"], "--backoff"),
        (["q", "tests.cli.jobs:nothing", "--log-level", "loud"], "--log-level"),
        (["q", "tests.cli.jobs:nothing", "--hooks", "tests.cli.jobs:nothing"], "not an fdbqueue.Hooks"),
        (["q", "tests.cli.jobs:nothing", "--setup", "nothing"], "module:function"),
        (["q", "tests.cli.jobs:nothing", "--setup", "tests.cli.jobs:nobody"], "has no nobody"),
        (["q", "tests.cli.jobs:nothing", "--teardown", "tests.cli.jobs:yields"], "a generator function"),
        (["q", "tests.cli.jobs:nothing", "--setup", "tests.cli.jobs:nothing"], "without arguments"),
        (["q", "tests.cli.jobs:nothing", "--into", "plain"], "--into is for --exec"),
        (["q", "tests.cli.jobs:nothing", "--", "true"], "for --exec"),
        (["q", "--exec"], "behind --"),
        (["q", "--exec", "--"], "behind --"),
        (["--exec", "--", "true"], "at least one QUEUE"),
        (["q", "--exec", "--", "no-such-command"], "no command 'no-such-command'"),
        (["q", "--exec", "--transactional", "--", "true"], "--transactional"),
        (["q", "--exec", "--into", "nope", "--", "true"], "no queue named 'nope'"),
        (["q", "--exec", "--into", "pieces", "--", "true"], "and 'pieces' is an element queue"),
        (["q", "--exec", "--into", "pieces", "--create", "--", "true"], "and 'pieces' is an element queue"),
    ],
)
def test_a_mistake_is_status_2_one_line_and_nothing_taken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    shell = Within(Shell(f"embedded:{tmp_path}/data", [], tmp_path), capfd)
    filled(shell, "q", 1)
    with fdbqueue.open(shell.url) as db:
        fdbqueue.Queue.named(db, "plain")
        Registry().create(db, "pieces", ELEMENTS, {})
    status, out, err = shell.run("work", *arguments)
    assert (status, out) == (2, "")
    assert [said in line for line in err.splitlines()] == [True], err
    assert statistics(shell)["calls"]["take"] == 0


@pytest.mark.commits_by_hand  # a sweep that ends by its timeout is told on standard error
def test_output_of_commands_and_of_the_supervisor_are_apart(shell: Shell) -> None:
    """The log has a line for each killed worker."""
    filled(shell, "q", *range(20))
    program = shell.program("work", "q", f"{JOBS}:nothing", "--until-empty")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&1 >/dev/null | cat', "sh", *program],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert without_progress(done.stdout).startswith("fdbqueue: 20 done in ")


IDLE = FleetStatus((), Tally(), 0, 0)


def progress_of(db: fdbqueue.Database, *queues: str, as_json: bool = False) -> Progress:
    place = Place("memory:", DEFAULT_ROOT)
    return Progress(place, db, [*queues], Signals(), as_json, prints=False)


def running(task: str, queue: str) -> FleetStatus:
    """A fleet that runs this task."""
    at_work = (Running(task, queue, 1.0, False, None),)
    return FleetStatus((ProcessStatus(1, "working", Tally(), at_work, 0, 0.0),), Tally(), 0, 0)


@contextmanager
def paused(as_json: bool) -> Iterator[Progress]:
    """The progress of a fleet with one paused queue and one other."""
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "-q")
        queue.put(db, 1)
        queue.pause(db)
        TaskQueue.create(db, "r")
        with progress_of(db, "-q", "r", as_json=as_json) as progress:
            yield progress


@pytest.mark.usefixtures("at_once")
def test_a_stalled_fleet_names_its_paused_queue_once(capfd: pytest.CaptureFixture[str]) -> None:
    with paused(as_json=False) as progress:
        for _ in range(3):
            progress.tick(IDLE)
    [line] = capfd.readouterr().err.splitlines()
    said = "'-q' waits: the queue is paused. fdbqueue resume -- -q ends the pause."
    assert line.endswith(f"0 done; 0/s, 1 left; {said}")


@pytest.mark.usefixtures("at_once")
def test_json_of_a_stalled_fleet_has_its_paused_queues(capfd: pytest.CaptureFixture[str]) -> None:
    with paused(as_json=True) as progress:
        progress.tick(IDLE)
    row = json.loads(capfd.readouterr().out)
    assert (row["paused"], row["reached"]) == (["-q"], [])


@pytest.mark.usefixtures("at_once")
def test_a_fleet_that_runs_a_task_names_no_paused_queue(capfd: pytest.CaptureFixture[str]) -> None:
    with paused(as_json=False) as progress:
        progress.tick(running("0" * 32, "r"))
    assert "paused" not in capfd.readouterr().err


def test_work_ends_with_status_2_when_its_directory_is_replaced(shell: Shell, tmp_path: Path) -> None:
    """No process of the fleet can heal, and a supervisor of the system starts it again. Each says so once."""
    if shell.root:
        pytest.skip("a cluster has no directory")
    filled(shell, "q", 1)
    env = os.environ | {"JOBS_FOLDER": str(tmp_path)}
    process = shell.start("work", "q", f"{JOBS}:held", "--processes", "1", "--grace", "0", cwd=HERE, env=env)
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1, 120)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    _, err = rest_of(process, 120)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("fdbqueue: The worker processes cannot work: ")
    assert "was removed or replaced" in err
    assert not {"Traceback", "taking nothing"} & set(err.split())
    said = [line for line in err.splitlines() if "] StorageReplaced: " in line]
    assert len(said) == len({line.split("] ")[0].split("[")[-1] for line in said}), err
    assert len(err.splitlines()) <= len(said) + 2, err  # the task that was given back, and the last line
