"""Builds the host with the headers and the library of this Python."""

import compileall
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("host.c")
REPOSITORY = Path(__file__).parents[2]
_LIMIT_S = 120


def missing() -> str | None:
    """What this machine lacks to build the host; None if it has all."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if compiler() is None:
        return "a C compiler"
    if not headers.exists():
        return "the headers of Python"
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return "a Python with a shared library"
    if sys.version_info >= (3, 14):
        return "a Python before 3.14, which does not look whose stack it runs on"
    return None


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def built(folder: Path) -> Path:
    """Build `libfdbqueue_host.so` in a folder. Raises: CalledProcessError."""
    library = folder / "libfdbqueue_host.so"
    where = str(sysconfig.get_config_var("LIBDIR"))
    words = [
        compiler() or "cc",
        *("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"),
        f'-DLIBPYTHON="{sysconfig.get_config_var("INSTSONAME")}"',
        f"-I{sysconfig.get_path('include')}",
        *("-o", str(library), str(SOURCE)),
        # Kept in the process: the simulator closes the library between two tests.
        *(
            f"-L{where}",
            f"-Wl,-rpath,{where}",
            "-Wl,-z,nodelete",
            f"-lpython{sysconfig.get_python_version()}",
        ),
        "-ldl",
    ]
    subprocess.run(words, check=True, timeout=_LIMIT_S)
    return library


def compile_modules() -> None:
    """Write the bytecode of our modules. The host's Python only reads it, and starts half a second sooner."""
    for name in ("fdbqueue", "tests/simulation", "tests/simulator", "tests/system"):
        compileall.compile_dir(REPOSITORY / name, quiet=2)


def search_path() -> str:
    """Where the host's Python finds modules: as this one does."""
    return ":".join([str(REPOSITORY), *filter(None, sys.path)])
