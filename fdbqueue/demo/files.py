"""The demo's input: the source files of the standard library that this Python runs on."""

import hashlib
import sysconfig
from pathlib import Path

from fdbqueue.demo.ledger import Counted

_NOT_THE_LIBRARY = {"site-packages", "dist-packages"}


def source_files() -> list[str]:
    """Their paths, in one order for all processes."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path for path in library.rglob("*.py") if not _NOT_THE_LIBRARY.intersection(path.parts))
    return sorted(str(path) for path in found if path.is_file())


def count(path: str) -> Counted:
    """The file's digest and its number of lines."""
    content = Path(path).read_bytes()
    return Counted(hashlib.sha256(content).digest(), content.count(b"\n"))
