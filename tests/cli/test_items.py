"""put, get, size, peek and clear in a shell: real processes, pipes, signals and exit statuses."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.operate.cli import wording as cli_values
from fdbqueue.operate.cli.items import remove_items
from fdbqueue.operate.cli.session import Place
from tests.cli.shell import (
    CLOSED_PIPE,
    HELD_S,
    INTERRUPTED,
    PROGRAM,
    TERMINATED,
    Shell,
    Within,
    rest_of,
)
from tests.queue_support import FATES, faulty
from tests.support import wait_until

# -- put and get ----------------------------------------------------------------------------------------


def test_values_come_out_in_order_one_json_value_a_line(program: Within) -> None:
    assert program.run("put", "q", "--create", "1", "hello", '{"a": [null, true]}', '"quoted"') == (0, "", "")
    assert program.run("size", "q") == (0, "4\n", "")
    assert program.run("peek", "q") == (0, "1\n", "")
    assert program.run("get", "q", "-n", "3") == (0, '1\n"hello"\n{"a":[null,true]}\n', "")
    assert program.run("get", "q") == (0, '"quoted"\n', "")


def test_json_of_plain_queues_is_an_object_a_line(program: Within) -> None:
    program.run("put", "q", "--create", "1", "hello", '{"a": [null, true]}')
    assert program.run("size", "q", "--json") == (0, '{"queue":"q","items":3}\n', "")
    assert program.run("peek", "q", "--json") == (0, '{"data":1}\n', "")
    two = '{"data":1}\n{"data":"hello"}\n'
    assert program.run("get", "q", "-n", "2", "--json") == (0, two, "")
    assert program.run("clear", "q", "--yes", "--json") == (0, '{"queue":"q","removed":1}\n', "")
    for command in ("get", "peek"):
        assert program.run(command, "q", "--json") == (1, "", "fdbqueue: 'q' is empty\n")


def test_a_queue_of_bytes_prints_base64_and_takes_no_text(shell: Shell, program: Within) -> None:
    with fdbqueue.open(shell.url) as db:
        queue = fdbqueue.Queue.named(db, "q", codec="bytes", root=shell.space)
        queue.enqueue_many(db, [b"\xff\x00"] * 2)
    refused = "fdbqueue: codec 'bytes' cannot carry str at data[0]: it carries bytes only\n"
    assert program.run("put", "q", "--create", "hello") == (1, "", refused)
    assert program.run("get", "q", "--json") == (0, '{"data":"/wA="}\n', "")
    assert program.run("get", "q") == (0, '"/wA="\n', "")


def test_an_empty_queue_is_status_1(program: Within) -> None:
    program.run("put", "q", "--create", "1")
    assert program.run("get", "q", "-n", "5") == (0, "1\n", "")
    for command in ("get", "peek"):
        assert program.run(command, "q") == (1, "", "fdbqueue: 'q' is empty\n")
    assert program.run("size", "q") == (0, "0\n", "")


def test_data_that_only_looks_like_json_is_refused(program: Within) -> None:
    program.run("put", "q", "--create", "first")
    for broken in ('{"a": 1', "[1,]", '"open'):
        assert "is not JSON" in program.mistake("put", "q", "--create", "fine", broken)
    assert program.get("q") == ["first"]


def test_text_is_put_unchanged(program: Within) -> None:
    assert program.run("put", "q", "--create", "--text", "42", "{", "née")[0] == 0
    assert program.get("q") == ["42", "{", "née"]


def test_a_value_too_large_is_refused(shell: Shell, program: Within) -> None:
    program.run("put", "q", "--create", "1")
    status, out, err = shell.run("put", "q", "--create", "--lines", "-", given="2\n" + "x" * 9_000_000)
    assert (status, out) == (1, "")
    assert "over the limit of 8000000 bytes" in err
    assert program.get("q") == [1, 2]


def test_clear_must_be_confirmed(program: Within) -> None:
    program.run("put", "q", "--create", "1", "2")
    status, _, err = program.run("clear", "q")
    assert (status, err) == (1, "fdbqueue: clear would remove 2 items of 'q': confirm with --yes\n")
    assert program.run("clear", "q", "--yes") == (0, "", "fdbqueue: 2 removed\n")
    assert program.run("size", "q") == (0, "0\n", "")


@pytest.mark.parametrize("fate", FATES)
def test_clear_tells_its_number_after_any_result_of_commits(
    db: fdbqueue.Database, url: str, space: Subspace, fdb_module: ModuleType, fate: str
) -> None:
    queue = fdbqueue.Queue.named(db, "q", root=space)
    queue.enqueue_many(db, [1, 2])
    unsure, engine = faulty(db, fdb_module.FDBError)
    engine.fate = FATES[fate]
    assert [remove_items(unsure, Place(url, space), queue) for _ in range(2)] == [2, 0]
    assert queue.size(db) == 0


# -- lines ----------------------------------------------------------------------------------------------


def test_lines_of_a_file_keep_their_order(program: Within, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(2_500)))
    told = (0, "", "fdbqueue: 2500 put\n")
    assert program.run("put", "q", "--create", "--lines", f"{tmp_path}/lines") == told
    assert program.get("q", 2_500) == list(range(2_500))


def test_the_output_of_get_is_input_for_put(shell: Shell, program: Within) -> None:
    program.run("put", "a", "--create", '{"n": 1}', "two", "3")
    getting = shell.start("get", "a", "-n", "9")
    assert shell.run("put", "b", "--create", "--lines", "-", stdin=getting.stdout)[0] == 0
    assert rest_of(getting) == ("", "")
    assert getting.returncode == 0
    assert program.get("b") == [{"n": 1}, "two", 3]


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("a\n\n  \nb\r\nc", ["a", "b", "c"]),
        ('\ufeff{"n": 1}\r\n\ufefftwo\r\n', [{"n": 1}, "\ufefftwo"]),
    ],
    ids=["no end of the last line", "the mark of UTF-8"],
)
def test_empty_lines_and_marks_of_windows_are_skipped(
    shell: Shell, program: Within, given: str, items: list[Any]
) -> None:
    """Programs of Windows write the mark first. Elsewhere the character is data."""
    put = shell.run("put", "q", "--create", "--lines", "-", given=given)
    assert put == (0, "", f"fdbqueue: {len(items)} put\n")
    assert program.get("q") == items


def test_an_invalid_line_stops_the_put_and_is_named(shell: Shell, program: Within) -> None:
    status, _, err = shell.run("put", "q", "--create", "--lines", "-", given='1\n2\n{"a"\n4\n')
    told, refused = err.splitlines()
    assert (status, told, "line 3:" in refused) == (2, "fdbqueue: 2 put", True)
    assert program.get("q") == [1, 2]


def test_a_line_that_is_not_utf8_is_refused(shell: Shell) -> None:
    process = shell.start("put", "q", "--create", "--lines", "-", stdin=subprocess.PIPE)
    process.stdin.buffer.write(b"fine\n\xff\xfe\n")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "line 2" in err


def test_a_line_is_put_as_soon_as_it_is_read(shell: Shell, program: Within) -> None:
    """The line of a slow producer does not wait until a batch is full."""
    process = shell.start("put", "q", "--create", "--lines", "-", stdin=subprocess.PIPE)
    process.stdin.write("1\n")
    process.stdin.flush()
    wait_until(lambda: program.get("q") == [1])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (INTERRUPTED, "fdbqueue: 1 put\n")


def test_progress_is_lines_in_a_pipe_and_a_bar_on_a_terminal(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(12_000)))
    _, _, plain = shell.run("put", "q", "--create", "--lines", "lines")
    assert plain.splitlines()[-1] == "fdbqueue: 12000 put"
    assert "\x1b" not in plain
    assert "\x1b" in shell.screen("put", "q", "--lines", str(tmp_path / "lines"), stream="stderr")


def test_batches_fit_into_transactions() -> None:
    from fdbqueue.operate.cli.items import batches_of

    large, small = "x" * 600_000, [1] * 2_500
    assert [len(batch) for batch in batches_of(small)] == [1_000, 1_000, 500]
    assert [len(batch) for batch in batches_of([large, 1, large, large])] == [2, 1, 1]
    assert list(batches_of([])) == []


def test_a_long_text_is_shortened_in_a_message() -> None:
    with pytest.raises(ValueError, match="is not JSON") as refused:
        cli_values.value_of("[" + "x" * 1_000)
    assert len(str(refused.value)) < 300


# -- waiting, and readers that end -----------------------------------------------------------------------


def test_a_waiting_get_prints_items_that_are_put_meanwhile(shell: Shell, program: Within) -> None:
    program.run("put", "q", "--create", "1")
    waiting = shell.start("get", "q", "-n", "2", "--wait", "30")
    assert waiting.stdout.readline() == "1\n"
    program.run("put", "q", "--create", "2")
    assert rest_of(waiting) == ("2\n", "")
    assert waiting.returncode == 0


def test_wait_ends_when_its_time_is_over(program: Within) -> None:
    program.run("create", "q", "--kind", "queue")
    began = time.monotonic()
    assert program.run("get", "q", "--wait", "0.5")[0] == 1
    assert time.monotonic() - began >= 0.5


def test_an_interrupted_wait_ends_at_once_and_takes_nothing(shell: Shell, program: Within) -> None:
    program.run("put", "q", "--create", "1")
    for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)):
        waiting = shell.start("get", "q", "-n", "9", "--wait", "60")
        assert waiting.stdout.readline() == "1\n"
        waiting.send_signal(number)
        assert rest_of(waiting) == ("", "")
        assert waiting.returncode == status
        program.run("put", "q", "--create", "1")
    assert program.get("q") == [1]


def test_a_closed_pipe_takes_nothing(shell: Shell, program: Within) -> None:
    program.run("put", "q", "--create", "1", "2")
    for command in (["get", "q", "-n", "2"], ["peek", "q"], ["size", "q"], ["completion", "zsh"], ["--help"]):
        ours, theirs = os.pipe()
        os.close(ours)
        process = shell.start(*command, stdout=theirs)
        os.close(theirs)
        assert process.communicate()[1] == ""
        assert process.returncode == CLOSED_PIPE
    assert program.get("q") == [1, 2]


def test_a_full_disk_takes_nothing(shell: Shell, program: Within) -> None:
    program.run("put", "q", "--create", "1", "2")
    with open("/dev/full", "w") as full:
        status, _, err = shell.run("get", "q", "-n", "2", stdout=full)
    assert status == 2
    assert err == "fdbqueue: standard output: there is no room left on its disk\n"
    assert program.get("q") == [1, 2]


def test_a_reader_that_ends_gets_a_prefix_and_the_rest_stays(shell: Shell, program: Within) -> None:
    """The lines are long, and the pipe holds a few: most items are still in the queue, in order."""
    items = [f"{number} " + "x" * 5_000 for number in range(100)]
    shell.run("put", "q", "--create", "--lines", "-", given="\n".join(items))
    getting = shell.start("get", "q", "-n", "100")
    taken = [json.loads(getting.stdout.readline()) for _ in range(3)]
    time.sleep(0.5)  # the writer fills the pipe, and blocks
    getting.stdout.close()
    assert getting.communicate(timeout=20)[1] == ""
    assert getting.returncode == CLOSED_PIPE
    left = program.get("q")
    assert taken == items[:3]
    assert left == items[len(items) - len(left) :]
    assert len(left) > 50


@pytest.mark.in_turn(4)
def test_a_slow_reader_gets_each_item_once(shell: Shell) -> None:
    """The reader stops for longer than items are held."""
    items = [f"{number} " + "x" * 3_000 for number in range(60)]
    shell.run("put", "q", "--create", "--lines", "-", given="\n".join(items))
    getting = shell.start("get", "q", "-n", "60")
    time.sleep(HELD_S + 1)
    out, err = getting.communicate(timeout=30)
    assert (getting.returncode, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == items


def read_until_signal(shell: Shell, number: int, count: int, within_s: float) -> list[int]:
    """Let a reader of `count` items end by a signal at any moment; return the items that it prints."""
    getting = shell.start("get", "q", "-n", str(count))
    first = getting.stdout.readline()
    time.sleep(random.random() * within_s)
    getting.send_signal(number)
    out, err = rest_of(getting)
    assert (err, getting.returncode in (0, 128 + number, -number)) == ("", True)
    return [int(line) for line in (first + out).splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_moment_loses_nothing(shell: Shell, program: Within, number: int) -> None:
    items = list(range(400))
    program.run("put", "q", "--create", *map(str, items))
    printed: list[int] = []
    for _ in range(6):
        printed += read_until_signal(shell, number, 60, 0.05)
    assert printed + program.get("q") == items


@pytest.mark.in_turn(4)
def test_a_kill_loses_nothing(shell: Shell, program: Within) -> None:
    items = list(range(300))
    program.run("put", "q", "--create", *map(str, items))
    printed: list[int] = []
    for _ in range(4):
        printed += read_until_signal(shell, signal.SIGKILL, 100, 0.03)
    left = shell.get_until("q", lambda left: set(printed + left) == set(items))
    assert len(printed + left) <= len(items) + 4 * 50, "more than what four readers can have held came twice"


def test_two_readers_share_the_items_without_overlap(shell: Shell, program: Within) -> None:
    items = list(range(300))
    program.run("put", "q", "--create", *map(str, items))
    readers = [shell.start("get", "q", "-n", "100") for _ in range(4)]
    shares = [[int(line) for line in reader.communicate(timeout=60)[0].splitlines()] for reader in readers]
    assert sorted(chain.from_iterable(shares)) == items


# -- mistakes and environments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "q"],
        ["put", "q", "1", "--lines", "-"],
        ["put", "q", "--create", "--lines", "no-such-file"],
        ["put", "", "1"],
        ["get"],
        ["get", "q", "-n", "0"],
        ["get", "q", "-n", "many"],
        ["put", "q", "1"],
        ["get", "q", "--wait", "nan"],
        ["nonsense"],
        ["--url", "nonsense:", "put", "q", "--create", "1"],
        ["--url", "embedded:/proc/nowhere", "put", "q", "--create", "1"],
    ],
)
def test_a_mistake_is_status_2_and_one_line(tmp_path: Path, arguments: list[str]) -> None:
    status, out, err = Shell(f"embedded:{tmp_path}/data", [], tmp_path).run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("fdbqueue: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["put", "q", "--create", b"\xff"], ["put", "q", "--create", "--text", b"\xff"], ["put", b"\xff", "1"]],
)
def test_arguments_that_are_not_text_are_a_mistake(tmp_path: Path, arguments: list[Any]) -> None:
    status, _, err = Shell(f"embedded:{tmp_path}/data", [], tmp_path).run(*arguments)
    assert status == 2
    assert err.count("\n") == 1


def test_a_negative_wait_tries_once(program: Within) -> None:
    program.run("put", "q", "--create", "1")
    assert program.run("get", "q", "--wait", "-1") == (0, "1\n", "")
    assert program.run("get", "q", "--wait=-inf") == (1, "", "fdbqueue: 'q' is empty\n")


def test_a_closed_standard_input_is_a_mistake(shell: Shell) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM, *shell.where, "put", "q", "--lines", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "fdbqueue: standard input is closed\n")


def test_url_and_root_may_stand_behind_the_command(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/data"
    bare = Shell(url, [], tmp_path)
    assert bare.run("put", "q", "--create", "1", "--root", "team/mail")[0] == 0
    assert bare.run("size", "q")[0] == 2
    assert bare.run("--root", "team/mail", "size", "q") == (0, "1\n", "")
    with fdbqueue.open(url) as db:
        queue = fdbqueue.Queue.named(db, "q", root=Subspace(("team", "mail")), create=False)
        assert queue.size(db) == 1


def test_without_url_the_environment_names_the_database(tmp_path: Path) -> None:
    shell = Shell("", [], tmp_path)
    shell.where = []
    unset = os.environ | {"FDBQUEUE_URL": "", "FDB_CLUSTER_FILE": ""}
    assert shell.run("put", "q", "--create", "1", env=unset)[0] == 0
    assert (tmp_path / "fdbqueue-data").is_dir()
    elsewhere = os.environ | {"FDBQUEUE_URL": f"embedded:{tmp_path}/elsewhere"}
    assert shell.run("put", "q", "--create", "2", env=elsewhere)[0] == 0
    assert shell.run("get", "q", env=elsewhere) == (0, "2\n", "")


def test_without_the_extra_the_message_says_how_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    status, out, err = Shell("memory:", [], tmp_path).run("size", "q", env=os.environ | {"PYTHONPATH": path})
    assert (status, out) == (2, "")
    assert err == "fdbqueue: the command line is an extra: pip install 'fdbqueue[cli]'\n"


def test_the_package_runs_as_the_same_program(tmp_path: Path) -> None:
    package = [sys.executable, "-m", "fdbqueue"]
    helped = [subprocess.run(one, capture_output=True, text=True, check=True) for one in (package, PROGRAM)]
    assert helped[0].stdout == helped[1].stdout
    assert helped[0].stdout.startswith("Usage: fdbqueue [OPTIONS]")
    command = [*package, "--url", f"embedded:{tmp_path}/data", "size", "q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fdbqueue: there is no ")


def test_help_names_every_command() -> None:
    done = subprocess.run([*PROGRAM], capture_output=True, text=True, check=True)
    for command in ("put", "get", "peek", "size", "clear", "demo"):
        assert f"\n  {command} " in done.stdout
