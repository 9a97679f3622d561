"""Control and format characters from data: on terminals, in pipes, in JSON, in logs, in completions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Failure, TaskQueue
from fdbqueue.core.logger import logger
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.wording import line_of
from tests.cli.shell import Shell, Within
from tests.cli.test_queues import completions

EVIL = "\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202egnp\u200b\u2028a\tb\rc"
HIDDEN = set(EVIL) - set("]0;owned[2J31mgnpabc")
SEEN = r"\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202egnp\u200b"


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Within:
    """The program, on a queue and a buried task full of control characters."""
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        queue = TaskQueue.create(db, EVIL, "utube")
        queue.put(db, EVIL, key=EVIL)
        task = queue.take(db, 0)
        queue.bury(db, task, failure=Failure(EVIL, EVIL, EVIL, EVIL))
        queue.put(db, EVIL, key=EVIL)
        fdbqueue.Queue.named(db, "plain").enqueue(db, EVIL)
    return Within(Shell(url, [], tmp_path), capfd)


COMMANDS = [
    ["queues"],
    ["stats"],
    ["stats", EVIL],
    ["tasks", EVIL],
    ["tasks", EVIL, "--state", "buried"],
    ["top", EVIL, "-n", "1"],
    ["peek", "plain"],
    ["pause", EVIL],
    ["peek", EVIL],
    ["stats", f"not {EVIL}"],
    ["create", EVIL],
    ["put", EVIL, EVIL, "--json"],
    ["bury", EVIL, EVIL],
    ["create", "new", "--weight", EVIL],
    ["--root", f"/{EVIL}", "queues"],
    ["--url", f"embedded:{EVIL}", "queues"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words).replace(EVIL, "EVIL"))
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_control_character_of_data_is_printed(
    program: Within, command: list[str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal:
        for module in ("top", "show"):  # an import of `top` would keep the other one
            monkeypatch.setattr(f"fdbqueue.operate.cli.{module}.on_a_terminal", lambda: True)
    _, out, err = program.run(*command)
    assert out + err
    printed = (out + err).replace("\t", "")  # the separator of columns
    assert not HIDDEN & set(printed), visible(printed)


def test_json_prints_control_characters_as_escapes(program: Within) -> None:
    _, out, _ = program.run("tasks", EVIL, "--state", "buried", "--json")
    assert not HIDDEN & set(out)
    (task,) = map(json.loads, out.splitlines())
    (failure,) = task["history"]
    assert [task["data"], task["key"], failure["error"], failure["message"]] == [EVIL] * 4


@pytest.mark.parametrize(
    "value", [EVIL, "plain", "ä\u00a0ö", "\U000e0041", "\U0001f468\u200d\U0001f469", {"\x7f": 1}]
)
def test_a_line_of_json_decodes_to_the_value(value: object) -> None:
    line = line_of(value)
    assert json.loads(line) == value
    assert not HIDDEN & set(line.decode())


def test_a_tab_in_a_name_adds_no_column(program: Within) -> None:
    _, out, _ = program.run("queues")
    evil, plain = (line.split("\t") for line in out.splitlines())
    assert len(evil) == len(plain)
    assert evil[0].startswith(SEEN)


LOGGING = """
import logging, sys
from fdbqueue.fleet.logs import logging_at
with logging_at("info"):
    try:
        raise ValueError({evil!r} + chr(10) + "2026-01-01 ERROR [1] forged")
    except ValueError:
        logging.getLogger("handler").exception("of %s", {evil!r})
"""


def test_no_control_character_of_data_is_logged() -> None:
    program = [sys.executable, "-c", LOGGING.format(evil=EVIL)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert not HIDDEN & set(done.stderr)
    assert SEEN in done.stderr.splitlines()[0]


def test_a_handler_of_the_program_gets_visible_records(caplog: pytest.LogCaptureFixture) -> None:
    """Records of our loggers only. A record that cannot be formatted breaks no call."""

    class Odd:
        def __str__(self) -> str:
            raise ValueError

    try:
        raise ValueError(EVIL)
    except ValueError:
        logger("fdbqueue.worker").exception("of %s", f"{EVIL}\nforged")
    logger("fdbqueue.worker").warning("of %s", Odd())
    assert not HIDDEN & set(caplog.text)
    first, second = caplog.records
    assert first.getMessage().endswith(r"\nforged")
    assert second.getMessage() == "of %s (its values cannot be shown: ValueError)"


@pytest.mark.parametrize(
    "name", ["ma$(touch x)", "ma`id`", "ma;x", "ma\nmb", "ma b", "ma'x", "ma\x1b", "ma*", "ma~"]
)
def test_a_name_that_a_shell_would_run_is_not_completed(tmp_path: Path, name: str) -> None:
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    with fdbqueue.open(shell.url) as db:
        for each in (name, "mails", "mä-1.x:y/z"):
            TaskQueue.create(db, each)
    assert sorted(completions(shell, "fdbqueue stats m")) == ["mails", "mä-1.x:y/z"]
