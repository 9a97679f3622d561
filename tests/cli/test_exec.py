"""work --exec: a command for each task. It ends with its worker, which may be killed at any moment."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import workers
from fdbqueue.fleet.outcomes import Away, Unavailable, judge
from fdbqueue.operate.cli.execute import of_this_machine
from tests.cli import killed
from tests.cli import shell as shells
from tests.cli.shell import CLOSED_PIPE, Shell, Within, rest_of
from tests.cli.test_work import filled, statistics, wait_until
from tests.spawned import PROGRAM
from tests.support import PATIENCE_S

RESTART_S = 60.0
"""Time for a killed process to have a successor that works, on a loaded machine."""


def run(shell: Shell, *arguments: str) -> tuple[int, str, str]:
    return shell.run("work", "q", "--exec", "--until-empty", "--processes", "1", *arguments)


def buried(program: Within) -> list[dict[str, Any]]:
    return program.rows("tasks", "q", "--state", "buried")


def alive(process: int) -> bool:
    """True if the process exists, and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def written_in(file: Path) -> list[str]:
    """Wait until a command has written a line into this file; return its words."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return file.read_text().split()


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself does not look for modules in the working directory."""
    python, *module = shells.PROGRAM
    monkeypatch.setattr(shells, "PROGRAM", [python, "-P", *module])


@pytest.mark.in_turn(4)
def test_data_is_in_the_arguments_and_on_standard_input(shell: Shell) -> None:
    """Unchanged: no shell interprets it."""
    data = ["plain", "two words", "$(id) `id` ; 'q' \\ *", "née {}", "", {"a": [1, None]}, 42]
    filled(shell, "q", *data)
    status, out, err = run(
        shell, "--", "python3", "-c", "import sys; print([*sys.argv[1:], sys.stdin.read()])", "<{}|{}>"
    )
    texts = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in data]
    assert status == 0, err
    assert out.splitlines() == [str([f"<{text}|{text}>", text]) for text in texts]


@pytest.mark.usefixtures("isolated")
def test_a_module_in_the_working_directory_is_not_imported(shell: Shell) -> None:
    """Only modules that the user names are looked up there: other users may have planted modules."""
    for name in ("logging", "selectors", "concurrent", "mmap", "resource", "json", "platform", "sqlite3"):
        (shell.folder / f"{name}.py").write_text("open('planted', 'a').close()\nraise SystemExit(77)\n")
    filled(shell, "q", "x")
    status, out, err = run(shell, "--", "echo", "{}")
    assert (status, out) == (0, "x\n"), err
    assert not (shell.folder / "planted").exists()


@pytest.mark.usefixtures("isolated")
def test_a_file_named_as_a_standard_module_stops_no_process(shell: Shell) -> None:
    """A handler is looked for in the working directory first; the modules of the fleet itself are not."""
    for name in ("logging", "queue", "selectors"):
        (shell.folder / f"{name}.py").write_text("raise SystemExit(77)\n")
    (shell.folder / "mine.py").write_text("def handler(task):\n    print('mine', task.data)\n")
    filled(shell, "q", "x")
    status, out, err = shell.run("work", "q", "mine:handler", "--until-empty", "--processes", "1")
    assert (status, out) == (0, "mine x\n"), err


