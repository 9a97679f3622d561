"""A Django project in a directory, and its worker processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MANAGE = """
import sys

from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
SETTINGS = """
SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["fdbqueue.integrations.django"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}}}
TASKS = {tasks!r}
"""


class Project:
    def __init__(self, place: Path, tasks: dict[str, Any]) -> None:
        """`tasks`: the setting TASKS."""
        self._place = place
        place.mkdir(exist_ok=True)
        (place / "manage.py").write_text(MANAGE)
        (place / "settings_of_test.py").write_text(SETTINGS.format(tasks=tasks))

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self._place,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=240,
        )

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process of `manage.py fdbqueue_worker`, killed at the end of the block if it still runs."""
        process = subprocess.Popen(
            [sys.executable, "manage.py", "fdbqueue_worker", *arguments],
            cwd=self._place,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def _environment(self) -> dict[str, str]:
        paths = [str(self._place), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "settings_of_test",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
        }


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
