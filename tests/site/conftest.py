"""The built site, once for all processes of a run."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the site. The build is strict: a broken link or anchor fails it."""
    pytest.importorskip("material", reason="the site needs the extra `docs`")
    pytest.importorskip("mkdocstrings_handlers.python", reason="the site needs the extra `docs`")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    target = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build(shared / "site.unfinished")
            (shared / "site.unfinished").rename(target)
    return target


def _build(target: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(target)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
