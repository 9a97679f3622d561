"""Runs a program under the recorder, which is compiled at first use."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("recorder.c")
REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 240


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def built(folder: Path) -> Path:
    """The recorder as a library in `folder`."""
    library = folder / "recorder.so"
    if not library.exists():
        words = [
            compiler() or "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-o",
            str(library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(words, check=True, timeout=LIMIT_S)
    return library


def importing() -> dict[str, str]:
    """The environment of a program that imports this repository."""
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH"))  # the tests' own may move the default root
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(
    library: Path, root: Path, log: Path, module: str, *words: str, **variables: str
) -> "subprocess.Popen[str]":
    """Start `python -m module words`; each change below `root` is recorded in `log`."""
    environment = {
        **importing(),
        "LD_PRELOAD": str(library),
        "RECORDED_DIRECTORY": str(root),
        "RECORD_LOG": str(log),
        **variables,
    }
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)


def finish(process: "subprocess.Popen[str]") -> str:
    """Wait for the end; return the last words of a process that has failed."""
    _, told = process.communicate(timeout=LIMIT_S)
    return f"exit status {process.returncode}: {told}" if process.returncode else ""
