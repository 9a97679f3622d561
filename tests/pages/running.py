"""Runs the blocks of a page as a reader would: from top to bottom, in one directory and one terminal."""

import doctest
import json
import os
import re
import select
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from signal import SIGKILL

from tests.pages.blocks import READ, ROOT, Block

BLOCK_S = 280
LINKED = ("docs", "examples")
PROGRAM = ROOT / "tests" / "pages" / "program.py"
BASH = 'while read -r step; do eval "$step"; echo done >&$1; done'


class Session:
    """A process that runs blocks: it reads a line for each, and answers on a descriptor of its own."""

    def __init__(self, command: list[str], place: Path, environment: dict[str, str]) -> None:
        self._answers, answer_to = os.pipe()
        self._process = subprocess.Popen(
            [*command, str(answer_to)],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            pass_fds=[answer_to],
            start_new_session=True,
            text=True,
        )
        os.close(answer_to)

    def ran(self, line: str) -> bool:
        """True if it ran a block to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered, _, _ = select.select([self._answers], [], [], BLOCK_S)
        return bool(answered and os.read(self._answers, 100))

    def ended(self) -> bool:
        """True if it ends well when it has nothing more to read."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(BLOCK_S) == 0

    def close(self) -> None:
        """Kill the rest of it: background commands, too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.communicate()
        os.close(self._answers)


class Reader:
    """Follows one page. Each Python block is a program, unless it continues the one before it."""

    def __init__(self, place: Path, compiled: Path, variables: dict[str, str] | None = None) -> None:
        """`variables`: those of another environment than that of the tests."""
        self._place = place / "page"
        self._place.mkdir()
        for name in LINKED:
            (self._place / name).symlink_to(ROOT / name)
        self._outputs = place
        # Modules are compiled once for all pages: a command is a third slower otherwise.
        self._environment = (variables or _of_tests(place)) | {"PYTHONPYCACHEPREFIX": str(compiled)}
        self._stack = ExitStack()
        self._terminal: Session | None = None
        self._program: Session | None = None

    def follow(self, blocks: list[Block]) -> None:
        """Raises PageError for the first block that does not do as the page says."""
        with self._stack:
            for block, after in zip(blocks, [*blocks[1:], None], strict=True):
                self._follow(block, after)
            self._end_program(blocks[-1])

    def _follow(self, block: Block, after: Block | None) -> None:
        options = block.options
        if "file" in options:
            (self._place / options["file"]).write_text(block.text)
        elif "source" in options or "norun" in options:
            return
        elif block.language in READ:
            READ[block.language](block.text)
        elif block.language == "python":
            check(block, after, self._python(block))
        elif block.language == "sh":
            check(block, after, self._sh(block))

    def _sh(self, block: Block) -> str:
        if self._terminal is None:
            self._terminal = self._session(["bash", "-euo", "pipefail", "-c", BASH, "bash"])
        script, output = self._outputs / "block.sh", self._outputs / "output"
        script.write_text(block.text)
        if not self._terminal.ran(f"source '{script}' > '{output}' 2>&1 < /dev/null"):
            raise block.error(f"failed:\n{output.read_text()}")
        return output.read_text()

    def _python(self, block: Block) -> str:
        if "continues" not in block.options:
            self._end_program(block)
            self._program = self._session(["python", str(PROGRAM)])
        if self._program is None:
            raise block.error("continues nothing")
        output, errors = self._outputs / "output", self._outputs / "errors"
        step = {"text": "\n" * block.line + block.text, "page": block.page}
        if not self._program.ran(json.dumps(step | {"output": str(output), "errors": str(errors)})):
            raise block.error(f"failed:\n{errors.read_text()}")
        return output.read_text()

    def _end_program(self, block: Block) -> None:
        if self._program is not None and not self._program.ended():
            raise block.error("a program before it has not ended well")
        self._program = None

    def _session(self, command: list[str]) -> Session:
        return self._stack.enter_context(closing(Session(command, self._place, self._environment)))


def _of_tests(place: Path) -> dict[str, str]:
    """The reader's: this Python and its `fdbqueue` on the PATH, and no database but that of the directory."""
    programs = place / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("fdbqueue", "-m fdbqueue.operate.cli ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    unset = ("FDBQUEUE_URL", "PYTHONDONTWRITEBYTECODE")
    tests = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    return {name: value for name, value in os.environ.items() if name not in unset} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": tests,
    }


def check(block: Block, after: Block | None, printed: str) -> None:
    """Compare an output with the comments behind the calls of print, and with the text block that follows."""
    if after and after.section == block.section and after.language == "text" and not after.options:
        wanted = after.text
    elif block.language == "python":
        wanted = "".join(f"{line}\n" for line in promised(block.text))
    else:
        return
    same = doctest.OutputChecker()
    if not same.check_output(wanted, printed, doctest.ELLIPSIS):
        example = doctest.Example(block.text, wanted)
        raise block.error(same.output_difference(example, printed, doctest.REPORT_NDIFF | doctest.ELLIPSIS))


def promised(text: str) -> list[str]:
    return re.findall(r"^\s*print\(.*\)  # (.*)", text, re.MULTILINE)
