"""Django's own tests of a backend, as they are, on ours (`make upstream` downloads them)."""

import os
import subprocess
import sys
from pathlib import Path

import django
import pytest

from tests.frameworks.upstream import ROOT, source_of

RELEASE = "django-6.0.10"
OURS = Path(__file__).parent / "upstream" / "ours.py"
RUN = 14
"""The number of tests that run; upstream/ours.py names the others, each with its reason."""


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django 5.2 has no tasks; see `make django`")
def test_django_s_tests_of_a_backend_pass() -> None:
    paths = os.pathsep.join([str(source_of(RELEASE) / "tests"), str(ROOT)])

    ran = subprocess.run(
        [sys.executable, str(OURS)], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stderr[-5_000:]
    assert f"Ran {RUN} tests" in ran.stderr
