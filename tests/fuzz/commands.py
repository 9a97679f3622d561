"""Every option and argument of the command line, found by itself, with hostile texts."""

import io
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import fdbqueue
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.commands import Program as LazyProgram
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from tests.fuzz.search import Verdict
from tests.fuzz.world import SCHEMA, Image, look, restore

MESSAGE_LENGTH_MAX = 1_000
STATUSES = (0, 1, 2)
MISTAKE = 2

LEFT_OUT = {
    "demo": "it runs for a minute",
    "follow": "it waits until its task ends",
    "top -n": "it repeats as often as it is told to",
    "put --lines": "the files that it reads are no texts of an option: tests/cli has them",
}
"""Commands and options that are not tried, and the reason."""

BASES = {
    **{name: ["fair", "TOKEN"] for name in ("ack", "release", "touch")},
    "bury": ["fair", "ID"],
    "cancel": ["fair", "ID"],
    "clear": ["plain", "--yes"],
    "completion": ["bash"],
    "conformance": [],  # the hostile word is the program
    "create": ["new"],
    # It serves until it is stopped: the missing token is told after all options have been judged.
    "dashboard": ["--host", "0.0.0.0"],
    "delete": ["fair", "ID"],
    "drop": ["fair", "--yes"],
    "elements add": ["simple", "data"],
    "elements export-dirq": ["simple", "spool"],
    "elements get": ["simple", "NAME"],
    "elements import-dirq": ["simple", "empty"],
    "elements list": ["simple"],
    "elements purge": ["simple"],
    "elements remove": ["simple", "NAME"],
    "get": ["plain"],
    "metrics": ["fair", "--once"],
    "peek": ["plain"],
    "put": ["plain", "data"],
    "size": ["plain"],
    "stats": ["fair"],
    "top": ["fair", "-n", "1", "--interval", "0.01"],
    # The queue is looked for last, after all options have been judged.
    "work": ["missing", "builtins:print"],
}
"""The words of a command that succeeds; of those that are not here: the name of a queue."""

TEXTS: dict[str, str] = {
    "empty": "",
    "space": " ",
    "0": "0",
    "-1": "-1",
    "1": "1",
    "0.5": "0.5",
    "-0": "-0",
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "1e400": "1e400",
    "1e15": "1e15",
    "5e-324": "5e-324",
    "2**63": str(2**63),
    "6,000 digits": "9" * 6_000,
    "Arabic digits": "\u0664\u0662",
    "hexadecimal": "0x10",
    "underscores": "1_000",
    "escape": "\x1b[2J\x1b]0;x\x07",
    "C1 and bidi": "\x9b31m\u202e\u200b\u2028",
    "newline": "a\nb\r",
    "escaped byte": "\udcff",
    "surrogate": "\ud800",
    "20 kB": "x" * 20_000,
    "300 letters": "y" * 300,
    "path": "../../etc/passwd",
    "metacharacters": "$(touch x); `id` %s {0} {name}",
    "markup": "[red]x[/red] [/]",
    "dashes": "--",
    "option": "--json",
    "equals": "a=b=1",
    "weight": "k=99999999999999999999",
    "deep JSON": "[" * 3_000 + "]" * 3_000,
    "half of JSON": '{"a": ',
    "deep weight": "[" * 900 + "]" * 900 + "=1",
    "object of JSON": '{"body": "x", "\\u001b": 1e400}',
    "NUL": "a\x00b",
    "surrogate of JSON": '"\\ud800"',
    "url": "embedded:" + "a/" * 3_000,
    "memory": "memory:",
    "colon": "module:",
    "module": "no.such.module:name",
    "commas": ",,,",
}


@dataclass(frozen=True)
class Line:
    """A command line, and its hostile word."""

    command: str
    option: str
    label: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.command} {self.option}"

    def __str__(self) -> str:
        return f"{self.name} <{self.label}>"