IGNORING = (
    "import os, signal, sys; "
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_parent_that_ignores_its_children_hides_no_failure(
    shell: Shell, program: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ignores SIGCHLD gets no exit statuses, and Python takes each of them for 0."""
    monkeypatch.setattr(shells, "PROGRAM", [shells.PROGRAM[0], "-c", IGNORING, *shells.PROGRAM])
    filled(shell, "q", "x")
    assert run(shell, "--attempts", "1", "--", "false")[0] == 1
    assert len(buried(program)) == 1


@pytest.mark.commits_by_hand  # a sweep that ends by its timeout is told on standard error
def test_with_json_output_of_commands_goes_to_standard_error(shell: Shell) -> None:
    """Standard output has JSON only."""
    filled(shell, "q", "x")
    status, out, err = run(shell, "--json", "--", "sh", "-c", "echo hello; echo oops >&2")
    *_, last = map(json.loads, out.splitlines())  # a slow machine prints progress before
    assert (status, last["done"]) == (0, 1)
    assert sorted(err.splitlines()) == ["hello", "oops"]


def test_a_failing_command_is_buried_with_its_output(shell: Shell, program: Within) -> None:
    filled(shell, "q", "x")
    script = 'echo "$FDBQUEUE_ATTEMPT of $FDBQUEUE_TASK"; echo oops >&2; exit 3'
    status, out, err = run(shell, "--attempts", "2", "--", "sh", "-c", script)
    assert (status, out) == (1, "")
    assert "1 buried" in err
    (task,) = buried(program)
    assert [failure["error"] for failure in task["history"]] == ["CommandFailed", "CommandFailed"]
    assert task["history"][1]["message"] == "exit status 3"
    assert task["history"][1]["detail"] == f"--- stdout:\n2 of {task['id']}\n--- stderr:\noops"


def test_a_command_reads_the_headers_of_its_task(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    assert program.run("put", "q", "x", "--header", "a=b=c", "--header", "d=")[0] == 0
    status, out, _ = run(shell, "--", "sh", "-c", 'echo "$FDBQUEUE_HEADERS"')
    assert (status, json.loads(out)) == (0, {"a": "b=c", "d": ""})


def test_the_output_of_a_command_is_its_result(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    outputs = ['{"a": [1]}', "two\nlines", "", "{no json"]
    put = [program.run("put", "q", text, "--text", "--result-ttl", "60", "--json")[1] for text in outputs]
    assert run(shell, "--", "cat")[:2] == (0, "".join(outputs))
    found = [program.run("result", "q", json.loads(line)["id"]) for line in put]
    assert [status for status, _, _ in found] == [0] * 4
    assert [json.loads(out) for _, out, _ in found] == [{"a": [1]}, "two\nlines", None, "{no json"]
    id_ = json.loads(put[1])["id"]
    assert program.run("result", "q", id_, "--forget")[:2] == (0, '"two\\nlines"\n')
    assert program.run("result", "q", id_)[0] == 1


def test_json_of_a_result_names_its_task(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    id_ = program.row("put", "q", "[1]", "--result-ttl", "60")["id"]
    assert run(shell, "--", "cat")[0] == 0
    status, out, _ = program.run("result", "q", id_, "--json", "--forget")
    assert (status, json.loads(out)) == (0, {"id": id_, "result": [1]})
    assert program.run("result", "q", id_, "--json")[:2] == (1, "")


def test_a_result_that_is_not_there_is_told(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    id_ = program.row("put", "q", "x", "--result-ttl", "60")["id"]
    status, out, err = program.run("result", "q", id_, "--wait", "0.1")
    assert (status, out) == (1, "")
    assert "has no result yet: it is ready" in err
    assert run(shell, "--attempts", "1", "--", "false")[0] == 1
    status, out, err = program.run("result", "q", id_, "--wait", "60")
    assert (status, out) == (1, "")
    assert "is buried: CommandFailed: exit status 1" in err


def test_a_command_that_is_killed_has_failed(shell: Shell, program: Within) -> None:
    filled(shell, "q", "x")
    assert run(shell, "--attempts", "1", "--", "sh", "-c", "kill -9 $$")[0] == 1
    assert buried(program)[0]["history"][0]["message"] == "killed by SIGKILL"


def test_data_that_no_argument_can_hold_fails_one_task_only(shell: Shell, program: Within) -> None:
    filled(shell, "q", "a\0b", "fine")
    status, out, _ = run(shell, "--attempts", "1", "--", "echo", "{}")
    assert (status, out) == (1, "fine\n")
    assert "null byte" in buried(program)[0]["history"][0]["message"]


def test_a_reader_that_closes_the_pipe_costs_no_attempt(shell: Shell, program: Within) -> None:
    """The fleet stops, and the tasks with unread output stay: the pipe holds one output at a time."""
    filled(shell, "q", *range(40))
    process = shell.start("work", "q", "--exec", "--until-empty", "--", "echo", "{}")
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == CLOSED_PIPE
    process.stderr.close()
    calls = statistics(shell)
    assert calls["tasks"]["done"] == 1
    assert calls["tasks"]["buried"] == 0
    left = program.rows("tasks", "q")
    assert all(task["failures"] == 0 for task in left)


def test_output_of_any_size_is_passed_on(shell: Shell) -> None:
    filled(shell, "q", "x")
    status, out, _ = run(shell, "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert (status, len(out)) == (0, 3_000_000)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EAGAIN, errno.EMFILE])
def test_an_exhausted_machine_is_no_failure_of_the_task(number: int) -> None:
    with pytest.raises(Unavailable), of_this_machine():
        raise OSError(number, "none left")
    assert judge(Unavailable(), "me") == Away()


def test_output_goes_line_by_line_into_a_queue(shell: Shell, program: Within) -> None:
    filled(shell, "q", "1", "two", '{"three"')
    filled(shell, "out")
    script = 'echo "$1"; echo; echo "[$1]"'
    assert run(shell, "--into", "out", "--", "sh", "-c", script, "sh", "{}")[:2] == (0, "")
    lines = [json.loads(line)["data"] for line in program.run("tasks", "out", "--json")[1].splitlines()]
    assert lines == [1, [1], "two", "[two]", '{"three"', '[{"three"]']


def test_output_too_large_for_a_transaction_buries_the_task(shell: Shell, program: Within) -> None:
    filled(shell, "q", "1001")
    program.run("create", "out", "--kind", "queue")
    assert run(shell, "--into", "out", "--", "seq", "{}")[0] == 1
    assert "too much for one transaction" in buried(program)[0]["history"][0]["message"]
    assert program.run("size", "out")[1] == "0\n"


def test_a_command_ends_with_its_lease(shell: Shell, program: Within) -> None:
    filled(shell, "q", "x", ttr=1)
    begun = shell.folder / "begun"
    working = shell.start(
        "work", "q", "--exec", "--processes", "1", "--", "sh", "-c", f"echo $$ >> {begun}; sleep 1000"
    )
    process = int(written_in(begun)[0])
    program.run("pause", "q")
    program.run("release-all", "q")
    wait_until(lambda: not alive(process))
    working.send_signal(signal.SIGTERM)
    rest_of(working)
    assert working.returncode == 0


def test_a_command_of_a_cancelled_task_is_killed(shell: Shell, program: Within) -> None:
    filled(shell, "q", "x", ttr=1)
    begun = shell.folder / "begun"
    command = ["sh", "-c", f"echo $$ $FDBQUEUE_TASK > {begun}; sleep 1000"]
    working = shell.start("work", "q", "--exec", "--until-empty", "--processes", "1", "--", *command)
    process, id_ = written_in(begun)
    assert program.run("cancel", "q", id_)[0] == 0
    wait_until(lambda: not alive(int(process)))
    assert "1 cancelled" in rest_of(working)[1]
    assert working.returncode == 0


def test_a_command_ends_with_its_worker(shell: Shell) -> None:
    filled(shell, "q", "x", ttr=1_000)
    begun = shell.folder / "begun"
    script = f"sleep 1000 & echo $$ $! > {begun}; wait"
    working = shell.start("work", "q", "--exec", "--processes", "1", "--", "sh", "-c", script)
    processes = [*map(int, written_in(begun))]
    with fdbqueue.open(shell.url) as db:
        wait_until(lambda: bool(workers(db, root=shell.space)))
        os.kill(workers(db, root=shell.space)[0].process_id, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, processes)))
    for _ in range(2):
        working.send_signal(signal.SIGTERM)
    rest_of(working)


def kill_as_it_goes_on(shell: Shell, until: int) -> int:
    """Send SIGKILL to a worker process after every ten tasks that are done; return the number of kills.

    A clock would kill the workers of a loaded machine before their first task.
    """
    killed = 0
    with shell.opened() as (db, q):
        for goal in range(5, until, 10):
            wait_until(lambda goal=goal: q.statistics(db)["tasks"]["done"] >= goal, RESTART_S)
            there = [
                worker.process_id for worker in workers(db, root=shell.space) if alive(worker.process_id)
            ]
            if there:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(there), signal.SIGKILL)
                    killed += 1
    return killed


@pytest.mark.in_turn(4)
def test_each_output_is_put_once_in_spite_of_kills(
    shell: Shell, program: Within, rounds: Callable[[int, int], int]
) -> None:
    """The output is put in the transaction of the ack."""
    count = rounds(80, 1_000)
    filled(shell, "q", *range(count), ttr=2)
    program.run("create", "out", "--kind", "queue")
    options = ("--processes", "2", "--threads", "2", "--attempts", "50", "--into", "out")
    command = ("sh", "-c", 'sleep 0.02; echo "$1"', "sh", "{}")
    working = shell.start("work", "q", "--exec", "--until-empty", *options, "--", *command)
    killed = kill_as_it_goes_on(shell, until=count * 3 // 4)
    rest_of(working, timeout_s=300)
    assert (working.returncode, killed > 1) == (0, True)
    assert Counter(program.get("out", count + 100)) == Counter(range(count))


@pytest.mark.in_turn(4)
def test_a_second_run_does_the_tasks_that_are_left(shell: Shell, program: Within) -> None:
    """Tasks that are done stay done."""
    filled(shell, "q", *range(30))
    program.run("create", "out", "--kind", "queue")
    command = ("--into", "out", "--", "sh", "-c", 'sleep 0.05; echo "$1"', "sh", "{}")
    working = shell.start("work", "q", "--exec", "--processes", "1", *command)
    wait_until(lambda: statistics(shell)["tasks"]["done"] > 3)
    working.send_signal(signal.SIGTERM)
    rest_of(working)
    left = statistics(shell)["tasks"]["ready"]
    assert 0 < left < 30
    assert run(shell, *command)[0] == 0
    printed = program.get("out")
    assert sorted(printed) == list(range(30))


STARTS_S = 0.05


@pytest.fixture
def name() -> str:
    """The name of the commands of this test, in their environment."""
    return f"test-{os.urandom(8).hex()}"


def started(work: Callable[[str], None], name: str) -> Any:
    command = [sys.executable, "-c", PROGRAM, work.__module__, work.__name__, f'["{name}"]']
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)


def commands(name: str) -> list[int]:
    """Return the ids of the running commands of that name."""
    return [process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_at(name, process)]


def is_at(name: str, process: int) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False
    return f"FDBQUEUE_TASK={name}".encode() in environment.split(b"\0") and alive(process)


def test_a_worker_may_die_before_it_reports_its_command(name: str) -> None:
    with started(killed.killed_before_it_tells, name) as worker:
        assert worker.wait(30) == -signal.SIGKILL
    wait_until(lambda: not commands(name))


def test_a_command_ends_with_its_worker_though_a_child_lives(name: str) -> None:
    with started(killed.killed_before_its_child, name) as worker:
        child = int(worker.stdout.readline())
        try:
            assert worker.wait(30) == -signal.SIGKILL
            wait_until(lambda: not commands(name))
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_worker_may_die_at_any_moment(name: str, rounds: Callable[[int, int], int]) -> None:
    """Also while commands are started one after another."""
    for _ in range(rounds(6, 60)):
        with started(killed.always_starting, name) as worker:
            worker.stdout.readline()
            time.sleep(random.uniform(0, STARTS_S))
            worker.kill()
        wait_until(lambda: not commands(name))