def lines(chosen: random.Random, labels_each: int | None = None) -> Iterator[Line]:
    """Each option of each command with hostile texts: `labels_each` of them, or all, in any order."""
    for name, command in _commands(cli, ()):
        for parameter in command.params:
            option = parameter.opts[0]
            if _is_flag(parameter) or {name, f"{name} {option}"} & set(LEFT_OUT):
                continue
            labels = [*TEXTS] if labels_each is None else chosen.sample([*TEXTS], labels_each)
            for label in labels:
                yield Line(name, option, label, _words(name, parameter, TEXTS[label]))


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, LazyProgram):
        command.load()
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from _commands(below, (*path, name))
    else:
        yield " ".join(path), command


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def _words(name: str, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    base = BASES.get(name, [] if name == "queues" else ["fair"])
    if isinstance(parameter, click.Option):
        option = parameter.opts[0]
        given = [f"{option}={text}"] if option.startswith("--") else [option, text]
        return (*name.split(), *base, *given)
    at = 1 if len(base) > 1 and parameter.name != "queue" and not base[1].startswith("-") else 0
    return (*name.split(), *base[:at], text, *base[at + 1 :])


class Program:
    """The command line on a database of its own, in this process."""

    def __init__(self, folder: Path) -> None:
        self.url = f"embedded:{folder}/commands"
        self._folder = folder
        with fdbqueue.open(self.url) as db:
            fair = fdbqueue.TaskQueue.create(db, "fair", "fair")
            self._task = fair.put(db, 1, key="k").id
            fair.put(db, 2, key="l")
            held = fair.take(db, 0)
            assert held is not None
            self._token = fair.detach(db, held, 1e6)
        with fdbqueue.open(self.url) as db:  # the session of the take has ended
            fdbqueue.Queue.named(db, "plain").enqueue_many(db, [1, 2])
            simple = fdbqueue.SimpleElementQueue.named(db, "simple")
            self._name = simple.add(db, b"x")
            fdbqueue.ElementQueue.named(db, "pieces", SCHEMA).add(db, {"body": "x"})
            self._image = look(db)

    def run(self, line: Line) -> Verdict:
        """Whether the line was refused, and the rule that it violates."""
        (Path.cwd() / "empty").mkdir(exist_ok=True)
        stand_ins = {"ID": self._task, "NAME": self._name, "TOKEN": self._token}
        words = [stand_ins.get(word, word) for word in line.words]
        with _captured(self._folder) as (out, err):
            try:
                status = run(cli, ["--url", self.url, *words])
            except BaseException as error:
                return Verdict(True, f"{type(error).__name__} reaches the interpreter")
        changed = self._put_back()
        return Verdict(status != 0, _violation(status, changed, out(), err()))

    def _put_back(self) -> bool:
        with fdbqueue.open(self.url) as db:
            there: Image = look(db)
            restore(db, self._image)
        return there != self._image


def _violation(status: int, changed: bool, out: str, said: str) -> str:
    if status not in STATUSES:
        return f"status {status}"
    if status == MISTAKE and changed:
        return "a mistake has changed what is stored"
    if len(said) > MESSAGE_LENGTH_MAX:
        return f"a message of {len(said)} characters"
    printed = said + out
    return "control characters are printed" if visible(printed, keep="\n\t") != printed else ""


@contextmanager
def _captured(folder: Path) -> Iterator[tuple[Callable[[], str], Callable[[], str]]]:
    """Standard output and standard error as files: programs write to their descriptors."""
    before = sys.stdout, sys.stderr
    streams = [_stream(folder / name) for name in ("out", "err")]
    try:
        sys.stdout, sys.stderr = streams
        yield (lambda: _text(folder / "out")), (lambda: _text(folder / "err"))
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.close()


def _stream(path: Path) -> Any:
    return io.TextIOWrapper(path.open("wb"), errors="strict", line_buffering=True)


def _text(path: Path) -> str:
    return path.read_text(errors="surrogateescape")
